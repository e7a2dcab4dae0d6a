"""What CFL, LayerCFL and HiCFL do in every round, with a rule that always proposes the same split."""

from dataclasses import replace

import torch

from fedstrata.algorithms.shared.bipartition_round import bipartition_round
from fedstrata.algorithms.shared.model_stability import add_updates, empty_window
from fedstrata.algorithms.shared.recursive_bipartition import (
    BipartitionState,
    RoundAnswers,
    SplitDecision,
    SplitRules,
    one_cluster,
)
from fedstrata.algorithms.shared.split_guard import GuardState, initial_guard
from fedstrata.core import TRAIN, Decision, Report, Result, Rows, State, initial_state
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


def in_two(answers: RoundAnswers, cluster: int) -> SplitDecision:
    clients = answers.usable[cluster].updates.clients
    return SplitDecision(Decision(kind="split"), (clients[:2], clients[2:]))


def played(
    rules: SplitRules = RULES, guard: GuardState | None = None, *, by_stability: bool = False
) -> tuple[State, BipartitionState]:
    """The first round of four clients in one cluster."""
    state = initial_state(PROBLEM)
    stability = add_updates(PROBLEM, state, empty_window(PROBLEM, 3), REPORT, None)[1] if by_stability else None
    columns = torch.arange(PROBLEM.layout.p)
    moved, bipartition, _, _ = bipartition_round(
        PROBLEM,
        state,
        REPORT,
        one_cluster(PROBLEM.clients),
        guard,
        compared=columns,
        rules=rules,
        examine=in_two,
        alpha=0.05,
        stability=stability,
    )
    return moved, bipartition


def test_a_cluster_that_is_split_is_averaged_in_its_parts() -> None:
    """Equal samples: the models move by (1 + 2) / 2 = 1.5 and (3 + 6) / 2 = 4.5 in every number."""
    after, bipartition = played()
    assert after.labels.tolist() == [0, 0, 1, 1]
    moves = after.models - initial_state(PROBLEM).models[0]
    assert torch.allclose(moves, torch.tensor([[1.5], [4.5]]).expand_as(moves))
    assert bipartition.max_norms.tolist() == [0.0, 0.0]  # New clusters begin with norms of their own.


def test_a_guard_refuses_what_no_test_has_confirmed() -> None:
    after, _ = played(guard=initial_guard(PROBLEM, "split_half"))
    assert after.labels.tolist() == [0, 0, 0, 0]
    assert decision_of(after).kind == "split_awaits_test"


def test_with_model_stability_only_full_windows_are_examined() -> None:
    """After one round nobody has three uploads."""
    assert len(played(by_stability=True)[0].models) == 1


def test_nothing_is_split_before_the_first_round_of_the_rules() -> None:
    assert len(played(replace(RULES, first=2))[0].models) == 1
