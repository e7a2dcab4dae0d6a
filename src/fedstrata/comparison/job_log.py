"""How many local jobs the algorithms of a comparison asked for, and how many had to be done."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedstrata.base.errors import RecordError
from fedstrata.base.files import append_line, parse_json, read_file, replace_file


@dataclass(frozen=True)
class JobCount:
    """A number of local jobs: what a client does for one task.

    Attributes:
        asked: The jobs that all algorithms asked for.
        trained: The jobs that had to be done, equal ones once.
    """

    asked: int
    trained: int

    @property
    def share(self) -> float:
        """The share of the jobs that had to be done; 1 while none was asked for."""
        return self.trained / self.asked if self.asked else 1.0

    def __str__(self) -> str:
        """The numbers in words."""
        return f"trained {self.trained:,} of {self.asked:,} jobs; {100 * self.share:.0f} %"


class JobLog:
    """A file with a line of job counts for every seed and round.

    Args:
        path: The file. The lines that it holds already are counted, but for one that was cut short.

    Attributes:
        jobs: The jobs of all lines.

    Raises:
        RecordError: When one of the lines holds something else.
    """

    def __init__(self, path: Path) -> None:
        """Read what is there."""
        self.jobs = JobCount(0, 0)
        self._path = path
        self._counted = dict[tuple[int, int], set[str]]()
        try:
            lines = read_file(path).splitlines(keepends=True)
        except FileNotFoundError:
            lines = []
        whole = [line for line in lines if line.endswith(b"\n")]
        if whole != lines:
            replace_file(path, b"".join(whole))
        for number, line in enumerate(whole, start=1):
            try:
                self._count(**parse_json(line))
            except (ValueError, TypeError, AttributeError):
                raise RecordError(
                    f"{str(path)!r}: expected a seed, a round and their jobs in line {number}, found something else; "
                    "delete the file, and jobs are counted anew from here on"
                ) from None

    def add(self, seed: int, round: int, asked: Mapping[str, int], trained: int) -> None:
        """Write a line, unless its jobs were counted before the comparison was interrupted in that round.

        Args:
            seed: The seed of the runs.
            round: The round, counted from 1.
            asked: The jobs that each algorithm asked for.
            trained: The jobs that had to be done.
        """
        if any(asked.values()) and not asked.keys() <= self._counted.get((seed, round), set()):
            self._count(seed, round, asked, trained)
            entry = {"seed": seed, "round": round, "asked": dict(asked), "trained": trained}
            append_line(self._path, json.dumps(entry) + "\n")

    def _count(self, seed: int, round: int, asked: Mapping[str, int], trained: int) -> None:
        self._counted.setdefault((seed, round), set()).update(asked)
        self.jobs = JobCount(self.jobs.asked + sum(asked.values()), self.jobs.trained + trained)
