"""Who the clients of a user's own data are, and how they are called."""

from pathlib import Path

import numpy as np
import pytest
from own_table import others, table, warnings_of

from fedstrata.base.errors import DataError, PartitionError
from fedstrata.build.build import build_run
from fedstrata.config import load_experiment
from own_data import arrays, built, keys, save


def test_natural_has_a_client_for_each_value_unless_told_otherwise(tmp_path: Path) -> None:
    many = tuple(f"person {number:02d}" for number in range(30))
    setup = built(tmp_path, arrays(sites=many), unit="trial")
    assert (setup.server.problem.clients, setup.names, others(setup)) == (30, many, ())


def test_samples_of_no_client_are_refused(tmp_path: Path) -> None:
    columns = arrays()
    columns["site"][5:8] = ""
    with pytest.raises(PartitionError, match="3 samples have no value"):
        built(tmp_path, columns)
    numbered = columns | {"site": np.where(columns["site"] == "", np.nan, 1.0)}
    with pytest.raises(PartitionError, match="3 samples have no value"):
        built(tmp_path, numbered, clients=1)


def test_a_column_of_clients_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    file = tmp_path / "mine.npz"
    save(file, arrays())
    experiment = keys(file) | {"partition": {"scheme": "natural", "column": "hospital"}}
    with pytest.raises(DataError, match=r"partition.column = 'hospital': .* has y, site, trial"):
        build_run(load_experiment(experiment))


def test_one_name_written_in_two_ways_is_noticed(tmp_path: Path) -> None:
    columns = arrays(sites=("Lyon", "lyon ", "Oslo", "Bern"))
    (warning,) = others(built(tmp_path, columns, unit="trial"))
    assert "'Lyon', 'lyon '" in warning


def test_a_column_of_clients_that_the_partition_does_not_read_is_named(tmp_path: Path) -> None:
    (warning,) = warnings_of(tmp_path, table(), data={"clients": 4}, partition={"scheme": "iid"})
    assert "partition.column = 'site' to read it" in warning
    columns = table(client=table()["site"])
    del columns["site"]
    (warning,) = warnings_of(tmp_path, columns, data={"clients": 4}, partition={"scheme": "iid"})
    assert "the column 'client' looks like that of the clients" in warning
