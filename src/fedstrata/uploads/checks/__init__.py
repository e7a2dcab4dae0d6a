"""Checks of updates: which clients send what no honest client of their cluster would.

`update_checks` goes through them in order. `compared_updates` takes from a report what is compared, and
`updates_of_clusters` is how the updates of a cluster point beside each other. `norms` finds updates that are too long,
`directions` those that point backwards, `one_sided_updates` those that lie on one side of the others, and
`copied_updates` those that are all the same. `client_rows` puts rows back among all clients.
"""
