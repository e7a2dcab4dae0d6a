"""`fedstrata.testing.check_algorithm`, on algorithms of the library and on faulty ones."""

from dataclasses import dataclass, replace

import pytest
import torch

from fedstrata import core
from fedstrata.algorithms import CFL, FLHC, FedAvg, FedClust, FedPer, FeSEM, HiCFL, LayerCFL, RandomGroups
from fedstrata.testing import check_algorithm


@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(),
        FedPer(),
        RandomGroups(groups=2),
        FeSEM(k=2),
        FLHC(round=2),
        FedClust(),
        CFL(eps1=10.0, eps2=0.0, gamma=0.1),
        LayerCFL(eps1=10.0, eps2=0.0, gamma=0.1),
        HiCFL(epsilon=2.0, rho=1.0),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_algorithms_of_the_library_hold_it(algorithm: core.Algorithm[core.State]) -> None:
    check_algorithm(algorithm)


@dataclass(frozen=True)
class ByPosition(FedAvg):
    """It takes the first answer for that of client 0."""

    def update(
        self, problem: core.Problem, state: core.State, report: core.Report
    ) -> tuple[core.State, core.Diagnostics]:
        after, diagnostics = super().update(problem, state, report)
        updates = report.results[core.TRAIN].updates.values
        return replace(after, models=after.models + updates[:1]) if len(updates) else after, diagnostics


@dataclass(frozen=True)
class Drawing(FedAvg):
    """It draws from the global generator."""

    def update(
        self, problem: core.Problem, state: core.State, report: core.Report
    ) -> tuple[core.State, core.Diagnostics]:
        after, diagnostics = super().update(problem, state, report)
        return replace(after, models=after.models + torch.rand(1)), diagnostics


@dataclass(frozen=True)
class Restless(FedAvg):
    """Its model moves by itself."""

    def update(
        self, problem: core.Problem, state: core.State, report: core.Report
    ) -> tuple[core.State, core.Diagnostics]:
        after, diagnostics = super().update(problem, state, report)
        return replace(after, models=after.models + 1), diagnostics


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (ByPosition(), "round 1: the order of the answers matters"),
        (Drawing(), "round 1: the same report gives another state"),
        (Restless(), "round 1: a model moves though nobody answers"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_fault_is_named_with_its_round(algorithm: FedAvg, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_algorithm(algorithm)
