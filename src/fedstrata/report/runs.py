"""What is in a folder of runs: a line for each, from its records alone. Importing this imports no torch."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedstrata.base.errors import RecordError
from fedstrata.base.files import MOST_BYTES_OF_EXPERIMENT, open_file, parse_json, parse_toml, read_file
from fedstrata.objective.metric_info import ACCURACY, MetricInfo, read_metric
from fedstrata.records.schema import Round, parse_record

_DEPTH = 2
"""Levels of folders that are searched: a folder of runs, and comparisons in it."""

_MOST_TAIL_BYTES = 2**26
"""Bytes at the end of ``rounds.jsonl`` in which the last line is looked for: a round of a million clients has 8 MB."""


@dataclass(frozen=True)
class ListedRun:
    """One run in a folder of runs.

    Attributes:
        folder: Where it is.
        state: "finished", "unfinished", or "damaged" where its records cannot be read.
        algorithm: The name of the algorithm.
        dataset: The name of the data set.
        seed: The seed.
        round: The last round that is recorded.
        rounds: The number of rounds of the experiment.
        clusters: The number of clusters in the last round; None before the first.
        acc_client: The mean of the clients' metric in the last round; None before the first.
        ari: The agreement with the true groups; None where they are not known.
        changed: The time of the last record, ISO 8601, local.
        metric: What the metric is.
    """

    folder: str
    state: str
    algorithm: str = ""
    dataset: str = ""
    seed: int | None = None
    round: int = 0
    rounds: int | None = None
    clusters: int | None = None
    acc_client: float | None = None
    ari: float | None = None
    changed: str = ""
    metric: MetricInfo = ACCURACY


def find_runs(folder: Path) -> list[ListedRun]:
    """Find the runs in a folder and in the comparisons in it; the folder may be a run itself.

    Args:
        folder: The folder.

    Returns:
        The runs, in the order of their folders.

    Raises:
        RecordError: When there is no such folder.
    """
    if not folder.is_dir():
        raise RecordError(
            f"{str(folder)!r}: expected a folder of runs, found none; runs are written to runs by default"
        )
    return [_listed(path) for path in _run_folders(folder, _DEPTH)]


def _run_folders(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / "experiment.toml").is_file():
        yield folder
    elif depth:
        for path in sorted(folder.iterdir()):
            if path.is_dir() and not path.is_symlink():
                yield from _run_folders(path, depth - 1)


def _listed(folder: Path) -> ListedRun:
    """What the records of a run say."""
    try:
        keys = parse_toml(read_file(folder / "experiment.toml", MOST_BYTES_OF_EXPERIMENT))
        last = _last_round(folder / "rounds.jsonl")
        records = [path for path in (folder / "rounds.jsonl", folder / "experiment.toml") if path.exists()]
        changed = datetime.datetime.fromtimestamp(records[0].stat().st_mtime).isoformat(timespec="seconds")
        return ListedRun(
            folder=str(folder),
            state="finished" if (folder / "summary.json").is_file() else "unfinished",
            algorithm=_text(keys, "algorithm"),
            dataset=_text(keys, "data"),
            seed=_whole(keys.get("seed")),
            round=last.round if last else 0,
            rounds=_whole(keys.get("rounds")),
            clusters=last.clusters if last else None,
            acc_client=last.acc_client if last else None,
            ari=last.ari if last else None,
            changed=changed,
            metric=read_metric(folder),
        )
    except (OSError, ValueError, RecordError):
        return ListedRun(str(folder), "damaged")


def _last_round(path: Path) -> Round | None:
    """The round of the last whole line of ``rounds.jsonl``; None where there is none.

    Raises:
        ValueError: When the line is no record, or longer than is looked at.
    """
    try:
        with open_file(path, limit=None) as file:
            file.seek(max(0, file.seek(0, 2) - _MOST_TAIL_BYTES))
            # What follows the last line break is not written yet; what comes before the first may begin further up.
            whole = file.read().rpartition(b"\n")[0]
    except FileNotFoundError:
        return None
    # Of a line that begins further up, what is left is no JSON.
    line = whole.rpartition(b"\n")[2]
    return parse_record(parse_json(line), Round) if line else None


def _text(keys: Mapping[str, Any], table: str) -> str:
    found = keys.get(table)
    return str(found.get("name", "")) if isinstance(found, Mapping) else ""


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
