"""The ClientApp, imported by Flower alone, in a process of its own for every message."""

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedstrata.flower import client_work

client_app = ClientApp()
# The bits of a sum depend on how many threads share it.
torch.set_num_threads(1)


@client_app.train()
def _train(message: Message, context: Context) -> Message:
    """Score and train."""
    return client_work.by_node_config(client_work.work, message, context.node_config)


@client_app.query("register")
def _register(message: Message, context: Context) -> Message:
    """Say which client this is."""
    return client_work.by_node_config(client_work.register, message, context.node_config)
