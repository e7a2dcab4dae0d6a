"""What is to be run, and where: the experiment of a run or those of a comparison, and its folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import index
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedstrata.base.errors import ExperimentError
from fedstrata.base.limits import MAX_RUNS, MAX_SEED
from fedstrata.base.quoting import shown
from fedstrata.config.folders import (
    begun_experiment,
    begun_experiments,
    experiment_file_of,
    file_name,
    folder_of,
    next_run_folder,
    require_new_folder,
)
from fedstrata.config.hyperparameters import NO_METHOD, algorithm_table, objective_sets
from fedstrata.config.reading import Source, load_experiment
from fedstrata.config.tables import AlgorithmTable, EngineTable, Experiment, ProbeTable, RecordsTable, ReportTable

BASELINE_ALGORITHM = "fedavg"
"""The algorithm of the baseline."""


def baseline_of(experiment: Experiment, engine: EngineTable) -> Experiment | None:
    """The experiment of the baseline of a run; None where none is asked for, or the run is one of FedAvg itself.

    Args:
        experiment: The experiment of the run.
        engine: Its engine, with the choice that "auto" led to.
    """
    if not experiment.report.baseline or experiment.algorithm.name == BASELINE_ALGORITHM:
        return None
    changes = {
        "algorithm": AlgorithmTable(name=BASELINE_ALGORITHM),
        "algorithms": {},
        "label": None,
        "engine": engine,
        "probe": ProbeTable(),
        "records": RecordsTable(),
        "report": ReportTable(),
    }
    return experiment.model_copy(update=changes)


_NOTHING: Mapping[str, Any] = MappingProxyType({})

PERSONAL_METHOD = "personal.method"
"""The key of the personal method."""


def choose(
    source: Source = None,
    sets: Sequence[str] = (),
    out: Path | str | None = None,
    *,
    resume: bool = False,
    tables: Mapping[str, Any] = _NOTHING,
    objective: Mapping[str, Any] = _NOTHING,
    find_data: bool = True,
) -> tuple[Experiment, Path]:
    """Choose the experiment of a run and its folder.

    Args:
        source: The experiment, as `load_experiment` takes it. To resume, None is the experiment of the folder.
        sets: Changes, as `load_experiment` takes them.
        out: The run folder. None is ``runs/<file>-<algorithm>-<seed>`` in the working directory, numbered from the
            second on.
        resume: Whether to continue the run in the folder; without `out`, the latest of the numbered ones. With more
            `rounds`, a finished run is extended.
        tables: Tables that replace those of the source, as `load_experiment` takes them. None replaces nothing.
        objective: The names of the loss, the metric and the transform, or the functions themselves, by their keys in
            ``[local]``. None changes nothing.
        find_data: Whether data that cannot be found are an error. A server whose clients have the data needs none.

    Raises:
        InputError: When the experiment is wrong, or the folder holds something (to start) or no such run (to resume).
    """
    if resume and out is not None and source is None:
        # Other keys than the folder's own are refused below, not silently changed in the middle of a run.
        source = experiment_file_of(Path(out))
    given = {name: table for name, table in tables.items() if table is not None}
    experiment = load_experiment(source, [*objective_sets(objective), *sets], tables=given, find_data=find_data)
    name = f"{_stem(source)}-{file_name(experiment.algorithm.name)}-{experiment.seed}"
    folder = next_run_folder(name, resume) if out is None else Path(out)
    if resume:
        return begun_experiment(experiment, folder), folder
    require_new_folder(folder)
    return experiment, folder


def _stem(source: Source) -> str:
    """Return the name with which the names of the run folders of a source begin."""
    return Path(source).stem if isinstance(source, Path | str) else "default"


def choose_all(
    source: Source,
    algorithms: Any,
    seeds: Iterable[int] | None = None,
    sets: Sequence[str] = (),
    out: Path | str | None = None,
    *,
    resume: bool = False,
) -> tuple[tuple[Experiment, ...], Path]:
    """Choose the experiments of a comparison and its folder.

    Args:
        source: The experiment, as `load_experiment` takes it. An algorithm has the keys of
            ``[algorithms.<name>]``; the one of ``[algorithm]`` has those as well.
        algorithms: The names of registered algorithms, ``"package.module:Class"``, names of tables in ``[algorithms]``
            that have a ``name``, or objects of algorithms; a single one need not be in a list. With
            ``report.baseline`` FedAvg is added to them.
        seeds: The seeds that each algorithm is run with; None is `Experiment.default_seeds`.
        sets: Changes, as `load_experiment` takes them. Those of the table ``algorithm`` are for the algorithm that it
            names.
        out: The folder of the comparison; None is ``runs/<file>-compare``, numbered from the second on.
        resume: Whether to go on with the comparison in the folder. Runs that it does not hold yet are added.

    Returns:
        An experiment for each seed and algorithm, all algorithms of the first seed first, and the folder.

    Raises:
        InputError: When the experiment, a name or a seed is wrong, or a name is given twice. Also when the folder holds
            something (to start) or no run of the comparison (to resume).
    """
    base = load_experiment(source, sets)
    alone = isinstance(algorithms, str | Mapping) or not isinstance(algorithms, Iterable)
    entries = _entries([algorithms] if alone else list(algorithms), base)
    names = [tables["algorithm"]["name"] for _, tables in entries]
    if entries and base.report.baseline and BASELINE_ALGORITHM not in names:
        entries += _entries([BASELINE_ALGORITHM], base)
    labels = [label for label, _ in entries]
    chosen = check_seeds(seeds, base, len(entries))
    others = [text for text in sets if text.split("=")[0].split(".")[0].strip() != "algorithm"]
    if len(others) < len(sets) and base.algorithm.name not in labels:
        unused = next(text for text in sets if text not in others)
        raise ExperimentError(
            f"--set {unused}: expected {base.algorithm.name}, whose key it is, among the algorithms that are compared; "
            "compare it too, or write algorithms.<name>.<key> for another algorithm"
        )
    experiments = [load_experiment(source, others, tables=tables) for _, tables in entries]
    names = labels_of([{"name": each.algorithm.name, **_method_of(each)} for each in experiments])
    experiments = [
        each if each.label or name == each.algorithm.name else each.model_copy(update={"label": name})
        for each, name in zip(experiments, names, strict=True)
    ]
    return comparison_folder(experiments, chosen, source, "compare", out, resume=resume)


def check_seeds(seeds: Iterable[int] | None, base: Experiment, settings: int) -> Sequence[int]:
    """Return the seeds of a comparison or a sweep.

    Args:
        seeds: The seeds that were given; None is `Experiment.default_seeds`.
        base: The experiment.
        settings: The number of algorithms, or of settings, that each of them is for.

    Raises:
        ExperimentError: When they are no list of whole numbers, one of them is out of range, or there would be no run
            or too many.
    """
    try:
        chosen = base.default_seeds if seeds is None else list(dict.fromkeys(map(index, seeds)))
    except TypeError:
        raise ExperimentError(
            f"--seeds = {shown(seeds)}: expected a list of whole numbers, such as [0, 1, 2]"
        ) from None
    wrong = [seed for seed in chosen if not 0 <= seed <= MAX_SEED]
    if wrong:
        raise ExperimentError(f"--seeds = {shown(wrong[0])}: expected a number of at least 0 and at most {MAX_SEED}")
    runs = settings * len(chosen)
    if not 1 <= runs <= MAX_RUNS:
        raise ExperimentError(f"--algorithms, --seeds, --grid: expected 1 to {MAX_RUNS:,} runs, found {runs:,}")
    return chosen


def comparison_folder(
    experiments: Sequence[Experiment],
    seeds: Sequence[int],
    source: Source,
    kind: str,
    out: Path | str | None,
    *,
    resume: bool,
) -> tuple[tuple[Experiment, ...], Path]:
    """Return the experiments of a comparison or a sweep, as they were begun where they were, and its folder.

    Args:
        experiments: The experiments of one seed.
        seeds: The seeds.
        source: What the experiments were read from.
        kind: The end of the name of a new folder.
        out: The folder; None is ``runs/<file>-<kind>``, numbered from the second on.
        resume: Whether to go on with the comparison in the folder.

    Raises:
        ExperimentError: When two runs would have one folder.
        RecordError: When the folder holds something (to start) or no run of the comparison (to resume).
    """
    titles = dict[Path, str]()
    for each in experiments:
        place = folder_of(Path(), each)
        if place in titles:
            raise ExperimentError(
                "--algorithms, --grid: expected names or values whose letters and digits differ, found "
                f"{shown(titles[place])} and {shown(each.title)}, which would have one folder; rename or leave out one "
                "of them, and set no label"
            )
        titles[place] = each.title
    wanted = [each.model_copy(update={"seed": seed}) for seed in seeds for each in experiments]
    folder = next_run_folder(f"{_stem(source)}-{kind}", resume) if out is None else Path(out)
    if not resume:
        require_new_folder(folder)
        return tuple(wanted), folder
    return begun_experiments(wanted, folder), folder


def _entries(algorithms: Sequence[Any], base: Experiment) -> list[tuple[str, dict[str, Any]]]:
    """Tell apart what takes part: names, tables of the experiment that have a name of their own, and objects.

    Returns:
        What the runs of each are called, and the tables that replace those of the source.
    """
    objects = [algorithm_table(each) for each in algorithms if not isinstance(each, str)]
    labelled = iter(zip(labels_of(objects), objects, strict=True))
    entries = []
    for each in algorithms:
        if not isinstance(each, str):
            entries.append(_labelled(*next(labelled)))
        elif "name" in base.algorithms.get(each, {}):
            entries.append(_labelled(each, base.algorithms[each]))
        else:
            options = base.algorithm.options if each == base.algorithm.name else {}
            entries.append((each, {"algorithm": {"name": each, **options}}))
    return entries


def _labelled(label: str, table: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    own = dict(table)
    personal = {"personal": own.pop("personal")} if "personal" in own else {}
    named = {} if label == table["name"] else {"label": label}
    return label, {"algorithm": own, **personal, **named}


def labels_of(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of algorithms, each with the keys in which it differs from others of its name.

    A personal method is named where it differs from that of any other algorithm: FedAvg whose clients make personal
    models is not the one model for all that others are compared with.

    Args:
        tables: The table of each algorithm, with its name and its keys; no personal method is no key.
    """
    labels = []
    for own in tables:
        alike = [other for other in tables if other["name"] == own["name"]]
        differing = [
            key
            for key, value in own.items()
            if any(other.get(key) != value for other in (tables if key == PERSONAL_METHOD else alike))
        ]
        labels.append(" ".join([own["name"], *(f"{key}={own[key]}" for key in differing)]))
    return labels


def _method_of(experiment: Experiment) -> dict[str, str]:
    """Return the personal method of an experiment as a key; nothing where there is none."""
    method = experiment.personal.method
    return {} if method == NO_METHOD else {PERSONAL_METHOD: method}
