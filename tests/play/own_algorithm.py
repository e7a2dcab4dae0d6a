"""Algorithms of a user's own: FedAvg, with and without a word about what it discloses."""

from dataclasses import dataclass

from fedstrata.algorithms.fedavg import FedAvg
from fedstrata.core import Disclosure


@dataclass(frozen=True)
class Undeclared(FedAvg):
    """It says nothing."""


@dataclass(frozen=True)
class Declared(FedAvg):
    """It says that the server needs sums alone."""

    def disclosure(self, rounds: int) -> Disclosure:
        """The server needs the sum of all updates alone."""
        return Disclosure(server_needs="sums")
