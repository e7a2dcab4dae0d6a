"""A run folder as the training loop writes it: clients in 4 true groups, splits in rounds 4, 7 and 7."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import tomli_w
import torch

from fedstrata.core import Matrix, Score
from fedstrata.objective.metric_info import ACCURACY, dump_metric
from fedstrata.records.folder import Folder
from fedstrata.records.schema import MetricRecord, Record
from fedstrata.report.reader import RunRecords

R = TypeVar("R", bound=Record)

CLIENTS = 20
TRUTH = [client % 4 for client in range(CLIENTS)]
SIDES = {1: {0, 1}, 2: {2, 3}, 3: {0}, 4: {1}, 5: {2}, 6: {3}}
LAYERS = ["conv1", "conv2", "fc1", "fc2"]
EXPERIMENT = """\
seed = 3
rounds = 30

[data]
name = "digits"
clients = 20

[partition]
scheme = "rotation"
groups = 4

[model]
name = "mlp"

[algorithm]
name = "layercfl"
layers = "conv2"

[engine]
name = "loop"

[probe]
gap = ["dcos", "dl2"]
"""


def label(client: int, number: int) -> int:
    """The node of a client after this round; client 19 misses the second split and comes back in round 9."""
    group = client % 4
    if number < 4:
        return 0
    if number < 7 or (client == 19 and number < 9):
        return 1 if group < 2 else 2
    return 3 + group


def events(number: int) -> list[dict[str, Any]]:
    why = "no pair across is closer than 0.21, and the mean update was small (0.18)"
    if number == 4:
        return [{"kind": "split", "node": 0, "into": [1, 2], "layer": "conv2", "why": why}]
    if number == 7:
        return [
            {"kind": "split", "node": 1, "into": [3, 4], "layer": "conv2", "why": why},
            {"kind": "split", "node": 2, "into": [5, 6], "layer": "conv2", "why": why},
        ]
    if number == 9:
        return [{"kind": "place", "client": 19, "node": 6, "losses": [0.91, 0.44]}]
    return []


def rounds(count: int, n: int = CLIENTS) -> list[dict[str, Any]]:
    lines = []
    for number in range(1, count + 1):
        accuracy = accuracies(number, n)
        labels = [label(client, number) for client in range(n)]
        lines.append(
            {
                "round": number,
                "seconds": 1.2 + 0.3 * (number % 3),
                "clusters": 1 if number < 4 else 2 if number < 7 else 4,
                "labels": labels,
                "pending": [19] if number in (7, 8) else [],
                "acc_client": float(accuracy.mean()),
                "acc_weighted": float(accuracy.mean()) + 0.004,
                "acc_cluster": float(accuracy.mean()) - 0.002,
                "acc_worst": float(accuracy.min()),
                "loss": 2.3 * 0.93**number,
                "ari": 0.0 if number < 4 else 0.46 if number < 7 else 1.0,
                "bytes_down": 4_800_000,
                "bytes_up": 4_800_000 - (240_000 if number in (7, 8) else 0),
                "cohort": list(range(n)),
                "absent": [19] if number in (7, 8) else [],
                "rejected": [5] if number == 12 else [],
                "events": events(number),
                "metrics": metrics_of({"left_out": 1.0 if number == 9 else 0.0, "cross_max": 0.5 - 0.01 * number}),
            }
        )
    return lines


def accuracies(number: int, n: int = CLIENTS) -> np.ndarray[Any, np.dtype[np.float64]]:
    rng = np.random.default_rng(number)
    ceiling = 0.5 if number < 4 else 0.62 if number < 7 else 0.9
    groups = 0.03 * (np.arange(n) % 4)
    return ceiling * (1 - 0.8**number) - groups + 0.03 * np.sin(np.arange(n)) + rng.normal(0, 0.008, n)


def nodes(n: int = CLIENTS) -> list[dict[str, Any]]:
    tree = []
    settled = "the mean update is still large (0.52 > 0.40)"
    for node in range(7):
        members = [client for client in range(n) if node == 0 or client % 4 in SIDES[node]]
        tree.append(
            {
                "id": node,
                "parent": None if node == 0 else 0 if node < 3 else 1 if node < 5 else 2,
                "members": members,
                "born": 1 if node == 0 else 4 if node < 3 else 7,
                "split": 4 if node == 0 else 7 if node < 3 else None,
                "layer": "conv2" if node < 3 else None,
                "criteria": {"mean_norm": 0.18 if node < 3 else 0.52, "max_norm": 1.4, "cross_max": 0.21},
                "why": "no pair across is closer than 0.21" if node < 3 else settled,
            }
        )
    return tree


def matrices(number: int, examined: list[int], n: int) -> list[Matrix]:
    rng = np.random.default_rng(100 + number)
    present = [client for client in range(n) if client != 19 or number != 7]
    found = []
    for node in examined:
        clients = np.array([c for c in present if node == 0 or c % 4 in SIDES[node]])
        truth = clients % 4
        far = 0.9 - 0.3 * (truth[:, None] != truth) - 0.4 * (truth[:, None] // 2 != truth // 2)
        noise = rng.normal(0, 0.05, far.shape)
        values = far + (noise + noise.T) / 2
        np.fill_diagonal(values, 1.0)
        for layer in ("conv2", "fc1"):
            found.append(Matrix(node, layer, "dcos", torch.tensor(clients), torch.tensor(values)))
    return found


def write(folder: Path, count: int = 30, finished: bool = True, n: int = CLIENTS) -> Path:
    """Write ``count`` rounds of ``n`` clients."""
    records = Folder(folder)
    records.create(EXPERIMENT)
    (folder / "rounds.jsonl").touch()
    (folder / "metric.json").write_bytes(dump_metric(ACCURACY))
    (folder / "tree.json").write_text(json.dumps(nodes(n)), encoding="utf-8")
    samples = 100 + torch.arange(n)
    lines = rounds(count, n)
    for line in lines:
        number = line["round"]
        accuracy = torch.tensor(accuracies(number, n))
        records.add(line, Score(torch.arange(n), accuracy * samples, samples, 2.3 - 2 * accuracy))
        gaps: list[dict[str, str | float]] = [
            {"layer": layer, "measure": measure, "gap": (0.3 - 0.1 * depth) * np.sin(number / 6 + depth)}
            for measure in ("dcos", "dl2")
            for depth, layer in enumerate(LAYERS)
        ]
        gaps[3]["gap"] = gaps[7]["gap"] = nan  # of the last layer
        records.add_gaps(number, gaps)
        examined = [0] if number <= 4 else [1, 2] if number <= 7 else [3, 4, 5, 6] if number % 10 == 0 else []
        if examined:
            records.add_matrices(number, matrices(number, examined, n))
    if finished:
        shared = ("clusters", "ari", "acc_client", "acc_weighted", "acc_cluster", "acc_worst")
        summary = {
            "algorithm": "layercfl",
            "dataset": "digits",
            "partition": "rotation",
            "model": "mlp",
            "seed": 3,
            "rounds": count,
            "purity": 1.0,
            "rounds_to_partition": 9,
            **{name: sum(line[name] for line in lines) for name in ("bytes_down", "bytes_up")},
            "seconds": 47.1,
            "seconds_training": 40.2,
            "seconds_server": 1.3,
            "versions": {"fedstrata": "0.1.0", "torch": "2.13.0"},
            "truth": [client % 4 for client in range(n)],
        }
        records.write_summary(summary | {name: lines[-1][name] for name in shared})
    return folder


def edit(file: Path, **changes: object) -> None:
    """Other values for some keys of a JSON file."""
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | changes), encoding="utf-8")


def edit_rounds(folder: Path, change: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
    """Other values for some keys of the rounds: what `change` returns for each of them."""
    file = folder / "rounds.jsonl"
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    file.write_text("".join(json.dumps(line | change(line)) + "\n" for line in lines), encoding="utf-8")


def edit_nodes(folder: Path, change: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
    """Other values for some keys of the nodes: what `change` returns for each of them."""
    file = folder / "tree.json"
    file.write_text(json.dumps([node | change(node) for node in json.loads(file.read_text(encoding="utf-8"))]))


def name_all(folder: Path, name: str) -> None:
    """Give a run one name for everything that a file of a run names."""
    edit(folder / "summary.json", versions={name: name}, truth=[name] * CLIENTS)
    edit_nodes(folder, lambda node: {"why": name, "layer": name, "criteria": {name: 1.0}})
    split = {"kind": "split", "node": 0, "into": [1, 2], "layer": name, "why": name}
    metrics = [{"name": name, "value": 1.0}, {"name": name, "value": 2.0, "node": 1}]
    evil = {"metrics": metrics, f"acc_{name}": 0.5, "events": [split, {"kind": name, name: name}]}
    edit_rounds(folder, lambda line: evil)
    names = {table: {"name": name} for table in ("algorithm", "data", "model")}
    experiment = tomli_w.dumps({"rounds": 30, **names, "partition": {"scheme": name}})
    (folder / "experiment.toml").write_text(f"{experiment}# {name}\n", encoding="utf-8")


def text_of(page: Path) -> str:
    """A page; the script of Plotly is not in it, see ``made_once.py``."""
    return page.read_text(encoding="utf-8")


def figures_of(text: str) -> dict[str, Any]:
    """The charts of a page, by their names."""
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    figures: dict[str, Any] = json.loads(found[1])
    return figures


def metrics_of(values: Mapping[str, float | None]) -> list[dict[str, Any]]:
    """Records of metrics; ``"p of node 3"`` is of a node, ``"stability conv1"`` of a layer."""
    found = []
    for name, value in values.items():
        text, _, node = name.partition(" of node ")
        of_layer = text.startswith("stability ")
        record = {"name": "stability" if of_layer else text, "value": value, "node": int(node) if node else None}
        found.append({**record, "layer": text.removeprefix("stability ") if of_layer else None})
    return found


def with_metrics_of(record: R, values: Mapping[str, float | None]) -> R:
    """A record of a round with other metrics."""
    return changed(record, metrics=[MetricRecord(**each) for each in metrics_of(values)])


def changed(record: R, **changes: object) -> R:
    """A record with other values for some fields."""
    return record.model_copy(update=changes)


def every_round(records: RunRecords, **changes: object) -> RunRecords:
    """A run with other values for some fields of all its rounds."""
    return replace(records, rounds=tuple(changed(each, **changes) for each in records.rounds))


def last_round(records: RunRecords, **changes: object) -> RunRecords:
    """A run with other values for some fields of its last round."""
    *before, last = records.rounds
    return replace(records, rounds=(*before, changed(last, **changes)))
