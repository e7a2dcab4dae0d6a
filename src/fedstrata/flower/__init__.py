"""The same algorithms over a real network: clients behind Flower's SuperLink and SuperNodes.

``deploy`` makes a federation and runs an experiment on it. Inside, `remote.Remote` is the `Clients` of the server, and
`device.answer` what a device does: between them travel `letter.Letter`. Nothing is imported here: an experiment is
checked before torch and Flower are.
"""
