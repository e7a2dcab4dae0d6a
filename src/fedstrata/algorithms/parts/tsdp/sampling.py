"""Hopkins amended sampling (FedTSDP, Section 3.2.2): which of the server's samples tell clients apart."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Annotated

from annotated_types import Interval

from fedstrata.algorithms.parts.tsdp.layering import layers
from fedstrata.clustering import hopkins
from fedstrata.core import Problem, State, initial_state
from fedstrata.errors import ExperimentError
from fedstrata.lazy_torch import torch

LEAST = 3
"""Clients without which nothing can be said about their tendency to cluster."""

Part = Annotated[float, Interval(gt=0, le=1)]
"""A share of which something is left."""


@dataclass(frozen=True)
class Sampled(State):
    """Adds what FedTSDP carries from round to round; personal tensors are on the clients' devices, not here.

    Attributes:
        weights: sampling weights W of the public samples, (samples,) float64.
        shared: number of shared layers L, not rounded.
        triggers: how often the clients were clustered.
    """

    weights: torch.Tensor
    shared: float
    triggers: int


def unamended(problem: Problem, amend: str) -> Sampled:
    """Everyone in one cluster, every layer shared, every public sample as likely as another.

    Raises:
        ExperimentError: when the server has no samples.
    """
    if problem.public is None:
        raise ExperimentError("data.public = 0: algorithm.name = 'fedtsdp' needs samples on the server; try 1000")
    weights = torch.ones(len(problem.public), dtype=torch.float64)
    weights = weights if amend == "unnormalised" else weights / weights.sum()
    return Sampled(
        **vars(initial_state(problem)), weights=weights, shared=float(len(layers(problem.layout))), triggers=0
    )


def infer(problem: Problem, state: Sampled, models: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One batch for all models (Algorithm 1, lines 13 and 14).

    Args:
        problem: with public samples and an engine that predicts.
        state: with their weights.
        models: of the clients that answered, (m, p).
        size: of the batch, or all samples if there are fewer.

    Returns:
        Positions (b,) of the samples, and class probabilities (m, b, classes); both empty for fewer than three models.
    """
    if len(models) < LEAST or problem.public is None or problem.predict is None:
        return torch.empty(0, dtype=torch.int64), torch.empty(len(models), 0)
    draw = problem.generator("public batch", state.round + 1)
    batch = torch.multinomial(state.weights, min(size, len(state.weights)), generator=draw)
    predictions = problem.predict(models, problem.public[batch])
    # A model that overflows is finite and yet predicts nothing: every class alike.
    return batch, predictions.nan_to_num(nan=1 / predictions.shape[2])


def tendency(problem: Problem, state: State, predictions: torch.Tensor, sample: float) -> float:
    """The Hopkins statistic of predictions (m, b, classes), by a share of the clients and as many random points."""
    count = ceil(sample * len(predictions) - 1e-9)  # 0.1 * 30 is 3.0000000000000004
    return hopkins(predictions, problem.generator("hopkins", state.round + 1), max(1, count))  # Eq. 6


def amended(weights: torch.Tensor, batch: torch.Tensor, amend: str) -> torch.Tensor:
    """The weights (samples,) after the samples of a batch (b,) were seen to tell clients apart (Eq. 7 and 8).

    Literally, 50 of 10,000 samples would own 99.99 % of all weight after a single clustering.
    """
    gain = len(batch) / len(weights) if amend == "inverse" else len(weights) / len(batch)
    gained = weights.index_add(0, batch, torch.full((len(batch),), gain, dtype=weights.dtype))
    return gained if amend == "unnormalised" else gained / gained.sum()
