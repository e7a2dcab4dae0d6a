"""Secure aggregation over the network: the server sees sums of updates and no update.

`client` and `server` are the two sides of one sum, with the cryptography of `masking`. They know nothing of a network:
`messages` carries what they exchange. On the server `sums_of_round` drives all sums of a round, and `device_work` is
what a device does with the messages.
"""
