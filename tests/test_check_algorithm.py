"""`fedstrata.testing.check_algorithm`, on algorithms of the library and on faulty ones."""

from collections.abc import Callable
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
class Moved(FedAvg):
    """It moves its model by something more."""

    more: Callable[[core.Report], torch.Tensor | int] = lambda report: 1

    def update(
        self, problem: core.Problem, state: core.State, report: core.Report
    ) -> tuple[core.State, core.Diagnostics]:
        after, diagnostics = super().update(problem, state, report)
        return replace(after, models=after.models + self.more(report)), diagnostics


def first_answer(report: core.Report) -> torch.Tensor:
    """The answer at the first place, which is not always that of client 0."""
    return report.results[core.TRAIN].updates.values[:1].sum(dim=0)


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (Moved(more=first_answer), "round 1: the order of the answers matters"),
        (Moved(more=lambda report: torch.rand(1)), "round 1: the same report gives another state"),
        (Moved(), "round 1: a model moves though nobody answers"),
    ],
)
def test_a_fault_is_named_with_its_round(algorithm: FedAvg, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_algorithm(algorithm)
