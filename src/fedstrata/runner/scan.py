"""A few rounds of FedAvg that say which layers separate the clients of an experiment."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fedstrata.algorithms.parts.proof.voters import twins
from fedstrata.algorithms.parts.scout.finding import Finding
from fedstrata.algorithms.parts.scout.look import LEVEL, ROUNDS, conclude
from fedstrata.algorithms.parts.scout.sighting import see, unseen, watching
from fedstrata.config import Experiment
from fedstrata.runner.build import prepare
from fedstrata.runner.rounds import one_thread
from fedstrata.runner.sampling import draw
from fedstrata.runner.validation import validate


def scout(experiment: Experiment, rounds: int = ROUNDS, show: Callable[[str], None] = lambda line: None) -> Finding:
    """Train one model for all clients for some rounds, after the first also on folds of their data, and look once.

    The clients, their data and who takes part are those of the experiment; its algorithm does not matter, and the
    hidden truth is not looked at. Nothing is written.

    Args:
        experiment: checked and complete.
        rounds: of FedAvg; the first only tells how many samples clients have.
        show: takes a line after every round.

    Raises:
        InputError: when something that the experiment names does not exist or does not fit.
    """
    fedavg = experiment.algorithm.model_validate({"name": "fedavg"})
    with one_thread():
        setting = prepare(experiment.model_copy(update={"algorithm": fedavg}))
        algorithm, problem, layout = setting.algorithm, setting.problem, setting.problem.layout
        state, sighting = algorithm.init(problem), unseen(layout, problem.clients)
        for round in range(1, rounds + 1):
            clients, rates = setting.members.active(round), experiment.cohort
            cohort, absent = draw(problem.seed, round, clients, rates.fraction, rates.dropout)
            hearings = watching(problem, state, sighting, LEVEL)
            plan = twins(algorithm.plan(problem, state, cohort), hearings, sighting.sizes)
            report = setting.clients.run(plan.only(~torch.isin(cohort, absent)))
            report = validate(layout, plan, report).report
            sighting = see(layout, sighting, report, hearings, done=1)
            state, _ = algorithm.update(problem, state, report)
            show(f"round {round}/{rounds}")
        return conclude(layout, sighting, problem.generator("scout", rounds))
