"""The files of a run folder."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save

from fedstrata.core import Layout, Matrix, Score, State, Tree
from fedstrata.errors import RecordError
from fedstrata.files import (
    MOST_BYTES,
    parse_json,
    read_file,
    refuse_links,
    remove_drafts,
    remove_file,
    replace_file,
    subfolder,
)
from fedstrata.records.rounds import RoundLog
from fedstrata.records.schema import NAMES, Summary, check, finite

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

    @cached_property
    def log(self) -> RoundLog:
        """The lines of the finished rounds."""
        return RoundLog(self.path / "rounds.jsonl")

    def create(self, experiment: str) -> None:
        """Make the folder, with the resolved experiment in it.

        Raises:
            RecordError: when something in it is a link.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        refuse_links(self.path, NAMES)
        remove_drafts(self.path)
        try:
            replace_file(self.path / "experiment.toml", experiment.encode())
        except OSError:
            # An empty folder would be in the way of the same command, given again.
            with suppress(OSError):
                self.path.rmdir()
            raise

    def rounds(self) -> list[dict[str, Any]]:
        """The records of all finished rounds; a line that was cut short is left out.

        Raises:
            RecordError: when a line is damaged, missing or not in its place.
        """
        return self.log.records()

    def rewind(self, round: int) -> None:
        """Drop what is newer than the checkpoint of a round, whose own scores are still to come."""
        self.log.keep(max(round - 1, 0))
        for name in PER_ROUND:
            for path in self.files(name):
                if int(path.stem) > round:
                    remove_file(path)

    def files(self, name: str) -> list[Path]:
        """The files of all rounds in one of the folders `PER_ROUND`, in their order.

        Raises:
            RecordError: when something else than a folder has its name.
        """
        refuse_links(self.path, [name])
        return sorted(path for path in (self.path / name).glob("[0-9]*") if re.fullmatch(r"\d{5,9}", path.stem))

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
        self._write_table("clients", record["round"], pa.table(columns))
        self.log.add(record)

    def add_gaps(self, round: int, gaps: Sequence[Mapping[str, str | float]]) -> None:
        """Write the Gap of every layer and measure."""
        self._write_table("gaps", round, pa.Table.from_pylist([dict(gap) for gap in gaps]))

    def add_matrices(self, round: int, matrices: Sequence[Matrix]) -> None:
        """Write the matrices behind the decisions of a round.

        Only the user may read them: they compare what clients sent.
        """
        arrays: dict[str, Any] = {}
        for matrix in matrices:
            name = f"{matrix.node}|{matrix.measure}|{matrix.layer}"
            arrays[name], arrays[f"{name}|clients"] = matrix.values.numpy(), matrix.clients.numpy()
        content = io.BytesIO()
        np.savez_compressed(content, **arrays)
        place = subfolder(self.path, "matrices", private=True)
        replace_file(place / f"{round:05d}.npz", content.getvalue(), private=True)

    def damaged(self, first: int, last: int) -> list[str]:
        """The scores of rounds that are missing or cannot be read, and what else of these rounds cannot be.

        Args:
            first: round that is looked at.
            last: round that is looked at; there may be gaps and matrices, but no scores, of the one behind it.
        """
        bad = [f"clients/{round:05d}.parquet" for round in range(first, last + 1) if not self._scores_sound(round)]
        for path in self.files("gaps"):
            if first <= int(path.stem) <= last + 1 and not _sound(lambda content: pq.read_table(content), path):
                bad.append(f"gaps/{path.name}")
        for path in self.files("matrices"):
            if first <= int(path.stem) <= last + 1 and not _sound(_check_archive, path):
                bad.append(f"matrices/{path.name}")
        return bad

    def finish(self, layout: Layout, state: State, summary: Mapping[str, Any]) -> None:
        """Write the models, the tree and the summary."""
        models = subfolder(self.path, "models")
        plain = [dataclasses.asdict(slot) for slot in layout.slots]
        replace_file(models / "layout.json", json.dumps(plain, indent=1).encode())
        for node, row in zip(state.nodes.tolist(), state.models, strict=True):
            replace_file(models / f"cluster-{node}.safetensors", save(_tensors(layout, row)))
        self.add_tree(state.tree)
        replace_file(
            self.path / "summary.json", (json.dumps(finite(summary), indent=1, allow_nan=False) + "\n").encode()
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
        replace_file(self.path / "tree.json", (json.dumps(finite(nodes), indent=1, allow_nan=False) + "\n").encode())

    def summary(self) -> dict[str, Any]:
        """The summary of a finished run.

        Raises:
            RecordError: when the run is not finished.
        """
        path = self.path / "summary.json"
        refuse_links(self.path, NAMES)
        try:
            summary: dict[str, Any] = parse_json(read_file(path))
            check(summary, Summary)
        except FileNotFoundError:
            raise RecordError(
                f"expected a finished run in {self.path}, found no summary.json; resume the run"
            ) from None
        except ValueError as error:
            raise RecordError(f"{path}: expected a summary in JSON, found: {error}; resume the run") from None
        return summary

    def _write_table(self, name: str, round: int, table: pa.Table) -> None:
        content = io.BytesIO()
        pq.write_table(table, content)
        replace_file(subfolder(self.path, name) / f"{round:05d}.parquet", content.getvalue())

    def _scores_sound(self, round: int) -> bool:
        return _sound(_check_scores, self.path / "clients" / f"{round:05d}.parquet")


def _sound(read: Callable[[io.BytesIO], object], path: Path) -> bool:
    """Whether a file is there and can be read."""
    try:
        read(io.BytesIO(read_file(path)))
    except (OSError, RecordError, ValueError, KeyError, zipfile.BadZipFile, pa.ArrowException):
        return False
    return True


def _check_scores(content: io.BytesIO) -> None:
    found = pq.ParquetFile(content).schema_arrow.names
    if not {"client", "node", "samples", "accuracy", "loss"} <= set(found):
        raise ValueError(f"its columns are {found}")


def _check_archive(content: io.BytesIO) -> None:
    with zipfile.ZipFile(content) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > MOST_BYTES or archive.testzip() is not None:
            raise ValueError("it is damaged")


def _tensors(layout: Layout, row: torch.Tensor) -> dict[str, torch.Tensor]:
    spans = zip(layout.slots, layout.spans, strict=True)
    return {slot.name: row[span].reshape(slot.shape).clone() for slot, span in spans}
