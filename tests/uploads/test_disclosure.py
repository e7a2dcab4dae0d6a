"""What an algorithm discloses."""

from dataclasses import dataclass
from typing import Any

import pytest

from fedstrata.algorithms import ALGORITHMS
from fedstrata.algorithms.fedavg import FedAvg
from fedstrata.base.errors import ContractError
from fedstrata.uploads.disclosure import DISCLOSURES, Disclosure, disclosure_of, register_disclosure


def test_every_algorithm_of_the_library_has_a_row_and_a_subclass_has_none() -> None:
    @dataclass(frozen=True)
    class Inherits(FedAvg):
        """A FedAvg that may do anything else with the updates."""

    assert list(DISCLOSURES) == list(ALGORITHMS)
    assert disclosure_of(FedAvg(), 3) == Disclosure(server_needs="sums")
    assert disclosure_of(Inherits(), 3) is None


def test_an_algorithm_of_ones_own_registers_a_row_or_a_function_that_makes_it() -> None:
    @dataclass(frozen=True)
    class Own(FedAvg):
        """A FedAvg of one's own."""

    def confused(algorithm: Own, rounds: int) -> Any:
        return "sums"

    register_disclosure(Own, Disclosure(server_needs="sums"))
    assert disclosure_of(Own(), 3) == Disclosure(server_needs="sums")
    register_disclosure(Own, lambda algorithm, rounds: Disclosure(server_needs="updates", further_uploads=rounds))
    assert disclosure_of(Own(), 3) == Disclosure(server_needs="updates", further_uploads=3)
    register_disclosure(Own, confused)
    with pytest.raises(ContractError, match="disclosure of Own: expected a Disclosure, found 'sums'"):
        disclosure_of(Own(), 3)


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
