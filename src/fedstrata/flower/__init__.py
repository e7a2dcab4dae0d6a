"""The same algorithms on Flower: a strategy for any app, and the app of those who have none.

`Clustered` of `strategy` clusters the nodes of an app of the user's own, which are its `app_clients`; `fold` of `app`
is what such an app may need.

For clients without an app:

`deploy` has the commands that make a federation and run an experiment on it. `federation` is the file about it;
`scaffold` makes the folder, `credentials` the keys, and `client_data` the files of the clients. `on_devices` says what
an experiment needs there. Flower itself starts `server_app` and `client_app`, and `simulation` runs them with virtual
nodes on one machine.

On the server, `server_app` drives an ordinary run whose clients are `clients.FlowerClients`. They ask over the `grid`
those devices that are in the `client_registry`. On a device, `client_app` does what a message asks. Between them travel
`requests` with the config of the run, and `replies`, each as a `payload.Payload`.

Nothing is imported before it is used: an experiment is checked before torch and Flower are.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedstrata.flower.app import fold as fold
    from fedstrata.flower.app import proximal as proximal
    from fedstrata.flower.served_app import serve as serve
    from fedstrata.flower.strategy import Clustered as Clustered

_HOMES = {
    "Clustered": "fedstrata.flower.strategy",
    "fold": "fedstrata.flower.app",
    "proximal": "fedstrata.flower.app",
    "serve": "fedstrata.flower.served_app",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
