"""What an algorithm declares that it discloses."""

from dataclasses import dataclass
from typing import Any

import pytest

from fedstrata.algorithms.fedavg import FedAvg
from fedstrata.base.errors import ContractError
from fedstrata.core import Disclosure, disclosure_of


@dataclass(frozen=True)
class Inherits(FedAvg):
    """A FedAvg that may do anything else with the updates."""


@dataclass(frozen=True)
class Declares(FedAvg):
    """A FedAvg that says what it discloses."""

    def disclosure(self, rounds: int) -> Disclosure:
        """More updates, the longer it runs."""
        return Disclosure(server_needs="updates", further_uploads=rounds)


def test_a_class_does_not_inherit_what_another_one_declares() -> None:
    assert disclosure_of(FedAvg(), 3) == Disclosure(server_needs="sums")
    assert disclosure_of(Inherits(), 3) is None
    assert disclosure_of(Declares(), 3) == Disclosure(server_needs="updates", further_uploads=3)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"server_needs": "update"}, "server_needs = 'update': expected one of 'nothing', 'sums', 'updates', 'data'"),
        ({"server_needs": "updates", "given_clusters": True}, "given_clusters: expected server_needs = 'sums'"),
        ({"server_needs": "sums", "further_sums": 2}, "further_sums: expected server_needs = 'updates'"),
        ({"server_needs": "sums", "compares_group_models": True}, "further_sums: expected server_needs = 'updates'"),
        ({"server_needs": "updates", "further_uploads": -1}, "further_uploads = -1, .* expected at least 0"),
        ({"server_needs": "updates", "further_sums": -2}, "further_sums = -2: expected at least 0"),
    ],
)
def test_what_does_not_fit_together_is_refused(declared: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError, match=message):
        Disclosure(**declared)


@dataclass(frozen=True)
class Confused(FedAvg):
    """A FedAvg that says it in a word."""

    def disclosure(self, rounds: int) -> Any:
        """No `Disclosure`."""
        return "sums"


def test_a_word_is_no_disclosure() -> None:
    with pytest.raises(ContractError, match=r"Confused\.disclosure: expected a Disclosure, found 'sums'"):
        disclosure_of(Confused(), 3)
