"""Checks of updates: which clients send what no honest client of their cluster would.

`update_checks` goes through them in order. `compared_updates` is what they compare. `norms` finds updates that are too
long, `directions` those that point backwards, `one_sided_updates` those that lie on one side of the others, and
`copied_updates` those that are all the same.
"""
