"""How the updates of a cluster become one update.

FedAvg takes the mean, weighted by the clients' numbers of samples: McMahan et al., "Communication-efficient learning of
deep networks from decentralized data", AISTATS 2017, Algorithm 1.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import TypeAlias

from fedstrata.base.lazy_torch import torch
from fedstrata.core.rows import Rows

_BLOCK_CLIENTS = 16
"""The number of client ids that are summed together. Sums over whole blocks have the same bits anywhere."""

_CHUNK_COLUMNS = 2**17
"""The number of columns whose sums are held at a time: 1 MB for each cluster, which stays in a processor's cache."""

_CHUNK_NUMBERS_ON_DEVICE = 2**24
"""The numbers that are held in float64 at a time on an accelerator, 128 MB."""

_MAX_THREADS = min(os.cpu_count() or 1, 16)
"""The number of chunks of columns that are summed at a time, at most."""

_MIN_CHUNKS = 4
"""Up to this number of chunks it is not worth starting threads."""


def weighted_mean(updates: Rows, weights: torch.Tensor, labels: torch.Tensor, k: int) -> torch.Tensor:
    """Mean row of every cluster, weighted inside the cluster; a cluster without rows gets zeros.

    Args:
        updates: The rows of the clients that are present, (m, p).
        weights: The weight of each row, (m,), > 0.
        labels: The cluster of each row, (m,) in 0..k-1.
        k: The number of clusters.

    Returns:
        (k, p) float32. Sums are in float64 over blocks of 16 client ids in ascending order, then rounded: the same
        bits in any order of rows, whoever sent them. Rows on an accelerator are summed there by its own programs, which
        round otherwise, and are given the rows in ascending order of the ids.
    """
    order = updates.clients.argsort().tolist()
    label = labels.tolist()
    weight = weights.double().tolist()
    mass = torch.zeros(k, dtype=torch.float64)
    for row in order:
        mass[label[row]] += weight[row]
    mass = mass.clamp(min=torch.finfo(torch.float64).tiny)
    on_device = updates.on_device
    if on_device.device.type != "cpu":
        return _mean_on_device(on_device, order, weight, label, mass)
    blocks = [list(block) for _, block in groupby(order, key=lambda row: int(updates.clients[row]) // _BLOCK_CLIENTS)]
    means = torch.empty(k, updates.values.shape[1])

    def fill(values: torch.Tensor, mean: torch.Tensor) -> None:
        total = torch.zeros(mean.shape, dtype=torch.float64)
        for block in blocks:
            partial: dict[int, torch.Tensor] = {}
            for row in block:
                if label[row] not in partial:
                    partial[label[row]] = torch.zeros_like(total[0])
                partial[label[row]].add_(values[row], alpha=weight[row])
            for cluster, sums in partial.items():
                total[cluster] += sums
        mean.copy_(total / mass[:, None])

    value_chunks = updates.values.split(_CHUNK_COLUMNS, dim=1)
    mean_chunks = means.split(_CHUNK_COLUMNS, dim=1)
    # With several threads of its own, torch would use every core in each thread.
    if len(mean_chunks) <= _MIN_CHUNKS or torch.get_num_threads() > 1:
        for values, mean in zip(value_chunks, mean_chunks, strict=True):
            fill(values, mean)
    else:
        # A column's mean depends on no other column: the same bits, whoever is first.
        with ThreadPoolExecutor(min(_MAX_THREADS, len(mean_chunks))) as threads:
            list(threads.map(fill, value_chunks, mean_chunks))
    return means


def _mean_on_device(
    updates: torch.Tensor, order: Sequence[int], weight: Sequence[float], label: Sequence[int], mass: torch.Tensor
) -> torch.Tensor:
    """The mean of every cluster, (k, p) float32 in the computer's own memory, of rows on an accelerator.

    Args:
        updates: The rows, (m, p).
        order: The places of the rows by ascending client id, m of them.
        weight: The weight of each row, m of them.
        label: The cluster of each row, m of them.
        mass: The sum of the weights of each cluster, (k,) float64, > 0.
    """
    means = torch.zeros(len(mass), updates.shape[1], device=updates.device)
    by_cluster = sorted(order, key=label.__getitem__)
    in_place = by_cluster == list(range(len(updates)))
    places = torch.tensor(by_cluster).to(updates.device)
    shares = torch.tensor([weight[row] / float(mass[label[row]]) for row in by_cluster], dtype=torch.float64)
    shares = shares.to(updates.device)
    first = 0
    for cluster, members in groupby(by_cluster, key=label.__getitem__):
        # Each cluster by itself: zero times a number that is not finite is not zero.
        rows = slice(first, first + len(list(members)))
        own = updates[rows] if in_place else updates[places[rows]]
        width = max(1, _CHUNK_NUMBERS_ON_DEVICE // len(own))
        for values, mean in zip(own.split(width, dim=1), means[cluster].split(width), strict=True):
            mean.copy_(shares[rows] @ values.double())
        first = rows.stop
    return means.cpu()


Aggregation: TypeAlias = "Callable[[Rows, torch.Tensor, torch.Tensor, int], torch.Tensor]"
"""A rule as `weighted_mean` is one: updates (m, p), weights (m,), clusters (m,) and their number k -> (k, p)."""


def plain_mean(updates: Rows, weights: torch.Tensor, labels: torch.Tensor, k: int) -> torch.Tensor:
    """Mean row of every cluster in which each client counts the same; the arguments are those of `weighted_mean`.

    Where clients are sampled by size it is unbiased: Li et al., "On the convergence of FedAvg
    on non-IID data", ICLR 2020, scheme I.
    """
    return weighted_mean(updates, torch.ones_like(weights), labels, k)
