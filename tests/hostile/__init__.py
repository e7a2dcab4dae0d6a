"""Hostile input: generated files and folders, and a runner that tries each of them in a process of its own."""
