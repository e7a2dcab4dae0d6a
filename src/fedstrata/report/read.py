"""A run folder, from disk.

The experiment and the rounds must be there. Whatever else is missing or damaged is left out and remembered in
``Records.notes``, since the page of an interrupted run is worth most when something went wrong.
"""

from pathlib import Path
from types import NoneType
from typing import Any

from fedstrata.errors import RecordError
from fedstrata.files import MOST_BYTES_OF_EXPERIMENT, open_file, parse_json, parse_toml, read_file, refuse_links
from fedstrata.records.schema import ENTRIES, Summary, TreeNode, check
from fedstrata.records.schema import Round as RoundLine
from fedstrata.report import arrays
from fedstrata.report.beside import one_model
from fedstrata.report.records import Node, Records, Round
from fedstrata.report.words import ranges

NUMBER = (int, float, NoneType)
MOST_BYTES_OF_LINE = 64 * 2**20
"""A longer line of ``rounds.jsonl`` is not read; a million clients need a fifth of it."""


def read(folder: Path) -> Records:
    """Read what the page needs from a run folder.

    Raises:
        RecordError: when the folder, its experiment or its rounds are missing, or unreadable before the last line.
    """
    experiment, settings = experiment_of(folder)
    notes: list[str] = []
    rounds = rounds_of(folder, notes)
    tree = _tree(folder, notes)
    summary = _summary(folder, notes)
    return Records(
        experiment=experiment,
        settings=settings,
        rounds=rounds,
        scores=arrays.scores(folder, rounds, notes),
        gaps=arrays.gaps(folder, rounds, notes),
        matrices=arrays.matrices(folder, rounds, notes),
        tree=tree,
        summary=summary,
        notes=tuple(notes),
        # Half a run is no match for a whole one.
        one_model=one_model(folder, settings) if summary is not None else None,
    )


def experiment_of(folder: Path) -> tuple[str, dict[str, Any]]:
    """The text of a run's experiment, and its keys.

    Raises:
        RecordError: when the folder is not that of a run, its experiment cannot be read, or something in it is a link.
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


def _no_run(folder: Path, name: str) -> RecordError:
    return RecordError(f"{folder} holds no {name}; name the folder of a run that `fedstrata run` made")


def rounds_of(folder: Path, notes: list[str]) -> tuple[Round, ...]:
    """The rounds of a run folder; notes say if the last line is cut off, and if rounds are missing before it.

    Raises:
        RecordError: when they are missing, unreadable before the last line, or not in their order.
    """
    rounds: list[Round] = []
    try:
        with open_file(folder / "rounds.jsonl") as file:
            for position, line in enumerate(iter(lambda: file.readline(MOST_BYTES_OF_LINE), b""), start=1):
                where = f"{folder / 'rounds.jsonl'} line {position}"
                try:
                    record = parse_json(line)
                except ValueError as error:
                    if line.endswith(b"\n") or file.read(1):
                        raise RecordError(f"{where} is not JSON ({error}); restore it or run again") from None
                    missing = f"round {rounds[-1].round + 1 if rounds else 1}"
                    notes.append(f"The last line of rounds.jsonl is cut off, so {missing} is missing from this page.")
                    break
                rounds.append(_round(record, where))
                if len(rounds) > 1 and rounds[-1].round <= rounds[-2].round:
                    raise RecordError(
                        f"{where} is of round {rounds[-1].round}, behind one of round {rounds[-2].round}; "
                        "restore it or run again"
                    )
    except FileNotFoundError:
        raise _no_run(folder, "rounds.jsonl") from None
    if rounds and rounds[-1].round > len(rounds):
        notes.append(_holes(rounds))
    return tuple(rounds)


def _holes(rounds: list[Round]) -> str:
    """Which rounds are missing; of very many, how many."""
    last, count = rounds[-1].round, rounds[-1].round - len(rounds)
    if last > 100_000:
        return f"rounds.jsonl has no line for {count} rounds, so this page is without them."
    missing = set(range(1, last + 1)) - {each.round for each in rounds}
    return f"rounds.jsonl has no line for round {ranges(missing)}, so this page is without it."


def _round(record: Any, where: str) -> Round:
    try:
        check(record, RoundLine)
    except ValueError as error:
        raise RecordError(f"{where} {error}; the folder is damaged or of another version") from None
    names = [name for name in Round.__dataclass_fields__ if name in record and name != "others"]
    others = {
        name.removeprefix("acc_"): value
        for name, value in record.items()
        if name.startswith("acc_") and name not in RoundLine.model_fields and isinstance(value, NUMBER)
    }
    return Round(**{name: record[name] for name in names}, others=others)


def _tree(folder: Path, notes: list[str]) -> tuple[Node, ...]:
    names = Node.__dataclass_fields__
    try:
        entries = parse_json(read_file(folder / "tree.json"))
        if not isinstance(entries, list):
            raise ValueError("not a list")
        for entry in entries:
            check(entry, TreeNode)
        nodes = tuple(Node(**{name: entry[name] for name in names}) for entry in entries)
        # A child is born after its parent, so it stands behind it; anything else would send a walk in circles.
        if any(node.id != place for place, node in enumerate(nodes)):
            raise ValueError("ids are not positions")
        if any(node.parent is not None and not 0 <= node.parent < node.id for node in nodes):
            raise ValueError("a parent stands behind its child")
    except arrays.DAMAGED as error:
        notes.append(_left_out("tree.json", error))
        return ()
    return nodes


def _summary(folder: Path, notes: list[str]) -> dict[str, Any] | None:
    try:
        summary: dict[str, Any] = parse_json(read_file(folder / "summary.json"))
        check(summary, Summary)
    except FileNotFoundError:
        notes.append("This run is unfinished: the folder has no summary.json.")
        return None
    except arrays.DAMAGED as error:
        notes.append(_left_out("summary.json", error))
        return None
    return summary


def _left_out(name: str, error: Exception) -> str:
    reason = "is missing" if isinstance(error, FileNotFoundError) else "cannot be read"
    return f"{name} {reason}, so this page is without it."
