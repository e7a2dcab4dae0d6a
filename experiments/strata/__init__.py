"""Experiments with Strata and its rivals."""
