"""FedTSDP, Complex & Intelligent Systems 2024: Algorithm 1 with equations 5 to 11.

Where the paper is silent, the numpy half reads it as follows. One batch serves all clients of a round. Logits become
probabilities by a softmax. The divergence is the mean over the batch, in nats. The sampling space is the box around the
predictions, and a quarter of the clients is sampled. A client that is near no other is a cluster of its own. The H of
line 31 is that of the round. Psi does not depend on the round. A layer
is shared or personal as a whole. One layer stays shared.
"""

from dataclasses import replace
from math import ceil, floor
from typing import Any

import numpy as np
import pytest
import torch
from experiments.papers.fedtsdp_variants import HalfLayers

from builders import layout_with
from fedstrata.algorithms.fedtsdp import FedTSDP, FedTSDPState
from fedstrata.core import Metric, Problem
from fedstrata.models import layout_of, make
from fedstrata.testing import Scripted, toy_problem
from papers.scripts import FEW_AND_SOME, Floats, Ids, as_sent, partition

KEYS: dict[str, Any] = {"radius2": 3.5, "weight_gain": "literal"}
"""What makes the library literal. The size of the public batch is not published, so scripts have their own."""

EPS1 = 0.15
EPS2 = 3.5
H_TH = 0.65
PSI = 0.98
"""Section 4.1.4."""

SHAPES = {"conv1": (3, 1), "conv2": (2, 1), "fc1": (4, 1), "fc2": (3, 2)}
"""The columns of the weight and the bias of each layer."""

LAYERS = layout_with(
    {f"{layer}.{tensor}": sizes[i] for layer, sizes in SHAPES.items() for i, tensor in enumerate(("weight", "bias"))}
)

EDGES = [0, 3, 4, 6, 7, 11, 12, 15, 17]
"""Where each of the eight tensors begins, and where the last one ends."""

CLASSES, FEATURES = 4, 4


def softmax_of_toy_network(models: Floats, inputs: Floats) -> Floats:
    """Class probabilities (m, b, classes): the first 16 columns of a model are the weights of its classes."""
    weights = models[:, : CLASSES * FEATURES].reshape(-1, CLASSES, FEATURES)
    logits = np.einsum("mcf,bf->mbc", weights, inputs)
    scores = np.exp(logits - logits.max(axis=2, keepdims=True))
    shares: Floats = scores / scores.sum(axis=2, keepdims=True)
    return shares


def predict(models: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """The engine's half of line 14: the same network in torch."""
    weights = models[:, : CLASSES * FEATURES].double().reshape(-1, CLASSES, FEATURES)
    return torch.einsum("mcf,bf->mbc", weights, inputs.double()).softmax(dim=2)


def divergences(predictions: Floats) -> Floats:
    """Equations 3 to 5, in the mean over the batch."""
    m = len(predictions)
    found = np.zeros((m, m))
    for i in range(m):
        for j in range(m):
            p, q = predictions[i], predictions[j]
            mixed = (p + q) / 2
            kl = [(side * np.log(side / mixed)).sum(axis=1) for side in (p, q)]
            found[i, j] = (kl[0] / 2 + kl[1] / 2).mean()
    return found


def dbscan(distance: Floats, eps: float) -> list[list[int]]:
    """Ester et al. 1996 with min_pts = 2: points in reach of one another; a point in reach of none is alone."""
    groups = list[list[int]]()
    left = set(range(len(distance)))
    while left:
        group = [min(left)]
        left -= {group[0]}
        for point in group:  # grows while it is walked
            near = [other for other in sorted(left) if distance[point, other] <= eps]
            group += near
            left -= set(near)
        groups.append(sorted(group))
    return groups


def hopkins(points: Floats, members: Ids, unit: Floats) -> float:
    """Equation 6 for given members, and points that were drawn from the unit cube."""
    low = points.min(axis=0)
    uniform = low + unit * (points.max(axis=0) - low)
    z = np.linalg.norm(uniform[:, None] - points, axis=2).min(axis=1)
    others = np.linalg.norm(points[members][:, None] - points, axis=2)
    others[np.arange(len(members)), members] = np.inf
    v = others.min(axis=1)
    return float(z.sum() / (z.sum() + v.sum()))


class Server:
    """Algorithm 1. The random draws are those of the problem's generators, for there is nothing else to compare."""

    def __init__(self, problem: Problem, inputs: Floats, batch: int, threshold: float) -> None:
        """Lines 2 to 4."""
        self.problem = problem
        self.inputs = inputs
        self.batch = batch
        self.threshold = threshold
        self.weights = np.full(len(inputs), 1 / len(inputs))
        self.shared_layers = 4.0
        self.round = 0

    @property
    def shared(self) -> int:
        """The number of columns that are shared."""
        return EDGES[2 * floor(self.shared_layers + 1e-9)]

    def _draw(self, name: str) -> torch.Generator:
        return self.problem.generator(name, self.round)

    def statistic(self, models: Floats) -> tuple[Ids, Floats, float]:
        """Lines 13 to 16: the batch, the predictions and H."""
        weights = torch.tensor(self.weights)
        drawn = torch.multinomial(weights, self.batch, generator=self._draw("public batch")).numpy()
        predictions = softmax_of_toy_network(models, self.inputs[drawn])
        points = predictions.reshape(len(models), -1)
        generator = self._draw("hopkins")
        count = ceil(len(models) / 4)
        members = torch.randperm(len(models), generator=generator)[:count].numpy()
        unit = torch.rand(count, points.shape[1], generator=generator, dtype=torch.float64).numpy()
        return drawn, predictions, hopkins(points, members, unit)

    def run(self, models: Floats, groups: list[list[int]]) -> tuple[list[list[int]], float]:
        """Lines 13 to 27 and 31 to 32: the clusters of the clients that sent models (m, p), and H.

        Args:
            models: What they sent.
            groups: Their clusters before.
        """
        self.round += 1
        drawn, predictions, found = self.statistic(models)
        if found > self.threshold:
            groups = []
            between = divergences(predictions)
            for first in dbscan(between, EPS1):  # Lines 18 to 20
                distance = np.linalg.norm(models[first][:, None] - models[first], axis=2)  # Eq. 9
                groups += [[first[row] for row in second] for second in dbscan(distance, EPS2)]
            self.weights[drawn] += len(self.weights) / len(drawn)  # Eq. 7
            self.weights = self.weights / self.weights.sum()  # Eq. 8
            self.shared_layers = max(1.0, self.shared_layers * PSI)  # Eq. 11
        return groups, found


def random_clients(rng: np.random.Generator, n: int, length: int) -> tuple[Floats, Ids, Scripted]:
    """Updates (rounds, n, p) of groups that predict other classes, whose models may lie apart though they agree.

    Also the sizes, and the clients that send these updates.

    Halfway through, clients change groups, and what was learned is undone.
    """
    pull = rng.normal(size=(4, LAYERS.p)) * rng.uniform(0.2, 1.0)
    script = rng.uniform(0.02, 0.2) * rng.normal(size=(length, n, LAYERS.p))
    half = length // 2
    for rounds, sign in ((slice(0, half), 1.0), (slice(half, length), -1.0)):
        groups = rng.integers(0, rng.integers(1, 5), size=n)
        sides = rng.integers(0, 2, size=n)
        script[rounds] += sign * pull[groups]
        script[rounds, :, -1] += sides * rng.choice([0.0, 2.0, 5.0])  # no prediction depends on the last column
    updates, sizes = as_sent(script), rng.integers(1, 50, size=n)
    return updates, sizes, Scripted(list(torch.tensor(updates, dtype=torch.float32)), torch.tensor(sizes))


def problem_of(rng: np.random.Generator, n: int) -> tuple[Problem, Floats]:
    inputs = as_sent(rng.normal(size=(30, FEATURES)) * 2)
    public = torch.tensor(inputs, dtype=torch.float32)
    seed = int(rng.integers(1000))
    return replace(toy_problem(n, LAYERS), public=public, predict=predict, seed=seed), inputs


def hopkins_of(metrics: tuple[Metric, ...]) -> float:
    return next(metric.value for metric in metrics if metric.name == "hopkins")


@FEW_AND_SOME
def test_clusters_models_weights_and_layers_are_those_of_algorithm_1(seeds: range) -> None:
    triggers = 0
    regrouped = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        n, length, batch = (int(rng.integers(*bounds)) for bounds in ((3, 9), (4, 12), (2, 8)))
        problem, inputs = problem_of(rng, n)
        updates, sizes, clients = random_clients(rng, n, length)
        algorithm = FedTSDP(batch=batch, **KEYS)
        state = algorithm.init(problem)

        server = Server(problem, inputs, batch, H_TH)
        received = np.zeros((n, LAYERS.p))
        groups = [list(range(n))]
        for update in updates:
            shared = server.shared
            # Lines 33 to 39: shared columns start from what was received, personal ones are the client's own.
            models = np.concatenate([received[:, :shared] + update[:, :shared], update[:, shared:]], axis=1)
            before = groups
            groups, found = server.run(models, groups)
            for group in groups:  # Lines 28 to 30
                received[group] = sizes[group] @ models[group] / sizes[group].sum()
            triggers += found > H_TH
            regrouped += len(before) > 1 and groups != before

            plan = algorithm.plan(problem, state, torch.arange(n))
            state, note = algorithm.update(problem, state, replace(clients.run(plan), cohort=plan.cohort))
            assert hopkins_of(note.metrics) == pytest.approx(found, abs=1e-4), f"seed {seed}"
            assert partition(state.labels.tolist()) == set(map(frozenset, groups)), f"seed {seed}"
            assert state.shared_layers == pytest.approx(server.shared_layers)
            assert state.sampling_weights.numpy() == pytest.approx(server.weights)
            assert state.models[state.labels][:, :shared].numpy() == pytest.approx(received[:, :shared], abs=1e-4)
    assert triggers > len(seeds) and regrouped > len(seeds) / 4


def received_by(algorithm: FedTSDP, problem: Problem, state: FedTSDPState, cohort: torch.Tensor) -> Floats:
    """What the library sends to each client of a cohort: which cluster an absent client is in is its own choice."""
    candidates = algorithm.plan(problem, state, cohort).tasks["train"].candidates[:, 0]
    sent: Floats = state.models[candidates].double().numpy()
    return sent


@FEW_AND_SOME
def test_of_the_connected_clients_all_are_clustered_and_nobody_else(seeds: range) -> None:
    """Line 6: only m of the K clients are connected in a round. Here every round clusters them."""
    for seed in seeds[: len(seeds) // 2]:
        rng = np.random.default_rng(seed)
        n, length = (int(rng.integers(*bounds)) for bounds in ((5, 10), (4, 9)))
        problem, inputs = problem_of(rng, n)
        updates, sizes, clients = random_clients(rng, n, length)
        algorithm = FedTSDP(batch=4, threshold=0.0, **KEYS)
        state = algorithm.init(problem)
        server = Server(problem, inputs, 4, threshold=0.0)
        for update in updates:
            connected = np.sort(rng.choice(n, size=rng.integers(3, n + 1), replace=False))
            cohort = torch.tensor(connected)
            shared = server.shared
            received = received_by(algorithm, problem, state, cohort)
            models = update[connected].copy()
            models[:, :shared] += received[:, :shared]
            groups, _ = server.run(models, [])
            report = clients.run(algorithm.plan(problem, state, cohort))
            state, _ = algorithm.update(problem, state, replace(report, cohort=cohort))
            assert partition(state.labels[cohort].tolist()) == set(map(frozenset, groups)), f"seed {seed}"
            for group in groups:
                mean = sizes[connected[group]] @ models[group] / sizes[connected[group]].sum()
                label = state.labels[connected[group[0]]]
                assert state.models[label][:shared].numpy() == pytest.approx(mean[:shared], abs=1e-4)


LAST_LAYER = ["fc2.weight", "fc2.bias"]


@pytest.mark.parametrize(
    ("kind", "shrink", "clusterings", "personal"),
    [
        (FedTSDP, 0.875, 1, LAST_LAYER),  # 4 x 0.875 = 3.5 layers: 3 whole ones, or 7 tensors
        (HalfLayers, 0.875, 1, LAST_LAYER[1:]),
        (FedTSDP, PSI, 0, []),
        (HalfLayers, PSI, 0, []),
        (FedTSDP, PSI, 6, LAST_LAYER),  # 3.54
        (HalfLayers, PSI, 6, LAST_LAYER[1:]),
        (FedTSDP, PSI, 7, LAST_LAYER),  # 3.47
        (HalfLayers, PSI, 7, LAST_LAYER),
    ],
)
def test_a_layer_becomes_personal_as_a_whole_or_first_its_bias(
    kind: type[FedTSDP], shrink: float, clusterings: int, personal: list[str]
) -> None:
    """Eq. 11 by layers, which is the default, and by halves of layers (Figure 11)."""
    algorithm = kind(batch=4, threshold=0.0, shrink=shrink, **KEYS)
    rng = np.random.default_rng(0)
    problem, _ = problem_of(rng, 4)
    _, _, clients = random_clients(rng, 4, clusterings + 1)
    state = algorithm.init(problem)
    for _ in range(clusterings):
        report = clients.run(algorithm.plan(problem, state, torch.arange(4)))
        state, _ = algorithm.update(problem, state, report)
    own = algorithm.plan(problem, state, torch.arange(4)).tasks["train"].load_local
    assert state.triggers == clusterings
    assert [tensor.name for tensor, kept in zip(LAYERS.tensors, own, strict=True) if kept] == personal


@pytest.mark.parametrize(("kind", "count"), [(FedTSDP, 512 * 10 + 10), (HalfLayers, 10)])
def test_half_a_layer_would_leave_a_client_ten_numbers_of_its_own(kind: type[FedTSDP], count: int) -> None:
    """The paper's network on CIFAR-10 after the first clustering."""
    layout = layout_of(make("tsdp_cnn", (3, 32, 32), 10, seed=0))
    assert len(layout.columns(kind().personal(layout, 4 * PSI))) == count
