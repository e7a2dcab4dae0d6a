"""Algorithms of a user's own: FedAvg, with and without a word about what it discloses."""

from dataclasses import dataclass

from fedstrata.algorithms.fedavg import FedAvg
from fedstrata.uploads.disclosure import Disclosure, register_disclosure


@dataclass(frozen=True)
class Undeclared(FedAvg):
    """It says nothing."""


@dataclass(frozen=True)
class Declared(FedAvg):
    """The server needs the sum of all updates alone."""


register_disclosure(Declared, Disclosure(server_needs="sums"))
