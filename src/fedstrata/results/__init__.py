"""What a run came to: `run` is what the user gets, `assign` places newcomers by it, `export` writes its models."""
