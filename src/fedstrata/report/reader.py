"""A run folder as data for its page.

The experiment and the rounds must be there. Anything else that is missing or damaged is left out and noted in
`Records.notes`: the page of an interrupted run is needed most when something went wrong.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from fedstrata.errors import RecordError
from fedstrata.files import MOST_BYTES_OF_EXPERIMENT, open_file, parse_json, parse_toml, read_file, refuse_links
from fedstrata.records.schema import ENTRIES, Gap, Round, Scores, Summary, TreeNode, check
from fedstrata.report.arrays import DAMAGED, Matrix, read_gaps, read_matrices, read_scores
from fedstrata.report.decisions import sentence
from fedstrata.report.words import ranges

MOST_BYTES_OF_LINE = 64 * 2**20
"""A longer line of ``rounds.jsonl`` is not read; a million clients need a fifth of it."""

REFERENCE_MAY_DIFFER = ("algorithm", "algorithms", "engine", "probe", "records")
"""Tables of the experiment in which a run and its FedAvg reference may differ."""


class Metric(NamedTuple):
    """A value that an algorithm recorded.

    Attributes:
        name: The metric; `fedstrata.report.words.METRICS` says what it means.
        node: The tree node that it is about, if it is about one.
        layer: The layer that it is about, if it is about one.
        value: The value; None where it is unknown.
    """

    name: str
    node: int | None
    layer: str | None
    value: float | None


class Decision(NamedTuple):
    """The last decision about a tree node.

    Attributes:
        layer: The layers that were compared, if any were.
        values: The values that decided.
        text: What was decided, in one sentence; empty before the first decision.
    """

    layer: str | None
    values: tuple[Metric, ...]
    text: str


@dataclass(frozen=True)
class Records:
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
        fedavg_reference: The mean accuracy of FedAvg in the same experiment, where a run of it is in a folder next to
            this one.
    """

    experiment: str
    settings: Mapping[str, Any]
    rounds: tuple[Round, ...]
    scores: Mapping[int, Scores]
    gaps: Mapping[int, tuple[Gap, ...]]
    matrices: tuple[Matrix, ...]
    tree: tuple[TreeNode, ...]
    summary: Summary | None
    notes: tuple[str, ...]
    fedavg_reference: float | None = None

    @property
    def last(self) -> Round | None:
        """The newest round, if any is recorded."""
        return self.rounds[-1] if self.rounds else None

    @cached_property
    def metrics(self) -> Mapping[int, tuple[Metric, ...]]:
        """The metrics of the algorithm, by round."""
        return {each.round: round_metrics(each) for each in self.rounds}

    @cached_property
    def decisions(self) -> Mapping[int, Decision]:
        """The last decision about each tree node."""
        return {node.id: last_decision(node) for node in self.tree}

    def final(self, name: str) -> Any:
        """A value of the summary, or of the newest round where the summary has none."""
        if self.summary is not None and name in self.summary.model_fields_set:
            return getattr(self.summary, name)
        return getattr(self.last, name, None)

    def total(self, name: str) -> Any:
        """A sum over the rounds, from the summary if it has it."""
        if self.summary is not None and name in self.summary.model_fields_set:
            return getattr(self.summary, name)
        return sum(getattr(each, name) or 0 for each in self.rounds)

    def setting(self, table: str, key: str) -> Any:
        """A key of the experiment; None where it is not set."""
        values = self.settings.get(table)
        return values.get(key) if isinstance(values, Mapping) else None


def round_metrics(record: Round) -> tuple[Metric, ...]:
    """The metrics of a round."""
    return tuple(Metric(each.name, each.node, each.layer, each.value) for each in record.metrics)


def last_decision(node: TreeNode) -> Decision:
    """The last decision about a node; the value "cut 2" is the cut in pre-cluster 2."""
    values = []
    for name, value in node.criteria.items():
        if cut := re.fullmatch(r"cut (\d{1,9})", name):
            values.append(Metric("cut", node.id, f"{node.layer} of pre-cluster {cut[1]}", value))
        else:
            values.append(Metric(name, node.id, None, value))
    return Decision(node.layer, tuple(values), sentence(node.why, node.layer, node.criteria))


def read(folder: Path) -> Records:
    """Read what the page needs from a run folder.

    Raises:
        RecordError: When the folder, its experiment or its rounds are missing, or unreadable before the last line.
    """
    experiment, settings = read_experiment(folder)
    notes: list[str] = []
    rounds = read_rounds(folder, notes)
    tree = _read_tree(folder, notes)
    summary = _read_summary(folder, notes)
    return Records(
        experiment=experiment,
        settings=settings,
        rounds=rounds,
        scores=read_scores(folder, rounds, notes),
        gaps=read_gaps(folder, rounds, notes),
        matrices=read_matrices(folder, rounds, notes),
        tree=tree,
        summary=summary,
        notes=tuple(notes),
        # Half of a run cannot be compared with a whole one.
        fedavg_reference=read_fedavg_reference(folder, settings) if summary is not None else None,
    )


def read_experiment(folder: Path) -> tuple[str, dict[str, Any]]:
    """The text of a run's experiment, and its keys.

    Raises:
        RecordError: When the folder is not that of a run, its experiment cannot be read, or something in it is a link.
    """
    if not folder.is_dir():
        raise RecordError(
            f"expected the folder of a run, found no folder at {folder}; name one that `fedstrata run` made"
        )
    try:
        refuse_links(folder, ENTRIES)
        content = read_file(folder / "experiment.toml", MOST_BYTES_OF_EXPERIMENT)
        settings = parse_toml(content)
    except FileNotFoundError:
        raise _no_run(folder, "experiment.toml") from None
    except ValueError as error:
        raise RecordError(f"{folder / 'experiment.toml'} is not TOML ({error}); restore it or run again") from None
    return content.decode("utf-8"), settings


def read_rounds(folder: Path, notes: list[str]) -> tuple[Round, ...]:
    """The rounds of a run folder. Notes say if the last line is cut off, and if rounds are missing before it.

    Raises:
        RecordError: When they are missing, unreadable before the last line, or not in their order.
    """
    rounds: list[Round] = []
    try:
        with open_file(folder / "rounds.jsonl") as file:
            for position, line in enumerate(iter(lambda: file.readline(MOST_BYTES_OF_LINE), b""), start=1):
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
                    rounds.append(check(record, Round))
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
    """Which rounds are missing; of very many, how many."""
    last = rounds[-1].round
    if last > 100_000:
        return f"rounds.jsonl has no line for {last - len(rounds)} rounds, so this page is without them."
    missing = set(range(1, last + 1)) - {each.round for each in rounds}
    return f"rounds.jsonl has no line for round {ranges(missing)}, so this page is without it."


def _read_tree(folder: Path, notes: list[str]) -> tuple[TreeNode, ...]:
    try:
        entries = parse_json(read_file(folder / "tree.json"))
        if not isinstance(entries, list):
            raise ValueError("not a list")
        nodes = tuple(check(entry, TreeNode) for entry in entries)
        # A child comes after its parent; anything else could send a walk over the tree in circles.
        if any(node.id != place for place, node in enumerate(nodes)):
            raise ValueError("ids are not positions")
        if any(node.parent is not None and not 0 <= node.parent < node.id for node in nodes):
            raise ValueError("a parent comes after its child")
    except DAMAGED as error:
        notes.append(_left_out("tree.json", error))
        return ()
    return nodes


def _read_summary(folder: Path, notes: list[str]) -> Summary | None:
    try:
        return check(parse_json(read_file(folder / "summary.json")), Summary)
    except FileNotFoundError:
        notes.append("This run is unfinished: the folder has no summary.json.")
    except DAMAGED as error:
        notes.append(_left_out("summary.json", error))
    return None


def _left_out(name: str, error: Exception) -> str:
    reason = "is missing" if isinstance(error, FileNotFoundError) else "cannot be read"
    return f"{name} {reason}, so this page is without it."


def read_fedavg_reference(folder: Path, settings: Mapping[str, Any]) -> float | None:
    """The mean accuracy of a finished run of FedAvg in a folder next to this one; None where there is none.

    Args:
        folder: The folder of the run.
        settings: Its experiment. The reference must be of the same one, the seed included.
    """
    here = folder.resolve()
    algorithm = settings.get("algorithm")
    if isinstance(algorithm, Mapping) and algorithm.get("name") == "fedavg":
        return None
    for path in sorted(here.parent.glob("*/summary.json")):
        if path.parent == here:
            continue
        try:
            summary = check(parse_json(read_file(path)), Summary)
            if summary.algorithm != "fedavg" or summary.acc_client is None:
                continue
            other = parse_toml(read_file(path.parent / "experiment.toml", MOST_BYTES_OF_EXPERIMENT))
        except (OSError, ValueError, RecordError):
            continue  # A folder that is no run, or a damaged one, is no reference.
        if _comparable(settings) == _comparable(other):
            return summary.acc_client
    return None


def _comparable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that a run and its reference must share, wherever the data files are."""
    kept = {key: value for key, value in settings.items() if key not in REFERENCE_MAY_DIFFER}
    data = kept.get("data")
    if isinstance(data, Mapping):
        kept["data"] = {key: value for key, value in data.items() if key != "root"}
    return kept
