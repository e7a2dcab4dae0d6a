"""Experiments with faults, attacks, leaks and privacy."""
