"""What CFL, LayerCFL and HiCFL do in every round, with a rule that always proposes the same split."""

import pytest
import torch

from fedstrata.algorithms.bipartition.round import (
    BipartitionState,
    SplitDecision,
    SplitRules,
    apply_decisions,
    collect_answers,
    one_cluster,
    proposed_splits,
)
from fedstrata.core import TRAIN, Decision, Report, Result, Rows, extend_state, initial_state
from fedstrata.testing import toy_problem
from recorded import decision_of

PROBLEM = toy_problem(4)
STATE = extend_state(initial_state(PROBLEM), BipartitionState, bipartition=one_cluster(4))
COLUMNS = torch.arange(PROBLEM.layout.p)
UPDATES = torch.tensor([1.0, 2.0, 3.0, 6.0])[:, None].expand(4, PROBLEM.layout.p)
TRAINED = Result(
    updates=Rows(torch.arange(4), UPDATES),
    chosen=torch.zeros(4, dtype=torch.int64),
    sizes=torch.full((4,), 10),
    losses=torch.ones(4, 1),
)
REPORT = Report({TRAIN: TRAINED}, cohort=torch.arange(4))
IN_TWO = {0: SplitDecision(Decision(kind="split"), (torch.tensor([0, 1]), torch.tensor([2, 3])))}


def test_a_cluster_that_is_split_is_averaged_in_its_parts() -> None:
    """Equal samples: the models move by (1 + 2) / 2 = 1.5 and (3 + 6) / 2 = 4.5 in every number."""
    answers = collect_answers(PROBLEM, STATE, REPORT, COLUMNS, SplitRules(1, 0.5, 2))
    assert answers.history.max_norms.item() == pytest.approx(6 * 6**0.5)
    after, _ = apply_decisions(PROBLEM, STATE, REPORT, answers, IN_TWO)
    assert after.labels.tolist() == [0, 0, 1, 1]
    moves = after.models - STATE.models[0]
    assert torch.allclose(moves, torch.tensor([[1.5], [4.5]]).expand_as(moves))
    assert after.bipartition.max_norms.tolist() == [0.0, 0.0]  # New clusters begin with norms of their own.


@pytest.mark.parametrize(
    ("rules", "usable", "kind"),
    [
        (SplitRules(2, 0.5, 2), [True] * 4, None),
        (SplitRules(1, 0.5, 2), [True, True, False, False], "examined"),
        (SplitRules(1, 0.6, 2), [True, True, False, False], "too_few_members"),
        (SplitRules(1, 0.5, 3), [True, True, False, False], "too_few_members"),
    ],
)
def test_which_clusters_are_examined(rules: SplitRules, usable: list[bool], kind: str | None) -> None:
    """The first round comes too early for the first rules; two of four answers are a share of 0.5."""
    answers = collect_answers(PROBLEM, STATE, REPORT, COLUMNS, rules, torch.tensor(usable))
    assert list(answers.usable) == ([0] if kind == "examined" else [])
    after, _ = apply_decisions(PROBLEM, STATE, REPORT, answers, {})
    if kind == "too_few_members":
        assert decision_of(after).kind == kind and decision_of(after).values["not_ready"] == 2.0


def test_a_proposed_split_is_that_of_a_decision_or_nobody_on_the_second_side() -> None:
    answers = collect_answers(PROBLEM, STATE, REPORT, COLUMNS, SplitRules(1, 0.5, 2))
    same = {0: SplitDecision(Decision(kind="same_direction"))}
    (split,), (whole,) = (proposed_splits(STATE, answers, each) for each in (IN_TWO, same))
    assert (split.node, split.first.tolist(), split.second.tolist()) == (0, [0, 1], [2, 3])
    assert (whole.first.tolist(), whole.second.tolist()) == ([0, 1, 2, 3], [])
    assert proposed_splits(STATE, answers, {0: SplitDecision(Decision(kind="members_agree"))}) == ()
