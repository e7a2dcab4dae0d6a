from pathlib import Path
from typing import Any

import pytest

from fedstrata.base.errors import ExperimentError
from fedstrata.config import choose_sweep, parse_grid

KEYS: dict[str, Any] = {"rounds": 3, "data": {"clients": 4, "samples": 20}, "algorithm": {"name": "ifca", "k": 2}}


def test_a_grid_is_read_as_toml_or_else_as_texts() -> None:
    texts = ["local.lr=0.01, 0.05", "algorithm.measure=dcos,l2", "model.hidden=[8],[16, 8]", "a=true", "b='x,y'"]
    assert parse_grid(texts) == {
        "local.lr": [0.01, 0.05],
        "algorithm.measure": ["dcos", "l2"],
        "model.hidden": [[8], [16, 8]],
        "a": [True],
        "b": ["x,y"],
    }


def test_every_combination_is_an_experiment_of_its_own() -> None:
    plan = choose_sweep(KEYS, {"local.lr": [0.1, 0.2], "algorithm.k": [2, 3]}, [0, 1], ["local.batch=5"])
    assert plan.folder == Path("runs/default-sweep")
    assert list(plan.settings) == ["lr=0.1 k=2", "lr=0.1 k=3", "lr=0.2 k=2", "lr=0.2 k=3"]
    assert plan.settings["lr=0.2 k=3"] == {"local.lr": 0.2, "algorithm.k": 3}
    first, *_, last = plan.experiments
    assert len(plan.experiments) == 8 and (first.title, first.seed) == ("lr=0.1 k=2", 0)
    assert (last.title, last.seed, last.local.lr, last.local.batch) == ("lr=0.2 k=3", 1, 0.2, 5)
    assert last.algorithm.options["k"] == 3


def test_an_algorithm_can_be_one_of_the_keys() -> None:
    plan = choose_sweep(KEYS, {"algorithm": ["fedavg", "ifca"], "local.momentum": [0.0, 0.5]})
    assert [each.algorithm.name for each in plan.experiments] == ["fedavg", "fedavg", "ifca", "ifca"]
    assert plan.experiments[2].title == "algorithm=ifca momentum=0.0"


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"partition.groups": [2, 4]}, "--grid partition.groups: expected a key of algorithm, personal, local, server"),
        ({"local.transform": ["a.b:c", "a.b:c_", "a:b_c", "a_b:c"]}, "which would have one folder"),
        ({"local.lr": range(101), "local.batch": range(100)}, "expected 1 to 10,000 runs, found 10,100"),
        ({"local.optimizer": ["x" * 200]}, "label = .*at most 200 characters"),
        ({"local.lr": 0.1}, "--grid local.lr: expected a list of values"),
        ({"local.optimizer": "sgd"}, "--grid local.optimizer: expected a list of values"),
        ({"local.lr": []}, "expected 1 to 10,000 runs, found 0"),
    ],
)
def test_a_grid_that_cannot_be_run_is_refused(grid: Any, message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        choose_sweep(KEYS, grid)
