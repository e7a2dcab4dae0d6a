"""What ``[probe]`` records in a round. Nothing here touches training.

The comparison of all clients in every layer is that of LayerCFL, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch

from fedstrata.base.errors import ExperimentError, LayoutError
from fedstrata.base.quoting import shown
from fedstrata.clustering import CLIENT_MEASURES, gap, in_views
from fedstrata.config import Experiment
from fedstrata.core import (
    TRAIN,
    Layout,
    LocalTask,
    Mask,
    Matrix,
    Plan,
    Report,
    Result,
    empty_rows,
)
from fedstrata.records.schema import ALL_CLIENTS

_ALL_LAYERS = "all"
"""The layer name of all conv and linear layers together."""


def check_probes(experiment: Experiment, layout: Layout) -> None:
    """Refuse probes that would record nothing.

    Args:
        experiment: The experiment.
        layout: The tensors of its network.

    Raises:
        ExperimentError: When a probe does not fit the network or the rounds.
    """
    probe = experiment.probe
    try:
        layout.select(*probe.layers)
    except LayoutError as error:
        raise ExperimentError(f"probe.layers = {error}") from None
    if probe.rounds and max(probe.rounds) > experiment.rounds:
        raise ExperimentError(
            f"probe.rounds = {list(probe.rounds)}: expected rounds from 1 to rounds = {experiment.rounds}"
        )


def check_group_probes(experiment: Experiment, *, truth_known: bool) -> None:
    """Refuse probes that compare with true groups where there are none.

    Args:
        experiment: The experiment.
        truth_known: Whether the true group of each client is known.

    Raises:
        ExperimentError: When it is not.
    """
    measures = list(experiment.probe.gap)
    if measures and not truth_known:
        raise ExperimentError(
            f"probe.gap = {shown(measures)}: needs a partition with true groups, but "
            f"partition.scheme = {experiment.partition['scheme']!r} has none; use another, or leave probe.gap out"
        )


def gaps(
    layout: Layout, plan: Plan, report: Report, truth: torch.Tensor, measures: Sequence[str]
) -> list[dict[str, str | float]]:
    """How clearly each layer separates the true groups, among all clients that answered.

    Args:
        layout: The tensors of the network.
        plan: The plan of the round.
        report: Its result of the task `TRAIN` holds the updates.
        truth: The true group of each client, (n,).
        measures: Names of `CLIENT_MEASURES`, such as ``cos``, ``l2`` (weights), ``dcos``, ``dl2`` (updates); Eq. 5 to 8
            and 23 to 26.

    Returns:
        One record for each layer and measure. Above 0 the groups are apart. The gap is nan when fewer than two groups
        answered, for a layer that nobody sends, and for updates when the layer is sent as values. There is no record
        when clients send nothing at all, or do not train themselves.
    """
    if not _clients_send(plan, len(truth)):
        return []
    found = dict[tuple[str, str], float]()
    for matrix in client_matrices(layout, plan, report, len(truth), measures):
        larger_is_closer = CLIENT_MEASURES[matrix.measure].larger_is_closer
        kind: Literal["similarity", "distance"] = "similarity" if larger_is_closer else "distance"
        found[matrix.layer, matrix.measure] = gap(matrix.values, truth[matrix.clients], kind)
    return [
        {"layer": layer, "measure": measure, "gap": found.get((layer, measure), math.nan)}
        for layer in _selectors(layout)
        for measure in measures
    ]


def client_matrices(
    layout: Layout, plan: Plan, report: Report, n: int, measures: Sequence[str], selectors: Sequence[str] = ()
) -> tuple[Matrix, ...]:
    """Compare all clients that answered with each other, whatever their clusters.

    Args:
        layout: The tensors of the network.
        plan: The plan of the round.
        report: Its result of the task `TRAIN` holds the updates.
        n: The number of clients.
        measures: Names of `CLIENT_MEASURES`, such as ``cos`` (weights) or ``dcos`` (updates); Eq. 5 to 8 and 23 to 26.
        selectors: Selectors of layers. What one selector names is compared together. By default there is one for each
            layer, and one for all of them.

    Returns:
        One matrix for each measure and selector, of the node `ALL_CLIENTS`. None for layers that nobody sends, for
        updates when the layer is sent as values, and when clients do not train themselves.
    """
    if not _clients_send(plan, n):
        return ()
    task = plan.tasks[TRAIN]
    result = report.results[TRAIN]
    masks = {selector: layout.select(selector) for selector in selectors or _selectors(layout)}
    updates = result.updates.values
    of_weights = any(not CLIENT_MEASURES[name].of_updates for name in measures)
    weights = _weights(layout, plan, task, result) if of_weights else updates
    found = list[Matrix]()
    for name in measures:
        measure = CLIENT_MEASURES[name]
        unknown = (task.upload_values if measure.of_updates else ()) or layout.nothing
        views = {
            selector: layout.columns(mask)
            for selector, mask in masks.items()
            if _share(mask, task.upload) and not _share(mask, unknown)
        }
        matrices = measure.compare(updates if measure.of_updates else weights, in_views(views.values()))
        for selector, values in zip(views, matrices, strict=True):
            found.append(Matrix(ALL_CLIENTS, selector, name, result.updates.clients, values))
    return tuple(found)


def _selectors(layout: Layout) -> tuple[str, ...]:
    """Every layer by itself, and all of them together."""
    return (*layout.layers, _ALL_LAYERS)


def _clients_send(plan: Plan, n: int) -> bool:
    """Whether clients send what they trained, and are not the union of all data."""
    return any(plan.tasks[TRAIN].upload) and not bool((plan.cohort >= n).any())


def _share(one: Mask, other: Mask) -> bool:
    return any(mine and theirs for mine, theirs in zip(one, other, strict=True))


def _weights(layout: Layout, plan: Plan, task: LocalTask, result: Result) -> torch.Tensor:
    """The local models (m, p); they may not fit into memory."""
    models = plan.models.index_fill(1, layout.columns(task.upload_values or layout.nothing), 0.0)
    weights = empty_rows(*result.updates.values.shape)
    for row, given, update in zip(weights, result.chosen.tolist(), result.updates.values, strict=True):
        torch.add(models[given], update, out=row)
    return weights
