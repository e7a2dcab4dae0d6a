"""One run: what it is built from, the loop over its rounds, and who takes part."""
