"""What comes when the rounds of a run are over: the last scores, the personal stage, and what the run came to."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedstrata.build.attacks import honest_summary
from fedstrata.build.run_setup import RunSetup
from fedstrata.config import Experiment
from fedstrata.core import CLIENT, SHARED, VALIDATION, Evaluation, Plan, Report, Score, State
from fedstrata.objective.metric_info import MetricInfo
from fedstrata.personal import LastModels, PersonalChoice
from fedstrata.play.recorder import Recorder, traffic
from fedstrata.play.rounds import PlanReply
from fedstrata.play.used_models import (
    ModelInUse,
    backdoor_summary,
    chosen_models,
    last_plan,
    models_in_use,
    predict_test_samples,
    scores_of_probabilities,
    with_own_tensors,
    write_used_models,
)
from fedstrata.records.arrays import last_scores
from fedstrata.records.folder import Folder
from fedstrata.records.measures import summarise
from fedstrata.records.resume import machine, versions
from fedstrata.results.run import Run


def score_last_models(
    setup: RunSetup, recorder: Recorder, state: State
) -> Generator[Plan, PlanReply, tuple[list[ModelInUse], dict[str, Any]]]:
    """Complete the record of the last round by a plan without training.

    When the last round of the run is over, the personal stage follows, where there is one.

    Returns:
        The model that each client uses now, and what the summary says about personal models.
    """
    uses = models_in_use(setup, state)
    models = chosen_models(uses, Report())
    before = state.round + 1  # the round before which the stores have the tensors of clients' own
    summary = dict[str, Any]()
    evaluations = recorder.evaluations(state)
    if evaluations:
        asked = recorder.experiment.records.inputs and state.round >= recorder.experiment.rounds
        reply = yield last_plan(setup.server.problem, state, uses, evaluations, inputs=asked)
        recorder.folder.add_input_means(reply.report.client_stats.get("inputs"))
        models = chosen_models(uses, reply.report)
        scores = reply.report.scores
        if setup.server.personal is not None and state.round >= recorder.experiment.rounds:
            made = yield from make_personal(setup, state, uses, models, before + 1)
            if made is not None:
                uses = made.uses
                before = made.round
                scores = {**scores, SHARED: scores[CLIENT], **made.scores}
            summary["personal"] = personal_summary(recorder.experiment.personal.method, scores, made)
        recorder.complete(state, scores)
    return with_own_tensors(setup, models, uses.load_local, before), summary


def finish_run(
    experiment: Experiment,
    setup: RunSetup,
    folder: Folder,
    out: Path,
    state: State,
    used: Sequence[ModelInUse],
    personal: Mapping[str, Any],
) -> Run:
    """Write what a run came to: its summary, its models, and what they predict for their test samples.

    Args:
        experiment: The experiment.
        setup: What was built from it.
        folder: The run folder, which has the records of all rounds.
        out: The path by which the user names it.
        state: The state after the last round.
        used: The model that each client uses now.
        personal: What the summary says about personal models.
    """
    metric = setup.server.objective.metric_info
    rounds = folder.rounds()
    data = folder.data()
    predicted = predict_test_samples(setup, state, used)
    weights = setup.server.objective.class_weights
    all_score = setup.server.participation.all_score(experiment.data.clients)
    summary = {
        "algorithm": experiment.algorithm.name,
        "dataset": experiment.data.name,
        "partition": experiment.partition["scheme"],
        "model": experiment.model.name,
        "loss_function": experiment.local.loss,
        "metric": experiment.local.metric,
        "seed": experiment.seed,
        # Data may be others in another run with the same experiment.
        **({"data_digest": data.digest} if data is not None and data.digest else {}),
        **summarise(rounds, setup.truth(state.round), metric, all_score=all_score),
        **_attack_summary(setup, folder, state, used, metric),
        **({} if predicted is None else scores_of_probabilities(setup, *predicted)),
        **({"class_weights": list(weights)} if weights else {}),
        **({} if setup.server.private is None else {"privacy": setup.server.private.summary}),
        **personal,
        "versions": versions(),
        "machine": machine(setup.engine.device),
    }
    write_used_models(folder.path, setup, state, used)
    folder.add_predictions(None if predicted is None else predicted[0])
    folder.finish(setup.server.problem.layout, state, summary)
    only_here = setup.network is not None and not isinstance(setup.network.name, str)
    network = setup.network if only_here else None
    return Run(out, summary, rounds, state.tree, setup.names, setup.warnings, network)


def _attack_summary(
    setup: RunSetup, folder: Folder, state: State, used: Sequence[ModelInUse], metric: MetricInfo
) -> dict[str, Any]:
    """What the summary says about the honest clients of a run with Byzantine ones."""
    if setup.byzantine is None:
        return {}
    last = folder.rounds()[-1]
    labels = {client: node for client, node in enumerate(last["labels"]) if node >= 0}
    scores = {client: value for client, (_, value) in last_scores(folder.path).items()}
    found = honest_summary(setup.byzantine, scores, labels, setup.truth(last["round"]), metric)
    return {"attack": {**found, **backdoor_summary(setup, state, used, labels)}}


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
    setup: RunSetup, state: State, uses: Evaluation, models: Mapping[int, int | None], round: int
) -> Generator[Plan, PlanReply, PersonalModels | None]:
    """Let clients make models of their own, and score them.

    Args:
        setup: What the run was built from.
        state: The last state.
        uses: The models that the clients would use without it.
        models: The model of each client, as `chosen_models` returns them. One that chose none makes no model.
        round: The number of the first plan.

    Returns:
        What came out; None where the method has nothing to do after the rounds.
    """
    method = setup.server.personal
    if method is None:
        return None
    known = {client: model for client, model in models.items() if model is not None}
    last = LastModels(
        round=round,
        clients=torch.tensor(list(known), dtype=torch.int64),
        models=state.models,
        candidates=torch.tensor(list(known.values()), dtype=torch.int64)[:, None],
        load_local=uses.load_local,
        nodes=state.nodes,
    )
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
    with_stage, without = (
        dict(zip(score.clients.tolist(), score.values.tolist(), strict=True))
        for score in (scores[CLIENT], scores[SHARED])
    )
    choices = {choice.client: asdict(choice) for choice in made.choices} if made else {}
    clients = [
        {"client": client, "accuracy": accuracy, "accuracy_shared": without.get(client), **choices.get(client, {})}
        for client, accuracy in with_stage.items()
    ]
    return {"method": method, "clients": clients, **(made.cost if made else {})}
