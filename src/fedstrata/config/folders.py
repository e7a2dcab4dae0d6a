"""The folders in which runs and comparisons are recorded: their names, and what is in them. Nothing is created here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from itertools import count, takewhile
from pathlib import Path

from fedstrata.base.errors import RecordError
from fedstrata.base.files import MOST_BYTES_OF_EXPERIMENT, open_file, refuse_links
from fedstrata.base.folder_lock import LOCK_FILE
from fedstrata.config.tables import Experiment
from fedstrata.records.schema import RUN_FOLDER_ENTRIES


def next_run_folder(name: str, resume: bool) -> Path:
    """Return a new folder in ``runs``, numbered from the second on; to resume, the latest that exists."""
    taken = takewhile(Path.exists, (Path("runs", name if i == 1 else f"{name}-{i}") for i in count(1)))
    existing = list(taken)
    if resume and existing:
        return existing[-1]
    return Path("runs", f"{name}-{len(existing) + 1}" if existing else name)


def require_new_folder(
    folder: Path,
    kind: str = "run folder",
    remedy_if_taken: str = "continue a run with --resume, or give another --out",
    remedy: str = "give another --out",
) -> None:
    """Refuse a folder that holds something, or that cannot be made.

    Args:
        folder: The folder.
        kind: What it is called in the message.
        remedy_if_taken: What to do if it holds something.
        remedy: What to do if it cannot be made.

    Raises:
        RecordError: When it is such a folder.
    """
    try:
        if folder.exists() and not (folder.is_dir() and {path.name for path in folder.iterdir()} <= {LOCK_FILE}):
            raise RecordError(
                f"{str(folder)!r}: expected a new or empty {kind}, found something in its place; {remedy_if_taken}"
            )
        nearest = nearest_existing(folder)
        reason = "" if nearest.is_dir() and os.access(nearest, os.W_OK) else f"{str(nearest)!r} cannot hold it"
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        raise RecordError(f"{str(folder)!r}: expected a {kind} that can be made: {reason}; {remedy}")


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
            f"{str(folder)!r}: expected a run folder, found no experiment.toml in it; start a run without --resume"
        ) from None


def folder_of(comparison: Path, experiment: Experiment) -> Path:
    """Return the run folder of an experiment in the folder of a comparison."""
    return comparison / f"{file_name(experiment.title)}-{experiment.seed}"


def titles_of_one_folder(experiments: Iterable[Experiment]) -> tuple[str, str] | None:
    """Return what the first two different experiments are called whose runs would have one folder; None for none."""
    titles: dict[Path, str] = {}
    for each in experiments:
        folder = folder_of(Path(), each)
        if folder in titles:
            return titles[folder], each.title
        titles[folder] = each.title
    return None


def file_name(title: str) -> str:
    """Write what a run is called so that every file system takes it: ``mine:Mine k=2`` becomes ``mine_Mine_k=2``."""
    return re.sub(r"[^\w.=-]", "_", title)
