"""The folders in which runs and comparisons are recorded: their names, and the experiments that go on in them.

Nothing is created here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import count, takewhile
from pathlib import Path

from fedstrata.base.errors import RecordError
from fedstrata.base.files import LOCK_FILE, MOST_BYTES_OF_EXPERIMENT, open_file, refuse_links
from fedstrata.config.reading import load_experiment, plain_keys
from fedstrata.config.tables import EngineTable, Experiment
from fedstrata.data.column_roles import TRIAL_COLUMN
from fedstrata.records.schema import RUN_FOLDER_ENTRIES, refuse_other


def next_run_folder(name: str, resume: bool) -> Path:
    """Return a new folder in ``runs``, numbered from the second on; to resume, the latest that exists."""
    taken = takewhile(Path.exists, (Path("runs", name if i == 1 else f"{name}-{i}") for i in count(1)))
    existing = list(taken)
    if resume and existing:
        return existing[-1]
    return Path("runs", f"{name}-{len(existing) + 1}" if existing else name)


def require_new_folder(folder: Path) -> None:
    """Refuse a folder that holds something, or that cannot be made.

    Raises:
        RecordError: When it is such a folder.
    """
    try:
        if folder.exists() and not (folder.is_dir() and {path.name for path in folder.iterdir()} <= {LOCK_FILE}):
            raise RecordError(
                f"{str(folder)!r}: expected a new or empty folder, found something in its place; give another, or "
                "continue the run in it with --resume"
            )
        nearest = nearest_existing(folder)
        reason = "" if nearest.is_dir() and os.access(nearest, os.W_OK) else f"{str(nearest)!r} cannot hold it"
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        raise RecordError(f"{str(folder)!r}: expected a folder that can be made: {reason}; give another")


def nearest_existing(path: Path) -> Path:
    """Return a path if something is there, or else the nearest of the folders above it that exists."""
    return next(place for place in (path, *path.absolute().parents) if place.exists())


def experiment_file_of(folder: Path) -> Path:
    """Return the experiment file of a run folder. It can be read without waiting and without filling the memory.

    Raises:
        RecordError: When there is none, or something in the folder is a link.
    """
    file = folder / "experiment.toml"
    try:
        refuse_links(folder, RUN_FOLDER_ENTRIES)
        with open_file(file, MOST_BYTES_OF_EXPERIMENT):
            return file
    except (OSError, ValueError):
        raise RecordError(
            f"{str(folder)!r}: expected a run folder, found no experiment.toml in it; name that of a run, or start "
            "one without --resume"
        ) from None


def folder_of(comparison: Path, experiment: Experiment) -> Path:
    """Return the run folder of an experiment in the folder of a comparison."""
    return comparison / f"{file_name(experiment.title)}-{experiment.seed}"


def file_name(title: str) -> str:
    """Write what a run is called so that every file system takes it: ``mine:Mine k=2`` becomes ``mine_Mine_k=2``."""
    return re.sub(r"[^\w.=-]", "_", title)


def begun_experiment(given: Experiment, folder: Path) -> Experiment:
    """Return the experiment with which a run folder was begun, if it is the one that was given or has fewer rounds.

    Args:
        given: The experiment that was given.
        folder: The run folder.
    """
    # The data may have moved since; those of the experiment that is given were found.
    own = load_experiment(experiment_file_of(folder), find_data=False)
    before, now = plain_keys(own), plain_keys(given)
    # A run writes down what "auto" turned out to be, and the unit that recordings have of their own.
    now["engine"] |= {key: value for key, value in before["engine"].items() if now["engine"].get(key) == "auto"}
    if before["data"].get("unit") == TRIAL_COLUMN:
        now["data"].setdefault("unit", TRIAL_COLUMN)
    # How often a comparison is repeated changes none of its runs.
    now["data"]["repeats"] = before["data"]["repeats"]
    refuse_other(now, before, folder)
    name = own.engine.name if given.engine.name == "auto" else given.engine.name
    workers = given.engine.workers or own.engine.workers
    engine = own.engine.model_copy(update={"name": name, "workers": workers, "timeout": given.engine.timeout})
    wanted = given.data
    changes = {"root": wanted.root or own.data.root, "memory": wanted.memory, "repeats": wanted.repeats}
    data = own.data.model_copy(update=changes)
    free = {
        "label": given.label or own.label,
        "rounds": given.rounds,
        "records": given.records,
        "report": given.report,
    }
    return own.model_copy(update={**free, "data": data, "engine": engine})


def begun_experiments(wanted: Sequence[Experiment], folder: Path) -> tuple[Experiment, ...]:
    """Return the experiments of a comparison that goes on.

    A run that has begun keeps its recorded keys. One that has not has the engine of a begun run with the same network,
    which may be of another algorithm or seed.
    """
    begun = {
        place: begun_experiment(experiment, folder_of(folder, experiment))
        for place, experiment in enumerate(wanted)
        if (folder_of(folder, experiment) / "experiment.toml").is_file()
    }
    others = () if begun else sorted(folder.glob("*/experiment.toml"))
    known = [*begun.values(), *(load_experiment(path, find_data=False) for path in others)]
    if not known:
        raise RecordError(
            f"{str(folder)!r}: expected a comparison, found none of its runs in it; start one without --resume"
        )
    engines: dict[str, EngineTable] = {}
    for each in known:
        engines.setdefault(each.model.model_dump_json(), each.engine)
    return tuple(
        begun.get(place) or each.model_copy(update={"engine": engines.get(each.model.model_dump_json(), each.engine)})
        for place, each in enumerate(wanted)
    )
