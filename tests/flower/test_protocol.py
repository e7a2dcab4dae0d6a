"""Plans and reports as payloads and back: all of them, and nothing else, gets through."""

import json
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedstrata.base.errors import InputError
from fedstrata.core import (
    CLIENT_STATS,
    FOLDS,
    Evaluation,
    Layout,
    LocalTask,
    LocalTraining,
    Mask,
    Plan,
    Report,
    Result,
    Rows,
    Score,
    TensorSpec,
)
from fedstrata.data import ReadOptions
from fedstrata.flower.federation import Samples
from fedstrata.flower.payload import Payload, decode, encode
from fedstrata.flower.replies import Reply, ReplyBounds, expected_reply, read_reply, write_reply
from fedstrata.flower.requests import (
    Request,
    RunConfig,
    needed_tensors,
    read_request,
    read_run_config,
    refuse_other_network,
    request_for,
    write_request,
    write_run_config,
)
from fedstrata.models import layout_of
from fedstrata.objective import Objective
from turns import same

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""Plans are large, and machines are busy."""

LAYOUT = Layout(
    (
        TensorSpec("conv.weight", "conv", "conv", (2, 3)),
        TensorSpec("norm.running_mean", "norm", "buffer", (2,)),
        TensorSpec("fc.weight", "fc", "linear", (1, 2)),
        TensorSpec("fc.scale", "fc", "linear", ()),
    )
)
CLIENTS = 4
MASKS = st.tuples(*[st.booleans()] * len(LAYOUT.tensors))
NAMES = st.lists(st.text(max_size=5), max_size=2, unique=True)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
SIZES = {"classes": 1, "entropy": 1, "subspaces": 5, "inputs": 2}


@st.composite
def rows(draw: st.DrawFn, count: int) -> torch.Tensor:
    values = st.lists(FLOATS, min_size=LAYOUT.p, max_size=LAYOUT.p)
    return torch.tensor([draw(values) for _ in range(count)]).view(count, LAYOUT.p)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    k = draw(st.integers(1, 3))
    cohort = torch.tensor(sorted(draw(st.sets(st.integers(0, CLIENTS - 1)))), dtype=torch.int64)
    m = len(cohort)

    def offers(count: int) -> torch.Tensor:
        c = draw(st.integers(1, 3))
        drawn = [draw(st.integers(-1, k - 1)) for _ in range(count * c)]
        return torch.tensor(drawn, dtype=torch.int64).view(count, c)

    def task() -> LocalTask:
        lr, momentum = draw(st.floats(1e-9, 1.0)), draw(st.floats(0, 0.9))
        training = LocalTraining(draw(st.integers(1, 5)), draw(st.integers(0, 9)), "adam", lr, momentum)
        most = torch.tensor([draw(st.integers(1, 9)) for _ in range(m)], dtype=torch.int64)
        values: Mask = draw(MASKS)
        return LocalTask(
            candidates=offers(m),
            training=training,
            trainable=draw(MASKS),
            upload=draw(MASKS),
            load_local=draw(MASKS),
            save_local=draw(MASKS),
            prox_weight=draw(st.sampled_from([0.0, 0.1])),
            fold=draw(st.sampled_from(FOLDS)),
            max_samples=draw(st.sampled_from([None, most])),
            selection_fold=draw(st.sampled_from(FOLDS)),
            stream=draw(st.text(max_size=5)),
            upload_values=values if any(values) else (),
        )

    def evaluation() -> Evaluation:
        clients = torch.tensor(sorted(draw(st.sets(st.integers(0, CLIENTS - 1)))), dtype=torch.int64)
        return Evaluation(clients, offers(len(clients)), draw(MASKS))

    ask = {name: torch.tensor([draw(st.booleans()) for _ in range(m)], dtype=torch.bool) for name in CLIENT_STATS}
    work = {name: task() for name in draw(NAMES)}
    score = {name: evaluation() for name in draw(NAMES)}
    return Plan(draw(st.integers(1, 9)), draw(st.integers(0, 2**40)), cohort, draw(rows(k)), work, score, ask)


def whole_fit() -> LocalTask:
    """Everything is trained, sent, kept and stored, from the only model."""
    everything = LAYOUT.everything
    return LocalTask(torch.tensor([[0]]), LocalTraining(), everything, everything, everything, everything)


def asked_of(task: LocalTask, own: Collection[int] = (), **parts: Any) -> Request:
    """The request to client 0 of a plan with one model of ones and one task."""
    plan = Plan(1, 0, torch.tensor([0]), torch.ones(1, LAYOUT.p), {"train": task}, **parts)
    return request_for(plan, 0, LAYOUT, own)


OWN = st.sets(st.integers(0, len(LAYOUT.tensors) - 1))
COUNTED = st.sets(st.integers(1, 9))
WHO = st.integers(0, CLIENTS - 1)


@unhurried
@given(plans(), WHO, OWN, COUNTED)
def test_a_request_survives_its_payload_and_its_message(
    plan: Plan, client: int, own: set[int], counted: set[int]
) -> None:
    written = request_for(plan, client, LAYOUT, own, counted)
    payload = write_request(written, LAYOUT)
    assert same(read_request(payload, LAYOUT), written)
    assert same(read_request(decode(encode(payload)), LAYOUT), written)


@unhurried
@given(plans(), WHO, OWN)
def test_a_request_holds_the_clients_own_part_and_only_what_it_needs(plan: Plan, client: int, own: set[int]) -> None:
    mine = request_for(plan, client, LAYOUT, own)
    asked = client in plan.cohort.tolist()
    assert mine.plan.cohort.tolist() == [client] * asked and len(mine.plan.tasks) == len(plan.tasks) * asked
    pieces: list[tuple[LocalTask | Evaluation, LocalTask | Evaluation]] = []
    if asked:
        place = plan.cohort.tolist().index(client)
        for name, task in plan.tasks.items():
            own_part = replace(task, candidates=task.candidates[place][None])
            pieces.append((own_part, mine.plan.tasks[name]))
    scored = {name: each for name, each in plan.evaluations.items() if client in each.clients.tolist()}
    assert list(mine.plan.evaluations) == list(scored)
    for name, evaluation in scored.items():
        pieces.append((evaluation.only(evaluation.clients == client), mine.plan.evaluations[name]))
    offered = {model for whole, _ in pieces for model in whole.candidates.flatten().tolist()} - {-1}
    assert set(mine.models) == offered
    for whole, cut in pieces:
        for model, here in zip(whole.candidates.flatten().tolist(), cut.candidates.flatten().tolist(), strict=True):
            assert (-1 if here < 0 else mine.models[here]) == model
    for row, sent, model in zip(mine.plan.models, mine.sent, mine.models, strict=True):
        columns = LAYOUT.columns(sent)
        assert torch.equal(row[columns], plan.models[model, columns])
        silent = LAYOUT.columns(tuple(not inside for inside in sent))
        assert not row[silent].any(), "a tensor that the client keeps was sent"
    assert set(needed_tensors(mine.plan, LAYOUT, own)) == set(range(len(mine.models)))


def test_a_pull_needs_the_received_values_of_tensors_that_are_kept() -> None:
    first = (True, False, False, False)
    task = replace(whole_fit(), trainable=first, prox_weight=0.1)
    assert asked_of(task, range(4)).sent == (first,)
    assert asked_of(replace(task, prox_weight=0.0), range(4)).sent == (LAYOUT.nothing,)
    assert asked_of(task).sent == (LAYOUT.everything,)


@st.composite
def answered(draw: st.DrawFn) -> tuple[Request, Reply]:
    request = request_for(draw(plans()), draw(WHO), LAYOUT, ())
    plan, ids = request.plan, torch.tensor([request.client])

    def result(task: LocalTask) -> Result:
        models = sorted(set(task.candidates[0].tolist()) - {-1})
        if not models:
            nobody = torch.empty(0, dtype=torch.int64)
            width = task.candidates.shape[1]
            return Result(Rows(nobody, torch.empty(0, LAYOUT.p)), nobody, nobody, torch.empty(0, width))
        row = draw(rows(1))
        row[:, LAYOUT.columns(tuple(not sent for sent in task.upload))] = 0.0
        losses = [
            draw(st.one_of(st.just(float("nan")), st.floats(0, 9, width=32))) for _ in task.candidates[0].tolist()
        ]
        taken = torch.tensor([draw(st.sampled_from(models))])
        largest = 9 if task.max_samples is None else int(task.max_samples[0])
        return Result(Rows(ids, row), taken, torch.tensor([draw(st.integers(1, largest))]), torch.tensor([losses]))

    def score(evaluation: Evaluation) -> Score:
        loss = torch.tensor([draw(st.floats(0, 9, width=32))])
        right = torch.tensor([draw(st.integers(0, 5))], dtype=torch.float64)
        return Score(ids, right, torch.tensor([5]), loss)

    facts = {name: Rows(ids, torch.rand(1, SIZES[name])) for name in plan.client_stats}
    results = {name: result(task) for name, task in plan.tasks.items()}
    scores = {name: score(evaluation) for name, evaluation in plan.evaluations.items()}
    report = Report(results, scores, facts)
    stored = tuple(sorted(draw(OWN)))
    return request, Reply(report, stored, draw(st.booleans()))


@unhurried
@given(answered())
def test_a_reply_survives_its_payload_and_its_message(case: tuple[Request, Reply]) -> None:
    asked, answer = case
    payload = decode(encode(write_reply(answer, asked, LAYOUT, "run")))
    read = read_reply(payload, asked, LAYOUT, ReplyBounds("run", 9))
    results = dict[str, Result]()
    for name, result in answer.report.results.items():
        chosen = [asked.models[int(taken)] for taken in result.chosen]
        results[name] = replace(result, chosen=torch.tensor(chosen, dtype=torch.int64))
    # What was taken is told in terms of the plan for everyone.
    assert same(read, replace(answer, report=replace(answer.report, results=results)))


@unhurried
@given(answered())
def test_every_sound_reply_is_what_is_expected_before_it_comes(case: tuple[Request, Reply]) -> None:
    asked, answer = case
    content = encode(write_reply(answer, asked, LAYOUT, "run"))
    expected = expected_reply(asked, LAYOUT, SIZES)
    assert same(decode(content, expected), decode(content))


@pytest.mark.parametrize(
    ("loss", "size", "message"),
    [
        (-0.5, 4, r"expected result train to have 1 losses, each of at least 0, found \[-0.5\]"),
        (0.5, 5, "expected result train to be of 1 to 4 samples, found 5"),
    ],
)
def test_nobody_claims_a_loss_below_zero_or_more_samples_than_it_was_to_train_on(
    loss: float, size: int, message: str
) -> None:
    task = replace(whole_fit(), upload=LAYOUT.nothing, max_samples=torch.tensor([4]))
    ids = torch.tensor([0])
    asked = asked_of(task)
    result = Result(Rows(ids, torch.zeros(1, LAYOUT.p)), ids, torch.tensor([size]), torch.tensor([[loss]]))
    with pytest.raises(InputError, match=message):
        read_reply(
            write_reply(Reply(Report({"train": result})), asked, LAYOUT, "run"),
            asked,
            LAYOUT,
            ReplyBounds("run", 9),
        )


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda s: s.pop("request"), "expected the record request, found evaluation-client, task-train"),
        (lambda s: s["request"].update(round="1"), "round = '1': Input should be a valid integer"),
        (lambda s: s["request"].update(round=True), "round = true: Input should be a valid integer"),
        (lambda s: s["request"].pop("round"), "round = .*: Field required"),
        (lambda s: s["request"].update(more=1), "more = 1: Extra inputs are not permitted"),
        (lambda s: s["request"].update(in_cohort=1), "in_cohort = 1: Input should be a valid boolean"),
        (lambda s: s["request"].update(counted=[1, True]), r"counted.1 = true: Input should be a valid integer"),
        (lambda s: s["request"].update(tasks="a"), "tasks = 'a': Input should be a valid array"),
        (lambda s: s["request"].update(models=[0, 1]), "expected sent to have 4 values for 2 models, found 4"),
        (lambda s: s["task-train"].update(trainable=[4]), "trainable.0 = 4: Input should be a valid boolean"),
        (lambda s: s["task-train"].update(candidates=[[7]]), "a candidate is model 7, but the plan carries 1"),
    ],
)
def test_a_payload_that_is_no_request_is_refused(spoil: Any, message: str) -> None:
    evaluation = Evaluation(torch.tensor([0]), torch.tensor([[0]]), LAYOUT.nothing)
    payload = write_request(asked_of(whole_fit(), evaluations={"client": evaluation}), LAYOUT)
    records = {name: json.loads(record) for name, record in payload.records.items()}
    spoil(records)
    with pytest.raises(InputError, match=message):
        read_request(Payload({name: json.dumps(each) for name, each in records.items()}, payload.arrays), LAYOUT)


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ({}, "expected the array models.0, found none of that name"),
        ({"0": torch.ones(LAYOUT.p - 1)}, r"expected models.0 to be torch.float32 \(\d+,\), found"),
        ({"0": torch.ones(LAYOUT.p, dtype=torch.float64)}, "expected models.0 to be torch.float32"),
    ],
)
def test_a_model_of_another_shape_is_refused(models: dict[str, torch.Tensor], message: str) -> None:
    payload = write_request(asked_of(whole_fit()), LAYOUT)
    with pytest.raises(InputError, match=message):
        read_request(Payload(payload.records, {"models": models}), LAYOUT)


SAMPLES = Samples((1, 8, 8), 10, (0.5,), (0.25,), "float32", tuple("abcdefghij"), "trial", 0.3)


NAMED = ReadOptions(
    "outcome", ("a",), ("site",), 64, None, 8, scale=False, texts=(("x",),), classes=("ill",), class_values=("1",)
)


@pytest.mark.parametrize("reading", [ReadOptions(), NAMED])
def test_a_run_config_survives_its_message(reading: ReadOptions) -> None:
    config = RunConfig("run", 4, 7, "mlp", '{"hidden": [4]}', "float32", SAMPLES, reading=reading, spread_units=True)
    config = replace(config, objective=Objective(class_weights=(1.0, 20.0)))
    payload = write_run_config(config, layout_of(config.network()))
    assert read_run_config(decode(encode(payload))) == config
    assert config.stat_sizes == {"classes": 1, "entropy": 1, "subspaces": 10 * 3 * 64, "inputs": 32}


def test_another_network_than_the_senders_is_refused() -> None:
    config = RunConfig("run", 4, 7, "mlp", '{"hidden": [4]}', "float32", SAMPLES)
    with pytest.raises(InputError, match=r"the tensors conv.weight \(2, 3\), .*, found linear1"):
        refuse_other_network(write_run_config(config, LAYOUT), layout_of(config.network()))


def test_another_frozen_base_than_the_senders_is_refused() -> None:
    config = RunConfig("run", 4, 7, "mlp", '{"hidden": [4]}', "float32", SAMPLES)
    here = replace(LAYOUT, frozen="0123456789ab")
    refuse_other_network(write_run_config(config, here), here)
    with pytest.raises(InputError, match="frozen tensors have the digest 0123456789ab, found none"):
        refuse_other_network(write_run_config(config, here), LAYOUT)
