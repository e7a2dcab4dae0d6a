"""What several algorithms share: one textbook idea a file.

`groups` has statistics by group, and `client_rows` puts rows back among all clients.
"""
