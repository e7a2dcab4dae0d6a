"""Published tables of others, repeated with this library."""
