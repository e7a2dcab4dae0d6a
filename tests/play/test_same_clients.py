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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"probe": {"matrices": ["cos"], "layers": ["convv"]}}, r"^probe\.layers = 'convv' matches no layer"),
        ({"probe": {"gap": ["dcos"]}}, r"^probe\.gap = \['dcos'\]: needs a partition with true groups"),
        ({"algorithm": {"name": "layercfl", "layers": "convv"}}, r"^algorithm\.layers = 'convv' matches no layer"),
        ({"algorithm": {"name": "fedper", "personal": ["head", "x"]}}, r"^algorithm\.personal = 'x' matches no layer"),
    ],
)
def test_a_run_on_the_clients_of_another_is_refused_as_it_is_alone(changes: dict[str, Any], message: str) -> None:
    keys = {**KEYS, "partition": {"scheme": "dirichlet", "alpha": 10.0}}
    other = load_experiment({**keys, **changes})
    with pytest.raises(ExperimentError, match=message):
        build_run(other)
    with pytest.raises(ExperimentError, match=message):
        on_same_clients(build_run(load_experiment(keys)), other)
