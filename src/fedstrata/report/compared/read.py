"""The folder of a comparison, from disk.

``comparison.json`` must be there. A run whose rounds or keys cannot be read is left out of the curves, and remembered
in ``Compared.notes``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from fedstrata.errors import RecordError
from fedstrata.files import MOST_BYTES_OF_EXPERIMENT, parse_json, parse_toml, read_file, refuse_links
from fedstrata.records.schema import Count, Share
from fedstrata.report.compared.records import Compared, Course, Difference, Row, Run
from fedstrata.report.read import rounds_of
from fedstrata.report.records import Round

FILE = "comparison.json"
MOST_BYTES = 256 * 2**20
"""A larger file is not read."""


class _Jobs(BaseModel):
    asked: Count
    trained: Count
    share: Share


class _LeftOut(BaseModel):
    folder: str
    why: str


class _Document(BaseModel):
    """``comparison.json``."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    experiment: dict[str, Any]
    jobs: _Jobs | None
    runs: tuple[Run, ...]
    left_out: tuple[_LeftOut, ...]
    table: tuple[Row, ...]
    differences: tuple[Difference, ...]


def read(folder: Path) -> Compared:
    """Read what the page needs from the folder of a comparison and from those of its runs.

    Raises:
        RecordError: when the folder holds no ``comparison.json``, or one of another version.
    """
    path = folder / FILE
    try:
        refuse_links(folder, [FILE])
        raw = read_file(path, MOST_BYTES)
        parse_json(raw)  # refuses what no reader of JSON takes, such as infinity
        content = _Document.model_validate_json(raw)
    except FileNotFoundError:
        raise RecordError(f"{folder} holds no {FILE}; name the folder of a finished `fedstrata compare`") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise RecordError(
            f"{path} is damaged or of another version ({place}: {first['msg'].lower()}); compare the runs again"
        ) from None
    except ValueError as error:
        raise RecordError(f"{path} is damaged or of another version ({error}); compare the runs again") from None
    notes = [f"Left out is {entry.folder}: {entry.why}" for entry in content.left_out]
    jobs, runs = content.jobs, content.runs
    return Compared(
        experiment=content.experiment,
        methods=_methods(folder, runs, notes),
        runs=runs,
        rows=content.table,
        differences=content.differences,
        courses=_courses(folder, runs, notes),
        shared=None if jobs is None else f"{jobs.trained:,} of {jobs.asked:,} ({100 * jobs.share:.0f} %)",
        notes=tuple(notes),
    )


def _methods(folder: Path, runs: tuple[Run, ...], notes: list[str]) -> dict[str, Mapping[str, Any]]:
    """The keys of each algorithm, from the experiment of its first run that has one."""
    found: dict[str, Mapping[str, Any]] = {}
    for run in runs:
        try:
            settings = parse_toml(read_file(folder / run.folder / "experiment.toml", MOST_BYTES_OF_EXPERIMENT))
            keys = {key: value for key, value in settings["algorithm"].items() if key != "name"}
            found.setdefault(run.algorithm, keys)
        except (OSError, ValueError, KeyError, AttributeError, RecordError):
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
