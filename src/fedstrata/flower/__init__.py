"""The same algorithms over a real network: clients behind Flower's SuperLink and SuperNodes.

`deploy` has the commands that make a federation (with `federation`, `scaffold`, `credentials` and `client_data`) and
run an experiment on it; `simulation` runs it with virtual nodes on one machine.

On the server, `server` drives an ordinary run whose clients are `clients.FlowerClients`. They ask over the `grid` those
devices that are in the `client_registry`. On a device, `client_work` is what is done with a message. Between them
travel `requests` with a `run_config`, and `replies`, each as a `payload.Payload`. `secure_sum` is for runs whose server
sees sums alone.

Nothing is imported here: an experiment is checked before torch and Flower are.
"""
