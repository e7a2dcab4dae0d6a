"""Secure aggregation in a simulation: the numbers of real devices without masks, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedstrata.algorithms import ALGORITHMS
from fedstrata.base.errors import ExperimentError
from fedstrata.build.build import build_run
from fedstrata.config import load_experiment
from fedstrata.play.run import run_experiment
from fedstrata.report.events import event_text
from fedstrata.results.run import Run
from fedstrata.uploads.disclosure import disclosure_of

KEYS: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "digits", "clients": 6, "samples": 32},
    "partition": {"scheme": "rotation", "groups": 2},
    "model": {"name": "mlp", "hidden": [4]},
    "local": {"lr": 0.1, "batch": 8},
    "algorithm": {"name": "fedavg"},
    "engine": {"name": "loop", "device": "cpu"},
    "privacy": {"secure_aggregation": True},
}


def played(out: Path, **changes: Any) -> Run:
    return run_experiment(load_experiment({**KEYS, **changes}), out, quiet=True)


def needs_sums_alone(name: str) -> bool:
    declared = disclosure_of(ALGORITHMS[name](), KEYS["rounds"])
    return declared is not None and declared.server_needs == "sums"


def test_the_refusal_names_the_algorithms_that_need_sums_alone() -> None:
    with pytest.raises(ExperimentError) as refused:
        build_run(load_experiment({**KEYS, "algorithm": {"name": "cfl"}}))
    named = str(refused.value).partition("expected one of ")[2].partition(" with ")[0]
    assert sorted(named.split(", ")) == sorted(filter(needs_sums_alone, ALGORITHMS))


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_algorithms_that_look_at_single_updates_are_refused(name: str) -> None:
    keys = {**KEYS, "algorithm": {"name": name, **({"personal": "linear1"} if name == "lg_fedavg" else {})}}
    if needs_sums_alone(name):
        assert build_run(load_experiment(keys)).server.sums.secure
        return
    keys["data"] = {**KEYS["data"], "public": 20 if name in ("fedtsdp", "flis") else 0}
    with pytest.raises(ExperimentError, match=f"algorithm.name = '{name}': expected one of "):
        build_run(load_experiment(keys))


def test_an_algorithm_of_ones_own_that_declares_it_needs_sums_alone(tmp_path: Path) -> None:
    own = played(tmp_path / "own", algorithm={"name": "own_algorithm:Declared"})
    assert torch.equal(own.state.models, played(tmp_path / "fedavg").state.models)
    name = "own_algorithm:Undeclared"
    with pytest.raises(ExperimentError, match=f"algorithm.name = '{name}': .* with `register_disclosure`"):
        build_run(load_experiment({**KEYS, "algorithm": {"name": name}}))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"server": {"aggregation": "median"}}, r"server\.aggregation = 'median': expected 'mean' or 'plain_mean'"),
        (
            {"privacy": {"secure_aggregation": True, "kind": "central", "epsilon": 8.0}},
            "expected no secure_aggregation",
        ),
        ({"privacy": {"sum_bits": 8}}, "expected no sum_bits with secure_aggregation = False"),
        ({"privacy": {"secure_aggregation": True, "sum_bits": 25}}, r"privacy\.sum_bits = 25"),
        ({"privacy": {"secure_aggregation": True, "min_sum": 1}}, r"privacy\.min_sum = 1"),
        ({"privacy": {"secure_aggregation": True, "min_sum": 7}}, r"privacy\.min_sum = 7: expected at most 6"),
        (
            {"cohort": {"fraction": 0.3}},
            r"privacy\.min_sum = 3: expected at most 2, the clients of a round with cohort\.fraction = 0\.3 of 6",
        ),
        ({"cohort": {"dropout": 0.5}}, r"cohort\.dropout = 0\.5: expected less .*, where 4 of the 6 clients"),
        ({"network": {"compression": "int8"}}, r"network\.compression = 'int8': expected 'none'"),
        ({"probe": {"gap": ["cos"]}}, r"probe\.gap: expected none with privacy\.secure_aggregation = true"),
        ({"probe": {"matrices": ["cos"]}}, r"probe\.matrices: expected none"),
        (
            {"algorithm": {"name": "random_groups"}, "events": {"join": [{"round": 2, "clients": [1]}]}},
            r"events\.join: expected none with privacy\.secure_aggregation = true and algorithm\.name = 'random_g",
        ),
        (
            {
                "algorithm": {"name": "oracle"},
                "events": {"change": [{"round": 2, "client": 1, "takes_data_of": 2}]},
            },
            r"events\.change: expected none with privacy\.secure_aggregation = true and algorithm\.name = 'oracle'",
        ),
    ],
)
def test_what_needs_single_updates_is_refused_in_one_line(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ExperimentError, match=line) as refused:
        build_run(load_experiment({**KEYS, **changes}))
    assert "\n" not in str(refused.value)


def test_running_statistics_are_refused_where_they_are_sent() -> None:
    keys = {**KEYS, "data": {**KEYS["data"], "name": "digits"}, "model": {"name": "resnet18"}}
    with pytest.raises(ExperimentError, match="expected a network without running statistics, found"):
        build_run(load_experiment(keys))


def test_a_third_may_drop_out_and_with_more_the_model_stays(tmp_path: Path) -> None:
    start = build_run(load_experiment(KEYS)).server.problem.fresh(0)
    some = played(tmp_path / "some", cohort={"dropout": 0.33})
    assert not torch.equal(some.state.models[0], start) and not any(record["events"] for record in some.rounds)
    # With Poisson sampling each client drops out by itself: in round 1 all but one of the six.
    many = played(tmp_path / "many", cohort={"sampling": "poisson", "fraction": 0.99, "dropout": 0.5}, rounds=1)
    assert torch.equal(many.state.models[0], start)
    (event,) = many.rounds[0]["events"]
    assert (event["kind"], event["answered"], event["needed"]) == ("no_sum", 1, 4)
    assert event_text(event) == (
        "the secure sum was not opened: 1 of 6 clients stayed to the end, 4 are needed; the model stays as it is"
    )


def test_attackers_are_in_the_sum_like_everybody(tmp_path: Path) -> None:
    """Nobody sees a norm: a factor of 1000 is cut to the range of the sum, and no further."""
    attack = {"kind": "scaling", "share": 0.2, "strength": 1000.0}
    run = played(tmp_path / "run", attack=attack, rounds=1)
    assert run.rounds[0]["rejected"] == []
    (event,) = (event for event in run.rounds[0]["events"] if event["kind"] == "cut_updates")
    assert event["cut"] == 2
    assert event_text(event).startswith("2 updates in the secure sum had numbers above 1")


def test_the_reference_of_a_run_has_the_same_terms(tmp_path: Path) -> None:
    run = played(tmp_path / "run", algorithm={"name": "oracle"}, report={"baseline": True})
    plain = played(tmp_path / "plain")
    assert run.summary["baseline_acc_client"] == plain.summary["acc_client"]
