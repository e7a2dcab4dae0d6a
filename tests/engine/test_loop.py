from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
from small import RECIPES, data_of, dataset, fit_of, loop_of, network, partition_of, plan_of, scored, updates_of
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedstrata.base.errors import ContractError
from fedstrata.base.randomness import generator
from fedstrata.core import Evaluation, Layout, LocalTraining
from fedstrata.data import Dataset
from fedstrata.engine import ClientData, Loop, client_data
from fedstrata.engine.optimizer import stepper
from fedstrata.engine.vectorized import Vectorized
from fedstrata.models import layout_of, load_row, make, row_of


class OwnNorm(nn.Module):
    """A normalisation over the batch that keeps a running variance."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running_var", torch.ones(4))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs / (inputs.var(dim=0) + 1e-5).sqrt()


def textbook_optimizer(module: nn.Module, training: LocalTraining) -> torch.optim.Optimizer:
    """Torch's plain optimiser, which goes from tensor to tensor and looks at strides."""
    parameters = module.parameters()
    if training.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=training.lr, weight_decay=training.weight_decay, foreach=False)
    if training.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=training.lr, weight_decay=training.weight_decay, foreach=False)
    return torch.optim.SGD(
        parameters, lr=training.lr, momentum=training.momentum, weight_decay=training.weight_decay, foreach=False
    )


def textbook(
    module: nn.Module, start: Tensor, data: Dataset, index: Tensor, training: LocalTraining, client: int = 0
) -> Tensor:
    """The update of a client by a plain loop over the same batches."""
    layout = layout_of(module)
    load_row(module, layout, start)
    optimizer = textbook_optimizer(module, training)
    order = generator(7, "train", 1, client)
    visited = [index[torch.randperm(len(index), generator=order)] for _ in range(training.steps or training.epochs)]
    size = min(training.batch or len(index), len(index))
    least = size if training.drop_last else 1
    batches = [batch for samples in visited for batch in samples.split(size) if len(batch) >= least]
    if training.steps:  # through the shuffled data again and again
        batches = list(torch.cat(visited)[: training.steps * size].split(size))
    for batch in batches:
        optimizer.zero_grad()
        cross_entropy(module(data.prepare(batch).contiguous()), data.labels[batch]).backward()
        if training.clip_norm:
            nn.utils.clip_grad_norm_(module.parameters(), training.clip_norm)
        optimizer.step()
    return row_of(module, layout) - start


def tokens_of(targets: Tensor) -> tuple[Loop, Layout, Tensor]:
    """An engine whose network tells the class of each of three tokens, on data with such targets, (16, 3)."""
    words = Dataset("words", torch.arange(48).reshape(16, 3) % 5, torch.zeros(16, dtype=torch.int64), 2, (), ())
    module = nn.Sequential(OrderedDict(words=nn.Embedding(5, 4), fc=nn.Linear(4, 2)))
    layout = layout_of(module)
    data = ClientData(replace(words, targets=targets), partition_of([12]), seed=0)
    start = torch.randn(layout.p, generator=torch.Generator().manual_seed(1))
    return Loop(module, layout, data), layout, start


def test_the_loss_of_padded_tokens_is_the_mean_over_all_tokens_that_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test samples are the last four, in batches of one, of which the last has padding alone."""
    targets = torch.arange(48).reshape(16, 3) % 2
    targets[12, 1:], targets[13, 2], targets[15] = -100, -100, -100
    engine, layout, start = tokens_of(targets)
    plan = replace(scored(plan_of(start[None], fit_of(layout, [[0]])), layout, 1), tasks={})
    score = engine.run(plan).scores["client"]
    monkeypatch.setattr("fedstrata.engine.loop.EVALUATION_BATCH", 1)
    alone = engine.run(plan).scores["client"]
    load_row(engine._module, layout, start)
    outputs = engine._module(torch.arange(36, 48).reshape(4, 3) % 5).detach()
    right = (outputs.argmax(2) == targets[12:]).double()
    accuracy = float(right[0, 0] + right[1, :2].mean() + right[2].mean()) / 3
    for found in (score, alone):
        expected = float(cross_entropy(outputs.flatten(0, 1), targets[12:].flatten()))
        assert float(found.loss) == pytest.approx(expected) and float(found.correct) == pytest.approx(4 * accuracy)


def test_a_batch_of_padding_alone_moves_nothing() -> None:
    targets = torch.full((16, 3), -100)
    targets[[0, 15]] = 1
    engine, layout, start = tokens_of(targets)
    task = fit_of(layout, [[0]], training=LocalTraining(epochs=1, batch=1, lr=0.1))
    moved = updates_of(engine, start, task)[0]
    load_row(engine._module, layout, start)
    loss = cross_entropy(engine._module(torch.arange(3)[None])[0], torch.ones(3, dtype=torch.int64))
    parts = torch.autograd.grad(loss, list(engine._module.parameters()))
    gradients = torch.cat([part.flatten() for part in parts])
    assert torch.allclose(moved, -0.1 * gradients, atol=1e-6)


@pytest.mark.parametrize(
    "training",
    [LocalTraining(batch=4, lr=0.05, momentum=0.9), LocalTraining(batch=4, lr=0.01, optimizer="adam")],
    ids=["momentum", "adam"],
)
@pytest.mark.parametrize(("name", "shape"), [("mnist_cnn", (1, 28, 28)), ("cifar_cnn", (3, 32, 32))])
def test_the_networks_of_the_papers_train_as_in_a_textbook_loop(
    name: str, shape: tuple[int, int, int], training: LocalTraining
) -> None:
    """torch's fused optimisers ignore strides, and a convolution's gradient may lie in memory unlike its weight."""
    module = make(name, shape, classes=3, seed=0)
    layout = layout_of(module)
    start = row_of(module, layout)
    images = torch.randint(0, 256, (16, *shape), dtype=torch.uint8, generator=generator(0, "images"))
    data = Dataset("noise", images, torch.arange(16) % 3, 3, mean=(0.5,) * shape[0], std=(0.3,) * shape[0])
    engine = Loop(module, layout, ClientData(data, partition_of([12]), seed=0))
    moved = updates_of(engine, start, fit_of(layout, [[0]], training=training))
    expected = textbook(module, start, data, torch.arange(12), training)
    # Adam divides by the size of a gradient, so where one is nearly nothing, rounding decides which way a weight goes.
    wrong = (moved[0] - expected).abs() > 1e-4
    assert float(wrong.double().mean()) < 0.01


@pytest.mark.parametrize(
    "training", [LocalTraining(momentum=0.9), LocalTraining(optimizer="adam"), LocalTraining(batch=0)]
)
def test_a_client_trains_the_same_bits_whoever_else_takes_part(training: LocalTraining) -> None:
    engine, layout, start = loop_of([10, 10, 10])
    all_three = engine.run(plan_of(start[None], fit_of(layout, [[0]] * 3, training=training)))
    alone = engine.run(plan_of(start[None], fit_of(layout, [[0]], training=training), cohort=[2]))
    assert torch.equal(all_three.results["train"].updates.of(torch.tensor([2])), alone.results["train"].updates.values)
    assert alone.results["train"].updates.values.abs().max() > 0


@pytest.mark.parametrize("training", RECIPES.values(), ids=RECIPES)
def test_local_training_equals_a_textbook_loop_over_the_same_batches(training: LocalTraining) -> None:
    engine, layout, start = loop_of([12, 9])
    result = engine.run(plan_of(start[None], fit_of(layout, [[0], [0]], training=training))).results["train"]
    for moved, client, index in zip(result.updates.values, (0, 1), torch.arange(25).split([12, 13]), strict=True):
        expected = textbook(network(), start, dataset(29), index[-result.sizes[client] :], training, client)
        assert torch.allclose(moved, expected, atol=1e-6)
    assert result.sizes.tolist() == [12, 9] and result.losses.isnan().all()
    if training.clip_norm and training.optimizer == "sgd":
        assert result.updates.values.norm(dim=1).max() < 0.1 * 0.5 * 6  # six steps of at most the largest norm


def test_of_several_offers_a_client_takes_the_one_of_lowest_training_loss() -> None:
    engine, layout, start = loop_of([10, 10])
    trained = start + updates_of(engine, start, fit_of(layout, [[0]]))[0]
    broken = torch.full_like(start, torch.nan)
    report = engine.run(plan_of(torch.stack([broken, start, trained]), fit_of(layout, [[0, 1, 2], [1, -1, -1]])))
    result = report.results["train"]
    assert result.chosen.tolist() == [2, 1]
    assert result.losses[0, 2] < result.losses[0, 1] and result.losses[0, 0].isnan()
    assert result.losses[1].isnan().all()


def test_a_client_without_an_offer_is_an_absent_row() -> None:
    engine, layout, start = loop_of([10, 10])
    result = engine.run(plan_of(start[None], fit_of(layout, [[-1], [0]]))).results["train"]
    assert result.updates.clients.tolist() == [1]
    nobody = engine.run(plan_of(start[None], fit_of(layout, [[-1], [-1]]))).results["train"]
    assert nobody.updates.values.shape == (0, layout.p) and nobody.losses.shape == (0, 1)


def test_tensors_outside_the_train_mask_stay_and_those_outside_the_upload_mask_are_zero() -> None:
    engine, layout, start = loop_of([10], norm=True)
    head = layout.select("fc")
    update = updates_of(engine, start, fit_of(layout, [[0]], trainable=head))[0]
    inside = torch.isin(torch.arange(layout.p), layout.columns(head))
    assert update[inside].any() and not update[~inside].any()
    sent = updates_of(engine, start, fit_of(layout, [[0]], upload=head))[0]
    assert sent[inside].any() and not sent[~inside].any()


def test_what_is_stored_comes_back_in_a_later_round_and_not_when_the_same_round_is_run_again() -> None:
    engine, layout, start = loop_of([10])
    head = layout.select("fc")
    columns = layout.columns(head)
    personal = fit_of(layout, [[0]], load_local=head, save_local=head)
    first = updates_of(engine, start, personal)[0]
    again = updates_of(engine, start, personal)[0]
    assert torch.equal(first, again)
    kept = engine.store.read(0, before=2)
    assert torch.allclose(torch.cat([kept[2], kept[3]]), (start + first)[columns], atol=1e-7)
    frozen = fit_of(layout, [[0]], load_local=head, trainable=layout.nothing)
    assert updates_of(engine, start, frozen, round=2).abs().sum() == 0
    engine.run(plan_of(start[None], replace(frozen, save_local=head), round=2))
    assert all(torch.equal(engine.store.read(0, before=3)[tensor], values) for tensor, values in kept.items())


def test_a_tensor_that_is_asked_for_as_values_is_not_sent_as_an_update() -> None:
    engine, layout, start = loop_of([10])
    head = layout.select("fc")
    plain = updates_of(engine, start, fit_of(layout, [[0]]))[0]
    sent = updates_of(engine, start, fit_of(layout, [[0]], upload_values=head))[0]
    inside = torch.isin(torch.arange(layout.p), layout.columns(head))
    assert torch.equal(sent[~inside], plain[~inside])
    assert torch.allclose(sent[inside], (start + plain)[inside], atol=1e-7)
    silent = fit_of(layout, [[0]], upload_values=head, upload=layout.select("conv"))
    assert not updates_of(engine, start, silent)[0, inside].any()


def test_between_the_fits_of_a_round_only_the_store_passes() -> None:
    engine, layout, start = loop_of([10])
    head, body = layout.select("fc"), layout.select("conv")
    columns = layout.columns(head)
    steps = (
        fit_of(layout, [[0]], trainable=head, load_local=head, save_local=head, upload=layout.nothing),
        fit_of(layout, [[0]], trainable=body, load_local=head, upload=layout.everything),
    )
    report = engine.run(plan_of(start[None], *steps))
    assert report.results["train"].updates.values.abs().sum() == 0
    body_moved = report.results["second"].updates.values[0]
    assert body_moved[columns].abs().sum() == 0 and body_moved.abs().sum() > 0
    plain = updates_of(engine, start, replace(steps[1], load_local=layout.nothing))[0]
    assert not torch.equal(body_moved, plain)  # the body was trained under the trained head


def test_the_proximal_term_pulls_towards_the_received_model() -> None:
    """After a first full-batch step from the received model, the second one adds -lr * mu * (w - received)."""
    engine, layout, start = loop_of([10])
    once = fit_of(layout, [[0]], training=LocalTraining(batch=0, lr=0.1))
    twice = replace(once, training=LocalTraining(batch=0, lr=0.1, epochs=2))
    tasks = (once, twice, replace(twice, prox_weight=0.5))
    one, two, pulled = (updates_of(engine, start, task)[0] for task in tasks)
    assert torch.allclose(pulled, two - 0.1 * 0.5 * one, atol=1e-6) and not torch.allclose(pulled, two, atol=1e-4)


def test_what_the_network_froze_stays_as_it_is_while_the_rest_trains() -> None:
    module = network()
    fc = module.get_submodule("fc").requires_grad_(False)
    before = fc.get_parameter("weight").clone()
    engine, layout, start = loop_of([10], module=module)
    assert layout.layers == ("conv",)
    assert updates_of(engine, start, fit_of(layout, [[0]])).any()
    assert torch.equal(fc.get_parameter("weight"), before)


def test_a_last_batch_of_one_sample_is_left_out_before_a_batch_norm() -> None:
    engine, layout, start = loop_of([11], norm=True)
    update = updates_of(engine, start, fit_of(layout, [[0]]))
    assert update.isfinite().all()
    statistics = [span for slot, span in zip(layout.tensors, layout.spans, strict=True) if slot.kind == "buffer"]
    assert all(update[0, span].abs().max() > 0 for span in statistics)


@pytest.mark.parametrize("middle", [nn.BatchNorm1d(4, track_running_stats=False), OwnNorm()], ids=["torch", "own"])
def test_every_layer_that_normalises_over_a_batch_is_spared_a_batch_of_one_sample(middle: nn.Module) -> None:
    engine, layout, start = loop_of([11], module=nn.Sequential(nn.Flatten(), nn.Linear(36, 4), middle, nn.Linear(4, 3)))
    update = updates_of(engine, start, fit_of(layout, [[0]]))
    assert update.isfinite().all() and update.any()


def test_scores_are_of_the_models_before_the_work_of_the_same_plan() -> None:
    engine, layout, start = loop_of([10, 10])
    plans = [scored(plan_of(start[None], fit_of(layout, [[model], [model]])), layout, 2) for model in (0, -1)]
    before, alone = (engine.run(plan).scores["client"] for plan in plans)
    assert torch.equal(before.loss, alone.loss) and before.samples.tolist() == [4, 4]
    assert ((before.correct >= 0) & (before.correct <= 4)).all()


def test_scores_use_what_a_client_keeps_to_itself() -> None:
    engine, layout, start = loop_of([10])
    own = Evaluation(torch.tensor([0]), torch.tensor([[0]]), layout.everything)
    shared = replace(own, load_local=layout.nothing)
    engine.run(plan_of(start[None], fit_of(layout, [[0]], save_local=layout.everything)))
    kept = torch.cat([engine.store.read(0, before=2)[tensor] for tensor in range(4)])
    plan = plan_of(torch.stack([start, kept]), fit_of(layout, [[-1]]), round=2)
    later = replace(plan, evaluations={"client": shared, "own": own})
    scores = engine.run(later).scores
    sent = engine.run(replace(later, evaluations={"client": replace(shared, candidates=torch.tensor([[1]]))})).scores[
        "client"
    ]
    assert torch.equal(scores["own"].loss, sent.loss) and not torch.equal(scores["client"].loss, sent.loss)


def test_a_client_sees_its_images_turned() -> None:
    engine, _, _ = loop_of([4, 4], turns=[0, 1])
    client_data, data = engine._client_data, dataset(16)
    (inputs, _), *_ = client_data.batches(torch.tensor([8, 9]), 0)
    assert torch.equal(inputs, torch.rot90(data.prepare(torch.tensor([8, 9])), 1, dims=(2, 3)))


def test_the_global_random_numbers_are_left_as_they_were() -> None:
    engine, layout, start = loop_of([10])
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    engine.run(plan_of(start[None], fit_of(layout, [[0]])))
    assert torch.equal(torch.rand(1), expected)


def test_only_those_that_are_asked_tell_about_their_data() -> None:
    engine, layout, start = loop_of([10, 10, 10])
    plan = plan_of(start[None], fit_of(layout, [[0], [0]]), cohort=[0, 2])
    asked = {"entropy": torch.tensor([False, True]), "classes": torch.tensor([False, False])}
    facts = engine.run(replace(plan, client_stats=asked)).client_stats
    assert facts.keys() == {"entropy"} and facts["entropy"].clients.tolist() == [2]
    everyone = engine.run(replace(plan, client_stats={"entropy": torch.tensor([True, True])})).client_stats["entropy"]
    assert torch.equal(everyone.of(torch.tensor([2])), facts["entropy"].values)
    with pytest.raises(ContractError, match=r"expected a statistic of .+ found 'age'"):
        engine.run(replace(plan, client_stats={"age": torch.tensor([True, False])}))


def test_batches_are_the_same_however_many_are_normalised_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    data = data_of([30, 22], turns=[1, 3])
    index = torch.arange(52).flip(0)
    found = []
    for many in (4, 16):
        monkeypatch.setattr(client_data, "_SMALL_BATCHES_AT_ONCE", many)
        found.append(list(data.batches(index, 4)))
    for (inputs, targets), (others, other_targets) in zip(*found, strict=True):
        assert torch.equal(inputs, others) and inputs.stride() == others.stride()
        assert torch.equal(targets, other_targets)


class InPlace(nn.Module):
    """A network that changes its input."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(36, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        inputs -= 0.5
        logits: torch.Tensor = self.fc(inputs.flatten(1))
        return logits


def test_a_network_that_changes_its_input_does_not_change_that_of_the_next_model() -> None:
    loop, layout, row = loop_of([8], module=InPlace())
    for engine in (loop, Vectorized(loop._module, layout, loop._client_data)):
        inputs = torch.ones(2, 1, 6, 6)
        first, second = engine.outputs(torch.stack([row, row]), inputs)
        assert torch.equal(first, second) and bool((inputs == 1).all())


@pytest.mark.parametrize("training", [LocalTraining(momentum=0.9), LocalTraining(clip_norm=1.0)])
def test_sparse_gradients_of_an_embedding_are_as_dense_ones(training: LocalTraining) -> None:
    ends = []
    for sparse in (False, True):
        torch.manual_seed(0)
        table = nn.Embedding(5, 2, sparse=sparse)
        step = stepper([table.weight], [table.weight.detach().clone()], training, 0.0)
        for _ in range(2):
            step(torch.autograd.grad(table(torch.tensor([1, 1, 3])).square().sum(), [table.weight]))
        ends.append(table.weight.detach().clone())
    assert torch.equal(*ends)
