"""The files of a run folder."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save

from fedstrata.core import Layout, Matrix, Score, State, Tree
from fedstrata.errors import RecordError
from fedstrata.records.checkpoint import replace_file

PER_ROUND = ("clients", "gaps", "matrices")


@dataclasses.dataclass(frozen=True)
class Folder:
    """Where a run writes.

    Attributes:
        path: of the folder.
    """

    path: Path

    @property
    def checkpoints(self) -> Path:
        """Where the checkpoints are."""
        return self.path / "checkpoint"

    def create(self, experiment: str) -> None:
        """Make the folder, with the resolved experiment in it."""
        self.path.mkdir(parents=True, exist_ok=True)
        replace_file(self.path / "experiment.toml", experiment.encode())

    def rounds(self) -> list[dict[str, Any]]:
        """The records of all finished rounds; a line that was cut short is left out."""
        path = self.path / "rounds.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def rewind(self, round: int) -> None:
        """Drop what is newer than the checkpoint of a round, whose own scores are still to come."""
        kept = [record for record in self.rounds() if record["round"] < round]
        replace_file(self.path / "rounds.jsonl", "".join(_line(record) for record in kept).encode())
        for name in PER_ROUND:
            for path in (self.path / name).glob("[0-9]*"):
                if int(path.stem) > round:
                    path.unlink()

    def add(self, record: Mapping[str, Any], score: Score) -> None:
        """Write the finished record of a round, and what each client scored."""
        nodes = record["labels"]
        columns = {
            "client": score.clients.tolist(),
            "node": [nodes[client] for client in score.clients.tolist()],
            "samples": score.samples.tolist(),
            "accuracy": (score.correct.double() / score.samples).tolist(),
            "loss": score.loss.tolist(),
        }
        pq.write_table(pa.table(columns), self._of_round("clients", record["round"], "parquet"))
        with (self.path / "rounds.jsonl").open("a") as file:
            file.write(_line(record))

    def add_gaps(self, round: int, gaps: Sequence[Mapping[str, str | float]]) -> None:
        """Write the Gap of every layer and measure."""
        pq.write_table(pa.Table.from_pylist([dict(gap) for gap in gaps]), self._of_round("gaps", round, "parquet"))

    def add_matrices(self, round: int, matrices: Sequence[Matrix]) -> None:
        """Write the matrices behind the decisions of a round."""
        arrays: dict[str, Any] = {}
        for matrix in matrices:
            name = f"{matrix.node}|{matrix.measure}|{matrix.layer}"
            arrays[name], arrays[f"{name}|clients"] = matrix.values.numpy(), matrix.clients.numpy()
        np.savez_compressed(self._of_round("matrices", round, "npz"), **arrays)

    def finish(self, layout: Layout, state: State, summary: Mapping[str, Any]) -> None:
        """Write the models, the tree and the summary."""
        models = self.path / "models"
        models.mkdir(exist_ok=True)
        plain = [dataclasses.asdict(slot) for slot in layout.slots]
        replace_file(models / "layout.json", json.dumps(plain, indent=1).encode())
        for node, row in zip(state.nodes.tolist(), state.models, strict=True):
            replace_file(models / f"cluster-{node}.safetensors", save(_tensors(layout, row)))
        self.add_tree(state.tree)
        replace_file(
            self.path / "summary.json", (json.dumps(_plain(summary), indent=1, allow_nan=False) + "\n").encode()
        )

    def add_tree(self, tree: Tree) -> None:
        """Write the cluster tree as it is now."""
        nodes = [
            {
                "id": node.id,
                "parent": node.parent,
                "members": list(node.members),
                "born": node.born,
                "split": node.split,
                "layer": node.verdict.layer if node.verdict else None,
                "criteria": dict(node.verdict.criteria) if node.verdict else {},
                "why": node.verdict.why if node.verdict else "",
            }
            for node in tree
        ]
        replace_file(self.path / "tree.json", (json.dumps(_plain(nodes), indent=1, allow_nan=False) + "\n").encode())

    def summary(self) -> dict[str, Any]:
        """The summary of a finished run.

        Raises:
            RecordError: when the run is not finished.
        """
        path = self.path / "summary.json"
        if not path.exists():
            raise RecordError(f"expected a finished run in {self.path}, found no summary.json; resume the run")
        try:
            summary: dict[str, Any] = json.loads(path.read_text())
        except ValueError as error:
            raise RecordError(f"{path}: expected a summary in JSON, found {error}; resume the run") from error
        return summary

    def _of_round(self, name: str, round: int, suffix: str) -> Path:
        (self.path / name).mkdir(exist_ok=True)
        return self.path / name / f"{round:05d}.{suffix}"


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(_plain(record), allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    """A value that every reader of JSON takes: what is not finite is null."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _tensors(layout: Layout, row: torch.Tensor) -> dict[str, torch.Tensor]:
    spans = zip(layout.slots, layout.spans, strict=True)
    return {slot.name: row[span].reshape(slot.shape).clone() for slot, span in spans}
