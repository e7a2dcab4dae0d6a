"""A run folder, from disk.

The experiment and the rounds must be there. Whatever else is missing or damaged is left out and remembered in
``Records.notes``, since the page of an interrupted run is worth most when something went wrong.
"""

import json
import tomllib
from pathlib import Path
from types import NoneType
from typing import Any

from fedstrata.errors import RecordError
from fedstrata.report import arrays
from fedstrata.report.beside import one_model
from fedstrata.report.records import Node, Records, Round

NUMBER = (int, float, NoneType)
SHAPE: dict[str, tuple[type, ...]] = {
    "round": (int,),
    "seconds": NUMBER,
    "clusters": (int,),
    "labels": (list,),
    "pending": (list,),
    "acc_client": NUMBER,
    "acc_weighted": NUMBER,
    "acc_cluster": NUMBER,
    "acc_worst": NUMBER,
    "loss": NUMBER,
    "ari": NUMBER,
    "bytes_down": (int,),
    "bytes_up": (int,),
    "cohort": (list,),
    "absent": (list,),
    "rejected": (list,),
    "events": (list,),
    "figures": (dict,),
}
KNOWN = ("seconds_training", "seconds_server", "bytes_data")
"""What a round of an older run may lack."""


def read(folder: Path) -> Records:
    """Read what the page needs from a run folder.

    Raises:
        RecordError: when the folder, its experiment or its rounds are missing, or unreadable before the last line.
    """
    if not folder.is_dir():
        raise RecordError(
            f"expected the folder of a run, found no folder at {folder}; name one that `fedstrata run` made"
        )
    try:
        experiment = _bytes(folder, "experiment.toml").decode("utf-8")
        settings = tomllib.loads(experiment)
    except ValueError as error:
        raise RecordError(f"{folder / 'experiment.toml'} is not TOML ({error}); restore it or run again") from None
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


def _bytes(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except FileNotFoundError:
        raise RecordError(f"{folder} holds no {name}; name the folder of a run that `fedstrata run` made") from None
    except OSError as error:
        raise RecordError(f"{folder / name} cannot be read ({error}); restore it or run again") from None


def rounds_of(folder: Path, notes: list[str]) -> tuple[Round, ...]:
    """The rounds of a run folder; a note says if the last line is cut off.

    Raises:
        RecordError: when they are missing, or unreadable before the last line.
    """
    # Bytes, for a line may be cut off inside a letter.
    lines = _bytes(folder, "rounds.jsonl").splitlines()
    rounds: list[Round] = []
    for position, line in enumerate(lines, start=1):
        where = f"{folder / 'rounds.jsonl'} line {position}"
        try:
            record = json.loads(line)
        except ValueError:
            if position < len(lines):
                raise RecordError(f"{where} is not JSON; restore it or run again") from None
            missing = f"round {rounds[-1].round + 1 if rounds else 1}"
            notes.append(f"The last line of rounds.jsonl is cut off, so {missing} is missing from this page.")
            break
        rounds.append(_round(record, where))
    return tuple(rounds)


def _round(record: Any, where: str) -> Round:
    if not isinstance(record, dict):
        raise RecordError(f"{where} is not a JSON object; restore it or run again")
    for name, kinds in SHAPE.items():
        if name not in record:
            raise RecordError(f"{where} has no {name}; the folder is damaged or of another version")
        if not isinstance(record[name], kinds):
            raise RecordError(
                f"{where} has {type(record[name]).__name__} for {name}; the folder is damaged or of another version"
            )
    named = [name for name in (*SHAPE, *KNOWN) if name in record]
    others = {
        name.removeprefix("acc_"): value
        for name, value in record.items()
        if name.startswith("acc_") and name not in SHAPE and isinstance(value, NUMBER)
    }
    return Round(**{name: record[name] for name in named}, others=others)


def _tree(folder: Path, notes: list[str]) -> tuple[Node, ...]:
    names = Node.__dataclass_fields__
    try:
        nodes = tuple(
            Node(**{name: entry[name] for name in names})
            for entry in json.loads((folder / "tree.json").read_text(encoding="utf-8"))
        )
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
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        if not isinstance(summary, dict):
            raise TypeError("not an object")
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
