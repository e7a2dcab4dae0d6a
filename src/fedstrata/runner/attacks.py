"""The Byzantine clients of an experiment, and what its summary says about the honest ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from statistics import mean
from typing import Any

import numpy as np
import torch

from fedstrata.attacks import ATTACKS, LABEL_FLIP, Attack, ByzantineClients, choose_byzantine
from fedstrata.clustering import ari
from fedstrata.config import Experiment
from fedstrata.core import Layout
from fedstrata.data import Dataset
from fedstrata.errors import ExperimentError, UserCodeError
from fedstrata.metric_info import MetricInfo
from fedstrata.objective.named import in_user_code
from fedstrata.partition import Partition
from fedstrata.quoting import shown
from fedstrata.registry import load_users_object


def byzantine_clients(experiment: Experiment, layout: Layout, truth: torch.Tensor | None) -> ByzantineClients | None:
    """The clients that are Byzantine; None where all are honest.

    Args:
        experiment: The experiment.
        layout: The tensors of the network.
        truth: The true group of each client, (n,); None where there are none.

    Raises:
        ExperimentError: When there are no true groups to draw them from, or nobody would be honest.
    """
    table = experiment.attack
    if table.all_honest:
        return None
    if table.where == "one_cluster" and truth is None:
        raise ExperimentError(
            "attack.where = 'one_cluster': needs a partition with true groups, but partition.scheme = "
            f"{experiment.partition['scheme']!r} has none; use another, or attack.where = 'spread'"
        )
    groups = truth if table.where == "one_cluster" else None
    ids = choose_byzantine(experiment.data.clients, table.share, groups, experiment.seed)
    if len(ids) == experiment.data.clients:
        raise ExperimentError(
            f"attack.share = {table.share:g}: expected a share that leaves honest clients, found all "
            f"{len(ids)} Byzantine; use a smaller one, or more clients"
        )
    return ByzantineClients(ids, layout, attack_of(table.kind), table.strength, table.from_round, experiment.seed)


def check_attack(experiment: Experiment) -> None:
    """Refuse an attack that does not exist or does not fit the run, before any data are read.

    Raises:
        ExperimentError: In one line.
    """
    table = experiment.attack
    if table.all_honest:
        return
    attack_of(table.kind)
    if table.from_round > experiment.rounds:
        raise ExperimentError(
            f"attack.from_round = {table.from_round}: expected a round of the run, which has {experiment.rounds}"
        )
    if table.kind == LABEL_FLIP and experiment.events.change:
        raise ExperimentError(
            "events.change: expected none with attack.kind = 'label_flip', whose labels would change as well; take it "
            "out, or use another attack"
        )


def attack_of(kind: str) -> Attack | None:
    """The attack on updates of a name; None for one on data.

    Raises:
        ExperimentError: When a user's own cannot be imported, or is no function.
    """
    if kind == LABEL_FLIP:
        return None
    if kind in ATTACKS:
        return ATTACKS[kind]
    try:
        attack: Attack = load_users_object(kind)
    except ValueError as error:
        raise ExperimentError(f"attack.kind = {shown(kind)}: cannot be imported: {error}") from error
    if not callable(attack):
        raise ExperimentError(f"attack.kind = {shown(kind)}: expected a function, found {type(attack).__name__}")
    return partial(_own_attack, kind, attack)


def _own_attack(
    kind: str,
    attack: Attack,
    own: torch.Tensor,
    honest: torch.Tensor,
    strength: float | None,
    generator: torch.Generator,
) -> torch.Tensor:
    """What a user's own attack sends.

    Raises:
        UserCodeError: When it fails, or returns something else than an update for each attacker.
    """
    place = f"attack.kind = {shown(kind)}"
    found = in_user_code(place, attack, own, honest, strength, generator)
    if not isinstance(found, torch.Tensor) or found.shape != own.shape:
        shape = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise UserCodeError(f"{place}: expected a tensor {tuple(own.shape)}, found {shape}")
    return found.to(own.dtype)


def with_flipped_labels(
    experiment: Experiment, dataset: Dataset, partition: Partition, byzantine: ByzantineClients | None
) -> Partition:
    """The partition in which Byzantine clients flip their labels, where the experiment says so.

    Raises:
        ExperimentError: When the networks do not learn classes.
    """
    if byzantine is None or experiment.attack.kind != LABEL_FLIP:
        return partition
    if dataset.targets is not None:
        raise ExperimentError(
            f"attack.kind = {LABEL_FLIP!r}: expected a loss of classes, found local.loss = "
            f"{experiment.local.loss!r}; use local.loss = 'cross_entropy', or another attack"
        )
    relabel = partition.relabel.copy()
    ids = np.array(byzantine.ids)
    relabel[ids] = relabel.shape[1] - 1 - relabel[ids]
    return replace(partition, relabel=relabel)


def honest_summary(
    byzantine: ByzantineClients,
    scores: Mapping[int, float],
    labels: Mapping[int, int],
    truth: torch.Tensor | None,
    metric: MetricInfo,
) -> dict[str, Any]:
    """What the summary of a run says about its honest clients.

    Args:
        byzantine: The other clients.
        scores: The metric of each client after the last round.
        labels: The cluster, or the node of the tree, of each client.
        truth: The true group of each client, (n,); None where there are none.
        metric: The metric.
    """
    honest = [client for client in sorted(scores) if client not in byzantine.ids]
    values = [scores[client] for client in honest]
    placed = [client for client in honest if client in labels]
    found: dict[str, Any] = {
        "clients": list(byzantine.ids),
        "acc_honest": mean(values) if values else None,
        "acc_honest_worst": (min(values) if metric.larger_is_better else max(values)) if values else None,
    }
    if truth is not None and placed:
        found["ari_honest"] = ari([labels[client] for client in placed], truth[placed].tolist())
    return {"attack": found}
