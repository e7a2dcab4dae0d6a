"""Place new clients without labels: by how their inputs fit those of the clusters' members.

Clients are compared by means of features of their inputs. In each cluster these are taken as normal, with one
covariance for all: linear discriminant analysis (Fisher, 1936), with the covariance shrunk as in Ledoit and Wolf, J.
Multivariate Analysis 2004. Groups that differ in labels given inputs have the same inputs. So members are held out, and
between clusters whose own members cannot be told apart no newcomer is placed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from scipy.stats import fisher_exact
from sklearn.covariance import ledoit_wolf
from torch import nn

from fedstrata.base.errors import DataError, RecordError
from fedstrata.base.quoting import listed
from fedstrata.data.preparation import refitted
from fedstrata.engine.input_features import INPUT_FEATURES, input_features
from fedstrata.models.trained import TrainedModel
from fedstrata.records.arrays import read_input_means
from fedstrata.results.run import Run, raw_samples

_Floats = NDArray[np.float64]

_LEVEL = 0.05
"""The level of the test whether inputs tell the members of two clusters apart."""

_SURE = 0.95
"""A client is placed if its cluster has at least this probability."""

_RIDGE = 1e-6
"""The share of its variance that is added to each feature: a covariance of copies has no inverse."""


def assign_unlabelled(run: Run, paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Say where new clients belong whose labels are not known; see `assign`.

    Args:
        run: The finished run.
        paths: The samples of each new client.

    Raises:
        InputError: When the run does not say what its clients' inputs are, some samples do not fit it, or inputs tell
            no cluster from all others.
    """
    clients, means = read_input_means(run.folder.resolve(), INPUT_FEATURES)
    last = run.rounds[-1]
    node_of = {id: node for id, node in enumerate(last["labels"]) if node >= 0 and id not in last["pending"]}
    rows = [row for row, client in enumerate(clients) if client in node_of]
    nodes, labels = np.unique([node_of[clients[row]] for row in rows], return_inverse=True)
    inputs = ClusterInputs(means[rows], labels, nodes.tolist())
    if len(rows) < 3:
        raise RecordError(f"{run.folder}: expected at least 3 clients in clusters, found {len(rows)}; give labels")
    if {*chain(*inputs.alike)} == {*inputs.nodes}:
        raise RecordError(
            f"{run.folder}: expected clusters that inputs tell apart, found {inputs.recognised.sum()} of {len(rows)} "
            "members nearest to their own cluster; such clusters may differ in the labels of equal inputs, which no "
            "unlabelled data show; give labels"
        )
    found = []
    for path in paths:
        node, evidence, doubts = inputs.place(_features(run, path))
        names = [run.names[id] for id in node_of if node_of[id] == node]
        placed = {"cluster": node, "members": names, "new": False, "evidence": evidence, "warnings": doubts}
        found.append({"client": path.stem, "path": str(path), **placed})
    return found


def _features(run: Run, path: Path) -> _Floats:
    """The features of a new client's samples, (s, q), which are prepared as those of the run."""
    form = run.sample_format
    samples = raw_samples(run, path)
    try:
        if (prepared := form.preparation) is not None and prepared.options.own:
            raw = form.tensor_of(samples)
            form = replace(form, preparation=refitted(prepared, raw, torch.arange(len(raw))))
        inputs = TrainedModel(nn.Identity(), form).outputs(samples)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    if len(inputs) < 2:
        raise DataError(f"{path}: expected at least 2 samples, found {len(inputs)}")
    return input_features(inputs, run.experiment.seed).double().numpy()


@dataclass(frozen=True, eq=False)
class ClusterInputs:
    """What the inputs of the clusters' members are.

    Attributes:
        means: The mean features of each member, (n, q).
        labels: The cluster of each member, (n,), by its place in `nodes`.
        nodes: The tree node of each cluster, (k,).
    """

    means: _Floats
    labels: NDArray[np.int64]
    nodes: Sequence[int]

    def distances(self, rows: _Floats, kept: NDArray[np.bool_], error: _Floats | float = 0.0) -> _Floats:
        """The squared Mahalanobis distance of some mean features from those of each cluster, (r, k).

        Args:
            rows: The mean features, (r, q).
            kept: The members that count, (n,). The distance from a cluster without any is infinite.
            error: The covariance of the errors of `rows`, (q, q).
        """
        means, labels = self.means[kept], self.labels[kept]
        centers = {label: means[labels == label].mean(axis=0) for label in np.unique(labels).tolist()}
        residuals = means - np.stack([centers[label] for label in labels.tolist()])
        scale = residuals.std(axis=0)
        scale[scale == 0] = 1
        shrunk, _ = ledoit_wolf(residuals / scale, assume_centered=True)
        # Members are nearer than others to a center that is their own mean.
        shrunk *= len(means) / max(1, len(means) - len(centers))
        covariance = (shrunk + _RIDGE * np.eye(len(scale))) * np.outer(scale, scale) + error
        found = np.full((len(rows), len(self.nodes)), np.inf)
        for label, center in centers.items():
            away = rows - center
            found[:, label] = (away * np.linalg.solve(covariance, away.T).T).sum(axis=1)
        return found

    @cached_property
    def held_out(self) -> _Floats:
        """The squared distance of each member from each cluster without it, (n, k)."""
        # One by one; of more than 100 members, several at a time.
        fold = np.arange(len(self.means)) % 100
        found = np.empty((len(fold), len(self.nodes)))
        for number in np.unique(fold):
            found[fold == number] = self.distances(self.means[fold == number], fold != number)
        return found

    @cached_property
    def recognised(self) -> NDArray[np.bool_]:
        """Whether the own cluster of each member is the nearest one without it, (n,)."""
        return np.asarray(self.held_out.argmin(axis=1) == self.labels)

    @cached_property
    def alike(self) -> list[tuple[int, int]]:
        """The nodes of each pair of clusters whose members inputs do not tell apart, by Fisher's exact test."""
        found = []
        for pair in combinations(range(len(self.nodes)), 2):
            nearer = self.held_out[:, pair[0]] < self.held_out[:, pair[1]]
            table = [[(nearer[self.labels == label] == side).sum() for side in (True, False)] for label in pair]
            # Three members on each side, all recognised, have a p-value of 1 / 20, but for rounding.
            if round(fisher_exact(table, alternative="greater").pvalue, 9) > _LEVEL:
                found.append((self.nodes[pair[0]], self.nodes[pair[1]]))
        return found

    def place(self, features: _Floats) -> tuple[int | None, dict[str, Any], list[str]]:
        """The node of a newcomer, or None; what speaks for it; and what is in doubt.

        Args:
            features: The features of its samples, (s, q).
        """
        own = np.take_along_axis(self.held_out, self.labels[:, None], axis=1)
        own = own[np.isfinite(own)]
        error = ledoit_wolf(features)[0] / len(features)
        (distances,) = self.distances(features.mean(axis=0)[None], self.labels >= 0, error)
        # The squared distances of members would have a mean of q, did they not estimate the covariance, too.
        probabilities = softmax(-distances / 2 / max(1.0, own.mean() / features.shape[1]))
        best = int(distances.argmin())
        node = self.nodes[best]
        rivals = [str(each) for pair in self.alike if node in pair for each in pair if each != node]
        doubts = {
            f"inputs do not tell it from {listed(rivals)}": bool(rivals),
            f"its probability is {probabilities[best]:.2f}, below {_SURE:g}": probabilities[best] < _SURE,
            "every member is nearer to its own cluster": distances[best] > own.max(),
        }
        found = [f"cluster {node} is the nearest, but {doubt}; give labels" for doubt, holds in doubts.items() if holds]
        shares = dict(zip(self.nodes, probabilities.tolist(), strict=True))
        recognised = float(self.recognised[self.labels == best].mean())
        return None if found else node, {"probabilities": shares, "recognised": recognised}, found
