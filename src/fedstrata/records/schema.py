"""What the JSON files of a run folder must hold, for whoever writes, resumes or reads one.

A record that passes can be drawn and added up without another look: numbers are finite and in range, and lists hold
what they should.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Annotated, Any, Self, TypeVar

from annotated_types import Ge, Interval
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from fedstrata.files import parse_json

NAMES = (
    "experiment.toml",
    "rounds.jsonl",
    "tree.json",
    "summary.json",
    "clients",
    "gaps",
    "matrices",
    "models",
    "checkpoint",
    "tracking",
    "figures",
    "network",
    "lock",
)
"""Files and folders of a run folder that are read or written; none may be a link."""

LARGE = 1e100
"""Numbers beyond it come from no run, and their squares would overflow."""

Count = Annotated[int, Interval(ge=0, le=10**18)]
Id = Annotated[int, Interval(ge=-1, lt=2**31)]
"""Of a client or of a node of the tree; -1 is none."""

Number = Annotated[float, Interval(ge=-LARGE, le=LARGE)]
Seconds = Annotated[float, Interval(ge=0, le=1e12)]
Share = Annotated[float, Interval(ge=0, le=1)]
Scalar = bool | int | Number | str | None

M = TypeVar("M", bound=BaseModel)


class Record(BaseModel):
    """A JSON object with some known keys; it may have others."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class Event(Record):
    """Something that happened in a round.

    Attributes:
        kind: Of the event.
        node: Of the tree, that it happened to.
        into: Nodes that came of it.
        layer: That decided.
    """

    __pydantic_extra__: dict[str, Scalar | list[Scalar | list[Scalar]]]

    kind: str
    node: Id | None = None
    into: list[Id] = []
    layer: str | None = None


class BegunRound(Record):
    """The record of a round whose models are not scored yet, as a checkpoint holds it."""

    round: Annotated[int, Interval(ge=1, lt=2**31)]
    seconds: Seconds | None
    clusters: Count
    labels: list[Id]
    pending: list[Annotated[Id, Ge(0)]]
    bytes_down: Count
    bytes_up: Count
    cohort: list[Annotated[Id, Ge(0)]]
    absent: list[Annotated[Id, Ge(0)]]
    rejected: list[Annotated[Id, Ge(0)]]
    events: list[Event]
    figures: dict[str, Number | None]
    seconds_training: Seconds | None = None
    seconds_server: Seconds | None = None
    bytes_data: Count = 0

    @model_validator(mode="after")
    def _splits_have_clients(self) -> Self:
        """Refuse a split into more nodes than there are clients: pictures go through all pairs of them."""
        if any(len(event.into) > len(self.labels) for event in self.events):
            raise ValueError("has a split into more nodes than there are clients")
        return self


class Round(BegunRound):
    """A line of ``rounds.jsonl``."""

    acc_client: Number | None
    acc_weighted: Number | None
    acc_cluster: Number | None
    acc_worst: Number | None
    loss: Number | None
    ari: Annotated[float, Interval(ge=-1, le=1)] | None


class TreeNode(Record):
    """An entry of ``tree.json``."""

    id: Id
    parent: Id | None
    members: list[Id]
    born: Count
    split: Count | None
    layer: str | None
    criteria: dict[str, Number | None]
    why: str


class Summary(Record):
    """``summary.json``; older ones may lack some of it."""

    __pydantic_extra__: dict[str, Scalar | list[Any] | dict[str, Any]]

    algorithm: str = ""
    dataset: str = ""
    partition: str = ""
    model: str = ""
    rounds: Count = 0
    clusters: Count = 0
    rounds_to_partition: Count | None = None
    bytes_down: Count = 0
    bytes_up: Count = 0
    bytes_data: Count = 0
    seconds: Seconds | None = None
    seconds_training: Seconds | None = None
    seconds_server: Seconds | None = None
    acc_client: Number | None = None
    acc_weighted: Number | None = None
    acc_cluster: Number | None = None
    acc_worst: Number | None = None
    ari: Annotated[float, Interval(ge=-1, le=1)] | None = None
    purity: Share | None = None
    truth: list[Id | str] | None = None


def parse_lines(lines: Sequence[bytes]) -> list[dict[str, Any]]:
    """The records of lines of ``rounds.jsonl``, which are those of rounds 1, 2, 3, ...

    Raises:
        ValueError: That names the first line that is none, or not of the next round.
    """
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = parse_record(line, Round)
        except ValueError as error:
            raise ValueError(f"line {number} of rounds.jsonl {error}") from None
        if record["round"] != number:
            raise ValueError(f"line {number} of rounds.jsonl is of round {record['round']}")
        records.append(record)
    return records


def parse_record(line: bytes, kind: type[BaseModel]) -> dict[str, Any]:
    """The JSON object of a line.

    Raises:
        ValueError: In words that go on from the name of the line.
    """
    try:
        record = parse_json(line)
    except ValueError as error:
        raise ValueError(f"is not JSON ({error})") from None
    check(record, kind)
    found: dict[str, Any] = record
    return found


def check(value: Any, kind: type[BaseModel]) -> None:
    """Refuse a value that is no such record.

    Raises:
        ValueError: In words that go on from the name of what holds it.
    """
    if not isinstance(value, dict):
        raise ValueError("is not a JSON object")
    try:
        kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "value_error":
            raise ValueError(str(first["ctx"]["error"])) from None
        name = str(first["loc"][0])
        if first["type"] == "missing" and len(first["loc"]) == 1:
            raise ValueError(f"has no {name}") from None
        found = type(first["input"]).__name__ if first["type"].endswith("_type") else first["msg"].lower()
        raise ValueError(f"has {found} for {name}") from None


def finite(value: Any) -> Any:
    """A value that every reader of JSON takes: what is not finite is null."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value
