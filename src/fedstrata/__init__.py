"""Find which federated clients belong together, and train one model per group.

import fedstrata as fs

run = fs.run("experiment.toml", out="runs/a")
print(run.summary["ari"], run.folder / "report.html")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedstrata.base.errors import FedstrataError, InputError

if TYPE_CHECKING:
    from torch import nn

    from fedstrata.algorithms import ALGORITHMS as ALGORITHMS
    from fedstrata.algorithms.strata import Strata as Strata
    from fedstrata.comparison import Comparison as Comparison
    from fedstrata.core import Algorithm
    from fedstrata.data import DATASETS as DATASETS
    from fedstrata.data.memory import Clients
    from fedstrata.models import MODELS as MODELS
    from fedstrata.objective.metric_info import describe_metric as describe_metric
    from fedstrata.partition import PARTITIONS as PARTITIONS
    from fedstrata.personal import PERSONAL as PERSONAL
    from fedstrata.play.run import Step as Step
    from fedstrata.results.assign import assign as assign
    from fedstrata.results.export import export as export
    from fedstrata.results.plot import plot as plot
    from fedstrata.results.run import Run as Run

    __version__: str

_HOMES = {
    "ALGORITHMS": "fedstrata.algorithms",
    "Comparison": "fedstrata.comparison",
    "DATASETS": "fedstrata.data",
    "MODELS": "fedstrata.models",
    "PARTITIONS": "fedstrata.partition",
    "PERSONAL": "fedstrata.personal",
    "Run": "fedstrata.results.run",
    "Step": "fedstrata.play.run",
    "Strata": "fedstrata.algorithms.strata",
    "assign": "fedstrata.results.assign",
    "describe_metric": "fedstrata.objective.metric_info",
    "export": "fedstrata.results.export",
    "plot": "fedstrata.results.plot",
}
"""Public names that are imported at their first use, so that ``import fedstrata`` costs nothing."""

__all__ = [*_HOMES, "FedstrataError", "InputError", "__version__", "compare", "iterate", "load", "run", "sweep"]


def run(
    source: Path | str | Mapping[str, Any] | None = None,
    out: Path | str | None = None,
    *,
    clients: Clients | None = None,
    algorithm: str | Algorithm[Any] | type[Algorithm[Any]] | None = None,
    model: str | Callable[..., nn.Module] | nn.Module | None = None,
    loss: str | Callable[..., Any] | None = None,
    metric: str | Callable[..., Any] | None = None,
    transform: str | Callable[..., Any] | None = None,
    rounds: int | None = None,
    sets: Sequence[str] = (),
    resume: bool = False,
    quiet: bool = False,
) -> Run:
    """Run an experiment and write its report.

    Args:
        source: An experiment file, a dict of the same keys, or None for the experiment that the library carries. When
            a run is resumed, None is the experiment of the folder `out`. In a dict, ``algorithm``, ``model`` and the
            ``loss``, ``metric`` and ``transform`` of ``local`` may be what the arguments of these names take.
        out: The run folder; by default a new one in ``runs``.
        clients: The data of each client, by its name or in a list: training data, or a pair of training and test data.
            Each is a pair (x, y) of arrays or tensors, a mapping of such arrays and further columns, a torch data set
            of pairs, or a table such as a data frame. They take the place of ``data.name``; the other keys have their
            defaults where the source is None.
        algorithm: The name of an algorithm, ``"package.module:Class"``, or an object of an algorithm, such as
            ``Strata(alpha=0.1)`` or one of your own class. It replaces the table ``algorithm`` of the source.
        model: The name of a network, ``"package.module:factory"``, a function or class that makes one from (shape,
            classes) or from nothing, or a network, whose weights are those to begin with. It replaces the table
            ``model``.
        loss: The name of a loss, ``"package.module:function"``, or a function from outputs and targets to the mean loss
            of a batch. It replaces ``local.loss``.
        metric: The name of a metric, ``"package.module:function"``, or a function from outputs and targets of one
            client to a number, which `describe_metric` may describe. It replaces ``local.metric``.
        transform: The name of a transform, ``"package.module:function"``, or a function from the inputs of a batch to
            what is trained on, of the same shape. It replaces ``local.transform``.
        rounds: The number of rounds, in place of that of the source.
        sets: Changes of the source, as ``"dotted.key=value"``.
        resume: Whether to go on with the run in the folder.
        quiet: Whether to show no progress.

    Raises:
        InputError: When something in the experiment is wrong; nothing has been created then.
        MachineError: When the machine failed, such as a full disk, or workers that do not answer. Its `folder` can be
            resumed once the cause is gone; it is None when no run was begun.
        KeyboardInterrupt: After Ctrl-C, when the round is over. The message says how to go on.
    """
    from fedstrata.base.resources import resource_errors
    from fedstrata.config import choose

    tables = {"algorithm": algorithm, "model": model, "rounds": rounds}
    objective = {"loss": loss, "metric": metric, "transform": transform}
    source, sets = _with_clients(source, sets, clients, resume=resume)
    experiment, folder = choose(source, sets, out, resume=resume, tables=tables, objective=objective)
    with resource_errors(folder):
        from fedstrata import report
        from fedstrata.play.run import run_experiment

        return run_experiment(experiment, folder, resume=resume, quiet=quiet, finished=report.build)


def iterate(
    source: Path | str | Mapping[str, Any] | None = None,
    out: Path | str | None = None,
    *,
    clients: Clients | None = None,
    algorithm: str | Algorithm[Any] | type[Algorithm[Any]] | None = None,
    model: str | Callable[..., nn.Module] | nn.Module | None = None,
    loss: str | Callable[..., Any] | None = None,
    metric: str | Callable[..., Any] | None = None,
    transform: str | Callable[..., Any] | None = None,
    rounds: int | None = None,
    sets: Sequence[str] = (),
    resume: bool = False,
    quiet: bool = False,
) -> Iterator[Step]:
    """Run an experiment round by round: yield each round when its models are scored.

    It is the run that `run` makes, bit for bit. The last step has the finished run, whose report is written then.
    Whoever leaves the loop before leaves a run that can be resumed. The models of a round are scored when the clients
    of the next round are asked, so that the next round is over, too, when a round is yielded.

    Args:
        source: The experiment, as in `run`, and so are the other arguments.
        out: The run folder; by default a new one in ``runs``.
        clients: The data of each client.
        algorithm: The algorithm.
        model: The network.
        loss: The loss.
        metric: The metric.
        transform: The transform.
        rounds: The number of rounds.
        sets: Changes of the source.
        resume: Whether to go on with the run in the folder. Rounds of before are not yielded again.
        quiet: Whether to show no warnings. Progress is not shown.

    Raises:
        InputError: When something in the experiment is wrong; nothing has been created then. What needs the data is
            checked when the first step is asked for.
        MachineError: When the machine failed, as in `run`.
    """
    from fedstrata.config import choose

    tables = {"algorithm": algorithm, "model": model, "rounds": rounds}
    objective = {"loss": loss, "metric": metric, "transform": transform}
    source, sets = _with_clients(source, sets, clients, resume=resume)
    experiment, folder = choose(source, sets, out, resume=resume, tables=tables, objective=objective)

    def steps() -> Iterator[Step]:
        from fedstrata.base.resources import resource_errors

        with resource_errors(folder):
            from fedstrata import report
            from fedstrata.play.run import iterate_experiment

            yield from iterate_experiment(experiment, folder, resume=resume, quiet=quiet, finished=report.build)

    return steps()


def compare(
    source: Path | str | Mapping[str, Any] | None,
    algorithms: str | Algorithm[Any] | type[Algorithm[Any]] | Sequence[str | Algorithm[Any] | type[Algorithm[Any]]],
    seeds: Sequence[int] | None = None,
    out: Path | str | None = None,
    *,
    clients: Clients | None = None,
    sets: Sequence[str] = (),
    resume: bool = False,
    quiet: bool = False,
) -> Comparison:
    """Run several algorithms side by side, do equal local work once, and put the results into one table.

    Args:
        source: The experiment, as in `run`. Its table ``[algorithms.<name>]`` holds the keys of one of the algorithms.
        algorithms: Names of ``ALGORITHMS``, ``"package.module:Class"``, or objects of algorithms, as in `run`. A
            single one need not be in a list.
        seeds: The seeds with which each algorithm is run; None is the seed of the experiment, or with ``data.folds``
            those of all folds and repeats.
        out: The folder of the comparison, with a folder for every run; by default a new one in ``runs``.
        clients: The data of each client, as in `run`.
        sets: Changes of the source, as in `run`.
        resume: Whether to go on with the comparison in the folder.
        quiet: Whether to show no progress.

    Returns:
        The outcome of each run, also of those that failed, and the table.

    Raises:
        InputError: When something in the experiment is wrong; nothing has been created then.
        MachineError: When the machine failed outside of a single run, as in `run`. A run that fails does not lose the
            others; its outcome says why it failed.
        KeyboardInterrupt: After Ctrl-C, when the round is over. The message says how to go on.
    """
    from fedstrata.base.resources import resource_errors
    from fedstrata.config import choose_all

    source, sets = _with_clients(source, sets, clients, resume=False)
    experiments, folder = choose_all(source, algorithms, seeds, sets, out, resume=resume)
    with resource_errors(folder, "*/experiment.toml"):
        from fedstrata import comparison

        compared = comparison.compare_experiments(experiments, folder, resume=resume, quiet=quiet)
        _build_pages(compared)
    return compared


def sweep(
    source: Path | str | Mapping[str, Any] | None,
    grid: Mapping[str, Sequence[Any]],
    seeds: Sequence[int] | None = None,
    out: Path | str | None = None,
    *,
    clients: Clients | None = None,
    sets: Sequence[str] = (),
    resume: bool = False,
    quiet: bool = False,
) -> Comparison:
    """Run an experiment with every combination of some values, and choose the best on validation data.

    All settings have the same clients and share equal local work, as in `compare`.

    Args:
        source: The experiment, as in `run`.
        grid: The values of each key, such as ``{"local.lr": [0.01, 0.05], "algorithm.k": [2, 4]}``. Keys of algorithm,
            personal, local, server, cohort and model can be varied, and inputs, normalise, public and size of data.
        seeds: The seeds with which each setting is run; None is the seed of the experiment, or with ``data.folds``
            those of all folds and repeats.
        out: The folder of the sweep, with a folder for every run; by default a new one in ``runs``.
        clients: The data of each client, as in `run`.
        sets: Changes for all settings, as in `run`.
        resume: Whether to go on with the sweep in the folder.
        quiet: Whether to show no progress.

    Returns:
        A comparison whose rows are the settings, with the `Comparison.choice` of one of them.

    Raises:
        InputError: When something in the experiment or the grid is wrong; nothing has been created then.
        MachineError: When the machine failed outside of a single run, as in `run`.
        KeyboardInterrupt: After Ctrl-C, when the round is over. The message says how to go on.
    """
    from fedstrata.base.resources import resource_errors
    from fedstrata.config import choose_sweep

    source, sets = _with_clients(source, sets, clients, resume=False)
    plan = choose_sweep(source, grid, seeds, sets, out, resume=resume)
    with resource_errors(plan.folder, "*/experiment.toml"):
        from fedstrata import comparison

        swept = comparison.sweep_experiments(plan, resume=resume, quiet=quiet)
        _build_pages(swept)
    return swept


def load(folder: Path | str, network: Callable[..., nn.Module] | nn.Module | None = None) -> Any:
    """Return a finished run, comparison or sweep from its folder.

    Args:
        folder: The folder of a run, or of a comparison or sweep.
        network: Of a run: a function or class that makes the network from (shape, classes) or from nothing, or a
            network, as `run` takes it. None is the network that the experiment names.

    Returns:
        A `Run`, or a `Comparison`.

    Raises:
        RecordError: When it is no such folder, or something in it is damaged.
    """
    if (Path(folder) / "comparison.json").is_file():
        from fedstrata.comparison import load_comparison

        return load_comparison(folder)
    from fedstrata.results.run import load

    return load(folder, network)


def _build_pages(compared: Comparison) -> None:
    """Build the page of every finished run of a comparison."""
    from fedstrata import report
    from fedstrata.base.resources import resource_errors

    for run in compared.runs:
        if run.summary is not None:
            with resource_errors(run.folder):
                report.build(run.folder)


def _with_clients(
    source: Path | str | Mapping[str, Any] | None, sets: Sequence[str], clients: Clients | None, *, resume: bool
) -> tuple[Path | str | Mapping[str, Any] | None, Sequence[str]]:
    """Return the source and the changes of an experiment whose data a program gives as objects."""
    if clients is None:
        return source, sets
    from fedstrata.data.memory import keep

    # The experiment that the library carries is about other data.
    given = {} if source is None and not resume else source
    return given, [f'data.name="{keep(clients)}"', *sets]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name == "__version__":
        from importlib.metadata import version

        return version("fedstrata")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
