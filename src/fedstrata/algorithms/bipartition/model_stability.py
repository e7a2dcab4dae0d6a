"""Model stability: how unsteadily the updates of each client turn from round to round, layer by layer.

Gong, Xing, Liu, Xi, Chen, "Towards hierarchical clustered federated learning with model stability on mobile
devices", IEEE TMC 2024, sections III-B, IV-B and IV-C. The paper calls the measure S stability, but it is small where
updates turn steadily: a layer is stable when S is below epsilon. The server computes S from the uploads that it has.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedstrata.algorithms.bipartition.round import max_norm
from fedstrata.base.lazy_torch import torch
from fedstrata.clustering import stability
from fedstrata.clustering.similarity import STILL
from fedstrata.core import TRAIN, Metric, Problem, Report, Rows, State, assign_pending

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
        xi: The change of an update above which stability looks at a weight: a number, "auto" for a share of the step
            size, or "median", which is Strata's, for the median of its layer: half of it, however large updates are.
    """
    updates = report.results[TRAIN].updates
    clients = updates.clients
    conv_and_linear = problem.layout.conv_and_linear
    node = state.nodes[assign_pending(state, report)[clients]]
    # A client comes to another cluster by a split, a merge or a move, and a pending client by joining one. Older
    # uploads stay until they are overwritten, but count no more.
    goes_on = (state.labels[clients] >= 0) & (window.since_node[clients] == node)
    counts = torch.where(goes_on, window.counts[clients], 0) + 1
    uploads = torch.cat([window.uploads[clients], updates.values[:, None, conv_and_linear]], dim=1)
    selected = window.selected_weights[clients] | (counts == 1)[:, None]
    # Eq. 19 is applied once, to the first two uploads in a cluster. It has no absolute value; the text has magnitudes.
    change = (uploads[:, -1] - uploads[:, -2]).abs()
    least = problem.training_of(state.round + 1).lr * _XI_SHARE if xi == "auto" else xi
    selected = torch.where((counts == 2)[:, None], _unstable_weights(problem, change, least), selected)
    after = UpdateWindow(
        uploads=window.uploads.index_copy(0, clients, uploads[:, 1:]),
        counts=window.counts.index_copy(0, clients, counts),
        selected_weights=window.selected_weights.index_copy(0, clients, selected),
        since_node=window.since_node.index_copy(0, clients, node),
    )
    full = (counts >= uploads.shape[1]).nonzero().flatten()
    values = torch.full((problem.clients, len(problem.layout.layers)), torch.inf, dtype=torch.float64)
    values[clients[full]] = _mean_stability(problem, uploads, selected, full)
    return after, Stability(values, _metrics(problem, after, values))


def _layer_columns(problem: Problem) -> list[torch.Tensor]:
    """For every layer, which of the conv and linear columns are its own, (q,) bool each."""
    layout = problem.layout
    conv_and_linear = layout.conv_and_linear
    return [torch.isin(conv_and_linear, layout.columns(layout.select(layer))) for layer in layout.layers]


def _mean_stability(
    problem: Problem, uploads: torch.Tensor, selected: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    """The mean stability of some rows (r,) of uploads (m, W, q) over the window in every layer, (r, layers)."""
    columns_of_layers = _layer_columns(problem)
    values = torch.empty(len(rows), len(columns_of_layers), dtype=torch.float64)
    for client, row in enumerate(rows.tolist()):
        for layer, columns in enumerate(columns_of_layers):
            values[client, layer] = stability(uploads[row][:, columns & selected[row]]).mean()  # Eq. 14
    return values


def _unstable_weights(problem: Problem, change: torch.Tensor, least: float | str) -> torch.Tensor:
    """The columns that changed by more than `least`, (m, q) bool; all columns of a layer in which none did."""
    unstable = torch.zeros_like(change, dtype=torch.bool)
    for columns in _layer_columns(problem):
        within = change[:, columns]
        bound = within.median(dim=1, keepdim=True).values if isinstance(least, str) else least
        beyond = within > bound  # Eq. 19
        unstable[:, columns] = beyond | ~beyond.any(dim=1, keepdim=True)
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
