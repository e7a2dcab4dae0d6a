import json
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from experiments.strata import championship
from experiments.strata.championship import (
    FEDERATIONS,
    METHODS,
    SHARED_MODEL,
    Work,
    experiment_keys,
    method_keys,
    missing,
    packed,
    results_of_match,
    run_matches,
    true_groups,
    unpacked,
)
from experiments.strata.networks import small_cnn

import fedstrata as fs
from fedstrata.config import load_experiment

CLASSES = {"emnist_letters": 26, "usc_had": 12}

SMALL: dict[str, Any] = {
    "data": {"name": "digits", "samples": 40, "clients": 8, "public": 0},
    "partition": {"scheme": "dirichlet", "alpha": 0.5},
    "rounds": 2,
}
"""A federation that takes a second and has no true groups."""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(FEDERATIONS, "small", SMALL)
    return "small"


@pytest.mark.parametrize("federation", FEDERATIONS)
def test_every_method_on_every_federation_is_an_experiment(federation: str) -> None:
    for method in METHODS:
        experiment = load_experiment(experiment_keys(federation, method, 1), find_data=False)
        experiment.algorithm_of()
        experiment.personal_of()
        data = experiment.data
        experiment.scheme.check(clients=data.clients, classes=CLASSES.get(data.name, 10))
        assert experiment.seed == 1 and experiment.rounds == FEDERATIONS[federation].get("rounds", 20)


def test_all_methods_of_a_federation_have_the_same_data_network_and_training() -> None:
    for federation in FEDERATIONS:
        keys = [experiment_keys(federation, method, 0) for method in METHODS]
        alike = [{key: value for key, value in each.items() if key not in ("algorithm", "personal")} for each in keys]
        assert all(each == alike[0] for each in alike)


def test_early_federations_are_of_every_kind() -> None:
    first = list(FEDERATIONS)[:12]
    schemes = {FEDERATIONS[name]["partition"]["scheme"] for name in first}
    assert schemes == {"rotation", "dirichlet", "majority", "concept", "iid"}
    assert list(FEDERATIONS).index("usc_had") < list(FEDERATIONS).index("cifar10_rotation")
    assert list(FEDERATIONS)[-1].endswith("_of_100")


def test_methods_that_need_the_number_of_groups_are_told_the_true_one() -> None:
    groups = {name: true_groups(each["partition"]) for name, each in FEDERATIONS.items()}
    found = [groups[f"mnist_{name}"] for name in ("rotation", "sizes", "iid", "dirichlet_30", "majority_80_of_100")]
    assert found == [4, 3, 1, None, 10]
    assert method_keys("mnist_sizes", "ifca")["algorithm"] == {"name": "ifca", "init": "restart", "k": 3}
    assert method_keys("usc_had", "fesem")["algorithm"]["k"] == 4
    assert METHODS["fesem"] == {"algorithm": {"name": "fesem"}}  # the constant stays as it is


def test_layercfl_compares_the_layers_that_its_paper_names() -> None:
    federations = ("mnist_rotation", "mnist_majority_80", "usc_had")
    layers = [method_keys(federation, "layercfl")["algorithm"]["layers"] for federation in federations]
    assert layers == ["conv", "first_linear", "all"]


def test_a_personal_stage_is_compared_with_the_method_without_it() -> None:
    assert "strata_best" not in SHARED_MODEL and SHARED_MODEL["finetune_10"] == "fedavg"
    for method, shared in SHARED_MODEL.items():
        assert shared not in SHARED_MODEL
        with_stage, without = METHODS[method], METHODS[shared]
        assert with_stage["algorithm"] == without["algorithm"] or with_stage["algorithm"]["name"] == "ditto"


def test_the_small_network_takes_images_of_any_size() -> None:
    torch.manual_seed(0)
    usual = small_cnn((1, 28, 28), 10)
    assert sum(parameter.numel() for parameter in usual.parameters()) == 3098
    for shape in ((1, 28, 28), (3, 32, 32), (1, 8, 8), (1, 40, 20)):
        assert small_cnn(shape, 5)(torch.zeros(2, *shape)).shape == (2, 5)


def test_right_samples_are_kept_as_bits() -> None:
    right = np.array([True, False, True, True, True])
    assert packed(right) == "5:b8"  # 10111 and three zeros: 1011 1000
    assert unpacked("5:b8").tolist() == right.tolist()
    assert unpacked(packed(np.ones(16, dtype=np.bool_))).tolist() == [True] * 16


def test_methods_together_come_to_what_each_comes_to_alone(small: str, tmp_path: Path) -> None:
    methods = ["local", "fedavg", "finetune_3", "ditto_1", "ifca", "oracle", "strata_best"]
    match = results_of_match(small, 3, methods)
    found = {result["variant"]: result for result in match.results}
    assert list(found) == methods and not match.failures
    for method in ("local", "fedavg", "finetune_3", "strata_best"):
        alone = fs.run(experiment_keys(small, method, 3), tmp_path / method, quiet=True)
        assert found[method]["acc_client"] == pytest.approx(alone.summary["acc_client"], rel=1e-5)
        rows = [unpacked(text) for text in found[method]["right"].values()]
        assert len(rows) == 8
        assert found[method]["acc_client"] == pytest.approx(float(np.mean([row.mean() for row in rows])), rel=1e-5)
        assert found[method]["acc_worst"] == pytest.approx(min(float(row.mean()) for row in rows), rel=1e-5)


def test_strata_with_personal_models_tells_what_its_clusters_models_get_right(small: str, tmp_path: Path) -> None:
    found = {result["variant"]: result for result in results_of_match(small, 3, ["fedavg_best", "strata_best"]).results}
    assert "right_cluster" not in found["fedavg_best"]
    alone = fs.run(experiment_keys(small, "strata_best", 3), tmp_path / "alone", quiet=True)
    rows = [unpacked(text) for text in found["strata_best"]["right_cluster"].values()]
    assert float(np.mean([row.mean() for row in rows])) == pytest.approx(alone.summary["acc_shared"], rel=1e-5)


def test_a_refusal_is_kept_with_its_reason(small: str) -> None:
    (result,) = results_of_match(small, 0, ["oracle"]).results
    assert result["variant"] == "oracle" and "true groups" in result["refused"] and "acc_client" not in result


def test_computing_is_counted_in_epochs_and_passes(small: str) -> None:
    methods = ["local", "fedavg", "finetune_3", "ditto_1", "ifca", "fedavg_best"]
    found = {result["variant"]: result for result in results_of_match(small, 0, methods).results}
    # Two rounds of one epoch; then three epochs of tuning; twice two rounds; four models compared in each round.
    computing = {method: (found[method]["epochs"], found[method]["passes"]) for method in methods}
    assert computing["fedavg"] == computing["local"] == (2.0, 0.0)
    assert computing["finetune_3"] == (5.0, 0.0) and computing["ditto_1"] == (4.0, 0.0)
    assert computing["ifca"] == (2.0, 8.0)
    assert found["fedavg_best"]["seconds"] > found["fedavg"]["seconds"]
    # Cross-validation is two epochs of half of the data twice, and five models on each half. A tuning of four epochs
    # may follow, and who tunes compares two models.
    assert 4.0 <= computing["fedavg_best"][0] <= 8.0 and 5.0 <= computing["fedavg_best"][1] <= 7.0
    assert Work() == Work(trained=0, compared=0)


def test_only_what_is_missing_is_run(small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[int, tuple[str, ...]]]()

    def counted(federation: str, seed: int, methods: Sequence[str], sets: Sequence[str]) -> championship.Match:
        asked.append((seed, tuple(methods)))
        results = [
            {"variant": method, "seed": seed, "digest": championship.digest(federation, method, seed, sets)}
            for method in methods
        ]
        return championship.Match(federation, results, {}, 0.0)

    monkeypatch.setattr(championship, "results_of_match", counted)
    monkeypatch.setattr(championship, "ProcessPoolExecutor", _InTurn)
    assert run_matches([(small, 0)], ["fedavg"], [], tmp_path, jobs=1)
    assert run_matches([(small, 0), (small, 1)], ["fedavg", "local"], [], tmp_path, jobs=1)
    assert run_matches([(small, 0)], ["fedavg", "local"], [], tmp_path, jobs=1)
    assert asked == [(0, ("fedavg",)), (0, ("local",)), (1, ("fedavg", "local"))]
    path = tmp_path / "small.json"
    assert len(json.loads(path.read_text())) == 4 and [each.name for each in tmp_path.iterdir()] == ["small.json"]
    # With other keys the results are others.
    assert missing(path, small, 0, ["fedavg"], ["rounds=3"]) == ["fedavg"]
    assert missing(path, small, 0, ["fedavg"], []) == []


def test_one_method_that_fails_leaves_the_others(
    small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fs.ALGORITHMS["ifca"], "update", lambda *_: 1 / 0)
    monkeypatch.setattr(championship, "ProcessPoolExecutor", _InTurn)
    assert not run_matches([(small, 0)], ["fedavg", "ifca"], ["rounds=1"], tmp_path, jobs=1)
    (kept,) = json.loads((tmp_path / "small.json").read_text())
    assert kept["variant"] == "fedavg"
    assert "small, seed 0, ifca: ZeroDivisionError" in capsys.readouterr().err


class _InTurn(ProcessPoolExecutor):
    """A pool that does each job at once, in this process."""

    def submit(self, function: Any, /, *given: Any, **named: Any) -> Any:
        job = Future[Any]()
        job.set_result(function(*given, **named))
        return job
