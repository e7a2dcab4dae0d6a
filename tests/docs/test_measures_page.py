"""The page of measures has an entry for everything that a run writes down."""

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import builders
from fedstrata.results.run import Run

ROOT = Path(__file__).parents[2]
NAMED = set(re.findall(r"`([^`]+)`", (ROOT / "docs" / "reference" / "measures.md").read_text()))


@pytest.fixture(scope="module", params=["strata", "ditto", "layercfl", "hicfl", "fedtsdp", "fedclust", "oracle+best"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Some rounds of twelve clients in three groups."""
    algorithm, _, method = request.param.partition("+")
    return builders.run(
        tmp_path_factory.mktemp("measured") / "run",
        data={"clients": 12, "samples": 64, "public": 64},
        partition={"groups": 3},
        local={"lr": 0.5, "batch": 0},
        algorithm={"name": algorithm},
        personal={"method": method or "none"},
        probe={"gap": ["dcos", "l2"]},
    )


def test_every_key_of_a_record_and_of_the_summary_has_its_entry(run: Run) -> None:
    keys = {key for record in run.rounds for key in record} | set(run.summary)
    uses = {key for key in keys if key.startswith("acc_")} - {
        *("acc_client", "acc_weighted", "acc_cluster", "acc_worst", "acc_best", "acc_best_round")
    }
    assert "acc_<use>" in NAMED and len(uses) <= 1
    assert keys - uses <= NAMED


def test_every_column_of_the_tables_has_its_entry(run: Run) -> None:
    for name in ("clients", "gaps"):
        assert set(pq.read_schema(run.folder / name / "00001.parquet").names) <= NAMED
    tree = json.loads((run.folder / "tree.json").read_text())
    assert set(tree[0]) <= NAMED


def test_every_metric_of_an_algorithm_has_its_entry(run: Run) -> None:
    assert {metric["name"] for record in run.rounds for metric in record["metrics"]} <= NAMED
