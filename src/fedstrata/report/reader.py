"""A run folder as data for its page.

The experiment and the rounds must be there. Anything else that is missing or damaged is left out and noted in
`RunRecords.notes`: the page of an interrupted run is needed most when something went wrong. A folder may come from
somebody else, so sizes and headers are checked before memory is allocated.
"""

import io
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan, prod
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy import float64
from numpy.typing import NDArray

from fedstrata.base.errors import RecordError
from fedstrata.base.files import MOST_BYTES_OF_EXPERIMENT, open_file, parse_json, parse_toml, read_file, refuse_links
from fedstrata.objective.metric_info import ACCURACY, METRIC_FILE, MetricInfo, metric_of_settings, read_metric
from fedstrata.records.final_scores import RightSamples, read_right_samples
from fedstrata.records.schema import (
    ALL_CLIENTS,
    CLIENT_DATA,
    CLIENTS_SUFFIX,
    CONFUSION,
    LARGE,
    RUN_FOLDER_ENTRIES,
    ClientDescriptions,
    Confusion,
    DataRecord,
    Gap,
    MatrixName,
    Round,
    Scores,
    Summary,
    TreeNode,
    parse_record,
)
from fedstrata.report.references import Reference, read_references
from fedstrata.report.words import joined, plural, ranges

_MAX_PAIRS = 1_200_000
"""Pairs of clients in all matrices of a page: about 3 MB of it."""

_MAX_CLIENTS = 150
"""Clients of a matrix that can still be told apart on a page. Of more clients, so many are shown."""

_MAX_LINE_BYTES = 64 * 2**20
"""A longer line of ``rounds.jsonl`` is not read; a million clients need a fifth of it."""

_MAX_ARRAY_BYTES = 512 * 2**20
"""A larger file of arrays is not read, nor is one that unpacks to more."""

_MAX_TABLE_ROWS = 20_000_000
"""A table with more rows is not read."""

_DAMAGED = (OSError, ValueError, KeyError, TypeError, RecordError, zipfile.BadZipFile, zlib.error, pa.ArrowException)
"""What reading a damaged file raises."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class ClientMatrix:
    """A client-by-client matrix: one behind a decision, or one of all clients that answered.

    Attributes:
        round: The round in which it was computed.
        node: The tree node that the decision was about; `ALL_CLIENTS` where it is about all clients.
        measure: What the clients were compared by; `fedstrata.report.catalogue.COMPARED_BY` says what it means.
        layer: The layers that were compared.
        values: The matrix, (m, m).
        clients: The client of each row and column, (m,).
    """

    round: int
    node: int
    measure: str
    layer: str
    values: NDArray[float64]
    clients: list[int]


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
        confusion: Which classes the clients' models confuse at the end; None where that is not known.
        right_samples: Which test samples the clients' models classify correctly at the end, where that is known.
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
    confusion: Confusion | None = None
    right_samples: RightSamples = field(default_factory=dict)
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
        except _DAMAGED:
            notes.append(f"{name} cannot be read, so this page is without it.")
        return None

    def by_round(kind: str, ending: str, load: Callable[[Path], _T]) -> dict[int, _T]:
        return _read_arrays(folder, kind, ending, numbers, load, notes)

    tree = optional("tree.json", _load_tree, "tree.json is missing, so this page is without it.")
    unfinished = "This run is unfinished: the folder has no summary.json."
    summary = optional("summary.json", lambda path: parse_record(parse_json(read_file(path)), Summary), unfinished)
    data = optional("data.json", lambda path: parse_record(parse_json(read_file(path)), DataRecord))
    scores = by_round("clients", "parquet", _load_scores)
    if without := [number for number in numbers if not (folder / "clients" / f"{number:05d}.parquet").exists()]:
        notes.append(f"clients/ has no file for round {ranges(without)}, so this page is without it.")
    return RunRecords(
        experiment=experiment,
        settings=settings,
        rounds=rounds,
        scores=scores,
        gaps=by_round("gaps", "parquet", _load_gaps),
        matrices=_read_matrices(folder, rounds, notes),
        tree=tree or (),
        summary=summary,
        data=data,
        client_descriptions=optional(CLIENT_DATA, lambda path: _load_client_descriptions(path, clients)),
        # An extended run has the files of its shorter self until it is finished.
        confusion=optional(CONFUSION, lambda path: _load_confusion(path, clients)) if summary and rounds else None,
        right_samples=read_right_samples(folder) if summary else {},
        # Half of a run cannot be compared with a whole one.
        references=read_references(folder, settings) if summary else {},
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
    """Return the rounds of a run folder. Notes say if the last line is cut off, and if rounds are missing before it.

    Raises:
        RecordError: When they are missing, unreadable before the last line, or not in their order.
    """
    rounds: list[Round] = []
    try:
        with open_file(folder / "rounds.jsonl") as file:
            for position, line in enumerate(iter(lambda: file.readline(_MAX_LINE_BYTES), b""), start=1):
                place = f"{folder / 'rounds.jsonl'} line {position}"
                try:
                    record = parse_json(line)
                except ValueError as error:
                    if line.endswith(b"\n") or file.read(1):
                        raise RecordError(f"{place} is not JSON ({error}); restore it or run again") from None
                    missing = f"round {rounds[-1].round + 1 if rounds else 1}"
                    notes.append(f"The last line of rounds.jsonl is cut off, so {missing} is missing from this page.")
                    break
                try:
                    rounds.append(parse_record(record, Round))
                except ValueError as error:
                    raise RecordError(f"{place} {error}; the folder is damaged or of another version") from None
                if len(rounds) > 1 and rounds[-1].round <= rounds[-2].round:
                    raise RecordError(
                        f"{place} is of round {rounds[-1].round}, after one of round {rounds[-2].round}; "
                        "restore it or run again"
                    )
    except FileNotFoundError:
        raise _no_run(folder, "rounds.jsonl") from None
    if rounds and rounds[-1].round > len(rounds):
        notes.append(_missing_rounds(rounds))
    return tuple(rounds)


def _no_run(folder: Path, name: str) -> RecordError:
    return RecordError(f"{folder} holds no {name}; name the folder of a run that `fedstrata run` made")


def _missing_rounds(rounds: list[Round]) -> str:
    """Return which rounds are missing; of very many, how many."""
    last = rounds[-1].round
    if last > 100_000:
        return f"rounds.jsonl has no line for {last - len(rounds)} rounds, so this page is without them."
    missing = set(range(1, last + 1)) - {each.round for each in rounds}
    return f"rounds.jsonl has no line for round {ranges(missing)}, so this page is without it."


def _load_tree(path: Path) -> tuple[TreeNode, ...]:
    entries = parse_json(read_file(path))
    if not isinstance(entries, list):
        raise ValueError("not a list")
    nodes = tuple(parse_record(entry, TreeNode) for entry in entries)
    # A child comes after its parent; anything else could send a walk over the tree in circles.
    for place, node in enumerate(nodes):
        if node.id != place or (node.parent is not None and not 0 <= node.parent < place):
            raise ValueError("an id is not its position, or a parent comes after its child")
    return nodes


def _read_matrices(folder: Path, rounds: Sequence[Round], notes: list[str]) -> tuple[ClientMatrix, ...]:
    """Return the matrices that decided about the nodes, and of the other rounds as many, evenly, as a page can hold.

    The names and client ids of all rounds are read first, and then the values of the rounds that are shown: a long run
    holds gigabytes of values.
    """
    contents = _read_arrays(folder, "matrices", "npz", [each.round for each in rounds], _load_contents, notes)
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
    loaded = _read_arrays(folder, "matrices", "npz", sorted(kept), lambda path: _load_matrices(path, shown), notes)
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
        except _DAMAGED:
            broken.append(number)
    if broken:
        notes.append(f"{kind}/ cannot be read for round {ranges(broken)}, so this page is without it.")
    return found


def _load_table(path: Path, columns: Sequence[str]) -> pa.Table:
    """Return some columns of a Parquet file that is not too large."""
    content = read_file(path, _MAX_ARRAY_BYTES)
    file = pq.ParquetFile(io.BytesIO(content))
    groups = [file.metadata.row_group(place) for place in range(file.metadata.num_row_groups)]
    if sum(group.total_byte_size for group in groups) > _MAX_ARRAY_BYTES or file.metadata.num_rows > _MAX_TABLE_ROWS:
        raise ValueError("it is too large")
    return file.read(columns=list(columns), use_threads=False)


def _load_scores(path: Path) -> Scores:
    table = _load_table(path, Scores._fields)
    integers = ("client", "node", "samples")
    columns = {name: _numbers(table[name], pa.int64() if name in integers else pa.float64()) for name in Scores._fields}
    scores = Scores(**columns)
    if len(np.unique(scores.client)) < len(scores.client) or (scores.client < 0).any() or (scores.samples < 0).any():
        raise ValueError("the clients or samples of no run")
    return scores


def _numbers(column: pa.ChunkedArray, kind: pa.DataType) -> Any:
    """Return a column of numbers, none of which is missing or too large."""
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)) or column.null_count:
        raise ValueError(f"a column is {column.type}")
    values = column.cast(kind).to_numpy()
    _refuse_large(values)
    return values


def _refuse_large(values: Any) -> None:
    """Refuse numbers whose squares or sums would overflow. Charts leave out what is not finite."""
    found = values[np.isfinite(values)]
    if found.size and max(abs(float(found.min())), abs(float(found.max()))) > LARGE:
        raise ValueError("a number is too large")


def _load_gaps(path: Path) -> tuple[Gap, ...]:
    rows = [Gap(**row) for row in _load_table(path, Gap._fields).to_pylist()]
    for row in rows:
        if not isinstance(row.layer, str) or not isinstance(row.measure, str):
            raise ValueError("a layer or measure is no text")
        if not isinstance(row.gap, float | NoneType) or abs(row.gap or 0) > LARGE:
            raise ValueError("a gap is no number")
    return tuple(row._replace(gap=nan) if row.gap is None else row for row in rows)


def _load_contents(path: Path) -> dict[MatrixName, frozenset[int]]:
    """Return the name and the clients of each matrix in a file."""
    with _open_archive(path) as archive:
        return {
            MatrixName.parse(name): frozenset(_array(archive, f"{name}{CLIENTS_SUFFIX}", 1).tolist())
            for name in _matrix_names(archive)
        }


def _load_matrices(path: Path, shown: frozenset[int]) -> list[ClientMatrix]:
    """Return the matrices in a file, for the clients that are shown."""
    found = []
    with _open_archive(path) as archive:
        for name in _matrix_names(archive):
            clients = _array(archive, f"{name}{CLIENTS_SUFFIX}", 1).tolist()
            values = _array(archive, name, 2)
            if values.shape != (len(clients), len(clients)):
                raise ValueError(f"{name} is {values.shape} for {len(clients)} clients")
            places = [place for place, client in enumerate(clients) if client in shown]
            node, measure, layer = MatrixName.parse(name)
            values = values[np.ix_(places, places)]
            kept = [clients[place] for place in places]
            found.append(ClientMatrix(int(path.stem), node, measure, layer, values, kept))
    return found


def _load_client_descriptions(path: Path, clients: int) -> ClientDescriptions:
    with _open_archive(path) as archive:
        counts = _array(archive, "class_counts", 2)
        names = _names_in(archive, "class_names")
        features = _names_in(archive, "feature_names") if "feature_names.npy" in archive.namelist() else ()
        means = None
        if "mean_inputs.npy" in archive.namelist():
            means = _array(archive, "mean_inputs", 2)
            means = means.reshape(len(means), *_array(archive, "shape", 1).tolist())
    rows = [len(each) for each in (counts, means) if each is not None]
    if rows != [clients] * len(rows):
        raise ValueError(f"it describes {joined(rows)} clients, and the rounds have {clients}")
    if len(names) not in (0, counts.shape[1]):
        raise ValueError(f"it does not name its {counts.shape[1]} classes")
    named = features if means is not None and means.shape[1:] == (len(features),) else ()
    return ClientDescriptions(counts, means, names, named)


def _names_in(archive: zipfile.ZipFile, name: str) -> tuple[str, ...]:
    """Return the names in an array of the bytes of JSON."""
    found = parse_json(_array(archive, name, 1).astype(np.uint8).tobytes())
    if not isinstance(found, list):
        raise ValueError(f"{name} is no list")
    return tuple(map(str, found))


def _load_confusion(path: Path, clients: int) -> Confusion:
    table = _load_table(path, Confusion._fields)
    found = Confusion(*(_numbers(table[name], pa.int64()) for name in Confusion._fields))
    if any(len(column) and not 0 <= column.min() <= column.max() < 2**31 for column in found):
        raise ValueError("the clients, classes or samples of no run")
    if len(found.client) and found.client.max() >= clients:
        raise ValueError(f"it has client {found.client.max()}, and the rounds have {clients} clients")
    return found


def _open_archive(path: Path) -> zipfile.ZipFile:
    """Return a ``.npz`` file that does not unpack to too much."""
    archive = zipfile.ZipFile(io.BytesIO(read_file(path, _MAX_ARRAY_BYTES)))
    if sum(entry.file_size for entry in archive.infolist()) > _MAX_ARRAY_BYTES:
        raise ValueError("it unpacks to too much")
    return archive


def _matrix_names(archive: zipfile.ZipFile) -> list[str]:
    names = [name.removesuffix(".npy") for name in archive.namelist()]
    return [name for name in names if not name.endswith(CLIENTS_SUFFIX)]


def _array(archive: zipfile.ZipFile, name: str, dimensions: int) -> Any:
    """Return an array of numbers. Its header is checked before memory is allocated for it."""
    entry_name = f"{name}.npy"
    with archive.open(entry_name) as entry:
        version = np.lib.format.read_magic(entry)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, kind = read(entry)
        if len(shape) != dimensions or kind.kind not in ("iu" if dimensions == 1 else "iuf"):
            raise ValueError(f"{name} is {kind} {shape}")
        if prod(shape) * kind.itemsize > archive.getinfo(entry_name).file_size:
            raise ValueError(f"{name} holds less than its header says")
        entry.seek(0)
        values = np.lib.format.read_array(entry, allow_pickle=False)
    if dimensions == 1 and len(values) and not 0 <= values.min() <= values.max() < 2**31:
        raise ValueError(f"{name} names no clients")
    _refuse_large(values)
    return values
