"""What an algorithm discloses, and what of it epsilon covers."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from fedstrata.algorithms import ALGORITHMS
from fedstrata.algorithms.fedavg import FedAvg
from fedstrata.base.errors import ContractError
from fedstrata.core import TRAIN, Plan, fedavg_plan, fixed_clusters
from fedstrata.testing import toy_problem
from fedstrata.uploads.disclosure import (
    DISCLOSURES,
    Coverage,
    Disclosure,
    coverage_of,
    disclosure_of,
    register_disclosure,
)


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
    ("declared", "rule"),
    [
        ({"server_needs": "update"}, "server_needs is one of 'nothing', 'sums', 'updates', 'data'"),
        ({"server_needs": "updates", "given_clusters": True}, "given_clusters goes with"),
        ({"server_needs": "sums", "further_sums": 2}, "further_sums go with"),
        ({"server_needs": "sums", "compares_group_models": True}, "further_sums go with"),
        ({"server_needs": "updates", "further_uploads": -1}, "further_sums are at least 0"),
        ({"server_needs": "updates", "further_sums": -2}, "further_sums are at least 0"),
    ],
)
def test_what_does_not_fit_together_is_refused(declared: dict[str, Any], rule: str) -> None:
    with pytest.raises(ContractError, match=f"disclosure: expected that .*{rule}.*, found Disclosure"):
        Disclosure(**declared)


def plan_of(*labels: int) -> Plan:
    """The first plan of some clients in two given clusters."""
    problem = toy_problem(len(labels))
    state = fixed_clusters(problem, torch.tensor(labels), k=2, kind="groups_given")
    return fedavg_plan(problem, state, torch.arange(len(labels)))


def covered(declared: Disclosure, kind: str, plan: Plan | None = None) -> Coverage:
    found = coverage_of("central" if kind == "central" else "local", declared, plan or plan_of(0, 1), rounds=5)
    assert isinstance(found, Coverage)
    return found


def test_a_client_of_two_tasks_in_turn_sends_one_update_a_round() -> None:
    plan = plan_of(0, 1)
    one, other = (replace(plan.tasks[TRAIN], candidates=torch.tensor(rows)) for rows in ([[0], [-1]], [[-1], [1]]))
    in_turn = replace(plan, tasks={TRAIN: one, "signature": other})
    declared = Disclosure(server_needs="updates")
    assert covered(declared, "local", in_turn).further_queries == 0
    both = replace(plan, tasks={TRAIN: plan.tasks[TRAIN], "signature": other})
    assert covered(declared, "local", both).further_queries == 5


def test_who_is_compared_is_not_covered_where_groups_are_compared() -> None:
    declared = Disclosure(server_needs="updates", compares_group_models=True, further_sums=2, further_uploads=7)
    found = covered(declared, "central")
    assert "which clients are compared in a test" in found.not_covered
    # Comparisons are sums, and further updates are uploads.
    assert (found.further_queries, covered(declared, "local").further_queries) == (2, 7)


def test_clusters_are_covered_where_the_server_needs_sums_alone() -> None:
    for kind in ("central", "local"):
        assert covered(Disclosure(server_needs="sums"), kind).decisions
        assert not covered(Disclosure(server_needs="updates"), kind).decisions


@pytest.mark.parametrize("given", [True, False])
def test_a_choice_among_models_is_not_covered_although_sums_are_declared(given: bool) -> None:
    declared = Disclosure(server_needs="sums", given_clusters=given)
    for kind in ("central", "local"):
        assert covered(declared, kind, plan_of(0, 1, 1)).decisions
        assert not covered(declared, kind, plan_of(0, 1, -1)).decisions


def test_a_declared_reason_is_why_there_is_no_epsilon() -> None:
    declared = Disclosure(server_needs="updates", no_local_noise="clients send as they like")
    assert coverage_of("local", declared, plan_of(0, 1), rounds=5) == "clients send as they like"
    assert isinstance(coverage_of("central", declared, plan_of(0, 1), rounds=5), Coverage)
    for needs in ("nothing", "data"):
        assert isinstance(coverage_of("central", Disclosure(server_needs=needs), plan_of(0, 1), rounds=5), str)
