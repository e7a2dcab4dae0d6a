"""``rounds.jsonl``: a line for every finished round, which never changes once it is written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedstrata.errors import RecordError
from fedstrata.files import append_line, read_file, replace_file
from fedstrata.records.schema import finite, parse_lines


@dataclass(frozen=True)
class RoundLog:
    """The file of a run.

    Attributes:
        path: Of the file.
    """

    path: Path

    def lines(self) -> list[bytes]:
        """All lines with their ends; one that was cut short is left out."""
        try:
            content = read_file(self.path)
        except FileNotFoundError:
            return []
        return [line for line in content.splitlines(keepends=True) if line.endswith(b"\n")]

    def records(self) -> list[dict[str, Any]]:
        """The records of all finished rounds.

        Raises:
            RecordError: When a line is none, or the rounds are not 1, 2, 3, ...
        """
        try:
            return parse_lines(self.lines())
        except ValueError as error:
            raise RecordError(f"{self.path.parent}: {error}; restore it from a copy, or run again") from None

    def missing(self, rounds: int, digest: str) -> str:
        """Why the first so many lines are not those that were written; an empty text if they are.

        Args:
            rounds: That must be there.
            digest: Of their lines; empty where it is not known.
        """
        lines = self.lines()
        if len(lines) < rounds:
            return f"rounds.jsonl holds {len(lines)} of the {rounds} rounds before it"
        try:
            parse_lines(lines[:rounds])
        except ValueError as error:
            return str(error)
        if digest and hashlib.sha256(b"".join(lines[:rounds])).hexdigest() != digest:
            return f"the first {rounds} lines of rounds.jsonl are not those that were written"
        return ""

    def keep(self, rounds: int) -> None:
        """Drop all lines but the first so many."""
        kept = b"".join(self.lines()[:rounds])
        replace_file(self.path, kept)
        self.__dict__["_hash"] = hashlib.sha256(kept)

    def add(self, record: Mapping[str, Any]) -> None:
        """Write the line of a round; it is on the disk afterwards."""
        line = json.dumps(finite(record), allow_nan=False) + "\n"
        digest = self._hash
        append_line(self.path, line)
        digest.update(line.encode())

    @property
    def digest(self) -> str:
        """SHA-256 of all lines."""
        return str(self._hash.hexdigest())

    @cached_property
    def _hash(self) -> Any:
        return hashlib.sha256(b"".join(self.lines()))
