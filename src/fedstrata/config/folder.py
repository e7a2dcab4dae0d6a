"""What is to be run, and the folders in which runs and comparisons are recorded. Nothing is created here."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from fedstrata.algorithms import ALGORITHMS
from fedstrata.config.objects import algorithm_table
from fedstrata.config.reading import Source, load_experiment
from fedstrata.config.tables import Experiment
from fedstrata.errors import ExperimentError, RecordError
from fedstrata.files import MOST_BYTES_OF_EXPERIMENT, open_file, refuse_links
from fedstrata.folder_lock import LOCK_FILE
from fedstrata.key_errors import unknown
from fedstrata.limits import MAX_INTEGER, MAX_RUNS
from fedstrata.quoting import dotted, shown
from fedstrata.records.schema import RUN_FOLDER_ENTRIES, flatten_keys, may_differ


def choose(
    source: Source = None,
    sets: Sequence[str] = (),
    out: Path | str | None = None,
    *,
    resume: bool = False,
    tables: Mapping[str, Any] | None = None,
) -> tuple[Experiment, Path]:
    """Choose the experiment of a run and its folder.

    Args:
        source: The experiment, as `load_experiment` takes it. To resume, None is the experiment of the folder.
        sets: Changes, as `load_experiment` takes them.
        out: The run folder. None is ``runs/<file>-<algorithm>-<seed>`` in the working directory, numbered from the
            second on.
        resume: Whether to continue the run in the folder; without `out`, the latest of the numbered ones. With more
            `rounds`, a finished run is extended.
        tables: Tables that replace those of the source, as `load_experiment` takes them.

    Raises:
        InputError: When the experiment is wrong, or the folder holds something (to start) or no such run (to resume).
    """
    if resume and out is not None and source is None:
        # Other keys than the folder's own are refused below, not silently changed in the middle of a run.
        source = recorded(Path(out))
    experiment = load_experiment(source, sets, tables=tables)
    name = f"{_stem(source)}-{_file_name(experiment.algorithm.name)}-{experiment.seed}"
    folder = numbered(name, resume) if out is None else Path(out)
    if resume:
        return _begun(experiment, folder), folder
    vacant(folder)
    return experiment, folder


def _stem(source: Source) -> str:
    """Return the name with which the names of the run folders of a source begin."""
    return Path(source).stem if isinstance(source, Path | str) else "default"


def numbered(name: str, resume: bool) -> Path:
    """Return a new folder in ``runs``, numbered from the second on; to resume, the latest that exists."""
    taken = takewhile(Path.exists, (Path("runs", name if i == 1 else f"{name}-{i}") for i in count(1)))
    existing = list(taken)
    if resume and existing:
        return existing[-1]
    return Path("runs", f"{name}-{len(existing) + 1}" if existing else name)


def vacant(folder: Path) -> None:
    """Refuse a folder that holds something, or that cannot be made.

    Raises:
        RecordError: When it is such a folder.
    """
    try:
        if folder.exists() and not (folder.is_dir() and {path.name for path in folder.iterdir()} <= {LOCK_FILE}):
            raise RecordError(
                f"{str(folder)!r}: expected a new or empty run folder, found something in its place; "
                "continue a run with --resume, or give another --out"
            )
        nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        reason = "" if nearest.is_dir() and os.access(nearest, os.W_OK) else f"{str(nearest)!r} cannot hold it"
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        raise RecordError(f"{str(folder)!r}: expected a run folder that can be made: {reason}; give another --out")


def recorded(folder: Path) -> Path:
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


def _begun(given: Experiment, folder: Path) -> Experiment:
    """Return the experiment with which a run folder was begun, if it is the one that was given or has fewer rounds."""
    own = load_experiment(recorded(folder))
    if given.rounds < own.rounds:
        raise ExperimentError(
            f"rounds = {given.rounds}: expected at least {own.rounds}, as in {str(folder / 'experiment.toml')!r}; "
            "a run can be extended, not shortened"
        )
    known = flatten_keys(own.model_dump(exclude_none=True))
    for path, value in flatten_keys(given.model_dump(exclude_none=True)).items():
        # A run writes down what "auto" turned out to be.
        left_open = (path[0] == "engine" and value == "auto") or may_differ(path) or path == ("rounds",)
        if not left_open and (path not in known or known[path] != value):
            found = shown(known[path]) if path in known else "nothing"
            raise ExperimentError(
                f"{dotted(path)} = {shown(value)}: expected {found}, as in {str(folder / 'experiment.toml')!r}; "
                "resume with the same experiment, or start a run without --resume"
            )
    workers = given.engine.workers or own.engine.workers
    engine = own.engine.model_copy(update={"workers": workers, "timeout": given.engine.timeout})
    data = own.data.model_copy(update={"root": given.data.root or own.data.root})
    return own.model_copy(update={"rounds": given.rounds, "data": data, "engine": engine, "records": given.records})


def choose_all(
    source: Source,
    algorithms: Sequence[Any],
    seeds: Sequence[int] | None = None,
    sets: Sequence[str] = (),
    out: Path | str | None = None,
    *,
    resume: bool = False,
) -> tuple[tuple[Experiment, ...], Path]:
    """Choose the experiments of a comparison and its folder.

    Args:
        source: The experiment, as `load_experiment` takes it. An algorithm has the keys of
            ``[algorithms.<name>]``; the one of ``[algorithm]`` has those as well.
        algorithms: The names of registered algorithms, ``"package.module:Class"``, or objects of algorithms.
        seeds: The seeds that each algorithm is run with; None is the seed of the experiment.
        sets: Changes, as `load_experiment` takes them. Those of the table ``algorithm`` are for the algorithm that it
            names.
        out: The folder of the comparison; None is ``runs/<file>-compare``, numbered from the second on.
        resume: Whether to go on with the comparison in the folder. Runs that it does not hold yet are added.

    Returns:
        An experiment for each seed and algorithm, all algorithms of the first seed first, and the folder.

    Raises:
        InputError: When the experiment, a name or a seed is wrong, or a name or seed is given twice. Also when the
            folder holds something (to start) or no run of the comparison (to resume).
    """
    base = load_experiment(source, sets)
    tables = [each if isinstance(each, str) else algorithm_table(each) for each in algorithms]
    names = [each if isinstance(each, str) else str(each["name"]) for each in tables]
    for name in names:
        if name not in ALGORITHMS and ":" not in name:
            raise ExperimentError(unknown("--algorithms", name, "algorithm", [*ALGORITHMS, "'package.module:Class'"]))
    wrong = [seed for seed in seeds or () if not 0 <= seed <= MAX_INTEGER]
    if wrong:
        raise ExperimentError(f"--seeds = {shown(wrong[0])}: expected a number of at least 0 and at most {MAX_INTEGER}")
    runs = len(algorithms) * len(seeds or (base.seed,))
    if runs > MAX_RUNS:
        raise ExperimentError(f"--seeds: expected a comparison of at most {MAX_RUNS:,} runs, found {runs:,}; use fewer")
    _require_distinct("--algorithms", names)
    _require_distinct("--seeds", (base.seed,) if seeds is None else seeds)
    others = [text for text in sets if text.split("=")[0].split(".")[0].strip() != "algorithm"]
    experiments = [
        load_experiment(source, [*(sets if name == base.algorithm.name else others), f"algorithm.name={name}"])
        if isinstance(table, str)
        else load_experiment(source, others, tables={"algorithm": table})
        for name, table in zip(names, tables, strict=True)
    ]
    wanted = [each.model_copy(update={"seed": seed}) for seed in seeds or (base.seed,) for each in experiments]
    folder = numbered(f"{_stem(source)}-compare", resume) if out is None else Path(out)
    if not resume:
        vacant(folder)
        return tuple(wanted), folder
    return _resumed_comparison(wanted, folder), folder


def folder_of(comparison: Path, experiment: Experiment) -> Path:
    """Return the run folder of an experiment in the folder of a comparison."""
    return comparison / f"{_file_name(experiment.algorithm.name)}-{experiment.seed}"


def _file_name(algorithm: str) -> str:
    """Write the name of an algorithm so that every file system takes it: ``mine:Mine`` becomes ``mine_Mine``."""
    return re.sub(r"[^\w.-]", "_", algorithm)


def _require_distinct(key: str, values: Iterable[object]) -> None:
    """Refuse an option without values, or with a value given twice."""
    times = Counter(values)
    twice = [value for value, count in times.items() if count > 1]
    if twice or not times:
        found = f"{twice[0]} more than once" if twice else "nothing"
        raise ExperimentError(f"{key}: expected names or numbers between commas, each once, found {found}")


def _resumed_comparison(wanted: Sequence[Experiment], folder: Path) -> tuple[Experiment, ...]:
    """Return the experiments as they were begun; those that were not compute as the others do."""
    begun = {
        place: _begun(experiment, folder_of(folder, experiment))
        for place, experiment in enumerate(wanted)
        if (folder_of(folder, experiment) / "experiment.toml").is_file()
    }
    if not begun:
        raise RecordError(
            f"{str(folder)!r}: expected a comparison, found none of its runs in it; start one without --resume"
        )
    engine = {"engine": next(iter(begun.values())).engine}
    return tuple(begun.get(place, experiment.model_copy(update=engine)) for place, experiment in enumerate(wanted))
