"""A finished run, read from the files that every run folder has."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from safetensors import safe_open

from fedstrata.clustering import CLIENT_MEASURES, gap

Curve = list[float | None]
"""One value for each round; None where there is none."""


@dataclass(frozen=True)
class RunFolder:
    """A finished run.

    Attributes:
        path: Its folder.
    """

    path: Path

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        """The records of all rounds."""
        return [json.loads(line) for line in (self.path / "rounds.jsonl").read_text().splitlines()]

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The summary."""
        found: dict[str, Any] = json.loads((self.path / "summary.json").read_text())
        return found

    @cached_property
    def keys(self) -> dict[str, Any]:
        """The experiment with all its keys."""
        return tomllib.loads((self.path / "experiment.toml").read_text())

    @property
    def truth(self) -> list[int]:
        """The true group of each client."""
        return list(self.summary["truth"])

    def curve(self, key: str) -> Curve:
        """A measure of every round, such as ``acc_cluster``."""
        return [record[key] for record in self.rounds]

    def metric(self, name: str, layer: str | None = None, node: int | None = None) -> Curve:
        """A metric of the algorithm in every round; of several that fit, the first."""
        found: Curve = []
        for record in self.rounds:
            fitting = [
                metric["value"]
                for metric in record["metrics"]
                if metric["name"] == name and layer in (None, metric["layer"]) and node in (None, metric["node"])
            ]
            found.append(fitting[0] if fitting else None)
        return found

    def layers(self, name: str) -> list[str]:
        """The layers that a metric of the algorithm is recorded for."""
        metrics = (metric for record in self.rounds for metric in record["metrics"])
        return list(dict.fromkeys(metric["layer"] for metric in metrics if metric["name"] == name and metric["layer"]))

    def gap(self, round: int, layer: str, measure: str = "dcos") -> float:
        """The Gap of a layer in a round: above 0 the true groups are apart.

        Where it was not recorded, it is computed from the recorded matrix.
        """
        file = self.path / "gaps" / f"{round:05}.parquet"
        if not file.exists():
            values = torch.from_numpy(self.matrix(round, measure, layer))
            kind: Literal["similarity", "distance"]
            kind = "similarity" if CLIENT_MEASURES[measure].larger_is_closer else "distance"
            return gap(values, torch.tensor(self.truth), kind)
        rows = pq.read_table(file).to_pylist()
        (found,) = [row["gap"] for row in rows if row["layer"] == layer and row["measure"] == measure]
        return float(found)

    def matrix(self, round: int, measure: str, layer: str) -> NDArray[np.float64]:
        """A matrix of similarities or distances that was recorded in a round, ordered by client."""
        with np.load(self.path / "matrices" / f"{round:05}.npz") as arrays:
            (name,) = [name for name in arrays.files if name.split("|", 1)[1] == f"{measure}|{layer}"]
            order = np.argsort(arrays[f"{name}|clients"])
            return np.asarray(arrays[name], dtype=np.float64)[order][:, order]

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The events of a kind, each with its round."""
        return [
            {"round": record["round"], **event}
            for record in self.rounds
            for event in record["events"]
            if event["kind"] == kind
        ]

    def weights(self) -> dict[str, int]:
        """The number of weights of each layer, biases left out."""
        matrices = {name: shape for name, shape in self._shapes().items() if len(shape) > 1}
        return {name.removesuffix(".weight"): int(np.prod(shape)) for name, shape in matrices.items()}

    def weights_and_biases(self) -> dict[str, int]:
        """The number of weights of each layer, biases counted."""
        counts: Counter[str] = Counter()
        for name, shape in self._shapes().items():
            counts[name.rsplit(".", 1)[0]] += int(np.prod(shape))
        return dict(counts)

    def _shapes(self) -> dict[str, Sequence[int]]:
        """The shape of every tensor of a model."""
        model = min((self.path / "models").glob("*.safetensors"))
        with safe_open(model, "np") as tensors:
            return {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118

    def gaps(self, round: int) -> dict[tuple[str, str], float]:
        """The recorded Gaps of a round, by layer and measure, in the order of the layers; none where none are."""
        file = self.path / "gaps" / f"{round:05}.parquet"
        if not file.exists():
            return {}
        return {(row["layer"], row["measure"]): row["gap"] for row in pq.read_table(file).to_pylist()}

    def matrices(self, round: int) -> dict[tuple[str, str], list[int]]:
        """The measure and layer of each matrix of a round that `matrix` can read, and its clients, ascending.

        A measure and layer that several clusters have a matrix of is left out.
        """
        file = self.path / "matrices" / f"{round:05}.npz"
        if not file.exists():
            return {}
        with np.load(file) as arrays:
            names = [name.split("|") for name in arrays.files if not name.endswith("|clients")]
            times = Counter((measure, layer) for _, measure, layer in names)
            return {
                (measure, layer): sorted(arrays[f"{node}|{measure}|{layer}|clients"].tolist())
                for node, measure, layer in names
                if times[measure, layer] == 1
            }
