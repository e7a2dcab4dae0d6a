"""Client-level differential privacy: how much noise, what it promises, and what it does not cover. Secure sums."""
