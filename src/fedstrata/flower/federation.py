"""The file of a federation: what its server must know besides the experiment."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import tomli_w
from pydantic import TypeAdapter, ValidationError

from fedstrata.base.errors import ExperimentError, check_rules
from fedstrata.flower.clients import RoundRules
from fedstrata.flower.run_config import Samples


@dataclass(frozen=True)
class Federation:
    """Who is in a federation, what its samples look like, and when a round is over.

    Attributes:
        clients: The keys of the clients in the order of their ids. One that is not listed gets the next free id.
        samples: What the samples of all clients have in common.
        rounds: When a round is over.
        min_clients: How many clients must be there before the first round; 0 is all that are listed.
        wait_seconds: How many seconds the server waits for them.
        max_samples: The number of samples that a client may claim, of either kind. 0 is any number up to a billion,
            of which every run warns.
        truth: The true group of each client, (n,), where it is known. It serves for measures alone.
        public: The ``.npz`` file of unlabelled samples ``x`` on the server, relative to this file; empty for none.
        names: The name of each of these clients for people, as on the page; empty where the keys are the names.
    """

    clients: tuple[str, ...]
    samples: Samples
    rounds: RoundRules = field(default_factory=RoundRules)
    min_clients: int = 0
    wait_seconds: float = 300.0
    max_samples: int = 0
    truth: tuple[int, ...] = ()
    public: str = ""
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        rules = {
            "max_samples is at least 0": self.max_samples >= 0,
            "names has one for each of clients, or none": len(self.names) in (0, len(self.clients)),
        }
        check_rules("federation", rules, self)


def read_federation(path: Path) -> Federation:
    """Read the file of a federation.

    Raises:
        InputError: In one line, with the key, its value and what is allowed.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ExperimentError(f"{path}: expected the file of a federation: {error}") from None
    for place, kind in (("", Federation), ("samples", Samples), ("rounds", RoundRules)):
        known = [each.name for each in fields(kind)]
        keys = table.get(place, {}) if place else table
        for key in sorted(set(keys) - set(known)) if isinstance(keys, dict) else ():
            name = f"{place}.{key}".removeprefix(".")
            raise ExperimentError(f"{path}: {name}: expected one of {', '.join(known)}")
    try:
        return TypeAdapter(Federation).validate_python(table)
    except ValidationError as failure:
        first = failure.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the file"
        raise ExperimentError(f"{path}: {key} = {first['input']!r}: {first['msg'].lower()}") from None


def write_federation(path: Path, federation: Federation) -> None:
    """Write the file of a federation."""
    path.write_text(tomli_w.dumps(asdict(federation)), encoding="utf-8")
