"""A run folder as data for its page.

The experiment and the rounds must be there. Anything else that is missing or damaged is left out and noted in
`RunRecords.notes`: the page of an interrupted run is needed most when something went wrong.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from fedstrata.base.errors import RecordError
from fedstrata.base.files import MOST_BYTES_OF_EXPERIMENT, parse_json, parse_toml, read_file, refuse_links
from fedstrata.objective.metric_info import ACCURACY, METRIC_FILE, MetricInfo, metric_of_settings, read_metric
from fedstrata.records.arrays import (
    DAMAGED,
    ClientMatrix,
    read_client_descriptions,
    read_gaps,
    read_matrices,
    read_matrix_clients,
    read_predictions,
    read_scores,
)
from fedstrata.records.schema import (
    ALL_CLIENTS,
    CLIENT_DATA,
    PREDICTIONS,
    RUN_FOLDER_ENTRIES,
    ClientDescriptions,
    DataRecord,
    Gap,
    MatrixName,
    Predictions,
    Round,
    Scores,
    Summary,
    TreeNode,
    parse_rounds,
    parse_tree,
    read_record,
)
from fedstrata.report.references import Reference, read_references
from fedstrata.report.words import plural, ranges

_MAX_PAIRS = 1_200_000
"""Pairs of clients in all matrices of a page: about 3 MB of it."""

_MAX_CLIENTS = 150
"""Clients of a matrix that can still be told apart on a page. Of more clients, so many are shown."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class RunRecords:
    """What a run folder holds.

    Attributes:
        experiment: The text of the experiment file.
        settings: Its keys.
        rounds: The rounds in their order.
        scores: The scores of the clients, by round.
        gaps: The gaps of layers and measures, by round.
        matrices: The matrices in the order of their rounds: those that decided about a node, and as many others as a
            page can hold.
        tree: Every cluster that exists or existed; a node's place is its id.
        summary: The summary; None while the run is unfinished.
        notes: What the folder lacks, or the page leaves out, in sentences.
        data: Who the clients are, and what looks wrong with their data; None in older runs.
        references: What FedAvg and local training reached in the same experiment, where a run of them is in a folder
            next to this one, by algorithm.
        client_descriptions: What is known of the clients' data; None where it is not, as in a deployment.
        predictions: What the clients' models predict for their test samples at the end; None where it is not known.
        metric: What the scores are.
        deployed: Whether the clients were devices on a network.
    """

    experiment: str
    settings: Mapping[str, Any]
    rounds: tuple[Round, ...]
    scores: Mapping[int, Scores]
    gaps: Mapping[int, tuple[Gap, ...]]
    matrices: tuple[ClientMatrix, ...]
    tree: tuple[TreeNode, ...]
    summary: Summary | None
    notes: tuple[str, ...]
    data: DataRecord | None = None
    references: Mapping[str, Reference] = field(default_factory=dict)
    client_descriptions: ClientDescriptions | None = None
    predictions: Predictions | None = None
    metric: MetricInfo = ACCURACY
    deployed: bool = False

    @property
    def last(self) -> Round | None:
        """The newest round, if any is recorded."""
        return self.rounds[-1] if self.rounds else None

    def final(self, name: str) -> Any:
        """Return a value of the summary, or of the newest round where the summary has none."""
        if self.summary is not None and name in self.summary.model_fields_set:
            return getattr(self.summary, name)
        return getattr(self.last, name, None)

    def total(self, name: str) -> Any:
        """Return a sum over the rounds, from the summary if it has it."""
        if self.summary is not None and name in self.summary.model_fields_set:
            return getattr(self.summary, name)
        return sum(getattr(each, name) or 0 for each in self.rounds)

    def setting(self, table: str, key: str) -> Any:
        """Return a key of the experiment; None where it is not set."""
        values = self.settings.get(table)
        return values.get(key) if isinstance(values, Mapping) else None


def read(folder: Path) -> RunRecords:
    """Read what the page needs from a run folder.

    Raises:
        RecordError: When the folder, its experiment or its rounds are missing, or unreadable before the last line.
    """
    experiment, settings = read_experiment(folder)
    notes: list[str] = []
    rounds = read_rounds(folder, notes)
    numbers = [each.round for each in rounds]
    clients = len(rounds[-1].labels) if rounds else 0

    def optional(name: str, load: Callable[[Path], _T], missing: str = "") -> _T | None:
        """Return the content of a file; None, and a note, where it is damaged, and where it is missed."""
        try:
            return load(folder / name)
        except FileNotFoundError:
            notes.extend(filter(None, [missing]))
        except DAMAGED:
            notes.append(f"{name} cannot be read, so this page is without it.")
        return None

    def by_round(kind: str, ending: str, load: Callable[[Path], _T]) -> dict[int, _T]:
        return _read_arrays(folder, kind, ending, numbers, load, notes)

    tree = optional(
        "tree.json",
        lambda path: parse_tree(parse_json(read_file(path))),
        "tree.json is missing, so this page is without it.",
    )
    unfinished = "This run is unfinished: the folder has no summary.json."
    summary = optional("summary.json", lambda path: read_record(path, Summary), unfinished)
    data = optional("data.json", lambda path: read_record(path, DataRecord))
    scores = by_round("clients", "parquet", read_scores)
    if without := [number for number in numbers if not (folder / "clients" / f"{number:05d}.parquet").exists()]:
        notes.append(f"clients/ has no file for round {ranges(without)}, so this page is without it.")
    return RunRecords(
        experiment=experiment,
        settings=settings,
        rounds=rounds,
        scores=scores,
        gaps=by_round("gaps", "parquet", read_gaps),
        matrices=_read_matrices(folder, rounds, notes),
        tree=tree or (),
        summary=summary,
        data=data,
        client_descriptions=optional(CLIENT_DATA, lambda path: _read_descriptions(path, clients)),
        # An extended run has the files of its shorter self until it is finished.
        predictions=optional(PREDICTIONS, lambda path: read_predictions(path, clients)) if summary and rounds else None,
        # Half of a run cannot be compared with a whole one.
        references=read_references(folder, settings, summary) if summary else {},
        metric=optional(METRIC_FILE, lambda path: read_metric(path.parent)) or metric_of_settings(settings),
        deployed=(folder / "network").is_dir(),
        notes=tuple(notes),  # after everything that adds to them
    )


def read_experiment(folder: Path) -> tuple[str, dict[str, Any]]:
    """Return the text of a run's experiment, and its keys.

    Raises:
        RecordError: When the folder is not that of a run, its experiment cannot be read, or something in it is a link.
    """
    if not folder.is_dir():
        raise RecordError(
            f"expected the folder of a run, found no folder at {folder}; name one that `fedstrata run` made"
        )
    try:
        refuse_links(folder, RUN_FOLDER_ENTRIES)
        content = read_file(folder / "experiment.toml", MOST_BYTES_OF_EXPERIMENT)
        settings = parse_toml(content)
    except FileNotFoundError:
        raise _no_run(folder, "experiment.toml") from None
    except ValueError as error:
        raise RecordError(f"{folder / 'experiment.toml'} is not TOML ({error}); restore it or run again") from None
    return content.decode("utf-8"), settings


def read_rounds(folder: Path, notes: list[str]) -> tuple[Round, ...]:
    """Return the rounds of a run folder. A note says if the last line is cut off.

    Raises:
        RecordError: When they are missing, or unreadable before the last line.
    """
    try:
        lines = read_file(folder / "rounds.jsonl").splitlines(keepends=True)
    except FileNotFoundError:
        raise _no_run(folder, "rounds.jsonl") from None
    if lines and not lines[-1].endswith(b"\n"):
        notes.append(f"The last line of rounds.jsonl is cut off, so round {len(lines)} is missing from this page.")
        lines.pop()
    try:
        return tuple(record for _, record in parse_rounds(lines))
    except ValueError as error:
        raise RecordError(f"{folder}: {error}; restore it from a copy, or run again") from None


def _no_run(folder: Path, name: str) -> RecordError:
    return RecordError(f"{folder} holds no {name}; name the folder of a run that `fedstrata run` made")


def _read_descriptions(path: Path, clients: int) -> ClientDescriptions:
    found = read_client_descriptions(path)
    if len(found.class_counts) != clients:
        raise ValueError(f"it describes {len(found.class_counts)} clients, and the rounds have {clients}")
    return found


def _read_matrices(folder: Path, rounds: Sequence[Round], notes: list[str]) -> tuple[ClientMatrix, ...]:
    """Return the matrices that decided about the nodes, and of the other rounds as many, evenly, as a page can hold.

    The names and client ids of all rounds are read first, and then the values of the rounds that are shown: a long run
    holds gigabytes of values.
    """
    contents = _read_arrays(folder, "matrices", "npz", [each.round for each in rounds], read_matrix_clients, notes)
    shown = _shown_clients(rounds)
    pairs = {
        number: sum(len(shown & clients) ** 2 // 2 for clients in matrices.values())
        for number, matrices in contents.items()
    }
    kept: list[int] = []
    for number in _by_importance(rounds, contents):
        if not kept or sum(pairs[each] for each in kept) + pairs[number] <= _MAX_PAIRS:
            kept.append(number)
    if len(kept) < len(contents):
        rest = plural(len(contents) - len(kept), "round")
        notes.append(f"This page holds the matrices of {len(kept)} rounds; those of {rest} more are in matrices/.")
    if any(clients - shown for matrices in contents.values() for clients in matrices.values()):
        notes.append(f"The matrices on this page show {len(shown)} of the clients; matrices/ holds all.")
    loaded = _read_arrays(folder, "matrices", "npz", sorted(kept), lambda path: read_matrices(path, shown), notes)
    return tuple(matrix for found in loaded.values() for matrix in found)


def _shown_clients(rounds: Sequence[Round]) -> frozenset[int]:
    """Return the clients that matrices show: all, or `_MAX_CLIENTS` of them, evenly from every final cluster."""
    labels = rounds[-1].labels if rounds else []
    order = sorted(range(len(labels)), key=lambda client: (labels[client], client))
    if len(order) <= _MAX_CLIENTS:
        return frozenset(order)
    return frozenset(order[place * len(order) // _MAX_CLIENTS] for place in range(_MAX_CLIENTS))


def _by_importance(rounds: Sequence[Round], contents: Mapping[int, Mapping[MatrixName, frozenset[int]]]) -> list[int]:
    """Return the rounds with matrices: first those that decided about a node, then the others, evenly."""
    split = {event.node: each.round for each in rounds for event in each.splits}
    last: dict[int, int] = {}
    for number, names in contents.items():
        for name in names:
            if name.node != ALL_CLIENTS and number <= split.get(name.node, number):
                last[name.node] = number
    decisive = sorted(set(last.values()))
    others = [number for number in contents if number not in decisive]
    # Bits of the place from right to left: each next one falls into a widest gap.
    spread = sorted(range(len(others)), key=lambda place: f"{place:032b}"[::-1])
    return [*decisive, *(others[place] for place in spread)]


def _read_arrays(
    folder: Path, kind: str, ending: str, numbers: Iterable[int], load: Callable[[Path], _T], notes: list[str]
) -> dict[int, _T]:
    """Return the content of the file of each round that has one. A note says which ones cannot be read."""
    found = {}
    broken = []
    for number in numbers:
        try:
            found[number] = load(folder / kind / f"{number:05d}.{ending}")
        except FileNotFoundError:
            continue
        except DAMAGED:
            broken.append(number)
    if broken:
        notes.append(f"{kind}/ cannot be read for round {ranges(broken)}, so this page is without it.")
    return found
