"""What CFL, LayerCFL and HiCFL do in every round, with a rule that always proposes the same split."""

from dataclasses import replace

import pytest
import torch

from fedstrata.algorithms.shared.bipartition_round import (
    RecursiveState,
    bipartition_round,
    nothing_remembered,
    with_stability,
)
from fedstrata.algorithms.shared.recursive_bipartition import RoundAnswers, SplitDecision, SplitRules
from fedstrata.core import TRAIN, Decision, Report, Result, Rows, extend_state, initial_state
from fedstrata.testing import toy_problem
from recorded import decision_of

PROBLEM = toy_problem(4)
RULES = SplitRules(first=1, quorum=0.5, min_split=2)
UPDATES = torch.tensor([1.0, 2.0, 3.0, 6.0])[:, None].expand(4, PROBLEM.layout.p)
TRAINED = Result(
    updates=Rows(torch.arange(4), UPDATES),
    chosen=torch.zeros(4, dtype=torch.int64),
    sizes=torch.full((4,), 10),
    losses=torch.ones(4, 1),
)
REPORT = Report({TRAIN: TRAINED}, cohort=torch.arange(4))


def first_state(split_guard: str = "none", window: int | None = None) -> RecursiveState:
    memory = nothing_remembered(PROBLEM, window=window, split_guard=split_guard)
    return extend_state(initial_state(PROBLEM), RecursiveState, **memory)


def in_two(answers: RoundAnswers, cluster: int) -> SplitDecision:
    clients = answers.usable[cluster].updates.clients
    return SplitDecision(Decision(kind="split"), (clients[:2], clients[2:]))


def played(state: RecursiveState, rules: SplitRules = RULES) -> RecursiveState:
    columns = torch.arange(PROBLEM.layout.p)
    state, stability = with_stability(PROBLEM, state, REPORT, None)
    return bipartition_round(PROBLEM, state, REPORT, columns, rules, in_two, stability=stability, alpha=0.05)[0]


def test_a_cluster_that_is_split_is_averaged_in_its_parts() -> None:
    """Equal samples: the models move by (1 + 2) / 2 = 1.5 and (3 + 6) / 2 = 4.5 in every number."""
    before = first_state()
    after = played(before)
    assert after.labels.tolist() == [0, 0, 1, 1]
    moves = after.models - before.models[0]
    assert torch.allclose(moves, torch.tensor([[1.5], [4.5]]).expand_as(moves))
    assert after.bipartition.max_norms.tolist() == [0.0, 0.0]  # New clusters begin with norms of their own.


def test_a_guard_refuses_what_no_test_has_confirmed() -> None:
    after = played(first_state("split_half"))
    assert after.labels.tolist() == [0, 0, 0, 0]
    assert decision_of(after).kind == "split_awaits_test"


@pytest.mark.parametrize("window", [None, 3])
def test_with_model_stability_only_full_windows_are_examined(window: int | None) -> None:
    """After one round nobody has three uploads."""
    after = played(first_state(window=window))
    assert len(after.models) == (2 if window is None else 1)


def test_nothing_is_split_before_the_first_round_of_the_rules() -> None:
    assert len(played(first_state(), replace(RULES, first=2)).models) == 1
