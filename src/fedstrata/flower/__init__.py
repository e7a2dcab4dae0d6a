"""The same algorithms on Flower: a strategy for any app, and the app of those who have none.

Both are one way. `rounds` plays an ordinary run, with the same records, whose clients are nodes; `members` says which
node speaks for which client. What a client is asked in a round is one message, a `requests.Request`, and what it
answers one `replies.Reply`, each as a `payload.Payload` over the `grid`. On the server the `clients` make and read
them, and on a node the frame in `node`.

`strategy` has `Clustered` for an app of the user's own. `served_app` puts its functions into the frame. An app without
it gets a message for each question, by `app_clients`; both have the `app_form`. `app` has what such an app may need.

`server_app` and `client_app`, which Flower starts, are for clients without an app: the loop engine is in the frame.
`simulation` runs them with virtual nodes on one machine. `deploy` has the commands that make a federation and run an
experiment on it. `federation` is the file about it; `scaffold` makes the folder, `credentials` the keys, and
`client_data` the files of the clients. `on_devices` says what an experiment needs there.

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
