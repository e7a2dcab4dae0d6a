import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from fedstrata.base.errors import RecordError
from fedstrata.core import Matrix, Score, fixed_clusters, initial_state
from fedstrata.records.folder import Folder
from fedstrata.testing import toy_problem

SCORE = Score(torch.arange(3), torch.tensor([1, 2, 4]), torch.tensor([4, 4, 4]), torch.tensor([0.5, 0.25, 0.0]))


def record_of(round: int, **changes: Any) -> dict[str, Any]:
    """A finished round."""
    measures = ("acc_client", "acc_weighted", "acc_cluster", "acc_worst", "loss", "ari", "seconds")
    lists: dict[str, list[int]] = {name: [] for name in ("pending", "cohort", "absent", "rejected", "events")}
    counts = {"round": round, "clusters": 2, "bytes_down": 8, "bytes_up": 8}
    return {**counts, **dict.fromkeys(measures, 0.5), **lists, "labels": [0, 0, 7], "metrics": [], **changes}


def folder_with(path: Path, rounds: int) -> Folder:
    folder = Folder(path / "run")
    folder.create("seed = 0\n")
    for round in range(1, rounds + 1):
        folder.add(record_of(round), SCORE)
        folder.add_gaps(round, [{"layer": "conv", "measure": "dcos", "gap": 0.5}])
        folder.add_matrices(round, [Matrix(0, "conv", "dcos", torch.tensor([0, 2]), torch.eye(2))])
    return folder


def test_the_records_of_a_round_can_be_read_by_anyone(tmp_path: Path) -> None:
    path = folder_with(tmp_path, 1).path
    assert (path / "experiment.toml").read_text() == "seed = 0\n"
    clients = pq.read_table(path / "clients" / "00001.parquet").to_pylist()
    assert clients[2] == {"client": 2, "node": 7, "samples": 4, "accuracy": 1.0, "loss": 0.0}
    gaps = pq.read_table(path / "gaps" / "00001.parquet").to_pylist()
    assert gaps == [{"layer": "conv", "measure": "dcos", "gap": 0.5}]
    with np.load(path / "matrices" / "00001.npz", allow_pickle=False) as arrays:
        assert arrays["0|dcos|conv"].tolist() == [[1, 0], [0, 1]]
        assert arrays["0|dcos|conv|clients"].tolist() == [0, 2]


def test_what_is_not_finite_is_null_for_every_reader_of_json(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, 0)
    folder.add(record_of(1, loss=float("nan"), metrics=[{"name": "x", "value": float("inf")}]), SCORE)
    assert json.loads((folder.path / "rounds.jsonl").read_text())["loss"] is None
    assert "NaN" not in (folder.path / "rounds.jsonl").read_text()


def test_only_the_models_of_the_last_clusters_are_left(tmp_path: Path) -> None:
    """A run that finished with one cluster may be extended, and split it."""
    folder = folder_with(tmp_path, 0)
    problem = toy_problem(clients=4)
    folder.finish(problem.layout, initial_state(problem), {})
    split = fixed_clusters(problem, torch.tensor([0, 0, 1, 1]), 2, "true_groups_given")
    folder.finish(problem.layout, split, {})
    names = sorted(path.name for path in (folder.path / "models").iterdir())
    assert names == ["cluster-1.safetensors", "cluster-2.safetensors"]


def test_rewinding_drops_what_is_newer_than_the_checkpoint(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, 4)
    folder.rewind(3)
    assert [record["round"] for record in folder.rounds()] == [1, 2]  # round 3 is scored by the plan of round 4
    for name in ("clients", "gaps", "matrices"):
        assert sorted(path.stem for path in (folder.path / name).iterdir()) == ["00001", "00002", "00003"]


def test_a_finished_run_holds_its_models_tree_and_summary(tmp_path: Path) -> None:
    folder, problem = folder_with(tmp_path, 1), toy_problem(3)
    with pytest.raises(RecordError, match=r"no summary\.json"):
        folder.summary()
    folder.finish(problem.layout, initial_state(problem), {"ari": 1.0})
    assert folder.summary() == {"ari": 1.0}
    (folder.path / "summary.json").write_text("{")
    with pytest.raises(RecordError, match=r"summary\.json: expected a finished run, found: .*resume"):
        folder.summary()
    model = load_file(folder.path / "models" / "cluster-0.safetensors")
    assert {name: tensor.shape for name, tensor in model.items()} == {"conv.weight": (3,), "fc.weight": (3,)}
    tree = json.loads((folder.path / "tree.json").read_text())
    assert tree == [
        {
            "id": 0,
            "parent": None,
            "members": [0, 1, 2],
            "born": 0,
            "split": None,
            "layer": None,
            "criteria": {},
            "why": "",
        }
    ]
