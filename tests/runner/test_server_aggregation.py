"""A rule of aggregation of one's own is a function and an entry, and every algorithm uses it."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

from fedstrata.algorithms import ALGORITHMS
from fedstrata.config import load_experiment
from fedstrata.core import AGGREGATIONS, Rows, aggregation
from fedstrata.errors import ExperimentError
from fedstrata.runner.build import RunSetup, build_run
from fedstrata.runner.rounds import answer_plans, play_rounds, timed_reply
from test_every_algorithm import EAGER


def coordinate_median(updates: Rows, weights: torch.Tensor, labels: torch.Tensor, k: int) -> torch.Tensor:
    medians = torch.zeros(k, updates.values.shape[1])
    for cluster in labels.unique().tolist():
        medians[cluster] = updates.values[labels == cluster].median(dim=0).values
    return medians


def standstill(updates: Rows, weights: torch.Tensor, labels: torch.Tensor, k: int) -> torch.Tensor:
    """A rule after which no model moves, unless an algorithm averages in another way."""
    return torch.zeros(k, updates.values.shape[1])


@pytest.fixture(scope="module", autouse=True)
def rules() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(AGGREGATIONS, "median", coordinate_median)
        patch.setitem(AGGREGATIONS, "standstill", standstill)
        yield


def built(rule: str, algorithm: dict[str, Any]) -> RunSetup:
    tables = {
        "data": {"name": "digits", "clients": 6, "samples": 48, "public": 32},
        "partition": {"scheme": "rotation", "groups": 2},
        "model": {"name": "mlp", "hidden": [8]},
        "local": {"lr": 0.5, "batch": 16},
        "server": {"aggregation": rule},
        "engine": {"name": "loop"},
    }
    return build_run(load_experiment({**tables, "algorithm": algorithm}))


def last_models(setup: RunSetup, rounds: int) -> torch.Tensor:
    steps = play_rounds(
        setup.algorithm,
        setup.problem,
        setup.algorithm.init(setup.problem),
        setup.members.sample,
        stop=lambda state: state.round >= rounds,
        observe=lambda done: None,
    )
    models: torch.Tensor = answer_plans(steps, partial(timed_reply, setup.clients)).models
    return models


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_algorithm_averages_by_the_rule_of_the_experiment(name: str) -> None:
    setup = built("standstill", {"name": name, **EAGER.get(name, {})})
    starts = torch.stack([setup.problem.fresh(number) for number in range(64)])
    for model in last_models(setup, 4):
        assert bool((starts == model).all(dim=1).any()), "a model has moved"


@pytest.mark.parametrize("average", ["model", "gradient"])
def test_both_averages_of_ifca_use_it(average: str) -> None:
    setup = built("standstill", {"name": "ifca", "k": 2, "average": average})
    assert torch.equal(last_models(setup, 2), torch.stack([setup.problem.fresh(0), setup.problem.fresh(1)]))


def test_fedavg_moves_by_the_median_of_the_updates() -> None:
    median = built("median", {"name": "fedavg"})
    problem = median.problem
    state = median.algorithm.init(problem)
    plan = median.algorithm.plan(problem, state, median.everyone)
    updates = median.clients.run(plan).results["train"].updates.values
    assert torch.equal(last_models(median, 1), problem.fresh(0)[None] + updates.median(dim=0).values)
    assert not torch.equal(last_models(median, 1), last_models(built("mean", {"name": "fedavg"}), 1))


def test_the_mean_is_the_default_and_an_unknown_rule_is_refused_in_one_line() -> None:
    assert built("mean", {"name": "fedavg"}).problem.aggregation is aggregation.weighted_mean
    assert load_experiment({}).server.aggregation == "mean"
    with pytest.raises(ExperimentError, match=r"^server\.aggregation = 'mode': expected one of mean, plain_mean, med"):
        load_experiment({"server": {"aggregation": "mode"}})
    with pytest.raises(ExperimentError, match=r"^server\.aggregaton: unknown key; did you mean aggregation\?"):
        load_experiment({"server": {"aggregaton": "mean"}})
