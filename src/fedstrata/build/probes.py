"""What ``[probe]`` records in a round besides the layer gaps. Nothing here touches training."""

from __future__ import annotations

from math import ceil, isnan
from typing import Any

import torch

from fedstrata.algorithms.bipartition.model_stability import UpdateWindow
from fedstrata.base.errors import ExperimentError, LayoutError
from fedstrata.base.quoting import shown
from fedstrata.clustering import bipartition_accuracy
from fedstrata.config import Experiment
from fedstrata.core import TRAIN, Algorithm, Layout, Metric, Problem, ProposesSplits, Report, State

_TOP_SHARE = 0.05
"""The share of a layer's weights that count as unstable. By chance, two such choices have a Jaccard index of 0.026."""


def check_probes(experiment: Experiment, algorithm: Algorithm[Any], problem: Problem) -> None:
    """Refuse probes that would record nothing.

    Args:
        experiment: The experiment.
        algorithm: Its algorithm.
        problem: What is fixed for the run; no data are needed.

    Raises:
        ExperimentError: When a probe does not fit the network, the rounds or the algorithm.
    """
    probe = experiment.probe
    name = experiment.algorithm.name
    try:
        problem.layout.select(*probe.layers)
    except LayoutError as error:
        raise ExperimentError(f"probe.layers = {error}") from None
    if probe.rounds and max(probe.rounds) > experiment.rounds:
        raise ExperimentError(
            f"probe.rounds = {list(probe.rounds)}: expected rounds from 1 to rounds = {experiment.rounds}"
        )
    if probe.bipartition and not isinstance(algorithm, ProposesSplits):
        raise ExperimentError(
            f"probe.bipartition = true: needs an algorithm that splits clusters in two (cfl, layercfl, hicfl), "
            f"but algorithm.name = {name!r}; leave probe.bipartition out"
        )
    if probe.unstable_weights and _window(algorithm.init(problem)) is None:
        raise ExperimentError(
            "probe.unstable_weights = true: needs an algorithm that keeps the last uploads of its clients (hicfl), "
            f"but algorithm.name = {name!r} does not; leave it out"
        )


def check_group_probes(experiment: Experiment, *, truth_known: bool) -> None:
    """Refuse probes that compare with true groups where there are none.

    Args:
        experiment: The experiment.
        truth_known: Whether the true group of each client is known.

    Raises:
        ExperimentError: When it is not.
    """
    probe = experiment.probe
    for key, value in (("gap", list(probe.gap)), ("bipartition", probe.bipartition)):
        if value and not truth_known:
            raise ExperimentError(
                f"probe.{key} = {shown(value)}: needs a partition with true groups, but "
                f"partition.scheme = {experiment.partition['scheme']!r} has none; use another, or leave probe.{key} out"
            )


def bipartition_metrics(
    algorithm: ProposesSplits, problem: Problem, state: State, report: Report, truth: torch.Tensor
) -> list[Metric]:
    """How right the bipartition of each cluster would be, and how many clients its smaller side would have.

    Args:
        algorithm: The algorithm.
        problem: What is fixed for the run.
        state: The state before the round.
        report: The report of the round.
        truth: The true group of each client, (n,).
    """
    metrics = list[Metric]()
    for split in algorithm.proposed_split(problem, state, report):
        clients = torch.cat([split.first, split.second])
        second = torch.arange(len(clients)) >= len(split.first)
        accuracy = bipartition_accuracy(second, truth[clients])
        smaller = min(len(split.first), len(split.second))
        metrics.append(Metric("smaller_side", float(smaller), split.node))
        if not isnan(accuracy):
            metrics.append(Metric("bipartition_accuracy", accuracy, split.node))
    return metrics


def unstable_weights(layout: Layout, state: State, report: Report) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The weights of each layer that changed most between the last two uploads of every client (HiCFL, Fig. 6).

    Args:
        layout: The tensors of the network.
        state: The state before the round, which holds the uploads until then.
        report: The report of the round.

    Returns:
        By layer, the clients that have sent an earlier upload (m,), ascending, and the places of the unstable weights
        in the layer (m, t), ascending int32: weights before biases, in C order. t is a twentieth of the layer, rounded
        up.
    """
    window = _window(state)
    if window is None:
        return {}
    updates = report.results[TRAIN].updates
    clients = updates.clients[window.counts[updates.clients] > 0].sort().values
    if not len(clients):
        return {}
    compared = layout.conv_and_linear
    found = dict[str, tuple[torch.Tensor, torch.Tensor]]()
    for layer in layout.layers:
        columns = layout.columns(layout.select(layer))
        before = window.uploads[clients, -1][:, torch.isin(compared, columns)]
        change = (updates.of(clients)[:, columns] - before).abs()
        count = ceil(_TOP_SHARE * len(columns))
        places = change.argsort(dim=1, descending=True, stable=True)[:, :count].sort(dim=1).values
        found[layer] = (clients, places.to(torch.int32))
    return found


def _window(state: State) -> UpdateWindow | None:
    """The uploads that a state keeps for model stability, if it does."""
    window = getattr(state, "window", None)
    return window if isinstance(window, UpdateWindow) else None
