"""What the server, other members and outsiders can learn about a client's data, by what they see.

    FEDSTRATA_DATA=DATA python -m experiments.trust.leaks --federations 3 --jobs 2

Adds to ``experiments/results/leaks.json`` the seeds that it does not hold yet. The attacks are in ``leakage.py``:

- Membership: which samples a model was trained on, by the number of clients that trained it, by the method, by the
  noise of differential privacy, and by the least size of clusters.
- Label mix: the class shares of a client, by what it sends in one round, without and with noise.
- Inversion: the images of a client, by what it sends after one step or one epoch, from an untrained network.
- Singular vectors: the mean images and single images that the vectors of PACFL show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import fedstrata
from experiments.strata.federations import run_study
from experiments.trust import leakage
from fedstrata.build.build import build_run
from fedstrata.build.run_setup import RunSetup
from fedstrata.config import load_experiment
from fedstrata.core import SINGULAR_VECTORS, TRAIN, State
from fedstrata.engine import ClientData
from fedstrata.engine.client_data import client_stat
from fedstrata.engine.device import one_thread
from fedstrata.models import NetworkShape, layout_of, load_row, make_network
from fedstrata.play.rounds import PlayedRound, Rules, answer_plans, play_rounds, timed_reply

SIZES = (1, 2, 5, 10, 20)
"""The number of clients whose data a model has seen."""

SHADOWS = 16
"""Shadow models of each size, on clients of another seed."""

OTHER_SEED = 1000
"""Added to a seed for the clients of an attacker's own."""

SMALL: Mapping[str, Any] = {
    "rounds": 30,
    "data": {"name": "mnist", "clients": 20, "samples": 40, "test": 0.5},
    "partition": {"scheme": "iid"},
    "model": {"name": "mlp", "hidden": [32]},
    "local": {"epochs": 1, "batch": 10, "lr": 0.1},
    "engine": {"name": "batched"},
}
"""Twenty small clients, each with as many test samples as training samples."""

GROUPED: Mapping[str, Any] = {
    **SMALL,
    "data": {"name": "mnist", "clients": 20, "samples": 80, "test": 0.5},
    "partition": {"scheme": "rotation", "groups": 4},
}
"""The same with twice the images, in four groups of five."""

METHODS: Mapping[str, Mapping[str, Any]] = {
    "local": {"algorithm": {"name": "local"}},
    "fedavg": {"algorithm": {"name": "fedavg"}},
    "strata": {"algorithm": {"name": "strata"}},
    "strata_finetune": {"algorithm": {"name": "strata"}, "personal": {"method": "finetune"}},
    "strata_best": {"algorithm": {"name": "strata"}, "personal": {"method": "best"}},
}
"""The tables of the methods whose models are attacked, by name."""

UPLOADED = ("fedavg", "strata")
"""The methods of which the server's own view is attacked too: the model that a client sends."""

LINEAR: Mapping[str, Any] = {**SMALL, "model": {"name": "mlp", "hidden": []}}
"""The small clients with a network without hidden layers, whose few weights need the least noise."""

CLIP_NORM = 0.5
"""The largest norm of an update with differential privacy, as in ``private_federations.py``."""

NOISY: Mapping[str, Mapping[str, Any]] = {
    "no noise": {},
    **{
        f"{kind}, {amount}": {"kind": kind, "clip_norm": CLIP_NORM, "noise_multiplier": amount}
        for kind, amounts in (("central", (0.1, 0.3)), ("local", (0.03, 0.1, 0.3)))
        for amount in amounts
    },
    "central, epsilon 8": {"kind": "central", "clip_norm": CLIP_NORM, "epsilon": 8.0},
}
"""The tables of privacy under which membership is inferred, by who adds the noise and the noise multiplier."""

NOISY_SIZES = (5, 20)
"""The number of clients whose data a noisy model has seen."""

UNEVEN: Mapping[str, Any] = {
    **SMALL,
    "data": {"name": "mnist", "clients": 20, "samples": 80, "test": 0.5},
    "partition": {"scheme": "rotation", "sizes": [9, 6, 3, 2]},
}
"""Twenty clients with twice the images, in groups of 9, 6, 3 and 2."""

LEAST_SIZES = (1, 5)
"""The least sizes of clusters that are compared."""

SIZED: Mapping[str, Mapping[str, Any]] = {
    "oracle": {"name": "oracle"},
    "strata": {"name": "strata"},
    "ifca": {"name": "ifca", "k": 4},
}
"""The algorithms whose clusters have a least size, with their keys."""

KNOWN, ASKED = 200, 40
"""Clients of known class shares, which the attacker makes of data of its own, and clients that it asks about."""

MIXED: Mapping[str, Any] = {
    "rounds": 10,
    "data": {"name": "mnist", "clients": KNOWN + ASKED, "samples": 100, "test": 0.1},
    "partition": {"scheme": "dirichlet", "alpha": 0.5},
    "model": {"name": "mlp", "hidden": [32]},
    "local": {"epochs": 1, "batch": 20, "lr": 0.1},
    "engine": {"name": "batched"},
}
"""Clients with class shares of their own."""

ROUNDS = (1, 10)
"""The rounds in which a client's upload is looked at."""

SENDERS: Mapping[str, Mapping[str, Any]] = {
    "fedavg": {"name": "fedavg"},
    "fedper": {"name": "fedper"},
    "lg_fedavg": {"name": "lg_fedavg"},
}
"""Algorithms whose clients send the whole update, all but the head, and the head."""

LOCAL_NOISE: Mapping[str, Mapping[str, Any]] = {
    "no noise": {},
    **{
        f"noise {amount}": {"kind": "local", "clip_norm": CLIP_NORM, "noise_multiplier": amount}
        for amount in (0.01, 0.03, 0.1, 0.3)
    },
    "epsilon 8": {"kind": "local", "clip_norm": CLIP_NORM, "epsilon": 8.0},
}
"""The tables of privacy under which the label mix is estimated, by the noise multiplier."""

SKETCHES = (256, 1024)
"""Lengths of sketches of an update. No algorithm sends one; see `count_sketch`."""

NETWORKS: Mapping[str, Mapping[str, Any]] = {"mlp": {"hidden": (64,)}, "mnist_cnn": {}}
"""The networks whose gradients are inverted, and their options."""

EXPOSURES: Mapping[str, tuple[int, int, str]] = {
    "1 image, gradient": (1, 1, "all"),
    "1 image, gradient without the head": (1, 1, "body"),
    "1 image, gradient of the head": (1, 1, "head"),
    "1 image, sketch of 1024": (1, 1, "1024"),
    "1 image, sketch of 256": (1, 1, "256"),
    "4 images, gradient": (4, 4, "all"),
    "16 images, gradient": (16, 16, "all"),
    "16 images, epoch of 4 steps": (16, 4, "all"),
    "100 images, epoch of 10 steps": (100, 10, "all"),
}
"""What is seen: number of images, size of a batch, and which part of the gradient or update."""

EXPOSURES_OF: Mapping[str, Sequence[str]] = {
    "mlp": tuple(EXPOSURES),
    "mnist_cnn": tuple(name for name in EXPOSURES if not name.startswith("100")),
}
"""The exposures that are tried with each network. A hundred images take minutes with convolutions."""

LR = 0.1
"""The learning rate of the epochs whose update is inverted."""

VECTORS_OF: Mapping[str, tuple[str, int]] = {
    "MNIST, 200 images": ("mnist", 200),
    "Fashion-MNIST, 200 images": ("fashion_mnist", 200),
    "CIFAR-10, 200 images": ("cifar10", 200),
    "MNIST, 30 images": ("mnist", 30),
}
"""Data set and images of a client whose singular vectors are looked at."""


def membership_by_size(seed: int) -> dict[str, Any]:
    """How well members are told from others by the model of so many clients, without and with shadow models."""
    return {str(size): _by_shadows(SMALL, size, seed)[0] for size in SIZES}


def membership_with_noise(seed: int) -> dict[str, Any]:
    """The same for some sizes under differential privacy, with the epsilon of the run and the accuracy that is left."""
    found: dict[str, Any] = {}
    for name, table in NOISY.items():
        for size in NOISY_SIZES:
            attacks, setup, played = _by_shadows({**LINEAR, "privacy": table}, size, seed)
            models = played.state.models[played.state.labels]
            found[f"{name}, {size} clients"] = {**attacks, **_cost(setup, models)}
    return found


def _by_shadows(keys: Mapping[str, Any], size: int, seed: int) -> tuple[dict[str, Any], RunSetup, PlayedRound[State]]:
    """What is found by the model of so many clients, without and with shadow models trained likewise; and the run."""
    setup, played = _play(_grouped(keys, clients=20, groups=20 // size, seed=seed))
    _, shadows = _play(_grouped(keys, clients=SHADOWS * size, groups=SHADOWS, seed=seed + OTHER_SEED))
    models = played.state.models[played.state.labels]
    options = keys["model"]
    seen = [_confidence(setup, models[client], client, options) for client in range(20)]
    guesses = [[_confidence(setup, model, client, options) for model in shadows.state.models] for client in range(20)]
    scores = [
        [
            leakage.likelihood_scores(own[part], np.stack([guess[part] for guess in others]))
            for own, others in zip(seen, guesses, strict=True)
        ]
        for part in (0, 1)
    ]
    attacks = {
        "loss": asdict(_detected([own for own, _ in seen], [other for _, other in seen])),
        "shadow": asdict(_detected(*scores)),
    }
    return attacks, setup, played


def _cost(setup: RunSetup, models: Tensor, options: Mapping[str, Any] = LINEAR["model"]) -> dict[str, Any]:
    """The mean accuracy of the clients with a model each (n, p), and the epsilon of the run; None without noise."""
    accuracy = mean(_accuracy(setup, model, client, options) for client, model in enumerate(models))
    private = setup.server.private
    return {"accuracy": accuracy, "epsilon": None if private is None else private.epsilon}


def _accuracy(setup: RunSetup, model: Tensor, client: int, options: Mapping[str, Any] = SMALL["model"]) -> float:
    """The accuracy of a model (p,) on a client's test samples."""
    network = _network(setup, options)
    load_row(network, setup.server.problem.layout, model)
    inputs, labels = setup.client_data.samples(setup.client_data.test(client))
    with torch.no_grad():
        return float((network(inputs).argmax(dim=1) == labels).double().mean())


def _grouped(keys: Mapping[str, Any], clients: int, groups: int, seed: int) -> dict[str, Any]:
    """An experiment in which clients that are alike are put into random groups of one size."""
    algorithm = {"name": "random_groups", "groups": groups}
    return {**keys, "seed": seed, "data": {**keys["data"], "clients": clients}, "algorithm": algorithm}


def _play(keys: Mapping[str, Any], rounds: int | None = None) -> tuple[RunSetup, PlayedRound[State]]:
    """An experiment after some rounds, by default all of its own, with what happened in the last one."""
    experiment = load_experiment(keys)
    last = experiment.rounds if rounds is None else rounds
    played: list[PlayedRound[State]] = []
    with one_thread():
        setup = build_run(experiment)
        steps = play_rounds(
            Rules.of(setup),
            setup.server.algorithm.init(setup.server.problem),
            stop=lambda state: state.round >= last,
            observe=lambda done: played.__setitem__(slice(None), [done]),
        )
        answer_plans(steps, partial(timed_reply, setup.clients))
    return setup, played[0]


def _confidence(
    setup: RunSetup, model: Tensor, client: int, options: Mapping[str, Any] = SMALL["model"]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The scaled confidence of a model (p,) on a client's training samples, and on its test samples."""
    network = _network(setup, options)
    load_row(network, setup.server.problem.layout, model)
    data = setup.client_data
    return _of_network(network, data, data.train(client)), _of_network(network, data, data.test(client))


def _network(setup: RunSetup, options: Mapping[str, Any] = SMALL["model"]) -> nn.Module:
    """The network of an experiment, by its table ``model``, without dropout, with any weights."""
    format_ = setup.client_data.dataset.sample_format
    model = load_experiment({**SMALL, "model": options}).model
    network = make_network(
        model.name, NetworkShape(format_.network_shape, format_.output_shape, False), 0, model.options
    )
    return network.eval()


def _of_network(network: nn.Module, data: ClientData, index: Tensor) -> NDArray[np.float64]:
    inputs, labels = data.samples(index)
    with torch.no_grad():
        return leakage.scaled_confidence(network(inputs), labels)


def _detected(members: Sequence[NDArray[np.float64]], others: Sequence[NDArray[np.float64]]) -> leakage.Detection:
    """How well one threshold for all clients tells members from others."""
    return leakage.detection(np.concatenate(members), np.concatenate(others))


def membership_by_method(seed: int) -> dict[str, Any]:
    """How well members are told from others by the model that a client uses, and by the one that it sends."""
    found: dict[str, Any] = {}
    for name, tables in METHODS.items():
        keys = {**GROUPED, **tables, "seed": seed}
        data = build_run(load_experiment(keys)).client_data
        with TemporaryDirectory() as folder:
            run = fedstrata.run(keys, Path(folder) / name, quiet=True)
            networks = [run.model(client).network for client in range(20)]
        found[name] = {
            **asdict(_of_clients(networks, data)),
            "acc_client": run.summary["acc_client"],
            "clusters": run.summary["clusters"],
        }
    for name in UPLOADED:
        setup, played = _play({**GROUPED, **METHODS[name], "seed": seed})
        result = played.report.results[TRAIN]
        sent = played.plan.models[result.chosen] + result.updates.values
        networks = []
        for client in range(20):
            network = _network(setup)
            load_row(network, setup.server.problem.layout, sent[int((result.updates.clients == client).nonzero())])
            networks.append(network)
        found[f"{name}, sent"] = asdict(_of_clients(networks, setup.client_data))
    return found


def _of_clients(networks: Sequence[nn.Module], data: ClientData) -> leakage.Detection:
    """How well members are told from others by the network of each client."""
    members = [_of_network(network, data, data.train(client)) for client, network in enumerate(networks)]
    others = [_of_network(network, data, data.test(client)) for client, network in enumerate(networks)]
    return _detected(members, others)


def membership_by_least_size(seed: int) -> dict[str, Any]:
    """How well members of small groups, and of the others, are found where clusters have a least size."""
    found: dict[str, Any] = {}
    for name, algorithm in SIZED.items():
        for least in LEAST_SIZES:
            keys = {**UNEVEN, "seed": seed, "algorithm": algorithm, "privacy": {"min_cluster": least}}
            setup, played = _play(keys)
            assert setup.server.problem.truth is not None
            models = played.state.models[played.state.labels]
            seen = [_confidence(setup, models[client], client) for client in range(20)]
            sizes = setup.server.problem.truth.bincount()[setup.server.problem.truth]
            outcome: dict[str, Any] = {"clusters": len(played.state.models)}
            for which, chosen in (("small", sizes < max(LEAST_SIZES)), ("large", sizes >= max(LEAST_SIZES))):
                clients = chosen.nonzero().flatten().tolist()
                detected = _detected([seen[client][0] for client in clients], [seen[client][1] for client in clients])
                accuracy = mean(_accuracy(setup, models[client], client) for client in clients)
                outcome[which] = {**asdict(detected), "accuracy": accuracy}
            found[f"{name}, at least {least}"] = outcome
    return found


def label_mix_with_noise(seed: int) -> dict[str, Any]:
    """How well the class shares of clients are estimated by an update with local noise, and the accuracy that is left.

    The attacker takes the whole update or the bias of the head alone, and clients of known shares that send noise, or
    others that do not. What is kept of each round is the attack with the largest correlation.
    """
    found: dict[str, Any] = {}
    for round in ROUNDS:
        clean: Tensor | None = None
        for name, table in LOCAL_NOISE.items():
            setup, played = _play({**MIXED, "seed": seed, "algorithm": SENDERS["fedavg"], "privacy": table}, round)
            data = setup.client_data
            counts = torch.stack([data.labels(data.train(c)).bincount(minlength=10) for c in range(KNOWN + ASKED)])
            truth = (counts / counts.sum(dim=1, keepdim=True)).double().numpy()
            updates = played.report.results[TRAIN].updates.of(torch.arange(KNOWN + ASKED))
            clean = updates if clean is None else clean
            head = setup.server.problem.layout.spans[-1]
            attacks = [
                _regressed(torch.cat([known[:KNOWN, columns], updates[KNOWN:, columns]]), truth)
                for columns in (slice(None), head)
                for known in (updates, clean)
            ]
            steps = (counts.sum(dim=1) / MIXED["local"]["batch"]).ceil()
            closed = leakage.shares_from_bias(updates[KNOWN:, head], steps[KNOWN:], MIXED["local"]["lr"])
            attacks.append(leakage.agreement(closed, truth[KNOWN:]))
            best = max(attacks, key=lambda attack: attack["r"])
            models = played.state.models[played.state.labels]
            found[f"{name}, round {round}"] = {**best, **_cost(setup, models, MIXED["model"])}
    return found


def label_mix(seed: int) -> dict[str, Any]:
    """How well the class shares of clients are estimated by what they send in one round."""
    found: dict[str, Any] = {}
    for round in ROUNDS:
        for sender, table in SENDERS.items():
            setup, played = _play({**MIXED, "seed": seed, "algorithm": table}, round)
            data = setup.client_data
            layout = setup.server.problem.layout
            result = played.report.results[TRAIN]
            counts = torch.stack([data.labels(data.train(c)).bincount(minlength=10) for c in range(KNOWN + ASKED)])
            truth = (counts / counts.sum(dim=1, keepdim=True)).double().numpy()
            sent = layout.columns(played.plan.tasks[TRAIN].upload)
            updates = result.updates.of(torch.arange(KNOWN + ASKED))
            seen = {f"{sender}, round {round}": updates[:, sent]}
            if sender == "fedavg":
                bias = updates[:, layout.spans[-1]]
                seen[f"bias of the head, round {round}"] = bias
                steps = (counts.sum(dim=1) / MIXED["local"]["batch"]).ceil()
                closed = leakage.shares_from_bias(bias[KNOWN:], steps[KNOWN:], MIXED["local"]["lr"])
                found[f"bias of the head, closed form, round {round}"] = leakage.agreement(closed, truth[KNOWN:])
                for width in SKETCHES:
                    observe = count_sketch(layout.p, width, seed)
                    seen[f"sketch of {width}, round {round}"] = torch.stack([observe([row]) for row in updates])
            for what, rows in seen.items():
                found[what] = _regressed(rows, truth)
    stats = [
        torch.cat([client_stat(name, data, data.train(c)) for name in ("classes", "entropy")])
        for c in range(KNOWN + ASKED)
    ]
    found["adacfl, number of classes and entropy"] = _regressed(torch.stack(stats), truth)
    return found


def _regressed(seen: Tensor, truth: NDArray[np.float64]) -> dict[str, float]:
    rows = seen.double().numpy()
    estimate = leakage.shares_by_regression(rows[:KNOWN], truth[:KNOWN], rows[KNOWN:])
    return leakage.agreement(estimate, truth[KNOWN:])


def inversion(seed: int) -> dict[str, Any]:
    """The PSNR in dB of images that were found by what a client sends, and of guesses without seeing anything."""
    images, labels, guess, prepare = some_images(seed)
    found: dict[str, Any] = {
        "mean image of the class": mean(
            leakage.psnr(guess[label], image) for image, label in zip(images, labels.tolist(), strict=True)
        )
    }
    with one_thread():
        for name in NETWORKS:
            for exposure in EXPOSURES_OF[name]:
                count, _, _ = EXPOSURES[exposure]
                got = inverted(name, exposure, images[:count], labels[:count], prepare, seed)
                found[f"{name}, {exposure}"] = mean(leakage.matched_psnr(got, images[:count]))
        for count, batch in ((1, 1), (4, 4), (16, 16), (16, 4), (100, 10)):
            network = fresh_network("mlp", seed)
            seen = sent_gradients(network, prepare(images[:count]), labels[:count], batch)
            candidates = closed_form_images(seen, prepare).view(-1, *images.shape[1:])
            best = leakage.best_candidates(candidates, images[:count])
            own = [
                min(leakage.psnr(got, image), leakage.MOST_DECIBELS) for got, image in zip(best, images, strict=False)
            ]
            what = f"mlp, {count} images in batches of {batch}, closed form"
            found[what] = {"psnr": mean(own), "exact": mean(value > 40 for value in own)}
    return found


def some_images(seed: int) -> tuple[Tensor, Tensor, Tensor, Callable[[Tensor], Tensor]]:
    """A hundred images in [0, 1], their classes, the mean image of every class, and how a network reads images."""
    data = build_run(load_experiment({**SMALL, "seed": seed, "engine": {"name": "loop"}})).client_data
    draw = torch.randperm(len(data.dataset), generator=torch.Generator().manual_seed(seed))
    raw = data.dataset.gather(draw[:2100]).float() / 255
    labels = data.dataset.labels[draw[:2100]]
    others, other_labels = raw[100:], labels[100:]
    guess = torch.stack([others[other_labels == label].mean(dim=0) for label in range(10)])
    format_ = data.dataset.sample_format
    centre = torch.tensor(format_.mean).view(-1, 1, 1)
    scale = torch.tensor(format_.std).view(-1, 1, 1)
    return raw[:100], labels[:100], guess, lambda images: (images - centre) / scale


def fresh_network(name: str, seed: int) -> nn.Module:
    """A network with its initial weights."""
    return make_network(name, NetworkShape((1, 28, 28), (10,), False), seed, dict(NETWORKS[name]))


def sent_gradients(network: nn.Module, inputs: Tensor, labels: Tensor, batch: int) -> list[Tensor]:
    """The update of one epoch of SGD divided by minus the learning rate, by parameter; of one step, its gradient."""
    start = [value.detach().clone() for value in network.parameters()]
    optimiser = torch.optim.SGD(network.parameters(), lr=LR)
    for some, their in zip(inputs.split(batch), labels.split(batch), strict=True):
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(some), their).backward()
        optimiser.step()
    sent = [(before - after.detach()) / LR for before, after in zip(start, network.parameters(), strict=True)]
    with torch.no_grad():
        for value, before in zip(network.parameters(), start, strict=True):
            value.copy_(before)
    return sent


def inverted(
    name: str, exposure: str, images: Tensor, labels: Tensor, prepare: Callable[[Tensor], Tensor], seed: int
) -> Tensor:
    """What an attacker finds who sees what an exposure names."""
    _, batch, part = EXPOSURES[exposure]
    network = fresh_network(name, seed)
    observe = observer(network, part)
    sent = sent_gradients(network, prepare(images), labels, batch)
    seen = observe(sent).detach()
    generator = torch.Generator().manual_seed(seed)
    return leakage.gradient_match(network, observe, seen, labels, images.shape[1:], prepare, generator)


def observer(network: nn.Module, part: str) -> Callable[[Sequence[Tensor]], Tensor]:
    """What is seen of the gradients of all parameters: all, the head, all but the head, or a sketch of some length."""
    layout = layout_of(network)
    head = layout.select("head")
    if part.isdigit():
        return count_sketch(layout.p, int(part))
    shown = {"all": layout.everything, "head": head, "body": tuple(not last for last in head)}[part]
    return lambda gradients: torch.cat(
        [gradient.flatten() for gradient, visible in zip(gradients, shown, strict=True) if visible]
    )


def count_sketch(p: int, width: int, seed: int = 0) -> Callable[[Sequence[Tensor]], Tensor]:
    """Count sketch of one update, through which gradients flow: every column is added to a bucket, with a sign.

    Charikar, Chen and Farach-Colton, "Finding frequent items in data streams", 2002. Both are drawn.
    """
    drawn = torch.randint(2 * width, (p,), generator=torch.Generator().manual_seed(seed))
    bucket = drawn // 2
    sign = 1.0 - 2 * (drawn % 2)

    def observe(gradients: Sequence[Tensor]) -> Tensor:
        row = torch.cat([gradient.flatten() for gradient in gradients])
        return torch.zeros(width).index_add(0, bucket, row * sign)

    return observe


def closed_form_images(sent: Sequence[Tensor], prepare: Callable[[Tensor], Tensor]) -> Tensor:
    """The images in [0, 1] that the first layer's update shows without any search, (units that moved, features)."""
    inputs = leakage.inputs_of_linear_layer(sent[0], sent[1])
    zero, one = (float(prepare(torch.full((1, 1, 1), value))) for value in (0.0, 1.0))
    return ((inputs - zero) / (one - zero)).clamp(0, 1)


def singular_vectors(seed: int) -> dict[str, Any]:
    """How much of class means and of single samples the singular vectors of PACFL show, as means over classes."""
    found: dict[str, Any] = {}
    for case, (dataset, samples) in VECTORS_OF.items():
        keys = {**SMALL, "seed": seed, "data": {"name": dataset, "clients": 10, "samples": samples}}
        data = build_run(load_experiment({**keys, "engine": {"name": "loop"}})).client_data
        cosines, shown, few = list[float](), list[float](), list[float]()
        for client in range(10):
            for mean_input, of_class, vectors in by_class(data, client):
                cosines.append(float((vectors[0] @ mean_input).abs() / mean_input.norm()))
                kept = (of_class @ vectors.T).norm(dim=1) / of_class.norm(dim=1)
                shown += kept.tolist()
                few += kept.tolist() if len(of_class) <= SINGULAR_VECTORS else []
        found[case] = {"mean": mean(cosines), "sample": mean(shown), "few": mean(few) if few else None}
    return found


def by_class(data: ClientData, client: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Of each class of a client: the mean sample, the samples, and the singular vectors that PACFL sends."""
    index = data.train(client)
    inputs, labels = data.samples(index)
    rows = inputs.flatten(1).float()
    vectors = client_stat("subspaces", data, index).view(data.dataset.classes, SINGULAR_VECTORS, -1)
    present = labels.unique().tolist()
    return [(rows[labels == label].mean(dim=0), rows[labels == label], vectors[label]) for label in present]


STUDIES: Mapping[str, Callable[[int], dict[str, Any]]] = {
    "membership by size": membership_by_size,
    "membership by method": membership_by_method,
    "membership with noise": membership_with_noise,
    "membership by least size": membership_by_least_size,
    "label mix": label_mix,
    "label mix with noise": label_mix_with_noise,
    "inversion": inversion,
    "singular vectors": singular_vectors,
}
"""What is measured, by name."""

CONDITIONS: Mapping[str, Mapping[str, Any]] = {
    "membership by size": {"keys": SMALL, "sizes": SIZES, "shadows": SHADOWS},
    "membership by method": {"keys": GROUPED, "methods": METHODS},
    "membership with noise": {"keys": LINEAR, "noise": NOISY, "sizes": NOISY_SIZES, "shadows": SHADOWS},
    "membership by least size": {"keys": UNEVEN, "least": LEAST_SIZES, "algorithms": SIZED},
    "label mix": {"keys": MIXED, "senders": SENDERS, "rounds": ROUNDS, "sketches": SKETCHES},
    "label mix with noise": {"keys": MIXED, "noise": LOCAL_NOISE, "rounds": ROUNDS},
    "inversion": {"networks": NETWORKS, "exposures": EXPOSURES, "of": EXPOSURES_OF, "lr": LR},
    "singular vectors": {"of": VECTORS_OF},
}
"""What the results of each depend on."""


def one(name: str, seed: int) -> dict[str, Any]:
    """What a study finds with a seed."""
    return {"seed": seed, **STUDIES[name](seed)}


def main() -> None:
    """Compute what is missing."""
    run_study("leaks", __doc__, CONDITIONS, one, federations=3)


if __name__ == "__main__":
    main()
