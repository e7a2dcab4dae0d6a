"""The plans of the personal stage, when the rounds are over, and what is recorded of it."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch

from fedstrata.build.run_setup import RunSetup
from fedstrata.core import CLIENT, SHARED, VALIDATION, Evaluation, Plan, Score, State
from fedstrata.personal import LastModels, PersonalChoice
from fedstrata.play.rounds import PlanReply
from fedstrata.play.traffic import traffic
from fedstrata.play.used_models import chosen_models


@dataclass(frozen=True)
class PersonalModels:
    """What the stage has left.

    Attributes:
        choices: What the clients have chosen.
        uses: The models that the clients use now.
        round: The round before which their stores have these models.
        scores: The scores of them, by the name of the evaluation.
        cost: What the stage took: seconds, bytes, and the training samples of all steps of all clients.
    """

    choices: tuple[PersonalChoice, ...]
    uses: Evaluation
    round: int
    scores: Mapping[str, Score]
    cost: Mapping[str, float]


def make_personal(
    setup: RunSetup, state: State, uses: Evaluation, chosen: Mapping[int, int], round: int
) -> Generator[Plan, PlanReply, PersonalModels | None]:
    """Let clients make models of their own, and score them.

    Args:
        setup: What the run was built from.
        state: The last state.
        uses: The models that the clients would use without it.
        chosen: The model that each client with several candidates chose. One that chose none makes no model.
        round: The number of the first plan.

    Returns:
        What came out; None where the method has nothing to do after the rounds.
    """
    method = setup.server.personal
    if method is None:
        return None
    last = _last_models(state, uses, chosen, round)
    steps = method.after(setup.server.problem, last)
    cost = {"seconds": 0.0, "bytes_down": 0.0, "bytes_up": 0.0, "samples": 0.0}
    try:
        plan = next(steps)
        while True:
            reply = yield plan
            round = plan.round + 1
            _add(cost, setup, plan, reply)
            plan = steps.send(reply.report)
    except StopIteration as end:
        choices: tuple[PersonalChoice, ...] = end.value
    if round == last.round:
        return None
    tuned = setup.clients.store.savers(range(last.round, round))
    choices = tuple(each if each.client in tuned else replace(each, epochs=0.0, share=0.0) for each in choices)
    own = replace(uses, load_local=setup.server.problem.layout.everything)
    evaluations = {CLIENT: own}
    if setup.client_data.validates:
        evaluations[VALIDATION] = replace(own, split="validation")
    reply = yield Plan(round, setup.server.problem.seed, uses.clients[:0], state.models, {}, evaluations)
    return PersonalModels(choices, own, round, reply.report.scores, cost)


def _last_models(state: State, uses: Evaluation, chosen: Mapping[int, int], round: int) -> LastModels:
    """What the clients start from: those of them whose model is known."""
    models = {client: model for client, model in chosen_models(uses, chosen).items() if model is not None}
    return LastModels(
        round=round,
        clients=torch.tensor(list(models), dtype=torch.int64),
        models=state.models,
        candidates=torch.tensor(list(models.values()), dtype=torch.int64)[:, None],
        load_local=uses.load_local,
        nodes=state.nodes,
    )


def _add(cost: dict[str, float], setup: RunSetup, plan: Plan, reply: PlanReply) -> None:
    """Add what a plan took."""
    stored = partial(setup.clients.store.read, before=plan.round)
    sent = traffic(setup.server.problem.layout, plan, reply.report, stored, setup.server.compression)
    cost["seconds"] += reply.seconds
    cost["bytes_down"] += sent.down + sent.buffers
    cost["bytes_up"] += sent.up
    for name, result in reply.report.results.items():
        task = plan.tasks[name]
        if any(task.trainable):
            cost["samples"] += sum(map(task.training.samples_seen, result.sizes.tolist()))


def personal_summary(method: str, scores: Mapping[str, Score], made: PersonalModels | None) -> dict[str, Any]:
    """What the summary of a run says about personal models.

    Args:
        method: The name of the method.
        scores: The last scores, of the personal models (`CLIENT`) and of those without them (`SHARED`).
        made: What the stage after the rounds has left; None where there was none.
    """
    with_stage, without = (_accuracies(scores[name]) for name in (CLIENT, SHARED))
    choices = {choice.client: asdict(choice) for choice in made.choices} if made else {}
    clients = [
        {"client": client, "accuracy": accuracy, "accuracy_shared": without.get(client), **choices.get(client, {})}
        for client, accuracy in with_stage.items()
    ]
    return {"method": method, "clients": clients, **(made.cost if made else {})}


def _accuracies(score: Score) -> dict[int, float]:
    """The accuracy of each client, by client."""
    shares = (score.correct.double() / score.samples).tolist()
    return dict(zip(score.clients.tolist(), shares, strict=True))
