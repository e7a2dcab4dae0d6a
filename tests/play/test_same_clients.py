from typing import Any

import pytest

from fedstrata.base.errors import ExperimentError
from fedstrata.build.build import build_run, on_same_clients
from fedstrata.config import load_experiment
from fedstrata.core import ServerOptimizer

KEYS: dict[str, Any] = {
    "data": {"name": "digits", "clients": 4, "samples": 40},
    "algorithm": {"name": "fedavg"},
    "engine": {"name": "loop"},
}


def test_runs_that_share_clients_learn_the_same() -> None:
    setup = build_run(load_experiment(KEYS))
    for key, value in (("loss", "mse"), ("metric", "f1_macro"), ("transform", "noise")):
        other = load_experiment({**KEYS, "local": {key: value}})
        with pytest.raises(ExperimentError, match=rf"^local\.{key} = '{value}': expected .* as in the other runs"):
            on_same_clients(setup, other)


def test_runs_that_share_clients_may_sample_and_average_them_in_other_ways() -> None:
    setup = build_run(load_experiment(KEYS))
    other = on_same_clients(
        setup,
        load_experiment({**KEYS, "cohort": {"fraction": 0.5, "sampling": "size"}, "server": {"optimizer": "adam"}}),
    )
    assert (
        other.server.participation.weights is not None and other.server.participation.weights(1).tolist() == [40.0] * 4
    )
    assert setup.server.problem.server is None
    assert isinstance(other.server.problem.server, ServerOptimizer) and other.server.problem.server.name == "adam"


def test_each_run_has_the_warnings_of_its_own_algorithm() -> None:
    """FedAvg compares no models, so that lies about their losses change nothing. Strata does."""
    keys = {**KEYS, "attack": {"kind": "sign_flip", "share": 0.25, "losses": "for_splits"}}
    fedavg = load_experiment(keys)
    strata = load_experiment({**keys, "algorithm": {"name": "strata"}})
    for first, second in ((fedavg, strata), (strata, fedavg)):
        assert on_same_clients(build_run(first), second).warnings == build_run(second).warnings
    assert len(build_run(fedavg).attack_warnings) == 1


@pytest.mark.parametrize("name", ["local", "centralized"])
def test_attacks_on_updates_that_nobody_sends_are_told(name: str) -> None:
    keys = {**KEYS, "algorithm": {"name": name}}
    (told,) = build_run(load_experiment({**keys, "attack": {"kind": "sign_flip", "share": 0.25}})).attack_warnings
    assert "attack.kind = 'sign_flip' changes nothing" in told and "label_flip" in told
    assert not build_run(load_experiment({**keys, "attack": {"kind": "label_flip", "share": 0.25}})).attack_warnings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"probe": {"matrices": ["cos"], "layers": ["convv"]}}, r"^probe\.layers = 'convv' matches no layer"),
        ({"probe": {"gap": ["dcos"]}}, r"^probe\.gap = \['dcos'\]: needs a partition with true groups"),
        ({"algorithm": {"name": "layercfl", "layers": "convv"}}, r"^algorithm: 'convv' matches no layer"),
    ],
)
def test_a_run_on_the_clients_of_another_is_refused_as_it_is_alone(changes: dict[str, Any], message: str) -> None:
    keys = {**KEYS, "partition": {"scheme": "dirichlet", "alpha": 10.0}}
    other = load_experiment({**keys, **changes})
    with pytest.raises(ExperimentError, match=message):
        build_run(other)
    with pytest.raises(ExperimentError, match=message):
        on_same_clients(build_run(load_experiment(keys)), other)
