"""A rule of aggregation of one's own is a function and an entry, and every algorithm uses it."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from builders import federation, last_models
from fedstrata.algorithms import ALGORITHMS
from fedstrata.base.errors import ExperimentError
from fedstrata.build.run_setup import RunSetup
from fedstrata.config import load_experiment
from fedstrata.core import Rows
from fedstrata.uploads.rules import AGGREGATIONS, MEANS
from test_every_algorithm import EAGER
from turns import first_plan_of


def standstill(updates: Rows, weights: torch.Tensor, labels: torch.Tensor, k: int) -> torch.Tensor:
    """A rule after which no model moves, unless an algorithm averages in another way."""
    return torch.zeros(k, updates.values.shape[1])


@pytest.fixture(scope="module", autouse=True)
def rules() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(AGGREGATIONS, "standstill", standstill)
        yield


def built(rule: str, algorithm: dict[str, Any], **options: float) -> RunSetup:
    return federation(
        data={"samples": 48, "public": 32},
        local={"lr": 0.5, "batch": 16},
        server={"aggregation": rule, **options},
        algorithm=algorithm,
    )


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_algorithm_averages_by_the_rule_of_the_experiment(name: str) -> None:
    setup = built("standstill", {"name": name, **EAGER.get(name, {})})
    starts = torch.stack([setup.server.problem.fresh(number) for number in range(64)])
    for model in last_models(setup, 4):
        assert bool((starts == model).all(dim=1).any()), "a model has moved"


@pytest.mark.parametrize("average", ["model", "gradient"])
def test_both_averages_of_ifca_use_it(average: str) -> None:
    setup = built("standstill", {"name": "ifca", "k": 2, "average": average})
    assert torch.equal(
        last_models(setup, 2), torch.stack([setup.server.problem.fresh(0), setup.server.problem.fresh(1)])
    )


def first_updates(setup: RunSetup) -> Rows:
    plan = first_plan_of(setup)
    return setup.clients.run(plan).results["train"].updates


def test_fedavg_moves_by_the_median_of_the_updates() -> None:
    setup = built("median", {"name": "fedavg"})
    middle = first_updates(setup).values.sort(dim=0).values[2:4].double().mean(dim=0)  # of six clients
    torch.testing.assert_close(last_models(setup, 1)[0], setup.server.problem.fresh(0) + middle.float())


def test_the_keys_of_a_rule_reach_it() -> None:
    setup = built("trimmed_mean", {"name": "fedavg"}, byzantine_share=0.4)
    middle = first_updates(setup).values.sort(dim=0).values[2:4].double().mean(dim=0)  # two at each end
    torch.testing.assert_close(last_models(setup, 1)[0], setup.server.problem.fresh(0) + middle.float())


@pytest.mark.parametrize("rule", [rule for rule in AGGREGATIONS if rule not in MEANS])
def test_an_attacker_spoils_the_mean_and_not_a_robust_rule(rule: str) -> None:
    """One of six clients sends its update times -20, which is too little for the check of norms to be sure."""
    setup = built(rule, {"name": "fedavg"})
    updates = first_updates(setup)
    honest = updates.values[1:].mean(dim=0)
    attacked = updates.values.clone()
    attacked[0] *= -20
    moved = setup.server.problem.aggregation.rule(
        Rows(updates.clients, attacked), torch.ones(6), torch.zeros(6, dtype=torch.int64), 1
    )[0]
    assert torch.nn.functional.cosine_similarity(moved, honest, dim=0) > 0.3
    assert torch.nn.functional.cosine_similarity(attacked.mean(dim=0), honest, dim=0) < 0


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"byzantine_share": 0.5}, "server.byzantine_share = 0.5: expected a number"),
        ({"aggregation": "median", "byzantine_share": 0.1}, "no byzantine_share with aggregation = 'median'"),
        ({"clip_norm": 2.0}, "no clip_norm with aggregation = 'mean'"),
        ({"aggregation": "norm_clip", "clip_norm": 2.0, "clip_quantile": 0.9}, "no clip_quantile with clip_norm = 2.0"),
    ],
)
def test_keys_that_a_rule_does_not_use_are_refused_in_one_line(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ExperimentError) as refused:
        load_experiment({"server": keys})
    assert message in str(refused.value) and str(refused.value).startswith("server") and "\n" not in str(refused.value)
