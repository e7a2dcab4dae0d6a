"""What several papers share: a file for each idea."""
