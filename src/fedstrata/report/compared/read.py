"""The folder of a comparison, from disk.

``comparison.json`` must be there. A run whose rounds or keys cannot be read is left out of the curves, and remembered
in ``Compared.notes``.
"""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedstrata.errors import RecordError
from fedstrata.report.compared.records import Compared, Course, Difference, Figure, Row, Run
from fedstrata.report.read import rounds_of
from fedstrata.report.records import Round

FILE = "comparison.json"


def read(folder: Path) -> Compared:
    """Read what the page needs from the folder of a comparison and from those of its runs.

    Raises:
        RecordError: when the folder holds no ``comparison.json``, or one of another version.
    """
    path = folder / FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        runs = tuple(_run(entry) for entry in content["runs"])
        rows = tuple(_row(entry) for entry in content["table"])
        differences = tuple(_difference(entry) for entry in content["differences"])
        experiment, jobs = dict(content["experiment"]), content["jobs"]
        notes = [f"Left out is {entry['folder']}: {entry['why']}" for entry in content["left_out"]]
        shared = jobs and f"{jobs['trained']:,} of {jobs['asked']:,} ({100 * jobs['share']:.0f} %)"
    except FileNotFoundError:
        raise RecordError(f"{folder} holds no {FILE}; name the folder of a finished `fedstrata compare`") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"{path} is damaged or of another version ({error!r}); compare the runs again") from None
    return Compared(
        experiment=experiment,
        methods=_methods(folder, runs, notes),
        runs=runs,
        rows=rows,
        differences=differences,
        courses=_courses(folder, runs, notes),
        shared=shared,
        notes=tuple(notes),
    )


def _run(entry: Mapping[str, Any]) -> Run:
    return Run(**{name: entry[name] for name in Run.__dataclass_fields__})


def _row(entry: Mapping[str, Any]) -> Row:
    figures = {name: figure and Figure(**figure) for name, figure in entry["figures"].items()}
    return Row(**{**entry, "seeds": tuple(entry["seeds"]), "failed": tuple(entry["failed"]), "figures": figures})


def _difference(entry: Mapping[str, Any]) -> Difference:
    return Difference(entry["algorithm"], entry["other"], tuple(entry["seeds"]), tuple(entry["values"]))


def _methods(folder: Path, runs: tuple[Run, ...], notes: list[str]) -> dict[str, Mapping[str, Any]]:
    """The keys of each algorithm, from the experiment of its first run that has one."""
    found: dict[str, Mapping[str, Any]] = {}
    for run in runs:
        try:
            settings = tomllib.loads((folder / run.folder / "experiment.toml").read_text(encoding="utf-8"))
            keys = {key: value for key, value in settings["algorithm"].items() if key != "name"}
            found.setdefault(run.algorithm, keys)
        except (OSError, ValueError, KeyError, AttributeError):
            continue
    for name in dict.fromkeys(run.algorithm for run in runs if run.algorithm not in found):
        notes.append(f"No experiment.toml of {name} can be read, so this page is without its keys.")
    return found


def _courses(folder: Path, runs: tuple[Run, ...], notes: list[str]) -> tuple[Course, ...]:
    """The rounds of the finished runs by algorithm."""
    found: dict[str, list[tuple[Round, ...]]] = {}
    for run in runs:
        if run.summary is None:
            continue
        who, cut = f"{run.algorithm} with seed {run.seed}", list[str]()
        try:
            rounds = rounds_of(folder / run.folder, cut)
            if [each.round for each in rounds] != list(range(1, len(rounds) + 1)):
                raise RecordError(f"{folder / run.folder / 'rounds.jsonl'} lacks a round; restore it or run again")
        except RecordError as error:
            # However the folder was named, the page is the same.
            notes.append(f"The curves are without {who}: {str(error).replace(str(folder / run.folder), run.folder)}")
            continue
        notes += [f"{who}: {note}" for note in cut]
        found.setdefault(run.algorithm, []).append(rounds)
    return tuple(Course(name, tuple(some)) for name, some in found.items())
