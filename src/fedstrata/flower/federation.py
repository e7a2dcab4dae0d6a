"""The file of a federation: what its server must know besides the experiment."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import TypeAdapter, ValidationError

from fedstrata.errors import ExperimentError, check_rules
from fedstrata.flower.remote import Rules
from fedstrata.flower.terms import Samples
from fedstrata.renamed_keys import refuse_renamed


@dataclass(frozen=True)
class Federation:
    """Who is in it, what their samples look like, and when a round is over.

    Attributes:
        clients: keys in the order of their ids; one that is not listed gets the next id that is free.
        samples: what all clients' samples have in common.
        rounds: when a round is over.
        min_clients: The clients that must be there before the first round; 0 is all that are listed.
        wait_seconds: The seconds that the server waits for them.
        max_samples: The samples that a client may say it has, of either kind; 0 sets no limit, and every run warns.
        truth: hidden group of each client, (n,), where it is known: for measures alone.
        public: ``.npz`` file of unlabelled samples ``x`` on the server, relative to this file; empty for none.
    """

    clients: tuple[str, ...]
    samples: Samples
    rounds: Rules = field(default_factory=Rules)
    min_clients: int = 0
    wait_seconds: float = 300.0
    max_samples: int = 0
    truth: tuple[int, ...] = ()
    public: str = ""

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        check_rules("federation", {"max_samples is at least 0": self.max_samples >= 0}, self)


def read_federation(path: Path) -> Federation:
    """Read the file of a federation.

    Raises:
        InputError: in one line, with the key, its value and what is allowed.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ExperimentError(f"{path}: expected the file of a federation: {error}") from None
    try:
        refuse_renamed(table, "federation")
    except ExperimentError as error:
        raise ExperimentError(f"{path}: {error}") from None
    for name, kind in (("", Federation), ("samples", Samples), ("rounds", Rules)):
        inner = table.get(name, {}) if name else table
        known = [each.name for each in fields(kind)]
        if isinstance(inner, Mapping) and (strange := sorted(set(inner) - set(known))):
            key = f"{name}.{strange[0]}" if name else strange[0]
            raise ExperimentError(f"{path}: {key}: expected one of {', '.join(known)}")
    try:
        return TypeAdapter(Federation).validate_python(table)
    except ValidationError as failure:
        first = failure.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the file"
        raise ExperimentError(f"{path}: {key} = {first['input']!r}: {first['msg'].lower()}") from None


def write_federation(path: Path, federation: Federation) -> None:
    """Write the file of a federation."""
    path.write_text(tomli_w.dumps(_plain(asdict(federation))), encoding="utf-8")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value
