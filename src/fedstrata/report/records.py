"""What a run folder says, as frozen data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy import float64, int64
from numpy.typing import NDArray


@dataclass(frozen=True)
class Round:
    """One line of ``rounds.jsonl``; null where a figure is not known."""

    round: int
    seconds: float | None
    clusters: int
    labels: list[int]  # (n,) the tree node of each client; a pending one has the node at which it waits
    pending: list[int]
    acc_client: float | None
    acc_weighted: float | None
    acc_cluster: float | None
    acc_worst: float | None
    loss: float | None
    ari: float | None
    bytes_down: int
    bytes_up: int
    cohort: list[int]
    absent: list[int]
    rejected: list[int]
    events: list[dict[str, Any]]
    figures: dict[str, float | None]
    seconds_training: float | None = None
    seconds_server: float | None = None
    bytes_data: int = 0
    others: dict[str, float | None] = field(default_factory=dict)  # accuracy of other ways of using the models, by name

    @property
    def splits(self) -> list[dict[str, Any]]:
        """The events of this round in which a node became several."""
        return [event for event in self.events if event.get("kind") == "split"]


@dataclass(frozen=True)
class Node:
    """One cluster that ever was."""

    id: int
    parent: int | None
    members: list[int]
    born: int
    split: int | None
    layer: str | None
    criteria: dict[str, float | None]
    why: str


@dataclass(frozen=True)
class Scores:
    """One file of ``clients/``: the five columns, a row per client."""

    client: NDArray[int64]
    node: NDArray[int64]
    samples: NDArray[int64]
    accuracy: NDArray[float64]
    loss: NDArray[float64]


@dataclass(frozen=True)
class Gap:
    """One row of a file of ``gaps/``; the gap may be nan."""

    round: int
    layer: str
    measure: str
    gap: float


@dataclass(frozen=True)
class Matrix:
    """One client-by-client matrix behind a decision."""

    round: int
    node: int
    measure: str
    layer: str
    values: NDArray[float64]  # (m, m)
    clients: list[int]  # (m,) whose row and column each is


@dataclass(frozen=True)
class Records:
    """A run folder.

    Attributes:
        experiment: the experiment file, letter by letter.
        settings: its keys.
        rounds: in their order.
        scores: of each round.
        gaps: of all rounds.
        matrices: in the order of their rounds: those that decided about a node, and as many others as a page can hold.
        tree: every cluster that ever was; a node's place is its id.
        summary: None while the run is unfinished.
        notes: what the folder lacks, or the page leaves out, in sentences.
        one_model: mean accuracy of FedAvg in the same experiment, where a run of it lies beside this one.
    """

    experiment: str
    settings: Mapping[str, Any]
    rounds: tuple[Round, ...]
    scores: Mapping[int, Scores]
    gaps: tuple[Gap, ...]
    matrices: tuple[Matrix, ...]
    tree: tuple[Node, ...]
    summary: Mapping[str, Any] | None
    notes: tuple[str, ...]
    one_model: float | None = None

    @property
    def last(self) -> Round | None:
        """The newest round, if any is recorded."""
        return self.rounds[-1] if self.rounds else None

    def final(self, name: str) -> Any:
        """A figure of the summary, or of the newest round while there is no summary."""
        if self.summary is not None and name in self.summary:
            return self.summary[name]
        return getattr(self.last, name, None)

    def setting(self, table: str, key: str) -> str:
        """A name in the experiment file, empty where it has none."""
        values = self.settings.get(table)
        return str(values.get(key, "")) if isinstance(values, Mapping) else ""
