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
from fedstrata.files import replace_file, root_folder
from fedstrata.records import diverged
from fedstrata.report import comparison as page
from fedstrata.report.comparison import Difference, Row, difference_text
from fedstrata.report.words import warnings


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
        """What failed, diverged in every round or was left out, in a line each."""
        failed = [f"{run.algorithm} with seed {run.seed} failed: {run.error}" for run in self.runs if run.error]
        failed += [line for run in self.runs if _diverged(run) for line in _warnings(run)]
        return failed + [f"{folder} is left out: {why}" for folder, why in self.left_out.items()]

    @property
    def warnings(self) -> list[str]:
        """What else the reader of the table has to know about single runs, in a line each."""
        return [line for run in self.runs if not _diverged(run) for line in _warnings(run)]


def _diverged(run: Outcome) -> bool:
    return run.summary is not None and diverged(run.summary)


def _warnings(run: Outcome) -> list[str]:
    return [f"{run.algorithm} with seed {run.seed}: {line}" for line in warnings(run.summary or {})]


def write(comparison: Comparison) -> Comparison:
    """Write the files of a comparison into its folder, whose lock is held; the page last, from what the others say."""
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
    root_folder(folder)
    replace_file(folder / "comparison.json", (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
    replace_file(folder / "comparison.md", _document(comparison).encode())
    page.write(folder)
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
        lines.append("".join(f"- {difference_text(each)}\n" for each in comparison.differences))
    lines += [*comparison.warnings, *comparison.troubles]
    return "\n\n".join(line.rstrip("\n") for line in lines) + "\n"
