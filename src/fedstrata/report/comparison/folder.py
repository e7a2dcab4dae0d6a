"""Read the folder of a comparison: ``comparison.json``, and the rounds and keys of its runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from fedstrata.base.errors import RecordError
from fedstrata.base.files import MOST_BYTES_OF_EXPERIMENT, parse_json, parse_toml, read_file, refuse_links
from fedstrata.records.schema import Round
from fedstrata.report.comparison.schema import Document, RunEntry
from fedstrata.report.reader import read_rounds
from fedstrata.report.references import has_personal_models

_FILE = "comparison.json"


_MAX_BYTES = 256 * 2**20
"""A larger ``comparison.json`` is not read."""


RunRounds = tuple[Round, ...]
"""The rounds of one run."""


class ComparisonFolder(NamedTuple):
    """What the folder of a comparison and those of its runs hold.

    Attributes:
        document: The content of ``comparison.json``.
        algorithms: The keys of each algorithm, as far as they are known.
        runs: The rounds of the finished runs of each algorithm, as far as they can be read.
        notes: What was left out and why, in sentences.
    """

    document: Document
    algorithms: Mapping[str, Mapping[str, Any]]
    runs: Mapping[str, Sequence[RunRounds]]
    notes: tuple[str, ...]


def read_comparison(folder: Path) -> ComparisonFolder:
    """Read what the page needs from the folder of a comparison and from those of its runs.

    A run whose rounds or keys cannot be read is left out of the charts, and noted.

    Raises:
        RecordError: When the folder holds no ``comparison.json``, or one of another version.
    """
    document = read_document(folder)
    notes = [f"{entry.folder} is left out: {entry.why}" for entry in document.left_out]
    algorithms = _read_algorithms(folder, document, notes)
    runs = _read_runs(folder, document.runs, notes)
    return ComparisonFolder(document, algorithms, runs, tuple(notes))


def read_document(folder: Path) -> Document:
    """Read ``comparison.json`` in the folder of a comparison.

    Raises:
        RecordError: When there is none, or one of another version.
    """
    path = folder / _FILE
    damaged = f"{path} is damaged or of another version"
    try:
        refuse_links(folder, [_FILE])
        raw = read_file(path, _MAX_BYTES)
        parse_json(raw)  # refuses what no JSON reader accepts, such as infinity
        return Document.model_validate_json(raw)
    except FileNotFoundError:
        raise RecordError(f"{folder} holds no {_FILE}; name the folder of a finished `fedstrata compare`") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise RecordError(f"{damaged} ({place}: {first['msg'].lower()}); compare the runs again") from None
    except ValueError as error:
        raise RecordError(f"{damaged} ({error}); compare the runs again") from None


def _read_algorithms(folder: Path, document: Document, notes: list[str]) -> dict[str, Mapping[str, Any]]:
    """Return the table of each algorithm, from the experiment of its first run that can be read.

    It has the algorithm's own name where its runs are called otherwise, and personal models that not all runs have.
    """
    found: dict[str, Mapping[str, Any]] = {}
    runs = document.runs
    for run in runs:
        try:
            settings = parse_toml(read_file(folder / run.folder / "experiment.toml", MOST_BYTES_OF_EXPERIMENT))
            keys = dict(settings["algorithm"])
            if "personal" not in document.experiment and has_personal_models(settings):
                keys["personal"] = settings["personal"]
            elif keys.get("name") == run.algorithm:
                del keys["name"]
            found.setdefault(run.algorithm, keys)
        except (OSError, ValueError, KeyError, AttributeError, RecordError):
            continue
    for name in dict.fromkeys(run.algorithm for run in runs if run.algorithm not in found):
        notes.append(f"No experiment.toml of {name} can be read, so this page is without its keys.")
    return found


def _read_runs(folder: Path, runs: Sequence[RunEntry], notes: list[str]) -> dict[str, list[RunRounds]]:
    """Return the rounds of the finished runs, by algorithm."""
    found: dict[str, list[RunRounds]] = {}
    for run in runs:
        if run.summary is None:
            continue
        place = folder / run.folder
        name = f"{run.algorithm} with seed {run.seed}"
        own_notes: list[str] = []
        try:
            rounds = read_rounds(place, own_notes)
            if [each.round for each in rounds] != list(range(1, len(rounds) + 1)):
                raise RecordError(f"{place / 'rounds.jsonl'} lacks a round; restore it or run again")
        except RecordError as error:
            # The page is the same, however the folder was named.
            notes.append(f"The charts are without {name}: {str(error).replace(str(place), run.folder)}")
            continue
        notes += [f"{name}: {note}" for note in own_notes]
        found.setdefault(run.algorithm, []).append(rounds)
    return found
