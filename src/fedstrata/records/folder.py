"""The files of a run folder: written, dropped on resume, and checked."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save

from fedstrata.base.errors import RecordError
from fedstrata.base.files import (
    append_line,
    json_text,
    parse_json,
    read_file,
    refuse_links,
    remove_drafts,
    remove_file,
    replace_file,
    subfolder,
)
from fedstrata.core import Layout, Matrix, Rows, Score, State, Tree
from fedstrata.objective.metric_info import METRIC_FILE, MetricInfo, dump_metric, read_metric
from fedstrata.records.schema import (
    CLIENT_DATA,
    CLIENTS_SUFFIX,
    INPUT_MEANS,
    PREDICTIONS,
    RUN_FOLDER_ENTRIES,
    ClientDescriptions,
    DataRecord,
    Gap,
    MatrixName,
    Predictions,
    Summary,
    TreeNode,
    parse_record,
    parse_rounds,
    parse_tree,
)

_FOLDERS_PER_ROUND = ("clients", "gaps", "matrices")
"""Folders with a file for each round."""

_T = TypeVar("_T")


class RoundLog:
    """``rounds.jsonl``: a line for every finished round, which never changes once it is written.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        """Read nothing yet."""
        self._path = path

    def lines(self) -> list[bytes]:
        """Return all lines with their line ends. A last line without one was cut off and is left out."""
        try:
            content = read_file(self._path)
        except FileNotFoundError:
            return []
        return [line for line in content.splitlines(keepends=True) if line.endswith(b"\n")]

    def records(self) -> list[dict[str, Any]]:
        """Return the records of all finished rounds.

        Raises:
            RecordError: When a line is damaged, or the rounds are not 1, 2, 3, ...
        """
        try:
            return [record for record, _ in parse_rounds(self.lines())]
        except ValueError as error:
            raise RecordError(f"{self._path.parent}: {error}; restore it from a copy, or run again") from None

    def missing(self, rounds: int, digest: str) -> str:
        """Return why the lines of the first rounds are not those that were written; an empty text if they are.

        Args:
            rounds: How many rounds must be there.
            digest: The SHA-256 of their lines; empty where it is not known.
        """
        lines = self.lines()
        if len(lines) < rounds:
            return f"rounds.jsonl holds {len(lines)} of the {rounds} rounds before it"
        if digest and hashlib.sha256(b"".join(lines[:rounds])).hexdigest() != digest:
            return f"the first {rounds} lines of rounds.jsonl are not those that were written"
        return ""

    def truncate(self, rounds: int) -> None:
        """Drop all lines but those of the first rounds."""
        kept = b"".join(self.lines()[:rounds])
        replace_file(self._path, kept)
        self._hash = hashlib.sha256(kept)

    def add(self, record: Mapping[str, Any]) -> None:
        """Write the line of a round; it is on the disk afterwards."""
        written = self._hash  # of the file before this line is in it
        line = json_text(record) + "\n"
        append_line(self._path, line)
        written.update(line.encode())

    @property
    def digest(self) -> str:
        """The SHA-256 of all lines."""
        return str(self._hash.hexdigest())

    @cached_property
    def _hash(self) -> Any:
        return hashlib.sha256(b"".join(self.lines()))


@dataclasses.dataclass(frozen=True)
class Folder:
    """A run folder.

    Attributes:
        path: Where it is.
    """

    path: Path

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoint"

    @property
    def deployed(self) -> bool:
        """Whether the clients were devices on a network."""
        return (self.path / "network").is_dir()

    @cached_property
    def log(self) -> RoundLog:
        """The lines of the finished rounds."""
        return RoundLog(self.path / "rounds.jsonl")

    def create(self, experiment: str) -> None:
        """Make the folder and write the resolved experiment into it.

        Raises:
            RecordError: When an entry of the folder is a link.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        refuse_links(self.path, RUN_FOLDER_ENTRIES)
        remove_drafts(self.path)
        try:
            replace_file(self.path / "experiment.toml", experiment.encode())
        except OSError:
            # The same command, given again, would refuse a folder that exists.
            with suppress(OSError):
                self.path.rmdir()
            raise

    def rounds(self) -> list[dict[str, Any]]:
        """Return the records of all finished rounds; as `RoundLog.records`."""
        return self.log.records()

    def rewind(self, round: int) -> None:
        """Drop what is newer than the checkpoint of a round. The scores of that round itself are still to come."""
        self.log.truncate(max(round - 1, 0))
        for name in _FOLDERS_PER_ROUND:
            for path in self.files(name):
                if int(path.stem) > round:
                    remove_file(path)

    def files(self, name: str) -> list[Path]:
        """Return the files of all rounds in one of the folders `_FOLDERS_PER_ROUND`, in their order.

        Raises:
            RecordError: When the folder is a link.
        """
        refuse_links(self.path, [name])
        return sorted(path for path in (self.path / name).glob("[0-9]*") if re.fullmatch(r"\d{5,9}", path.stem))

    def add(self, record: Mapping[str, Any], score: Score) -> None:
        """Write the finished record of a round, and the scores of each client."""
        clients = score.clients.tolist()
        columns = {
            "client": clients,
            "node": [record["labels"][client] for client in clients],
            "samples": score.samples.tolist(),
            "accuracy": score.values.tolist(),
            "loss": score.loss.tolist(),
        }
        self._write_table("clients", record["round"], pa.table(columns))
        self.log.add(record)

    def add_client_descriptions(self, found: ClientDescriptions) -> None:
        """Write what is known of the clients' data, for this user alone."""
        arrays: dict[str, Any] = {"class_counts": found.class_counts}
        for name in ("class_names", "feature_names"):
            arrays[name] = np.frombuffer(json.dumps(getattr(found, name)).encode(), np.uint8)
        if found.mean_inputs is not None:
            arrays["mean_inputs"] = found.mean_inputs.reshape(len(found.mean_inputs), -1)
            arrays["shape"] = np.array(found.mean_inputs.shape[1:])
        replace_file(self.path / CLIENT_DATA, _packed(arrays), private=True)

    def add_predictions(self, found: Predictions | None) -> None:
        """Write what the clients' models predict for their test samples, for this user alone; None removes the file."""
        if found is None:
            remove_file(self.path / PREDICTIONS)
        else:
            replace_file(self.path / PREDICTIONS, _parquet(pa.table(found._asdict())), private=True)

    def add_input_means(self, means: Rows | None) -> None:
        """Write the statistic "inputs" of clients, for this user alone; None removes the file."""
        if means is None:
            remove_file(self.path / INPUT_MEANS)
        else:
            arrays = {"clients": means.clients.numpy(), "means": means.values.numpy()}
            replace_file(self.path / INPUT_MEANS, _packed(arrays), private=True)

    def add_gaps(self, round: int, gaps: Sequence[Mapping[str, str | float]]) -> None:
        """Write the gap of every layer and measure; each has the keys of `Gap`."""
        columns = {name: [gap[name] for gap in gaps] for name in Gap._fields}
        self._write_table("gaps", round, pa.table(columns))

    def add_matrices(self, round: int, matrices: Sequence[Matrix]) -> None:
        """Write the matrices behind the decisions of a round, and those of all clients, for this user alone.

        They tell of what single clients sent.
        """
        arrays: dict[str, Any] = {}
        for matrix in matrices:
            name = str(MatrixName(matrix.node, matrix.measure, matrix.layer))
            arrays[name] = matrix.values.numpy()
            arrays[name + CLIENTS_SUFFIX] = matrix.clients.numpy()
        folder = subfolder(self.path, "matrices", private=True)
        replace_file(folder / f"{round:05d}.npz", _packed(arrays), private=True)

    def finish(self, layout: Layout, state: State, summary: Mapping[str, Any]) -> None:
        """Write the models, the tree and the summary."""
        models = subfolder(self.path, "models")
        files = [models / f"cluster-{node}.safetensors" for node in state.nodes.tolist()]
        for file, row in zip(files, state.models, strict=True):
            replace_file(file, save(_tensors(layout, row)))
        # A run that was extended may have split clusters whose models were written when it first finished.
        for old in set(models.glob("cluster-*.safetensors")) - set(files):
            remove_file(old)
        self.add_tree(state.tree)
        self.write_summary(summary)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the summary of a finished run."""
        self._write_json("summary.json", summary)

    def add_data(self, data: DataRecord) -> None:
        """Write who the clients are, and what looks wrong with their data."""
        self._write_json("data.json", data.model_dump())

    def data(self) -> DataRecord | None:
        """Return who the clients are; None for a run of an earlier version.

        Raises:
            RecordError: When the file is damaged.
        """
        if not (self.path / "data.json").exists():
            return None
        return self._read("data.json", lambda value: parse_record(value, DataRecord), "the clients of a run")

    def add_metric(self, metric: MetricInfo) -> None:
        """Write what the metric of the run is."""
        replace_file(self.path / METRIC_FILE, dump_metric(metric))

    def metric(self) -> MetricInfo:
        """Return what the metric of the run is.

        Raises:
            RecordError: When the file is damaged.
        """
        return read_metric(self.path)

    def add_tree(self, tree: Tree) -> None:
        """Write the cluster tree as it is now: the entries are `TreeNode` records."""
        nodes = [
            {
                "id": node.id,
                "parent": node.parent,
                "members": list(node.members),
                "born": node.born,
                "split": node.split,
                "layer": node.decision.layer if node.decision else None,
                "criteria": dict(node.decision.values) if node.decision else {},
                "why": node.decision.kind if node.decision else "",
            }
            for node in tree
        ]
        self._write_json("tree.json", nodes)

    def tree(self) -> tuple[TreeNode, ...]:
        """Return the cluster tree.

        Raises:
            RecordError: When the file is missing or damaged.
        """
        return self._read("tree.json", parse_tree, "the cluster tree of a run")

    def summary(self) -> dict[str, Any]:
        """Return the summary of a finished run.

        Raises:
            RecordError: When the run is not finished.
        """
        refuse_links(self.path, RUN_FOLDER_ENTRIES)

        def checked(value: Any) -> dict[str, Any]:
            parse_record(value, Summary)
            return dict(value)

        return self._read("summary.json", checked, "a finished run")

    def _read(self, name: str, parse: Callable[[Any], _T], what: str) -> _T:
        """Return what a file of JSON holds."""
        try:
            return parse(parse_json(read_file(self.path / name)))
        except FileNotFoundError:
            there = f"no {name}; resume the run" if self.path.is_dir() else "no such folder"
            raise RecordError(f"{self.path}: expected {what}, found {there}") from None
        except (TypeError, ValueError) as error:
            raise RecordError(f"{self.path / name}: expected {what}, found: {error}; resume the run") from None

    def _write_json(self, name: str, value: Any) -> None:
        replace_file(self.path / name, (json_text(value, indent=1) + "\n").encode())

    def _write_table(self, name: str, round: int, table: pa.Table) -> None:
        replace_file(subfolder(self.path, name) / f"{round:05d}.parquet", _parquet(table))


def _parquet(table: pa.Table) -> bytes:
    """Return a table as the content of a Parquet file."""
    content = io.BytesIO()
    pq.write_table(table, content)
    return content.getvalue()


def _packed(arrays: Mapping[str, Any]) -> bytes:
    """Return arrays as the content of an ``.npz`` file."""
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    return content.getvalue()


def _tensors(layout: Layout, row: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a flattened model (p,) as the tensors of its layout, by name."""
    spans = zip(layout.tensors, layout.spans, strict=True)
    return {slot.name: row[span].reshape(slot.shape).clone() for slot, span in spans}
