"""Model stability: how unsteadily the updates of each client turn from round to round, layer by layer.

Gong, Xing, Liu, Xi, Chen, "Towards hierarchical clustered federated learning with model stability on mobile
devices", IEEE TMC 2024, sections III-B, IV-B and IV-C. The paper calls the measure S stability, but it is small where
updates turn steadily: a layer is stable when S is below epsilon. The server computes S from the uploads that it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedstrata.algorithms.bipartition.round import max_norm
from fedstrata.base.lazy_torch import torch
from fedstrata.clustering import stability
from fedstrata.clustering.similarity import STILL
from fedstrata.core import TRAIN, Metric, Problem, Report, Rows, State, assign_pending, empty_rows

_XI_SHARE = 0.05
"""The automatic xi is this share of the step size (section V-A). How many weights it keeps depends on how large updates
are: 36 to 55 % in the paper."""

_EPSILON_SHARE = 0.5
"""The automatic epsilon is this share of the step size (section V-A)."""


@dataclass(frozen=True)
class UpdateWindow:
    """The last uploads of every client since it came to its cluster.

    Attributes:
        uploads: The last W - 1 uploads (Delta) of each client, the newest last, conv and linear columns,
            (n, W - 1, q). The next upload completes the window.
        counts: The number of uploads since the client came to its cluster, (n,) int64.
        selected_weights: The columns that stability looks at, (n, q) bool.
        since_node: The tree node of the cluster in which the uploads were made, (n,) int64; -1 before the first.
    """

    uploads: torch.Tensor
    counts: torch.Tensor
    selected_weights: torch.Tensor
    since_node: torch.Tensor


@dataclass(frozen=True)
class Stability:
    """How unsteadily the updates of every client turn, after a round.

    Attributes:
        values: The mean stability over the window of each client and layer, (n, layers) float64; infinity where a
            window is not full, or nothing was uploaded.
        metrics: The mean and the largest value over the clients for every layer, and the share of the weights that it
            looks at.
    """

    values: torch.Tensor
    metrics: tuple[Metric, ...]

    @property
    def full_window(self) -> torch.Tensor:
        """Which clients have a full window, bool (n,)."""
        return self.values.isfinite().all(dim=1)


def empty_window(problem: Problem, window: int) -> UpdateWindow:
    """No upload seen yet; `window` is W, the number of uploads in a full window."""
    n = problem.clients
    q = len(problem.layout.conv_and_linear)
    return UpdateWindow(
        uploads=torch.zeros(n, window - 1, q),
        counts=torch.zeros(n, dtype=torch.int64),
        selected_weights=torch.ones(n, q, dtype=torch.bool),
        since_node=torch.full((n,), -1),
    )


def add_updates(
    problem: Problem, state: State, window: UpdateWindow, report: Report, xi: float | str
) -> tuple[UpdateWindow, Stability]:
    """Add the uploads of a round to the windows, and measure stability.

    Args:
        problem: What is fixed for the run.
        state: The state before the round.
        window: The windows before the round.
        report: The report of the round.
        xi: The change of an update above which stability looks at a weight; "auto" is a share of the step size.
    """
    updates = report.results[TRAIN].updates
    clients = updates.clients
    conv_and_linear = problem.layout.conv_and_linear
    node = state.nodes[assign_pending(state, report)[clients]]
    # A client comes to another cluster by a split, a merge or a move, and a pending client by joining one. Older
    # uploads stay until they are overwritten, but count no more.
    goes_on = (state.labels[clients] >= 0) & (window.since_node[clients] == node)
    counts = torch.where(goes_on, window.counts[clients], 0) + 1
    uploads = _copied(window.uploads)
    selected = window.selected_weights.clone()
    values = torch.full((problem.clients, len(problem.layout.layers)), torch.inf, dtype=torch.float64)
    least = problem.training_of(state.round + 1).lr * _XI_SHARE if isinstance(xi, str) else xi
    layers = _layer_columns(problem)
    # One client after the other: of a large network, the windows of all do not fit into memory once more.
    for row, (client, count) in enumerate(zip(clients.tolist(), counts.tolist(), strict=True)):
        own = torch.cat([window.uploads[client], updates.values[row, conv_and_linear][None]])
        if count == 1:
            selected[client] = True
        if count == 2:
            # Eq. 19 is applied once, to the first two uploads in a cluster. It has no absolute value; the text has
            # magnitudes.
            selected[client] = _unstable_weights(layers, (own[-1] - own[-2]).abs(), least)
        if count >= len(own):
            values[client] = torch.stack(
                [stability(own[:, columns & selected[client]]).mean() for columns in layers]  # Eq. 14
            )
        uploads[client] = own[1:]
    after = UpdateWindow(
        uploads=uploads,
        counts=window.counts.index_copy(0, clients, counts),
        selected_weights=selected,
        since_node=window.since_node.index_copy(0, clients, node),
    )
    return after, Stability(values, _metrics(problem, after, values))


def _copied(uploads: torch.Tensor) -> torch.Tensor:
    """A copy of uploads (n, W - 1, q), in a file where it would not fit into memory."""
    n, kept, q = uploads.shape
    return empty_rows(n * kept, q).view(n, kept, q).copy_(uploads)


def _layer_columns(problem: Problem) -> list[torch.Tensor]:
    """For every layer, which of the conv and linear columns are its own, (q,) bool each."""
    layout = problem.layout
    conv_and_linear = layout.conv_and_linear
    return [torch.isin(conv_and_linear, layout.columns(layout.select(layer))) for layer in layout.layers]


def _unstable_weights(layers: Sequence[torch.Tensor], change: torch.Tensor, least: float) -> torch.Tensor:
    """The columns that changed by more than `least`, (q,) bool; all columns of a layer in which none did."""
    unstable = torch.zeros_like(change, dtype=torch.bool)
    for columns in layers:
        beyond = change[columns] > least  # Eq. 19
        unstable[columns] = beyond | ~beyond.any()
    return unstable


def _metrics(problem: Problem, window: UpdateWindow, values: torch.Tensor) -> tuple[Metric, ...]:
    """The mean stability of every layer over the clients with a full window, and the share of selected weights."""
    metrics = list[Metric]()
    known = values[values.isfinite().all(dim=1)]
    if len(known):
        # Eq. 15 asks for a layer that is stable in every member, so the largest value decides and the mean explains.
        for name, over_clients in (("stability", known.mean(dim=0)), ("max_stability", known.amax(dim=0))):
            by_layer = zip(problem.layout.layers, over_clients.tolist(), strict=True)
            metrics += [Metric(name, value, layer=layer) for layer, value in by_layer]
    selected = window.selected_weights[window.counts >= 2]
    if len(selected):
        metrics.append(Metric("weights_used", float(selected.double().mean())))
    return tuple(metrics)


def stability_threshold(problem: Problem, round: int, epsilon: float | str = "auto") -> float:
    """A threshold of stability as given, or that of the round's step size where it is ``"auto"``."""
    return _EPSILON_SHARE * problem.training_of(round).lr if isinstance(epsilon, str) else epsilon


def moving_layers(problem: Problem, updates: Rows) -> list[int]:
    """The places of the layers that somebody moves."""
    layout = problem.layout
    columns = (layout.columns(layout.select(layer)) for layer in layout.layers)
    return [place for place, own in enumerate(columns) if max_norm(updates.take_columns(own).values) > STILL]
