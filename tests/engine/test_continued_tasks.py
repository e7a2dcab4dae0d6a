"""Tasks that go on from where an earlier task of the plan ended, and models between two models."""

from dataclasses import replace

import pytest
import torch
from small import fit_of, loop_of, plan_of

from fedstrata.base.errors import ContractError
from fedstrata.core import Layout, LocalTask, LocalTraining
from fedstrata.engine import Loop
from fedstrata.engine.loop import start_row
from fedstrata.engine.vectorized import Vectorized

ONE_EPOCH = LocalTraining(epochs=1, batch=5, lr=0.1)


def test_a_model_between_two_models_is_on_the_line_between_them() -> None:
    model, end = torch.tensor([0.0, 2.0]), torch.tensor([4.0, torch.inf])
    assert start_row(model, {}, (), end, 0.25)[0] == 1.0
    # The ends of the way are exact, whatever the other end holds.
    assert torch.equal(start_row(model, {}, (), end, 0.0), model) and torch.equal(
        start_row(model, {}, (), end, 1.0), end
    )
    assert torch.equal(start_row(model, {}, (), None, 0.5), model)


def test_two_epochs_in_two_tasks_are_two_epochs_in_one() -> None:
    engine, layout, start = loop_of([12, 9])
    first = fit_of(layout, [[0], [0]], training=ONE_EPOCH)
    both = engine.run(plan_of(start[None], first, replace(first, continues="train", stream="second"))).results
    # The second task alone, from the model that the first one ended with.
    second = fit_of(layout, [[0]], training=ONE_EPOCH, stream="second")
    for client in (0, 1):
        middle = start + both["train"].updates.values[client]
        alone = engine.run(plan_of(middle[None], second, cohort=[client])).results["train"].updates.values
        # The updates are differences, which were rounded.
        torch.testing.assert_close(both["second"].updates.values[client], alone[0], rtol=0, atol=1e-6)


def scored(layout: Layout, *shares: float) -> LocalTask:
    """Nothing is trained: models between the received one and the end of the first task are compared on fold B."""
    task = fit_of(layout, [[0] * len(shares)], trainable=layout.nothing, save_local=layout.everything)
    return replace(task, continues="train", shares=torch.tensor([shares]), selection_fold="B")


def engine_of(sizes: list[int], batched: bool) -> tuple[Loop | Vectorized, Layout, torch.Tensor]:
    loop, layout, start = loop_of(sizes)
    return Vectorized(loop._module, layout, loop._client_data) if batched else loop, layout, start


def test_models_between_two_are_compared_on_a_fold_and_the_best_one_is_kept() -> None:
    engine, layout, start = loop_of([12])
    train = fit_of(layout, [[0]], fold="A")
    report = engine.run(plan_of(start[None], train, scored(layout, 0.0, 0.5, 1.0)))
    end = start + report.results["train"].updates.values[0]
    models = torch.stack([start, torch.lerp(start, end, 0.5), end])
    by_hand = fit_of(layout, [[0, 1, 2]], trainable=layout.nothing, selection_fold="B")
    expected = engine.run(plan_of(models, by_hand)).results["train"]
    found = report.results["second"]
    torch.testing.assert_close(found.losses, expected.losses, rtol=0, atol=1e-6)
    best = int(expected.losses[0].argmin())
    kept = engine.store.read(0, before=2)
    row = torch.cat([kept[tensor] for tensor in sorted(kept)])
    torch.testing.assert_close(row, models[best], rtol=0, atol=1e-6)


def test_who_did_not_do_the_first_task_goes_on_from_the_received_model() -> None:
    engine, layout, start = loop_of([12, 9])
    train = fit_of(layout, [[0], [-1]], training=ONE_EPOCH)
    later = replace(train, candidates=torch.tensor([[-1], [0]]), continues="train")
    report = engine.run(plan_of(start[None], train, later))
    plain = engine.run(plan_of(start[None], fit_of(layout, [[0]], training=ONE_EPOCH), cohort=[1]))
    assert torch.equal(report.results["second"].updates.values[0], plain.results["train"].updates.values[0])


@pytest.mark.parametrize("batched", [False, True])
def test_a_client_whose_tuning_diverged_keeps_its_own_tensors(batched: bool) -> None:
    engine, layout, start = engine_of([12], batched)
    head = layout.select("fc")
    own = {tensor: torch.ones_like(start[span]) for tensor, span in enumerate(layout.spans) if head[tensor]}
    engine.store.write(0, 0, own)
    diverging = replace(ONE_EPOCH, lr=1e30)
    tuned = fit_of(layout, [[0]], training=diverging, load_local=head)
    kept = replace(scored(layout, 0.0, 1.0), load_local=head)
    report = engine.run(plan_of(start[None], tuned, kept))
    assert not report.results["train"].updates.values.isfinite().all()
    stored = engine.store.read(0, before=2)
    assert all(torch.equal(stored[tensor], values) for tensor, values in own.items())
    assert all(values.isfinite().all() for values in stored.values())


@pytest.mark.parametrize("batched", [False, True])
def test_what_is_saved_only_if_it_is_finite_leaves_a_client_what_it_had(batched: bool) -> None:
    """Client 0 diverges, as its head holds huge numbers. Client 1 saves its model."""
    engine, layout, start = engine_of([12, 9], batched)
    head = layout.select("fc")
    for client, value in ((0, 1e38), (1, 1.0)):
        own = {t: torch.full_like(start[span], value) for t, span in enumerate(layout.spans) if head[t]}
        engine.store.write(client, 0, own)
    task = fit_of(layout, [[0], [0]], training=ONE_EPOCH, load_local=head, save_local=layout.everything)
    engine.run(plan_of(start[None], replace(task, upload=layout.nothing, save_if_finite=True)))
    first, second = (engine.store.read(client, before=2) for client in (0, 1))
    assert sorted(first) == [t for t in range(len(layout.tensors)) if head[t]]
    assert all(bool((values == 1e38).all()) for values in first.values())
    assert len(second) == len(layout.tensors) and engine.store.savers(range(1, 2)) == {1}


def test_a_task_continues_an_earlier_one_and_has_a_share_for_each_candidate() -> None:
    layout, start = loop_of([12])[1:]
    train = fit_of(layout, [[0]])
    for wrong, words in (
        (replace(train, continues="third"), "no task before it"),
        (replace(train, shares=torch.ones(1, 1)), "expected shares"),
        (replace(train, continues="train", shares=torch.ones(1, 2)), "expected shares"),
    ):
        with pytest.raises(ContractError, match=words):
            plan_of(start[None], train, wrong)
