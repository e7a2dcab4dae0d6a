from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fedstrata
from fedstrata import InputError
from fedstrata.records.schema import VALIDATION_MEASURE
from fedstrata.tuning import optuna_objective

KEYS: dict[str, Any] = {
    "rounds": 3,
    "data": {"name": "digits", "clients": 4, "samples": 40},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"batch": 10},
    "engine": {"name": "loop"},
    "algorithm": {"name": "fedavg"},
}


class Trial:
    """Stands in for a trial of Optuna that suggests one learning rate."""

    def __init__(self, number: int, lr: float) -> None:
        self.number = number
        self.lr = lr
        self.reported: list[tuple[int, float]] = []
        self.attributes: dict[str, Any] = {}

    def report(self, value: float, step: int) -> None:
        self.reported.append((step, value))

    def should_prune(self) -> bool:
        return False

    def set_user_attr(self, key: str, value: Any) -> None:
        self.attributes[key] = value


def space(trial: Any) -> Mapping[str, Any]:
    return {"local.lr": trial.lr}


@pytest.fixture
def validated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The accuracy stands in for that on validation data."""
    from fedstrata.play import run

    original = run.run_experiment

    def run_experiment(*args: Any, watch: Any, **options: Any) -> Any:
        def with_validation(record: Mapping[str, Any]) -> None:
            watch({**record, VALIDATION_MEASURE: record["acc_client"]})

        done = original(*args, watch=with_validation, **options)
        summary = {**done.summary, VALIDATION_MEASURE: done.summary["acc_client"]}
        return SimpleNamespace(summary=summary)

    monkeypatch.setattr(run, "run_experiment", run_experiment)


def test_a_trial_is_a_run_with_its_settings(validated: None, tmp_path: Path) -> None:
    trial = Trial(7, 0.2)
    value = optuna_objective(KEYS, space, out=tmp_path, sets=["seed=3"])(trial)
    run = fedstrata.load(tmp_path / "trial-7")
    assert (run.experiment.local.lr, run.experiment.seed) == (0.2, 3)
    assert value == run.summary["acc_client"] and trial.attributes == {"folder": str(tmp_path / "trial-7")}
    assert [step for step, _ in trial.reported] == [1, 2, 3] and trial.reported[-1][1] == value


def test_without_validation_data_nothing_is_tuned(tmp_path: Path) -> None:
    keys = {**KEYS, "rounds": 1}
    with pytest.raises(InputError, match=r"data.validation: expected a share above 0"):
        optuna_objective(keys, space, out=tmp_path)(Trial(0, 0.2))


def test_a_score_that_is_unknown_on_validation_data_is_named(tmp_path: Path) -> None:
    """R² is not defined of a single sample, and each client has one."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "dose.npz", x=rng.random((20, 2), dtype=np.float32), y=rng.random(20))
    data = {"name": str(tmp_path / "dose.npz"), "clients": 2, "samples": 8, "validation": 0.1}
    keys = {**KEYS, "data": data, "partition": {"scheme": "iid"}, "model": {"name": "mlp"}, "local": {"loss": "mse"}}
    with pytest.raises(InputError, match=r"expected validation samples of which the metric is known"):
        optuna_objective({**keys, "rounds": 1}, space, out=tmp_path)(Trial(0, 0.2))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["MINIMIZE"], "direction = 'minimize': expected 'maximize'"),
        (["MAXIMIZE"] * 2, "directions = .*: expected one"),
    ],
)
def test_a_study_that_would_choose_otherwise_is_refused(names: list[str], message: str, tmp_path: Path) -> None:
    trial = Trial(0, 0.2)
    trial.study = SimpleNamespace(directions=[SimpleNamespace(name=name) for name in names])  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=message):
        optuna_objective(KEYS, space, out=tmp_path)(trial)


@pytest.mark.skipif(find_spec("optuna") is None, reason="needs the extra optuna")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_optuna_chooses_and_prunes(validated: None, tmp_path: Path) -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.GridSampler({"lr": [0.5, 1e-5]}, seed=0),
        pruner=optuna.pruners.ThresholdPruner(lower=0.2, n_warmup_steps=2),
    )

    def suggested(trial: Any) -> Mapping[str, Any]:
        return {"local.lr": trial.suggest_float("lr", 1e-5, 0.5)}

    study.optimize(optuna_objective(KEYS, suggested, out=tmp_path), n_trials=2)
    assert study.best_params == {"lr": 0.5}
    assert sorted(trial.state.name for trial in study.trials) == ["COMPLETE", "PRUNED"]
    best = Path(study.best_trial.user_attrs["folder"])
    assert (best / "report.html").exists()
