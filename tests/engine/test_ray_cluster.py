"""A cluster of Ray, each node a real `ray start`, as `speed/cluster.py` measures it: never a changed bit."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

pytestmark = pytest.mark.deploy

ROOT = Path(__file__).parents[2]
PARTS = ("equal", "shipped", "added", "killed", "autoscaling")


@cache
def found() -> dict[str, Any]:
    """What comes out on nodes that are started for this, in a process of its own: Ray is joined once in a process."""
    places = [ROOT, ROOT / "tests", ROOT / "tests" / "engine", ROOT / "examples" / "flower", *sys.path]
    with TemporaryDirectory() as room:
        out = Path(room) / "cluster.json"
        command = [sys.executable, "-m", "experiments.speed.cluster", "--out", str(out), "--parts", *PARTS]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        figures: dict[str, Any] = json.loads(out.read_text())
        return figures


def test_runs_on_nodes_of_different_sizes_are_the_loop_in_every_bit() -> None:
    runs = found()["equal"]
    assert len(runs) == 3 and all(run["equal"] for run in runs)
    assert {run["tasks"] for run in runs} == {4}  # one for each core: 1 + 1 + 2, and none on the head


def test_data_are_sent_to_each_node_once_and_read_where_they_lie() -> None:
    figures = found()["shipped"]
    data, model = figures["data_bytes"], figures["model_bytes"]
    assert [node["cores"] for node in figures["nodes"]] == [1, 1, 2] and data > 20_000_000
    for node in figures["nodes"]:
        # Once, also where two workers read it; then the models alone.
        assert data <= node["first_round"] < 1.02 * data and model <= node["second_round"] < 0.01 * data
    assert figures["workers"] >= 3 and figures["in_shared_memory"]


def test_a_node_that_is_killed_in_mid_round_changes_no_bit() -> None:
    """All its processes at once, the daemon of Ray among them; FedRep's clients keep tensors."""
    runs = found()["killed"]
    assert {run["algorithm"] for run in runs} == {"layercfl", "strata", "fedrep"}
    assert all(run["equal"] and run["in_round"] for run in runs)


def test_a_node_that_joins_a_run_is_used_from_the_next_round_on() -> None:
    (run,) = found()["added"]
    assert run["equal"] and run["tasks"] == [4, 4, 4, 6, 6, 6]


def test_the_autoscaler_adds_the_nodes_that_the_tasks_of_a_round_wait_for() -> None:
    (run,) = found()["autoscaling"]
    assert run["equal"] and (run["nodes_before"], run["nodes_after"]) == (0, 2)
