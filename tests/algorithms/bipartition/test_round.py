"""What CFL, LayerCFL and HiCFL tell checks of updates about their decisions."""

import torch

from builders import answer
from fedstrata.algorithms.bipartition.round import (
    SplitDecision,
    collect_answers,
    proposed_splits,
)
from fedstrata.core import TRAIN, Decision, Report, initial_state
from fedstrata.testing import toy_problem


def test_a_proposed_split_is_that_of_a_decision_or_nobody_on_the_second_side() -> None:
    problem = toy_problem(4)
    state = initial_state(problem)
    report = Report({TRAIN: answer(range(4), torch.ones(4, 6))}, cohort=torch.arange(4))
    answers = collect_answers(state, report)
    in_two = SplitDecision(Decision(kind="split"), (torch.tensor([0, 1]), torch.tensor([2, 3])))
    (split,) = proposed_splits(state, answers, {0: in_two})
    assert (split.node, split.first.tolist(), split.second.tolist()) == (0, [0, 1], [2, 3])
    (whole,) = proposed_splits(state, answers, {0: SplitDecision(Decision(kind="same_direction"))})
    assert (whole.first.tolist(), whole.second.tolist()) == ([0, 1, 2, 3], [])
    assert proposed_splits(state, answers, {0: SplitDecision(Decision(kind="members_agree"))}) == ()
