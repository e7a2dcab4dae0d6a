"""The Byzantine clients of an experiment, and what its summary says about the honest ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from statistics import mean
from typing import Any

import numpy as np
import torch

from fedstrata.base.errors import ExperimentError, UserCodeError
from fedstrata.base.quoting import shown
from fedstrata.base.registry import users_function
from fedstrata.clustering import ari
from fedstrata.config import Experiment
from fedstrata.core import Layout
from fedstrata.data import Dataset
from fedstrata.objective.metric_info import MetricInfo
from fedstrata.objective.objective import in_user_code
from fedstrata.partition import Partition
from fedstrata.uploads.attacks.backdoor import Trigger, trigger_of, with_backdoor
from fedstrata.uploads.attacks.byzantine_clients import ByzantineClients, choose_byzantine
from fedstrata.uploads.attacks.updates import (
    ATTACKS,
    BACKDOOR,
    DATA_ATTACKS,
    LABEL_FLIP,
    NEED_GROUPS,
    Attack,
    Knowledge,
)


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
    in_groups = {"where": table.where == "one_cluster", "kind": table.kind in NEED_GROUPS}
    for key, needed in in_groups.items():
        if needed and truth is None:
            raise ExperimentError(
                f"attack.{key} = {getattr(table, key)!r}: needs a partition with true groups, but partition.scheme = "
                f"{experiment.partition['scheme']!r} has none; use another, or leave attack.{key} out"
            )
    groups = truth if table.where == "one_cluster" else None
    # The clients that never take part: those that give their data to others, and those without weight.
    idle = {event.takes_data_of for event in experiment.events.change}
    idle |= {client for client, weight in enumerate(experiment.cohort.weights) if not weight}
    ids = choose_byzantine(experiment.data.clients, table.share, groups, experiment.seed, idle)
    if len(ids) == experiment.data.clients - len(idle):
        raise ExperimentError(
            f"attack.share = {table.share:g}: expected a share that leaves honest clients, found all "
            f"{len(ids)} Byzantine; use a smaller one, or more clients"
        )
    return ByzantineClients(
        ids=ids,
        layout=layout,
        attack=attack_of(table.kind, table.strength),
        strength=table.strength,
        from_round=table.from_round,
        seed=experiment.seed,
        groups=truth,
        losses=table.losses,
    )


def check_attack(experiment: Experiment) -> None:
    """Refuse an attack that does not exist or does not fit the run, before any data are read.

    Raises:
        ExperimentError: In one line.
    """
    table = experiment.attack
    if table.all_honest:
        return
    attack_of(table.kind, table.strength)
    if table.from_round > experiment.rounds:
        raise ExperimentError(
            f"attack.from_round = {table.from_round}: expected a round of the run, which has {experiment.rounds}"
        )
    if table.kind in DATA_ATTACKS and experiment.events.change:
        raise ExperimentError(
            f"events.change: expected none with attack.kind = {table.kind!r}, whose data would change as well; take it "
            "out, or use another attack"
        )


def attack_of(kind: str, strength: float | None) -> Attack | None:
    """What Byzantine clients send by an attack of a name; None where it is what they have trained.

    Args:
        kind: The name.
        strength: The strength of the attack.

    Raises:
        ExperimentError: When a user's own cannot be imported, or is no function.
    """
    if kind in DATA_ATTACKS:
        # With a strength, a backdoor replaces the model: Bagdasaryan et al., AISTATS 2020, Equation 3.
        return None if strength is None else ATTACKS["scaling"]
    if kind in ATTACKS:
        return ATTACKS[kind]
    place = f"attack.kind = {shown(kind)}"
    return partial(_own_attack, place, users_function(place, kind))


def _own_attack(place: str, attack: Callable[..., Any], known: Knowledge) -> torch.Tensor:
    """What a user's own attack sends, which is given a part of what Byzantine clients know.

    Raises:
        UserCodeError: When it fails, or returns something else than an update for each attacker.
    """
    own = known.own
    found = in_user_code(place, attack, own, known.honest, known.strength, known.generator)
    if not isinstance(found, torch.Tensor) or found.shape != own.shape:
        shape = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise UserCodeError(f"{place}: expected a tensor {tuple(own.shape)}, found {shape}")
    return found.to(own.dtype)


def attacked_data(
    experiment: Experiment, dataset: Dataset, partition: Partition, byzantine: ByzantineClients | None
) -> tuple[Dataset, Partition, Trigger | None]:
    """What clients train on, where the attack of an experiment changes the data of Byzantine ones.

    Returns:
        The data and the partition that clients train on, and the trigger of a backdoor; None where there is none.

    Raises:
        ExperimentError: When the networks do not learn classes, there is no such class, or the samples of a backdoor
            are tokens or lie on the disk.
    """
    table = experiment.attack
    if byzantine is None or table.kind not in DATA_ATTACKS:
        return dataset, partition, None
    if dataset.targets is not None:
        raise ExperimentError(
            f"attack.kind = {table.kind!r}: expected a loss of classes, found local.loss = {experiment.local.loss!r}; "
            "use local.loss = 'cross_entropy', or another attack"
        )
    if table.kind == LABEL_FLIP:
        relabel = partition.relabel.copy()
        ids = np.array(byzantine.ids)
        relabel[ids] = relabel.shape[1] - 1 - relabel[ids]
        return dataset, replace(partition, relabel=relabel), None
    if table.target >= dataset.classes:
        raise ExperimentError(
            f"attack.target = {table.target}: expected a class of the data, from 0 to {dataset.classes - 1}"
        )
    if dataset.holds_tokens or dataset.on_disk:
        found = "tokens" if dataset.holds_tokens else "files that are read when they are needed"
        raise ExperimentError(
            f"attack.kind = {BACKDOOR!r}: expected samples of numbers in memory, found {found}; use other data, or "
            "another attack"
        )
    trigger = trigger_of(dataset, table.target)
    poisoned = with_backdoor(dataset, partition, byzantine.ids, trigger, table.poisoned, experiment.seed)
    return poisoned, partition, trigger


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
        "clusters_honest": len({labels[client] for client in placed}),
    }
    if truth is not None and placed:
        found["ari_honest"] = ari([labels[client] for client in placed], truth[placed].tolist())
    return found
