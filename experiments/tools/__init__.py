"""What makes the pages, the tables and the pictures of the documentation."""
