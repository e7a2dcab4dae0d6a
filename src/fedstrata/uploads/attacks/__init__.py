"""What Byzantine clients send instead of what they have trained, for experiments with robust rules."""
