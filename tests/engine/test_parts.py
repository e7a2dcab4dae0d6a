"""Fixed parts of a client's data: halves, quarters, and at most so many samples of them."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from small import data_of, dataset, fit_of, loop_of, network, partition_of, plan_of, scored

from fedstrata.base.errors import ContractError, DataError
from fedstrata.core import FOLDS, SINGULAR_VECTORS
from fedstrata.engine import ClientData, Loop, SimulationSpec
from fedstrata.engine.client_data import client_stat
from fedstrata.models import layout_of, row_of
from fedstrata.objective import Objective


def samples(client_data: ClientData, part: str, client: int = 0) -> set[int]:
    return set(client_data.train(client, part).tolist())


@pytest.mark.parametrize(("size", "quarters"), [(8, [2, 2, 2, 2]), (11, [2, 3, 3, 3]), (2, [0, 1, 0, 1])])
def test_quarters_are_halves_of_the_halves(size: int, quarters: list[int]) -> None:
    client_data = data_of([size])
    assert [len(samples(client_data, part)) for part in FOLDS[3:]] == quarters
    for half in "AB":
        assert samples(client_data, f"{half}1") | samples(client_data, f"{half}2") == samples(client_data, half)
    assert not any(samples(client_data, a) & samples(client_data, b) for a, b in combinations(FOLDS[3:], 2))
    assert min(quarters) == size // 4  # as many every quarter has, however it was cut


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("trials", [(2, 2, 2), (3, 4, 5), (2, 7, 3)])
def test_classes_of_several_units_are_in_both_halves_and_units_stay_whole(trials: tuple[int, ...], seed: int) -> None:
    """Two samples of each trial. Halves of few trials often had a class in one of them alone."""
    labels = torch.arange(3).repeat_interleave(2 * torch.tensor(trials))
    unit = np.arange(len(labels)) // 2
    held = replace(dataset(len(labels) + 4), columns={"trial": np.append(unit, [-1] * 4)}, unit="trial", classes=3)
    held = replace(held, labels=torch.cat([labels, torch.zeros(4, dtype=torch.int64)]))
    client_data = ClientData(held, replace(partition_of([len(labels)]), relabel=np.arange(3)[None]), seed)
    halves = [client_data.train(0, half) for half in "AB"]
    units = [set(client_data.unit_values(index).tolist()) for index in halves]
    assert not units[0] & units[1] and len(units[0]) == sum(trials) // 2
    assert all(set(client_data.labels(index).tolist()) == {0, 1, 2} for index in halves)


@pytest.mark.parametrize(("split", "first", "last"), [("training", 12, 16), ("test", 16, 20)])
def test_a_client_whose_tokens_are_all_padding_is_refused(split: str, first: int, last: int) -> None:
    """Client 1 has four samples to train on, 12 to 15, and four to be tested on."""
    targets = torch.ones(20, 3, dtype=torch.int64)
    targets[first : last - 1] = -100
    partition = replace(partition_of([8, 4]), names=("Bern", "Lyon"))
    ClientData(replace(dataset(20), targets=targets), partition, seed=0)
    targets[first:last] = -100
    with pytest.raises(
        DataError, match=rf"in the {split} samples of client Lyon, found padding \(-100\) alone in all 4"
    ):
        ClientData(replace(dataset(20), targets=targets), partition, seed=0)


def test_parts_are_drawn_anew_for_another_seed_and_another_client() -> None:
    one, other = data_of([40, 40]), data_of([40, 40], seed=1)
    assert samples(one, "A") == samples(data_of([40, 40]), "A") != samples(other, "A")
    assert {index - 44 for index in samples(one, "A1", client=1)} != samples(one, "A1")


def test_a_part_that_there_is_not_is_refused() -> None:
    with pytest.raises(ContractError, match="expected a fold, one of all, A, B, A1, A2, B1, B2, found 'C'"):
        data_of([8]).train(0, "C")


def test_at_most_so_many_samples_are_the_same_ones_every_time_and_fewer_are_among_more() -> None:
    client_data = data_of([20, 20])
    index = client_data.train(1)
    five, nine = (client_data.train(1, max_samples=most) for most in (5, 9))
    assert (len(five), len(nine)) == (5, 9) and set(five.tolist()) < set(nine.tolist()) < set(index.tolist())
    assert torch.equal(five, client_data.train(1, max_samples=5)) and five.tolist() == sorted(five.tolist())
    assert torch.equal(client_data.train(1, max_samples=100), index)
    assert not torch.equal(five - index[0], client_data.train(0, max_samples=5) - client_data.train(0)[0])


def test_a_fit_takes_at_most_so_many_samples_of_its_part_from_each_client() -> None:
    engine, layout, start = loop_of([12, 8, 12])
    fit = fit_of(layout, [[0]] * 3, fold="A", max_samples=torch.tensor([4, 100, 6]))
    plan = plan_of(start[None], fit)
    results = engine.run(plan).results["train"]
    assert results.sizes.tolist() == [4, 4, 6]
    # 6 are all of the half that client 2 has, so it trains as it would without a bound.
    whole = engine.run(plan_of(start[None], fit_of(layout, [[0]], fold="A"), cohort=[2])).results["train"]
    assert torch.equal(whole.updates.values[0], results.updates.values[2])
    alone = engine.run(plan.only(torch.tensor([False, False, True]))).results["train"]
    assert alone.sizes.tolist() == [6] and torch.equal(alone.updates.values[0], results.updates.values[2])


def test_offers_are_compared_on_the_part_that_is_named_whatever_is_trained_on() -> None:
    engine, layout, start = loop_of([12])
    models = start + 0.05 * torch.randn(2, layout.p, generator=torch.Generator().manual_seed(0))
    none = layout.nothing
    told = {
        part: engine.run(
            plan_of(models, fit_of(layout, [[0, 1]], trainable=none, upload=none, fold="B", selection_fold=part))
        ).results["train"]
        for part in ("all", "A", "B")
    }
    halves = (told["A"].losses + told["B"].losses) / 2
    assert torch.allclose(told["all"].losses, halves) and not torch.allclose(told["A"].losses, told["B"].losses)
    assert all(not result.updates.values.any() and result.sizes.tolist() == [6] for result in told.values())


def test_a_model_is_judged_once_however_many_fits_offer_it(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, layout, start = loop_of([12])
    judged, evaluate = list[object](), engine._evaluate

    def counting(row: torch.Tensor, index: torch.Tensor) -> tuple[float, float]:
        judged.append(row)
        return evaluate(row, index)

    monkeypatch.setattr(engine, "_evaluate", counting)
    fit = fit_of(layout, [[0, 1]], trainable=layout.nothing, selection_fold="B")
    plan = plan_of(
        torch.stack([start, start + 0.1]),
        fit,
        replace(fit, stream="other"),
        replace(fit, selection_fold="A"),
    )
    assert [result.losses.shape for result in engine.run(plan).results.values()] == [(1, 2)] * 3
    assert len(judged) == 4  # two models, on two parts


def test_copies_of_one_sample_span_one_direction() -> None:
    """The other singular vectors of such a class are any, and say nothing about its data."""
    data = dataset(8)
    first, *_ = data.inputs
    copies = replace(data, inputs=torch.stack([first] * 8), labels=torch.zeros(8, dtype=torch.int64))
    client_data = ClientData(copies, partition_of([3]), seed=0)
    vectors = client_stat("subspaces", client_data, client_data.train(0)).view(-1, SINGULAR_VECTORS, first.numel())
    assert vectors[0].norm(dim=1).tolist() == pytest.approx([1, 0, 0], abs=1e-5) and not vectors[1:].any()


def weighted(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A loss that is no mean over samples: it divides by the sum of their weights."""
    return torch.nn.functional.cross_entropy(outputs, targets, weight=torch.tensor([1.0, 20.0, 3.0]))


@pytest.mark.parametrize("metric", ["accuracy", "f1_macro"])
def test_the_loss_of_a_score_is_that_of_all_test_samples_at_once(metric: str) -> None:
    """Of 1,500 samples by class, in two batches, the mean of both losses is another number."""
    data = dataset(1512)
    by_class = data.labels.argsort()
    data = replace(data, inputs=data.inputs[by_class], labels=data.labels[by_class])
    objective = Objective(f"{__name__}:weighted", metric)
    spec = SimulationSpec(network, data, partition_of([12], tests=1500), 0, objective=objective)
    engine = Loop.at(spec)
    layout = layout_of(network())
    start = row_of(network(), layout)
    (loss,) = engine.run(scored(plan_of(start[None], fit_of(layout, [[0]])), layout, 1)).scores["client"].loss.tolist()
    inputs, targets = spec.client_data.samples(spec.client_data.test(0))
    with torch.no_grad():
        outputs = torch.cat([network()(part) for part in inputs.split(500)])
    assert loss == pytest.approx(float(weighted(outputs, targets)), rel=1e-6)
    losses = [float(weighted(*part)) for part in zip(outputs.split(1024), targets.split(1024), strict=True)]
    assert loss != pytest.approx((1024 * losses[0] + 476 * losses[1]) / 1500, rel=1e-3)
