"""What several papers share: one textbook idea a file."""
