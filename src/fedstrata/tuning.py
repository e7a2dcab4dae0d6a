"""An adapter for Optuna, which chooses the settings to try. This library has no optimiser of its own.

import optuna
from fedstrata.tuning import optuna_objective

def space(trial):
    return {"local.lr": trial.suggest_float("lr", 0.001, 0.5, log=True), "algorithm.k": trial.suggest_int("k", 2, 6)}

study = optuna.create_study(direction="maximize")
study.optimize(optuna_objective("experiment.toml", space, out="runs/tuning"), n_trials=20)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fedstrata.base.errors import ExperimentError
from fedstrata.config import Experiment, choose
from fedstrata.config.grid import sets_of
from fedstrata.config.reading import Source
from fedstrata.records.schema import VALIDATION_MEASURE


class Trial(Protocol):
    """What is used of a trial of Optuna."""

    number: int

    def report(self, value: float, step: int) -> None:
        """Note the value of a round."""

    def should_prune(self) -> bool:
        """Whether the trial is worse than others were in this round."""

    def set_user_attr(self, key: str, value: Any) -> None:
        """Keep something with the trial."""


def optuna_objective(
    source: Source,
    space: Callable[[Any], Mapping[str, Any]],
    *,
    out: Path | str,
    sets: Sequence[str] = (),
    quiet: bool = True,
) -> Callable[[Any], float]:
    """Return a function for ``study.optimize`` that runs an experiment with the settings of a trial.

    Its value is the mean of the clients' metric on validation data after the last round. The study's direction is
    "maximize", or "minimize" where smaller values of the metric are better, as for "mse". The value of each round is
    reported, so that pruners can stop a trial early.

    Args:
        source: The experiment, as `fedstrata.run` takes it. It must have validation data.
        space: A function that suggests the values of some keys for a trial, by their dotted names.
        out: The folder in which every trial has a run folder, ``trial-<number>``. The attribute ``folder`` of the trial
            names it.
        sets: Changes of the experiment for all trials.
        quiet: Whether to show no progress.

    Raises:
        InputError: By the function, when a key or a value is wrong, there is no validation data, or the study has the
            other direction.
    """

    def objective(trial: Trial) -> float:
        folder = Path(out) / f"trial-{trial.number}"
        experiment, folder = choose(source, [*sets, *sets_of(space(trial))], folder)
        _require_direction(trial, experiment)
        trial.set_user_attr("folder", str(folder))
        from fedstrata import report
        from fedstrata.play.run import run_experiment

        def watch(record: Mapping[str, Any]) -> None:
            trial.report(_value(record), int(record["round"]))
            if trial.should_prune():
                from optuna import TrialPruned

                raise TrialPruned(f"stopped after round {record['round']}")

        done = run_experiment(experiment, folder, quiet=quiet, watch=watch, finished=report.build)
        return _value(done.summary)

    return objective


def _require_direction(trial: Trial, experiment: Experiment) -> None:
    """Refuse a study that would choose the worst setting, and one of several objectives."""
    from fedstrata.build.problem import objective_of

    metric = objective_of(experiment).metric_info
    expected = "maximize" if metric.larger_is_better else "minimize"
    # Only a study of Optuna's own says which directions it has.
    directions = getattr(getattr(trial, "study", None), "directions", None)
    names = [expected] if directions is None else [direction.name.lower() for direction in directions]
    if len(names) > 1:
        raise ExperimentError(
            f"directions = {names}: expected one, as the objective is local.metric on validation data alone; make the "
            f"study with direction = {expected!r}"
        )
    (found,) = names
    if found != expected:
        raise ExperimentError(
            f"direction = {found!r}: expected {expected!r}, as {metric.better} is better of local.metric = "
            f"{experiment.local.metric!r} ({metric.name}); make the study with direction = {expected!r}"
        )


def _value(record: Mapping[str, Any]) -> float:
    """The metric on validation data in a record of a round or in a summary."""
    if VALIDATION_MEASURE not in record:
        raise ExperimentError(
            "data.validation: expected a share above 0, such as 0.2: settings are chosen by validation data, and never "
            "by test data"
        )
    value = record[VALIDATION_MEASURE]
    if value is None:
        raise ExperimentError(
            "data.validation: expected validation samples of which the metric is known, found none of any client; "
            "raise it, or use another local.metric"
        )
    return float(value)
