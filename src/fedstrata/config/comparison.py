"""The runs that a comparison consists of, and where each is recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedstrata.algorithms import ALGORITHMS
from fedstrata.config.folder import numbered, same, stem, vacant
from fedstrata.config.reading import Source, load
from fedstrata.config.tables import Experiment
from fedstrata.errors import ExperimentError, RecordError
from fedstrata.key_errors import unknown
from fedstrata.limits import INTEGER, RUNS
from fedstrata.quoting import shown


def choose_all(
    source: Source,
    algorithms: Sequence[str],
    seeds: Sequence[int] | None = None,
    sets: Sequence[str] = (),
    out: Path | str | None = None,
    *,
    resume: bool = False,
) -> tuple[tuple[Experiment, ...], Path]:
    """Say which runs are to be compared, and where they are recorded; nothing is created.

    Args:
        source: as `load` takes it. An algorithm has the keys of ``[algorithms.<name>]``; the one of ``[algorithm]``
            has those as well.
        algorithms: names of registered ones.
        seeds: each algorithm is run with each of them; None is that of the experiment.
        sets: as `load` takes them; those of the table ``algorithm`` are for the algorithm that it names.
        out: folder of the comparison; None is ``runs/<file>-compare``, numbered from the second on.
        resume: go on with the comparison in the folder; runs that it does not hold yet are added.

    Returns:
        An experiment for each seed and algorithm, all algorithms of the first seed first; and the folder.

    Raises:
        InputError: of `load`, for a name or seed that is wrong or there twice, or when the folder holds something (to
            start) or no run of the comparison (to resume).
    """
    base = load(source, sets)
    for name in algorithms:
        if name not in ALGORITHMS:
            raise ExperimentError(unknown("--algorithms", name, "algorithm", ALGORITHMS))
    wrong = [seed for seed in seeds or () if not 0 <= seed <= INTEGER]
    if wrong:
        raise ExperimentError(f"--seeds = {shown(wrong[0])}: expected a number of at least 0 and at most {INTEGER}")
    runs = len(algorithms) * len(seeds or (base.seed,))
    if runs > RUNS:
        raise ExperimentError(f"--seeds: expected a comparison of at most {RUNS:,} runs, found {runs:,}; use fewer")
    _once("--algorithms", algorithms)
    _once("--seeds", (base.seed,) if seeds is None else seeds)
    others = [text for text in sets if text.split("=")[0].split(".")[0].strip() != "algorithm"]
    tables = [
        load(source, [*(sets if name == base.algorithm.name else others), f"algorithm.name={name}"])
        for name in algorithms
    ]
    wanted = [table.model_copy(update={"seed": seed}) for seed in seeds or (base.seed,) for table in tables]
    folder = numbered(f"{stem(source)}-compare", resume) if out is None else Path(out)
    if not resume:
        vacant(folder)
        return tuple(wanted), folder
    return _resumed(wanted, folder), folder


def folder_of(comparison: Path, experiment: Experiment) -> Path:
    """The run folder of an experiment in the folder of a comparison."""
    return comparison / f"{experiment.algorithm.name}-{experiment.seed}"


def _once(key: str, values: Iterable[object]) -> None:
    times = Counter(values)
    twice = [value for value, count in times.items() if count > 1]
    if twice or not times:
        found = f"{twice[0]} more than once" if twice else "nothing"
        raise ExperimentError(f"{key}: expected names or numbers between commas, each once, found {found}")


def _resumed(wanted: Sequence[Experiment], folder: Path) -> tuple[Experiment, ...]:
    """The experiments as they were begun; those that were not compute as the others do."""
    begun = {
        place: same(experiment, folder_of(folder, experiment))
        for place, experiment in enumerate(wanted)
        if (folder_of(folder, experiment) / "experiment.toml").is_file()
    }
    if not begun:
        raise RecordError(
            f"{str(folder)!r}: expected a comparison, found none of its runs in it; start one without --resume"
        )
    engine = {"engine": next(iter(begun.values())).engine}
    return tuple(begun.get(place, experiment.model_copy(update=engine)) for place, experiment in enumerate(wanted))
