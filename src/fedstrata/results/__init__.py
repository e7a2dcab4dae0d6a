"""What a run came to: `run` for the user, `plot` for its charts, `export` for its models, `assign` for newcomers."""
