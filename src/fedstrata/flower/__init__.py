"""The same algorithms over a real network: clients behind Flower's SuperLink and SuperNodes.

`deploy` has the commands that make a federation and run an experiment on it. `federation` is the file about it;
`scaffold` makes the folder, `credentials` the keys, and `client_data` the files of the clients. `on_devices` says what
an experiment needs there. Flower itself starts `server_app` and `client_app`, and `simulation` runs them with virtual
nodes on one machine.

On the server, `server_app` drives an ordinary run whose clients are `clients.FlowerClients`. They ask over the `grid`
those devices that are in the `client_registry`. On a device, `client_app` does what a message asks. Between them travel
`requests` with the config of the run, and `replies`, each as a `payload.Payload`.

Nothing is imported here: an experiment is checked before torch and Flower are.
"""
