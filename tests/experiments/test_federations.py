import json
from pathlib import Path
from typing import Any

import pytest
import torch
from experiments.strata import federations
from experiments.strata.federations import Step, follow, gather, read, write
from experiments.strata.null_federations import ALPHAS, FOLLOWED, SETTINGS
from experiments.strata.power_federations import CASES

import fedstrata as fs
from fedstrata.config import Experiment, load_experiment
from fedstrata.engine import Loop

KEYS: dict[str, Any] = {
    "rounds": 4,
    "data": {"clients": 8, "samples": 72, "test": 0.1},
    "partition": {"scheme": "rotation", "groups": 2},
    "local": {"batch": 24, "lr": 0.1},
    "model": {"name": "mlp", "hidden": [8]},
}
SPLITTING: dict[str, dict[str, Any]] = {
    "fedavg": {"name": "fedavg"},
    "strata": {"name": "strata", "holdout_check": False, "alpha": 0.1},
    "cfl": {"name": "cfl"},
}


def last(steps: list[Step]) -> dict[str, Step]:
    return {step.name: step for step in steps}


def test_algorithms_that_are_followed_together_do_what_they_do_alone(tmp_path: Path) -> None:
    steps = last(list(follow(KEYS, SPLITTING)))
    for name, keys in SPLITTING.items():
        rounds = steps[name].state.round
        alone = fs.run({**KEYS, "rounds": rounds, "algorithm": keys}, tmp_path / name, quiet=True)
        assert torch.equal(alone.state.models, steps[name].state.models)
        assert torch.equal(alone.state.labels, steps[name].state.labels)


def test_an_algorithm_is_followed_up_to_its_first_split() -> None:
    steps = list(follow(KEYS, SPLITTING))
    assert [step.state.round for step in steps if step.name == "fedavg"] == [1, 2, 3, 4]
    splits = [step for step in steps if step.split]
    assert {step.name for step in splits} == {"strata"}
    assert all(step == [other for other in steps if other.name == step.name][-1] for step in splits)


def test_what_several_algorithms_ask_for_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    done, run = list[str](), Loop.run

    def counted(self: Loop, plan: Any) -> Any:
        done.extend(task.fold for task in plan.tasks.values())
        return run(self, plan)

    monkeypatch.setattr(Loop, "run", counted)
    twice: dict[str, dict[str, Any]] = {
        name: {"name": "strata", "alpha": alpha} for name, alpha in (("low", 0.02), ("lower", 0.01))
    }
    list(follow({**KEYS, "rounds": 2}, {**twice, "fedavg": {"name": "fedavg"}}))
    # So few clients have four folds, in the second round.
    assert {fold: done.count(fold) for fold in set(done)} == {"all": 2, "A1": 1, "A2": 1, "B1": 1, "B2": 1}


def test_results_are_computed_once_and_more_can_be_added(tmp_path: Path) -> None:
    path = tmp_path / "results" / "found.json"
    gather(path, "other", {}, square, range(1), 1)
    assert gather(path, "a", {"k": (1, 2)}, square, range(2), 1) == [{"seed": 0, "is": 0}, {"seed": 1, "is": 1}]
    held = read(path)
    held["a"]["runs"][0]["is"] = "kept"
    write(path, "a", held["a"])
    runs = gather(path, "a", {"k": [1, 2]}, square, range(3), 2)
    assert [run["is"] for run in runs] == ["kept", 1, 4]
    assert list(json.loads(path.read_text())) == ["other", "a"]
    assert [other.name for other in path.parent.iterdir()] == ["found.json"]


def square(name: str, seed: int) -> dict[str, Any]:
    return {"seed": seed, "is": seed * seed}


def test_results_under_other_conditions_are_not_mixed(tmp_path: Path) -> None:
    gather(tmp_path / "e.json", "a", {"k": 1}, square, range(1), 1)
    with pytest.raises(ValueError, match=r"e\.json: holds 'a' under other conditions"):
        gather(tmp_path / "e.json", "a", {"k": 2}, square, range(1), 1)


@pytest.mark.parametrize("keys", [*SETTINGS.values(), *CASES.values()])
def test_every_federation_of_the_studies_is_an_experiment(keys: dict[str, Any]) -> None:
    experiment = Experiment.model_validate(keys)
    experiment.scheme.check(clients=experiment.data.clients, classes=10)


def test_every_algorithm_of_the_null_study_has_its_keys() -> None:
    for table in FOLLOWED.values():
        load_experiment({"algorithm": table}).algorithm_of()
    assert {f"test {alpha}" for alpha in ALPHAS} < set(FOLLOWED)
    assert federations.KEPT > 0
