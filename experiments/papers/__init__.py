"""Variants of the papers' algorithms, for their exhibits: experiments name them by import path."""
