from dataclasses import replace

import torch

from fedstrata.algorithms.baselines import Oracle
from fedstrata.core import Evaluation
from fedstrata.play.used_models import last_plan
from fedstrata.testing import toy_problem


def test_all_clients_send_statistics_and_those_with_several_models_alone_choose() -> None:
    problem = toy_problem(3, truth=[0, 1, 1])
    state = replace(Oracle().init(problem), round=4)
    candidates = torch.tensor([[0, -1], [0, 1], [1, -1]])
    uses = Evaluation(torch.arange(3), candidates, problem.layout.nothing)
    asked = last_plan(problem, state, uses, {}, inputs=True)
    assert asked.cohort.tolist() == [0, 1, 2] and asked.client_stats["inputs"].tolist() == [True] * 3
    assert asked.tasks["choice"].candidates.tolist() == [[-1, -1], [0, 1], [-1, -1]]
    usual = last_plan(problem, state, uses, {})
    assert usual.cohort.tolist() == [1] and not usual.client_stats
    assert usual.tasks["choice"].candidates.tolist() == [[0, 1]]
