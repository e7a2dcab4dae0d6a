"""Checks of updates: which clients send what no honest client of their cluster would.

`update_checks` goes through them in order. `compared_updates` is what they compare. `norms` finds updates that are too
long, and `directions` those that point backwards.
"""
