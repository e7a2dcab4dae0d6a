"""What a run folder holds: one description for the code that writes it, resumes it and reads it.

The last functions say which keys of its experiment may change when a run is resumed.

A record that passes can be drawn and added up without another check: its numbers are finite and in range, and its lists
hold what they should. Importing this imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self, TypeVar

import numpy as np
from annotated_types import Ge, Interval, MinLen
from numpy import float32, float64, int64
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from fedstrata.base.errors import RecordError
from fedstrata.base.files import parse_json, read_file
from fedstrata.base.limits import Share
from fedstrata.base.quoting import dotted, listed

RUN_FOLDER_ENTRIES = (
    "experiment.toml",
    "data.json",
    "metric.json",
    "rounds.jsonl",
    "tree.json",
    "summary.json",
    "clients",
    "client_data.npz",
    "inputs.npz",
    "predictions.parquet",
    "gaps",
    "matrices",
    "models",
    "checkpoint",
    "tracking",
    "figures",
    "baseline",
    "network",
    "lock",
)
"""Files and folders of a run folder that are read or written; none may be a link."""

BASELINE = "baseline"
"""The folder of a run folder that holds the run of FedAvg on the same clients, with ``report.baseline``."""


CLIENTS_SUFFIX = "|clients"
"""Ends the name of the array in ``matrices/<round>.npz`` that holds the clients of rows."""

VALIDATION_MEASURE = "acc_validation"
"""The mean of the clients' metric on validation data, in records and in the summary of a run that has some. Settings
are chosen by it: the test data have no part in a choice."""

_SAME_NETWORK = 1e-3
"""By how much outputs of the same network may differ, as a share of the largest one."""

ALL_CLIENTS = -1
"""The node of a matrix of all clients that answered, whatever their clusters."""

CLIENT_DATA = "client_data.npz"
"""The file of a run folder that describes the data of every client."""

INPUT_MEANS = "inputs.npz"
"""The file of a run folder that holds the statistic "inputs" of every client, with ``records.inputs``."""

_MOST_CLASSES = 2**20
"""A damaged record may name more classes, for which there would be no memory."""

PREDICTIONS = "predictions.parquet"
"""The file of a run folder that says what each client's model predicts for its test samples."""

LARGE = 1e100
"""Larger numbers come from no run, and their squares would overflow."""

Count = Annotated[int, Interval(ge=0, le=10**18)]
Id = Annotated[int, Interval(ge=-1, lt=2**31)]
"""The id of a client or of a tree node; -1 stands for none."""

Clients = list[Annotated[Id, Ge(0)]]

Number = Annotated[float, Interval(ge=-LARGE, le=LARGE)]
Seconds = Annotated[float, Interval(ge=0, le=1e12)]
Ari = Annotated[float, Interval(ge=-1, le=1)]
Scalar = bool | int | Number | str | None


class Scores(NamedTuple):
    """The columns of ``clients/<round>.parquet``: what each client scored with the model that it would use.

    Attributes:
        client: The client ids, (n,).
        node: The tree node of each client, (n,).
        samples: The number of test samples of each client, (n,).
        accuracy: The metric of the run on them, (n,); most often the share that is classified correctly.
        loss: The mean loss on them, (n,).
    """

    client: NDArray[int64]
    node: NDArray[int64]
    samples: NDArray[int64]
    accuracy: NDArray[float64]
    loss: NDArray[float64]


class ClientDescriptions(NamedTuple):
    """The content of ``client_data.npz``: what a simulation knows of its clients' training data before round 1.

    Attributes:
        class_counts: The samples of each class, (n, classes).
        mean_inputs: The mean input of each client as its network reads it, (n, channels, height, width) of images and
            (n, channels) of others; None where it would be too large.
        class_names: The name of each class, (classes,), or empty where the data give none.
        feature_names: The name of each value of a mean input of a table, or empty where the data give none.
    """

    class_counts: NDArray[int64]
    mean_inputs: NDArray[float32] | None
    class_names: tuple[str, ...]
    feature_names: tuple[str, ...] = ()


class Predictions(NamedTuple):
    """The columns of ``predictions.parquet``: what each client's model says of its test samples at the end of a run.

    There is a row for each test sample. Those of one client are in the order of its test data, so that two runs on the
    same clients are compared sample by sample. What networks learn is one class or one number for each sample; of
    other data, such as tokens, `truth` and `predicted` are nan.

    Attributes:
        client: The client ids, ascending, (s,).
        sample: The place of each sample in the data, (s,). Two seeds may test the same one.
        unit: The unit of each sample, (s,): samples of one unit, such as windows of one recording, are not independent.
            Two seeds have one number for it.
        truth: The class or the number of each sample, (s,).
        predicted: The class or the number that the client's model predicts, (s,).
        score: The log-odds of the second of two classes, (s,); nan where there are no two.
    """

    client: NDArray[int64]
    sample: NDArray[int64]
    unit: NDArray[int64]
    truth: NDArray[float64]
    predicted: NDArray[float64]
    score: NDArray[float64]

    def by_client(self) -> dict[int, Predictions]:
        """The rows of each client, by its id."""
        clients, starts = np.unique(self.client, return_index=True)
        parts = zip(*(np.split(column, starts[1:]) for column in self), strict=True) if len(clients) else ()
        return {client: Predictions(*part) for client, part in zip(clients.tolist(), parts, strict=True)}

    @property
    def of_classes(self) -> bool:
        """Whether truths and predictions are classes: whole numbers from 0 up, and no more than there can be."""
        both = np.stack((self.truth, self.predicted))
        return bool(np.isfinite(both).all() and ((both >= 0) & (both < _MOST_CLASSES) & (both % 1 == 0)).all())

    @property
    def right(self) -> NDArray[np.bool_]:
        """Which samples are classified correctly, (s,)."""
        found: NDArray[np.bool_] = self.truth == self.predicted
        return found


class Gap(NamedTuple):
    """A row of ``gaps/<round>.parquet``: how clearly a layer separates the ground-truth groups, by one measure."""

    layer: str
    measure: str
    gap: float


class MatrixName(NamedTuple):
    """The name of an array in ``matrices/<round>.npz``: ``node|measure|layer``; the node may be `ALL_CLIENTS`."""

    node: int
    measure: str
    layer: str

    @classmethod
    def parse(cls, name: str) -> MatrixName:
        """Return the parts of a name.

        Raises:
            ValueError: When the name has another form.
        """
        node, measure, layer = name.split("|", 2)
        if not ALL_CLIENTS <= int(node) < 2**31:
            raise ValueError(f"there is no node {node}")
        return cls(int(node), measure, layer)

    def __str__(self) -> str:
        """Return the name."""
        return f"{self.node}|{self.measure}|{self.layer}"


class Record(BaseModel):
    """A JSON object with some known keys; it may have others."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, frozen=True)


_R = TypeVar("_R", bound=Record)


class Event(Record):
    """Something that happened in a round.

    Attributes:
        kind: What happened.
        node: The tree node that it happened to.
        into: The nodes that a split made.
        layer: The layer that decided.
        clients: The clients that it happened to.
        nodes: The tree nodes that it happened to, where there are several.
        values: The values of the decision behind a split or a layer scan.
    """

    __pydantic_extra__: dict[str, Scalar | list[Scalar | list[Scalar]]]

    kind: str
    node: Id | None = None
    into: list[Id] = []
    layer: str | None = None
    clients: list[Id] = []
    nodes: list[Id] = []
    values: dict[str, Number | None] = {}


class MetricRecord(Record):
    """A metric of the algorithm in a round.

    Attributes:
        name: The name of the metric.
        value: Its value; None where it was not finite.
        node: The tree node that it is about; None where it is about the whole round.
        layer: The layer that it is about; None where it is about none.
    """

    name: str
    value: Number | None
    node: Id | None = None
    layer: str | None = None


class Round(Record):
    """A line of ``rounds.jsonl``. An unknown number is null.

    Attributes:
        labels: The tree node of each client, (n,). A pending client has the node at which it waits.
        metrics: The metrics of the algorithm itself.
    """

    round: Annotated[int, Interval(ge=1, lt=2**31)]
    seconds: Seconds | None
    clusters: Count
    labels: list[Id]
    pending: Clients
    bytes_down: Count
    bytes_up: Count
    cohort: Clients
    absent: Clients
    rejected: Clients
    events: list[Event]
    metrics: list[MetricRecord]
    seconds_training: Seconds | None = None
    seconds_server: Seconds | None = None
    bytes_data: Count = 0
    acc_client: Number | None
    acc_weighted: Number | None
    acc_cluster: Number | None
    acc_worst: Number | None
    loss: Number | None
    ari: Ari | None

    @model_validator(mode="after")
    def _splits_have_clients(self) -> Self:
        """Refuse a split into more nodes than there are clients: charts go through all pairs of them."""
        if any(len(event.into) > len(self.labels) for event in self.events):
            raise ValueError("has a split into more nodes than there are clients")
        return self

    @property
    def splits(self) -> list[Event]:
        """The events of this round in which a node was split."""
        return [event for event in self.events if event.kind == "split"]

    @property
    def other_uses(self) -> dict[str, float | None]:
        """The mean metric of each further way to use the models, by its name (``acc_<name>`` in the record)."""
        extra = self.model_extra or {}
        found = {name.removeprefix("acc_"): value for name, value in extra.items() if name.startswith("acc_")}
        return {name: value for name, value in found.items() if value is None or isinstance(value, int | float)}


class TreeNode(Record):
    """An entry of ``tree.json``: one cluster that exists or existed; `why` is the kind of the last decision."""

    id: Id
    parent: Id | None
    members: list[Id]
    born: Count
    split: Count | None
    layer: str | None
    criteria: dict[str, Number | None]
    why: str


class ClientEntry(Record):
    """A client in ``data.json``.

    Attributes:
        id: The number that stands for it in all other records.
        name: Its name in the data, such as the value of the partition's column; its number where it has no name.
        train: The number of its training samples at the start; None where only the client knows it.
        test: The number of its test samples, likewise.
    """

    id: Annotated[Id, Ge(0)]
    name: str
    train: Count | None = None
    test: Count | None = None


class DataRecord(Record):
    """``data.json``: who the clients are, and what looks wrong with their data. Older runs have none.

    Attributes:
        clients: A row for each client, in the order of their ids.
        warnings: What looks wrong with the data, in a line each.
        inputs: Which columns of a table the networks read, in one line; empty where the data are no table.
        network: What the network says about a few samples, by which it is known again (`known_outputs`).
        frozen: The digest of its frozen tensors (`Layout.frozen`); empty where there are none.
        digest: A SHA-256 of the clients' samples, by which they are known again; empty for those of a known data set,
            which cannot change, and on real devices.
    """

    clients: list[ClientEntry]
    warnings: list[str] = []
    inputs: str = ""
    network: list[Number] = []
    frozen: str = ""
    digest: str = ""

    def require_same_network(self, outputs: Sequence[float], frozen: str, place: Path) -> None:
        """Refuse another network than that of the run.

        Args:
            outputs: What it says about the samples.
            frozen: The digest of its frozen tensors.
            place: The run folder.

        Raises:
            RecordError: When its frozen tensors are others, or it says something else, up to what other machines round
                otherwise.
        """
        # Runs of before the digest have the frozen tensors in their models.
        if self.frozen and frozen != self.frozen:
            raise RecordError(
                f"{place}: expected the frozen tensors that the run was made with, of digest {self.frozen}, found "
                f"{frozen or 'none'}; put the base of the network back, or give it as in fs.load(folder, network=...)"
            )
        most = max(map(abs, self.network), default=0)
        same_length = len(outputs) == len(self.network)
        if not same_length or not np.allclose(outputs, self.network, rtol=0, atol=_SAME_NETWORK * most):
            raise RecordError(
                f"{place}: expected the network that the run was made with, found one that computes something else; "
                "put its source and its defaults back, or give it as in fs.load(folder, network=...)"
            )

    @model_validator(mode="after")
    def _ids_are_positions(self) -> Self:
        """Refuse clients that are not in the order of their ids: names are looked up by position."""
        if any(entry.id != place for place, entry in enumerate(self.clients)):
            raise ValueError("has clients that are not in the order of their ids")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each client, (n,)."""
        return tuple(entry.name for entry in self.clients)


class Divergence(Record):
    """The rounds in which training diverged, and how many clients sent numbers that are not finite in them."""

    rounds: list[Count]
    clients: Count = 0


class ClientProbabilities(Record):
    """How good the class probabilities are that a client's model gives its test samples, where there are two classes.

    Attributes:
        client: The id of the client.
        samples: Its test samples.
        roc_auc: The area under the ROC curve; None where all samples are of one class.
        brier: The Brier score.
    """

    client: Annotated[Id, Ge(0)]
    samples: Count
    roc_auc: Share | None
    brier: Share


class Reliability(Record):
    """What was observed of the samples with a probability from the least to the most of a range."""

    least: Share
    most: Share
    samples: Count
    predicted: Share
    observed: Share


class Probabilities(Record):
    """How good class probabilities are at the end of a run; `probability_scores` of the objective says what they are.

    Attributes:
        classes: The names of the classes.
    """

    classes: Annotated[list[str], MinLen(2)]
    samples: Count
    roc_auc: Share | None
    brier: Number
    reliability: list[Reliability]
    clients: list[ClientProbabilities]


class Summary(Record):
    """``summary.json``: what the page computes with. It has more, as numbers, texts, lists and tables."""

    __pydantic_extra__: dict[str, Scalar | list[Any] | dict[str, Any]]

    algorithm: str = ""
    data_digest: str = ""
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
    ari: Ari | None = None
    purity: Share | None = None
    rejected: Count = 0
    diverged: Divergence | None = None
    probabilities: Probabilities | None = None
    truth: list[Id | str] | None = None
    versions: dict[str, Scalar] = {}


def parse_record(value: Any, kind: type[_R]) -> _R:
    """Return a JSON value as a record of a kind.

    Raises:
        ValueError: When it is no such record. The text continues a sentence that begins with the name of the file.
    """
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise ValueError(first_problem(error)) from None


def first_problem(error: ValidationError) -> str:
    """Return the first thing that is wrong with a record: where, and what was expected there."""
    first = error.errors(include_url=False)[0]
    return ": ".join(filter(None, [dotted(first["loc"]), first["msg"].lower()]))


def read_record(path: Path, kind: type[_R]) -> _R:
    """Read a file of JSON that holds a record; its errors are those of `read_file` and `parse_record`."""
    return parse_record(parse_json(read_file(path)), kind)


def parse_tree(value: Any) -> tuple[TreeNode, ...]:
    """Return the content of ``tree.json`` as nodes.

    Raises:
        ValueError: When it is no tree. A node comes after its parent, so that a walk over the tree ends.
    """
    if not isinstance(value, list):
        raise ValueError("it is not a list")
    nodes = tuple(parse_record(entry, TreeNode) for entry in value)
    for place, node in enumerate(nodes):
        if node.id != place or (node.parent is not None and not 0 <= node.parent < place):
            raise ValueError("an id is not its position, or a parent comes after its child")
    return nodes


def parse_rounds(lines: Sequence[bytes]) -> Iterator[tuple[dict[str, Any], Round]]:
    """Yield the records in the lines of ``rounds.jsonl``, which must be those of rounds 1, 2, 3, ...

    Yields:
        Each record as it stands there, and checked.

    Raises:
        ValueError: When a line is no record, or not that of the next round. The text names the first such line.
    """
    for number, line in enumerate(lines, start=1):
        try:
            found = parse_json(line)
            record = parse_record(found, Round)
        except ValueError as error:
            raise ValueError(f"line {number} of rounds.jsonl: {error}") from None
        if record.round != number:
            raise ValueError(f"line {number} of rounds.jsonl is of round {record.round}")
        yield found, record


_FREE_KEYS = (
    ("algorithms",),
    ("label",),
    ("records",),
    ("report",),
    ("data", "root"),
    ("data", "memory"),
    ("engine", "workers"),
    ("engine", "timeout"),
)
"""Keys and tables of ``experiment.toml`` that may differ when a run is resumed: no result depends on them."""

_EQUAL_ENGINES = ("loop", "processes", "ray")
"""Engines that give the same bits; a run may be resumed with another of them."""


def refuse_other(now: Mapping[str, Any], before: Mapping[str, Any], folder: Path) -> None:
    """Refuse to resume with another experiment.

    Args:
        now: The keys of the experiment to resume.
        before: The keys that it was begun with.
        folder: The folder of the run.

    Raises:
        RecordError: When keys differ that results depend on; the text names them.
    """
    if differ := differences(before, now):
        raise RecordError(
            f"{folder}: expected the experiment that the run was started with, found another: {listed(differ)}; "
            "resume with the keys of its experiment.toml, or start a run without --resume"
        )


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the keys of an experiment that differ and that results depend on, in words.

    More rounds are none, unless something was computed for all of them.
    """
    old, new = _flat(before), _flat(now)
    differ = []
    for path in dict.fromkeys([*old, *new]):
        was, now_is = old.get(path), new.get(path)
        free = any(path[: len(each)] == each for each in _FREE_KEYS)
        same_bits = path == ("engine", "name") and was in _EQUAL_ENGINES and now_is in _EQUAL_ENGINES
        longer = path == ("rounds",) and (now_is or 0) >= (was or 0)
        reason = _computed_for_all_rounds(new) if longer else ""
        if was != now_is and not (free or same_bits or (longer and not reason)):
            differ.append(f"{dotted(path)} was {_shown(old, path)}, is {_shown(new, path)}{reason}")
    return differ


def _computed_for_all_rounds(keys: Mapping[tuple[str, ...], Any]) -> str:
    """Return what of an experiment would have been other in the first rounds, had there been more; else nothing."""
    from fedstrata.core.lr_schedule import USED_KEYS  # reports, which read records too, do without `core`

    schedule = keys.get(("local", "schedule"))
    if "schedule_rounds" in USED_KEYS.get(str(schedule), ()) and not keys.get(("local", "schedule_rounds")):
        return f", for which local.schedule = {schedule!r} was computed without local.schedule_rounds"
    if keys.get(("privacy", "epsilon")) is not None:
        return ", for which the noise of privacy.epsilon was computed"
    return ""


def _flat(keys: Mapping[str, Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Return the keys of nested tables, each under the names on the way to it."""
    flat = dict[tuple[str, ...], Any]()
    for key, value in keys.items():
        place = (*path, key)
        flat |= _flat(value, place) if isinstance(value, Mapping) else {place: value}
    return flat


def _shown(keys: Mapping[tuple[str, ...], Any], path: tuple[str, ...]) -> str:
    return json.dumps(keys[path])[:60] if path in keys else "not set"
