"""A comparison, and its files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedstrata.comparison.ledger import Jobs
from fedstrata.comparison.table import Outcome, Row, markdown, rows
from fedstrata.records.checkpoint import replace_file


@dataclass(frozen=True)
class Comparison:
    """Runs of several algorithms on the same federations.

    Attributes:
        folder: where it is written down, in ``comparison.json`` and ``comparison.md``.
        experiment: the keys that all runs have in common.
        runs: what came of each.
        jobs: that were shared; None when the runs were made one by one.
    """

    folder: Path
    experiment: Mapping[str, Any]
    runs: tuple[Outcome, ...]
    jobs: Jobs | None = None

    @cached_property
    def table(self) -> tuple[Row, ...]:
        """For every algorithm, its measures over the seeds."""
        return rows(self.runs)


def write(comparison: Comparison) -> Comparison:
    """Write ``comparison.json`` and ``comparison.md`` into the folder of a comparison."""
    folder, jobs = comparison.folder, comparison.jobs
    content = {
        "experiment": comparison.experiment,
        "jobs": jobs and {**asdict(jobs), "share": jobs.share},
        "runs": [{**asdict(run), "folder": os.path.relpath(run.folder, folder)} for run in comparison.runs],
        "table": [asdict(row) for row in comparison.table],
    }
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / "comparison.json", (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
    replace_file(folder / "comparison.md", _document(comparison).encode())
    return comparison


def _document(comparison: Comparison) -> str:
    """The comparison in Markdown."""
    keys, seeds = comparison.experiment, dict.fromkeys(str(run.seed) for run in comparison.runs)
    lines = [
        f"# Comparison on {keys['data']['name']}",
        f"{keys['data']['clients']} clients, partition {keys['partition']['scheme']}, network {keys['model']['name']}, "
        f"{keys['rounds']} rounds, seeds {', '.join(seeds)}.",
        markdown(comparison.table),
        "Means over seeds, ± the standard deviation, or the range in brackets. Bytes are of tensors, both ways.",
    ]
    if comparison.jobs:
        shared = "Equal local jobs were done once"
        lines.append(f"{shared}: {comparison.jobs}. The time of a run is its own and its part of what was shared.")
    lines += [f"{run.algorithm} with seed {run.seed} failed: {run.error}" for run in comparison.runs if run.error]
    return "\n\n".join(line.rstrip("\n") for line in lines) + "\n"
