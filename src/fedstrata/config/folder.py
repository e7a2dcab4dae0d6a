"""Where a run is recorded, and what a folder that exists already means."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import count, takewhile
from pathlib import Path

from fedstrata.config.reading import Source, load
from fedstrata.config.tables import Experiment
from fedstrata.errors import ExperimentError, RecordError
from fedstrata.files import MOST_BYTES_OF_EXPERIMENT, open_file, refuse_links
from fedstrata.folder_lock import NAME as LOCK
from fedstrata.quoting import dotted, shown
from fedstrata.records.schema import ENTRIES, flatten, may_differ


def choose(
    source: Source = None, sets: Sequence[str] = (), out: Path | str | None = None, *, resume: bool = False
) -> tuple[Experiment, Path]:
    """Say what is to be run, and where it is recorded; nothing is created.

    Args:
        source: as `load` takes it; to resume, None is the experiment of the folder.
        sets: as `load` takes them.
        out: the run folder; None is ``runs/<file>-<algorithm>-<seed>`` in the working directory, numbered from
            the second on.
        resume: continue the run in the folder; without `out`, the latest of the numbered ones.

    Raises:
        InputError: of `load`, or when the folder holds something (to start) or no such run (to resume).
    """
    if resume and out is not None and source is None:
        # Other keys than the folder's own are refused below, not silently changed in the middle of a run.
        source = recorded(Path(out))
    experiment = load(source, sets)
    name = f"{stem(source)}-{experiment.algorithm.name}-{experiment.seed}"
    folder = numbered(name, resume) if out is None else Path(out)
    if resume:
        return same(experiment, folder), folder
    vacant(folder)
    return experiment, folder


def stem(source: Source) -> str:
    """What runs of a source are called."""
    return Path(source).stem if isinstance(source, Path | str) else "default"


def numbered(name: str, resume: bool) -> Path:
    """A new folder in ``runs``, numbered from the second on; to resume, the latest that is there."""
    taken = takewhile(Path.exists, (Path("runs", name if i == 1 else f"{name}-{i}") for i in count(1)))
    existing = list(taken)
    if resume and existing:
        return existing[-1]
    return Path("runs", f"{name}-{len(existing) + 1}" if existing else name)


def vacant(folder: Path) -> None:
    """Refuse a folder that holds something, or that cannot be made.

    Raises:
        RecordError: for such a folder.
    """
    try:
        if folder.exists() and not (folder.is_dir() and {path.name for path in folder.iterdir()} <= {LOCK}):
            raise RecordError(
                f"{str(folder)!r}: expected a new or empty run folder, found something in its place; "
                "continue a run with --resume, or give another --out"
            )
        ground = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        reason = "" if ground.is_dir() and os.access(ground, os.W_OK) else f"{str(ground)!r} cannot hold it"
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        raise RecordError(f"{str(folder)!r}: expected a run folder that can be made: {reason}; give another --out")


def recorded(folder: Path) -> Path:
    """The experiment file of a run folder; whatever it holds can be read without waiting or filling the memory.

    Raises:
        RecordError: when there is none, or something in the folder is a link.
    """
    file = folder / "experiment.toml"
    try:
        refuse_links(folder, ENTRIES)
        with open_file(file, MOST_BYTES_OF_EXPERIMENT):
            return file
    except (OSError, ValueError):
        raise RecordError(
            f"{str(folder)!r}: expected a run folder, found no experiment.toml in it; start a run without --resume"
        ) from None


def same(given: Experiment, folder: Path) -> Experiment:
    """The experiment of a run folder, if it is the one that was given.

    Raises:
        RecordError: when it is no run folder.
        ExperimentError: when its experiment is another one.
    """
    own = load(recorded(folder))
    known = flatten(own.model_dump(exclude_none=True))
    for path, value in flatten(given.model_dump(exclude_none=True)).items():
        # A run writes down what "auto" turned out to be.
        left_open = (path[0] == "engine" and value == "auto") or may_differ(path)
        if not left_open and (path not in known or known[path] != value):
            found = shown(known[path]) if path in known else "nothing"
            raise ExperimentError(
                f"{dotted(path)} = {shown(value)}: expected {found}, as in {str(folder / 'experiment.toml')!r}; "
                "resume with the same experiment, or start a run without --resume"
            )
    workers = given.engine.workers or own.engine.workers
    engine = own.engine.model_copy(update={"workers": workers, "timeout": given.engine.timeout})
    data = own.data.model_copy(update={"root": given.data.root or own.data.root})
    return own.model_copy(update={"data": data, "engine": engine, "records": given.records})
