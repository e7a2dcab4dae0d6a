"""What a node says of itself when it registers."""

from __future__ import annotations

from dataclasses import dataclass

from fedstrata.flower.payload import Schema

REGISTER = "query.register"
"""The type of the message that asks a node which client it is; `client_app` has a function for it."""


@dataclass(frozen=True)
class InfoRequest:
    """What a node that registers is asked, beside the config of the run.

    Attributes:
        client: The id that its client will have; None as long as the server does not know whose node it is.
    """

    client: int | None = None


ANY_CLIENT = -1
"""Instead of a client's id: numbers of samples that hold under every id."""


@dataclass(frozen=True)
class ClientInfo:
    """What a node says of itself when it registers.

    Attributes:
        key: The key of its client.
        train: The number of training samples.
        test: The number of test samples.
        client: The id under which it has so many of each; `ANY_CLIENT` where that does not depend on the id.
    """

    key: str
    train: int
    test: int
    client: int = ANY_CLIENT


INFO_REQUEST = Schema(InfoRequest)


CLIENT_INFO = Schema(ClientInfo)
