"""A few rounds of an algorithm and then the personal stage, on any clients."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from fedstrata.base.errors import ExperimentError
from fedstrata.build.participation import Participation
from fedstrata.build.run_setup import RunSetup
from fedstrata.config.hyperparameters import algorithm_from, personal_from
from fedstrata.core import CLIENT, Evaluation, Plan, Report, State
from fedstrata.personal import KnowsPersonalModels
from fedstrata.play.finish import PersonalModels, make_personal
from fedstrata.play.rounds import PlanReply, answer_plans
from fedstrata.play.used_models import chosen_models, last_plan
from test_every_algorithm import EAGER

METHODS: dict[str, dict[str, Any]] = {
    "finetune": {"epochs": 2},
    "ditto": {"lam": 0.5},
    "best": {"epochs": 3, "layers": "head"},
}
"""The personal methods, with keys by which they are quick and use all that they can."""

OWN_LAYERS = {"ditto", "fedbn", "fedper", "fedrep", "fedtsdp", "finetune", "lg_fedavg", "local"}
"""Algorithms that keep tensors of their own on the devices."""

REFUSED = {"ditto": {*OWN_LAYERS, "centralized"} - {"fedbn"}}
"""The algorithms that a method refuses, by method. FedBN keeps nothing of a network without normalisation layers."""

Ask = Callable[[Plan], Report]


@dataclass(frozen=True)
class Played:
    """What came out.

    Attributes:
        state: The last state of the algorithm.
        uses: The models that the clients would use without the stage.
        plans: The plans after the last round.
        reports: All reports.
        made: What the stage has left; None where there was nothing to do after the rounds.
        stored: What the clients keep, by ``"client/tensor/round"``.
    """

    state: State
    uses: Evaluation
    plans: tuple[Plan, ...]
    reports: tuple[Report, ...]
    made: PersonalModels | None
    stored: dict[str, torch.Tensor]


def with_stage(setup: RunSetup, name: str, method: str = "none") -> RunSetup:
    """The federation with an algorithm and a personal method.

    Raises:
        ExperimentError: When they do not go together.
    """
    algorithm = algorithm_from(name, EAGER.get(name, {}))
    personal = personal_from(method, METHODS.get(method, {}))
    if personal is not None:
        personal.check(setup.server.problem, algorithm)
        if isinstance(algorithm, KnowsPersonalModels):
            algorithm = algorithm.with_personal_models()
        algorithm = personal.around(algorithm)
    server = replace(setup.server, algorithm=algorithm, personal=personal)
    return replace(setup, server=server)


def refused(setup: RunSetup, name: str, method: str) -> bool:
    """Whether a method refuses an algorithm."""
    try:
        with_stage(setup, name, method)
    except ExperimentError:
        return True
    return False


def play(setup: RunSetup, ask: Ask | None = None, rounds: int = 3) -> Played:
    """A few rounds in which some clients are not asked, then the stage with everyone."""
    problem, algorithm = setup.server.problem, setup.server.algorithm
    setup.clients.store.restore({})
    reports = list[Report]()
    plans = list[Plan]()

    def asked(plan: Plan) -> Report:
        reports.append((ask or setup.clients.run)(plan))
        return reports[-1]

    state = algorithm.init(problem)
    for round in range(1, rounds + 1):
        cohort, _ = Participation(problem.clients, problem.seed, fraction=0.8).sample(round)
        plan = algorithm.plan(problem, state, cohort)
        state, _ = algorithm.update(problem, state, replace(asked(plan), cohort=plan.cohort))
    evaluations = algorithm.evaluations(problem, state, setup.everyone)
    uses = evaluations[CLIENT]
    models = chosen_models(uses, asked(last_plan(problem, state, uses, evaluations)))

    def reply(plan: Plan) -> PlanReply:
        plans.append(plan)
        return PlanReply(asked(plan), 0.0)

    made = answer_plans(make_personal(setup, state, uses, models, rounds + 2), reply)
    return Played(state, uses, tuple(plans), tuple(reports), made, setup.clients.store.tensors())
