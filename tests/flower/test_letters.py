"""Plans and reports as letters and back: all of them, and nothing else, gets through."""

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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
from fedstrata.errors import InputError
from fedstrata.flower.answers import Answer, Bounds, expected_reply, limit_of, read_answer, write_answer
from fedstrata.flower.letter import Letter, mask_of, one, several
from fedstrata.flower.messages import read_letter, write_letter
from fedstrata.flower.orders import Order, needed, order, read_order, write_order
from fedstrata.flower.terms import Samples, Terms, read_terms, write_terms
from fedstrata.models import layout_of
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
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
SIZES = {"classes": 1, "entropy": 1, "subspaces": 5, "units": 1}


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
            selection_metric=draw(st.sampled_from(["loss", "errors"])),
            stream=draw(st.text(max_size=5)),
            upload_values=values if any(values) else (),
        )

    def evaluation() -> Evaluation:
        clients = torch.tensor(sorted(draw(st.sets(st.integers(0, CLIENTS - 1)))), dtype=torch.int64)
        return Evaluation(draw(st.text(max_size=5)), clients, offers(len(clients)), draw(MASKS))

    ask = {name: torch.tensor([draw(st.booleans()) for _ in range(m)], dtype=torch.bool) for name in CLIENT_STATS}
    work = tuple(task() for _ in range(draw(st.integers(0, 2))))
    score = tuple(evaluation() for _ in range(draw(st.integers(0, 2))))
    return Plan(draw(st.integers(1, 9)), draw(st.integers(0, 2**40)), cohort, draw(rows(k)), work, score, ask)


def whole_fit() -> LocalTask:
    """Everything is trained, sent, kept and stored, from the only model."""
    everything = LAYOUT.everything
    return LocalTask(torch.tensor([[0]]), LocalTraining(), everything, everything, everything, everything)


OWN = st.sets(st.integers(0, len(LAYOUT.tensors) - 1))
COUNTED = st.sets(st.integers(1, 9))
WHO = st.integers(0, CLIENTS - 1)


@unhurried
@given(plans(), WHO, OWN, COUNTED)
def test_an_order_survives_its_letter_and_its_message(
    plan: Plan, client: int, own: set[int], counted: set[int]
) -> None:
    written = order(plan, client, LAYOUT, own, counted)
    letter = write_order(written, LAYOUT)
    assert same(read_order(letter, LAYOUT), written)
    assert same(read_order(read_letter(write_letter(letter)), LAYOUT), written)


@unhurried
@given(plans(), WHO, OWN)
def test_an_order_holds_the_clients_own_part_and_only_what_it_needs(plan: Plan, client: int, own: set[int]) -> None:
    mine = order(plan, client, LAYOUT, own)
    asked = client in plan.cohort.tolist()
    assert mine.plan.cohort.tolist() == [client] * asked and len(mine.plan.tasks) == len(plan.tasks) * asked
    pieces: list[tuple[LocalTask | Evaluation, LocalTask | Evaluation]] = []
    if asked:
        place = plan.cohort.tolist().index(client)
        for task, work in zip(plan.tasks, mine.plan.tasks, strict=True):
            pieces.append((replace(task, candidates=task.candidates[place][None]), work))
    for evaluation, scored in zip(plan.evaluations, mine.plan.evaluations, strict=True):
        pieces.append((replace(evaluation, candidates=evaluation.candidates[evaluation.clients == client]), scored))
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
    assert set(needed(mine.plan, LAYOUT, own)) == set(range(len(mine.models)))


def test_a_pull_needs_the_received_values_of_tensors_that_are_kept() -> None:
    everything, nothing = LAYOUT.everything, LAYOUT.nothing
    task = LocalTask(
        torch.tensor([[0]]),
        LocalTraining(),
        (True, False, False, False),
        nothing,
        everything,
        everything,
        prox_weight=0.1,
    )
    plan = Plan(1, 0, torch.tensor([0]), torch.ones(1, LAYOUT.p), (task,))
    assert order(plan, 0, LAYOUT, range(4)).sent == ((True, False, False, False),)
    assert order(replace(plan, tasks=(replace(task, prox_weight=0.0),)), 0, LAYOUT, range(4)).sent == (nothing,)
    assert order(plan, 0, LAYOUT, ()).sent == (everything,)


@st.composite
def answered(draw: st.DrawFn) -> tuple[Order, Answer]:
    given_order = order(draw(plans()), draw(WHO), LAYOUT, ())
    plan, ids = given_order.plan, torch.tensor([given_order.client])

    def result(task: LocalTask) -> Result:
        models = sorted(set(task.candidates[0].tolist()) - {-1})
        if not models:
            nobody = torch.empty(0, dtype=torch.int64)
            width = task.candidates.shape[1]
            return Result(Rows(nobody, torch.empty(0, LAYOUT.p)), nobody, nobody, torch.empty(0, width))
        row = draw(rows(1))
        row[:, LAYOUT.columns(tuple(not sent for sent in task.upload))] = 0.0
        most = 1 if task.selection_metric == "errors" else 9
        losses = [
            draw(st.one_of(st.just(float("nan")), st.floats(0, most, width=32))) for _ in task.candidates[0].tolist()
        ]
        taken = torch.tensor([draw(st.sampled_from(models))])
        return Result(Rows(ids, row), taken, torch.tensor([draw(st.integers(1, 9))]), torch.tensor([losses]))

    def score(evaluation: Evaluation) -> Score:
        if not len(evaluation.clients):
            return Score(evaluation.clients, evaluation.clients, evaluation.clients, torch.empty(0))
        loss = torch.tensor([draw(st.floats(0, 9, width=32))])
        return Score(ids, torch.tensor([draw(st.integers(0, 5))]), torch.tensor([5]), loss)

    facts = {name: Rows(ids, torch.rand(1, SIZES[name])) for name in plan.client_stats}
    report = Report(tuple(map(result, plan.tasks)), tuple(map(score, plan.evaluations)), facts)
    stored = tuple(sorted(draw(OWN)))
    return given_order, Answer(report, stored, draw(st.booleans()))


@unhurried
@given(answered())
def test_an_answer_survives_its_letter_and_its_message(case: tuple[Order, Answer]) -> None:
    asked, answer = case
    letter = read_letter(write_letter(write_answer(answer, asked, LAYOUT, "run")))
    read = read_answer(letter, asked, LAYOUT, Bounds("run", 9, 5, SIZES))
    results = [
        replace(result, chosen=torch.tensor([asked.models[int(taken)] for taken in result.chosen], dtype=torch.int64))
        for result in answer.report.results
    ]
    # What was taken is told in terms of the plan for everyone.
    assert same(read, replace(answer, report=replace(answer.report, results=tuple(results))))


@unhurried
@given(answered())
def test_every_sound_answer_fits_the_limit_that_is_known_before_it_comes(case: tuple[Order, Answer]) -> None:
    asked, answer = case
    content = write_letter(write_answer(answer, asked, LAYOUT, "run"))
    expected = expected_reply(asked, LAYOUT, SIZES)
    assert same(read_letter(content, expected), read_letter(content))
    parts = get_all_nested_objects(Message(content, 1, "train"))
    joined = sum(len(array.data) for group in content.array_records.values() for array in group.values())
    limit = limit_of(expected)
    assert sum(len(part.deflate()) for part in parts.values()) + joined <= limit.bytes
    # Every place in the tree counts, also where equal parts are one object.
    assert sum(1 for _ in iterate_object_tree(get_object_tree(Message(content, 1, "train")))) <= limit.objects


@pytest.mark.parametrize(
    ("wrong", "units", "message"),
    [
        (1.5, 4.0, r"expected result 0 to have 1 errors, each of 0 to 1, found \[1.5\]"),
        (0.5, 10.0, "expected 0 to 9 independent samples, found 10"),
        (0.5, -1.0, "expected 0 to 9 independent samples, found -1"),
    ],
)
def test_nobody_claims_to_err_more_than_always_or_more_samples_than_it_has(
    wrong: float, units: float, message: str
) -> None:
    task = replace(whole_fit(), selection_metric="errors", upload=LAYOUT.nothing)
    ids = torch.tensor([0])
    asked = order(
        Plan(1, 0, ids, torch.ones(1, LAYOUT.p), (task,), client_stats={"units": torch.tensor([True])}), 0, LAYOUT, ()
    )
    result = Result(Rows(ids, torch.zeros(1, LAYOUT.p)), ids, torch.tensor([5]), torch.tensor([[wrong]]))
    told = Answer(Report((result,), client_stats={"units": Rows(ids, torch.tensor([[units]]))}), (), False)
    with pytest.raises(InputError, match=message):
        read_answer(write_answer(told, asked, LAYOUT, "run"), asked, LAYOUT, Bounds("run", 9, 5, SIZES))


def test_every_field_of_a_fit_and_its_recipe_is_carried() -> None:
    """A field that is added to one of them has to be added to the letter."""
    names = {field.name for kind in (LocalTask, LocalTraining) for field in fields(kind)} - {"training"}
    task = whole_fit()
    plan = Plan(1, 0, torch.tensor([0]), torch.ones(1, LAYOUT.p), (task,))
    assert set(write_order(order(plan, 0, LAYOUT, ()), LAYOUT).settings["fit-0"]) == names


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda s: s.pop("order"), "expected the record order, found fit-0, model-0, use-0"),
        (lambda s: s["order"].update(round="1"), "expected round to be of type int, found '1'"),
        (lambda s: s["order"].update(models=[0, 1]), "expected the record model-1"),
        (lambda s: s["fit-0"].update(trainable=[4]), r"expected trainable to name tensors 0 to 3, found \[4\]"),
        (lambda s: s["fit-0"].update(candidates=[7]), "an offer names model 7, but the plan carries 1"),
        (
            lambda s: s["fit-0"].update(selection_metric="luck"),
            "expected selection_metric to be loss or errors, found luck",
        ),
        (lambda s: s["use-0"].update(width=2), "expected candidates of 1 times 2 models, found 1"),
    ],
)
def test_a_letter_that_is_no_order_is_refused(spoil: Any, message: str) -> None:
    task = whole_fit()
    evaluation = Evaluation("all", torch.tensor([0]), torch.tensor([[0]]), LAYOUT.nothing)
    plan = Plan(1, 0, torch.tensor([0]), torch.ones(1, LAYOUT.p), (task,), (evaluation,))
    letter = write_order(order(plan, 0, LAYOUT, ()), LAYOUT)
    settings = {name: dict(record) for name, record in letter.settings.items()}
    spoil(settings)
    with pytest.raises(InputError, match=message):
        read_order(Letter(settings, letter.arrays), LAYOUT)


def test_a_tensor_that_was_not_asked_for_is_refused() -> None:
    task = whole_fit()
    plan = Plan(1, 0, torch.tensor([0]), torch.ones(1, LAYOUT.p), (task,))
    letter = write_order(order(plan, 0, LAYOUT, ()), LAYOUT)
    arrays = {"model-0": {**letter.arrays["model-0"], "more": torch.ones(1)}}
    with pytest.raises(InputError, match="expected no tensor more: it was not asked for"):
        read_order(Letter(letter.settings, arrays), LAYOUT)


def test_values_of_a_letter_keep_their_types() -> None:
    record: dict[str, Any] = {"flag": True, "count": 1, "list": [1, 2], "mixed": [1, True]}
    assert one(record, "flag", bool) is True and several(record, "list", int) == [1, 2]
    for name in ("flag", "no"):
        with pytest.raises(InputError, match=f"expected {name} to be of type int"):
            one(record, name, int)
    with pytest.raises(InputError, match="expected mixed to be a list of int"):
        several(record, "mixed", int)
    with pytest.raises(InputError):
        mask_of({"mask": 1}, "mask", LAYOUT)


SAMPLES = Samples((1, 8, 8), 10, (0.5,), (0.25,), "float32", tuple("abcdefghij"), "trial", 0.3)


def test_terms_survive_their_message() -> None:
    terms = Terms("run", 4, 7, "mlp", '{"hidden": [4]}', "float32", SAMPLES)
    letter = write_terms(terms, layout_of(terms.network(0)))
    assert read_terms(read_letter(write_letter(letter))) == terms
    assert terms.facts == {"classes": 1, "entropy": 1, "subspaces": 10 * 3 * 64, "units": 1}


def test_another_network_than_the_senders_is_refused() -> None:
    terms = Terms("run", 4, 7, "mlp", '{"hidden": [4]}', "float32", SAMPLES)
    with pytest.raises(InputError, match=r"the tensors conv.weight \(2, 3\), .*, found linear1"):
        read_terms(write_terms(terms, LAYOUT))


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": (8,)},
        {"classes": 1},
        {"mean": ()},
        {"std": (0.0,)},
        {"dtype": "int8"},
        {"names": ("a",)},
        {"test": 1.0},
    ],
)
def test_samples_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"samples: expected that .*{next(iter(changes))}"):
        replace(SAMPLES, **changes)
