"""A comparison, and its files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedstrata.comparison.differences import differences
from fedstrata.comparison.ledger import Jobs
from fedstrata.comparison.table import Outcome, markdown, rows
from fedstrata.records.checkpoint import replace_file
from fedstrata.report import compared
from fedstrata.report.compared.records import Difference, Row
from fedstrata.report.compared.table import told


@dataclass(frozen=True)
class Comparison:
    """Runs of several algorithms on the same federations.

    Attributes:
        folder: where it is written down, in ``comparison.json``, ``comparison.md`` and ``comparison.html``.
        experiment: the keys that all runs have in common.
        runs: what came of each.
        jobs: that were shared; None when the runs were made one by one.
        left_out: the folders of runs that cannot be read, and why.
    """

    folder: Path
    experiment: Mapping[str, Any]
    runs: tuple[Outcome, ...]
    jobs: Jobs | None = None
    left_out: Mapping[Path, str] = field(default_factory=dict)

    @cached_property
    def table(self) -> tuple[Row, ...]:
        """For every algorithm, its measures over the seeds."""
        return rows(self.runs)

    @cached_property
    def differences(self) -> tuple[Difference, ...]:
        """Of every two algorithms that have a seed in common."""
        return differences(self.runs)

    @property
    def troubles(self) -> list[str]:
        """What failed or was left out, in a line each."""
        failed = [f"{run.algorithm} with seed {run.seed} failed: {run.error}" for run in self.runs if run.error]
        return failed + [f"{folder} is left out: {why}" for folder, why in self.left_out.items()]


def write(comparison: Comparison) -> Comparison:
    """Write the files of a comparison into its folder; the page last, from what the others say."""
    folder, jobs = comparison.folder, comparison.jobs
    content = {
        "experiment": comparison.experiment,
        "jobs": jobs and {**asdict(jobs), "share": jobs.share},
        "runs": [{**asdict(run), "folder": os.path.relpath(run.folder, folder)} for run in comparison.runs],
        "left_out": [
            {"folder": os.path.relpath(path, folder), "why": why} for path, why in comparison.left_out.items()
        ],
        "table": [asdict(row) for row in comparison.table],
        "differences": [
            {**asdict(each), "mean": each.mean, "spread": each.spread, "above": each.above, "larger": each.larger}
            for each in comparison.differences
        ],
    }
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / "comparison.json", (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
    replace_file(folder / "comparison.md", _document(comparison).encode())
    compared.build(folder)
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
    if comparison.differences:
        lines.append("Differences in accuracy between runs of the same seed, ± their standard deviation:")
        lines.append("".join(f"- {told(each)}\n" for each in comparison.differences))
    lines += comparison.troubles
    return "\n\n".join(line.rstrip("\n") for line in lines) + "\n"
