"""The same algorithms over a real network: clients behind Flower's SuperLink and SuperNodes.

``deploy`` makes a federation and runs an experiment on it. Inside, `clients.FlowerClients` is the `Clients` of the
server, and `client_work.work` is what a client does with a message. Between them travel `requests` and `replies`, each
as a `payload.Payload`. Nothing is imported here: an experiment is checked before torch and Flower are.
"""
