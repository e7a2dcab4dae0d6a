import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedstrata.base.errors import InputError
from fedstrata.config import Experiment, dumps, load_experiment


def read(text: str) -> Experiment:
    return load_experiment(tomllib.loads(text))


CASES = [
    "",
    "seed = 123456789012345678\nrounds = 1",
    "partition = {scheme = 'rotation', sizes = [12, 8], inside = {scheme = 'dirichlet', alpha = 0.1}}",
    "partition = {scheme = 'label_groups', labels = [[0, 1], [2, 3]]}",
    "algorithm = {name = 'layercfl', layers = ['conv', 'linear1'], linkage = 'complete', eps1 = 1}",
    "algorithm.name = 'fedavg'\n[algorithms.cfl]\neps1 = 'auto'\n[algorithms.oracle]",
    'model = {name = \'mlp\', hidden = [5, 6], note = "it\'s \\"quoted\\"\\n"}',
    "data = {unit = 'recording', root = 'here', samples = 0}\nprobe.gap = ['cos', 'dl2']",
]


@pytest.mark.parametrize("text", CASES)
def test_what_is_written_is_read_as_the_same(text: str, tmp_path: Path) -> None:
    experiment = read(text)
    file = tmp_path / "experiment.toml"
    file.write_text(dumps(experiment), encoding="utf-8")
    assert load_experiment(file) == experiment
    assert dumps(load_experiment(file)) == dumps(experiment)


def test_the_default_is_written_as_it_is_read() -> None:
    assert read(dumps(load_experiment())) == load_experiment()


LOCAL = st.fixed_dictionaries(
    {},
    optional={
        "epochs": st.integers(1, 9),
        "batch": st.integers(0, 999),
        "optimizer": st.sampled_from(["sgd", "adam", "adamw"]),
        "lr": st.floats(0, 1e30, exclude_min=True),
        "weight_decay": st.floats(0, 1e30),
        "clip_norm": st.floats(0, 1e30),
        "warmup_rounds": st.just(0),
        "lr_decay": st.floats(0, 1, exclude_min=True),
    },
)
DATA = st.fixed_dictionaries(
    {"clients": st.integers(4, 1797)},
    optional={
        "samples": st.integers(0, 10**9),
        "test": st.floats(0, 1, exclude_min=True, exclude_max=True),
        "unit": st.text(min_size=1),
    },
)
PARTITION = st.one_of(
    st.builds(lambda groups: {"scheme": "rotation", "groups": groups}, st.integers(1, 4)),
    st.builds(lambda alpha: {"scheme": "dirichlet", "alpha": alpha}, st.floats(1e-3, 1e6)),
    st.just({"scheme": "iid"}),
)


@settings(deadline=None)
@given(local=LOCAL, data=DATA, partition=PARTITION, note=st.text(), seed=st.integers(0, 10**18 - 1))
def test_every_right_experiment_survives_the_way_there_and_back(
    local: object, data: object, partition: object, note: str, seed: int
) -> None:
    keys = {"seed": seed, "local": local, "data": data, "partition": partition, "model": {"note": note}}
    experiment = load_experiment(keys)
    assert read(dumps(experiment)) == experiment


ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3),
    max_leaves=6,
)
PROPERTIES = Experiment.model_json_schema()["$defs"]
TABLES = {
    table: ANYTHING
    | st.dictionaries(
        st.sampled_from([*PROPERTIES.get(table.title(), {}).get("properties", {}), "name", "scheme", "x"]),
        ANYTHING,
        max_size=3,
    )
    for table in Experiment.model_fields
}


@given(source=st.fixed_dictionaries({}, optional=TABLES))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_wrong_is_told_in_one_line(source: dict[str, Any], found: None) -> None:
    try:
        experiment = load_experiment(source)
    except InputError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert read(dumps(experiment)) == experiment
