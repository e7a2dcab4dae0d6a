"""Splits that folds of the clients' data must prove: Strata's test, its budget, and the gate for other algorithms."""
