"""What says that a cluster's time has come: the norms of its updates, or the model stability of its members.

The second is "MTCFL with model stability" (Gong et al., IEEE TMC 2024, Table V).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from fedstrata.algorithms.parts.recursive.criterion import Criterion, Examined
from fedstrata.algorithms.parts.recursive.recursion import SplitDecision, Watched, watch
from fedstrata.algorithms.parts.recursive.steadiness import Change, Windowed, curves, observe, remember
from fedstrata.algorithms.parts.recursive.timing import Timing, epsilon_of
from fedstrata.core import Mask, Problem, Report
from fedstrata.lazy_torch import torch

W = TypeVar("W", bound=Watched)


@dataclass(frozen=True)
class Trigger:
    """What a round tells about when to split.

    Attributes:
        timing: the test of model stability; None when the norms decide.
        steady: stability of each client's layers, (n, layers); empty when the norms decide.
        ready: who has a full window of uploads, bool (n,); None when the norms decide.
        figures: curves for people.
    """

    timing: Timing | None
    steady: torch.Tensor
    ready: torch.Tensor | None = None
    figures: Mapping[str, float] = field(default_factory=dict)

    def judge(self, problem: Problem, criterion: Criterion, members: Examined) -> SplitDecision:
        """Bipartition a cluster if its time has come and Theorem 1 lets it."""
        if self.timing is None:
            return criterion.judge(problem, members)
        due, (decision, *_) = self.timing.examine(problem, members.fresh, self.steady[members.fresh.updates.clients])
        return criterion.propose(members, decision.values) if due else SplitDecision(decision)


def attentive(problem: Problem, trigger: str, window: int) -> Watched:
    """Everyone in one cluster, with a window of uploads where stability is what triggers."""
    return remember(problem, window) if trigger == "stability" else watch(problem)


def attend(
    problem: Problem, state: W, report: Report, epsilon: float | str, xi: Change, rho: float, compared: Mask
) -> tuple[W, Trigger]:
    """Take in a round's uploads, if the state has windows for them.

    Args:
        problem: fixed for the run.
        state: before the round.
        report: of the round.
        epsilon: stability below which a layer is stable, or ``"auto"``.
        xi: change of an update above which its weight is looked at.
        rho: ratio of the mean to the longest update from which on the members agree.
        compared: tensors that are compared, (l,): one of their layers must be stable in the members' mean.
    """
    if not isinstance(state, Windowed):
        return state, Trigger(None, torch.empty(0))
    lr = problem.training_of(state.round + 1).lr
    seen, steady = observe(problem, state, report, xi)
    named = {slot.layer for slot, chosen in zip(problem.layout.tensors, compared, strict=True) if chosen}
    watched = torch.tensor([layer in named for layer in problem.layout.layers])
    # No threshold lies above this: a layer that is not compared is never the stable one.
    heeded = steady.where(watched, torch.finfo(steady.dtype).max)
    timing, ready = Timing(epsilon_of(epsilon, lr), rho), steady.isfinite().all(dim=1)
    return seen, Trigger(timing, heeded, ready, curves(problem, seen, steady))
