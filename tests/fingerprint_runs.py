"""The runs whose fingerprints are compared: each algorithm, engine and step of the library at least once.

A run is a name, whose words select it, and a function that makes it in a folder and returns what is not in that folder,
by the name of the part.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from functools import cache, partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from in_process import Loopback, Ticks, federation
from PIL import Image
from torch import nn

import fedstrata as fs
from fedstrata.config import load_experiment
from fedstrata.flower.client_app import Device
from fedstrata.flower.federation import Federation
from fedstrata.flower.server_app import drive
from own_data import SITES, Arrays, arrays, save, without
from test_every_algorithm import CASES, EAGER
from turns import EVENTS

Keys = Mapping[str, Any]
Parts = dict[str, Any]
Run = Callable[[Path], Parts]

DIGITS: dict[str, Any] = {
    "rounds": 8,
    "data": {"name": "digits", "clients": 12, "samples": 64, "test": 0.2, "public": 64},
    "partition": {"scheme": "label_groups", "labels": [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]},
    "model": {"name": "mlp", "hidden": [16]},
    "local": {"lr": 0.5, "batch": 16},
    "engine": {"name": "loop"},
}
SHORT: dict[str, Any] = {**DIGITS, "rounds": 5}
ROTATED: dict[str, Any] = {
    **DIGITS,
    "rounds": 3,
    "data": {"name": "digits", "clients": 8, "samples": 48, "test": 0.2},
    "partition": {"scheme": "rotation", "groups": 2},
    "algorithm": {"name": "strata", **EAGER["strata"]},
}
MNIST: dict[str, Any] = {
    "rounds": 4,
    "data": {"name": "mnist", "clients": 20, "samples": 200, "public": 64},
    "partition": {"scheme": "rotation", "groups": 4},
    "local": {"lr": 0.05, "batch": 50},
    "engine": {"name": "loop"},
}
FLOWER: dict[str, Any] = {**DIGITS, "rounds": 4, "data": {**DIGITS["data"], "clients": 8, "public": 0}}

NOT_OVER_FLOWER = ("centralized", "oracle", "fedtsdp", "flis")
"""Algorithms that need the union of the data, the hidden groups, or public samples: over Flower there are none."""

ATTACKS = (
    *("sign_flip", "scaling", "noise", "zero", "alie", "ipm", "min_max", "sybil", "slow_poisoning", "split", "merge"),
    *("cluster_hopping", "label_flip", "backdoor"),
)
RULES = (
    *("mean", "plain_mean", "median", "trimmed_mean", "geometric_median", "krum", "multi_krum", "norm_clip"),
    "centered_clip",
)
SERVER: dict[str, Keys] = {
    **{rule: {"aggregation": rule} for rule in RULES},
    **{
        f"{rule}-share": {"aggregation": rule, "byzantine_share": 0.3}
        for rule in ("trimmed_mean", "krum", "multi_krum")
    },
    "norm-limit": {"aggregation": "norm_clip", "clip_norm": 0.1},
    "centre-limit": {"aggregation": "centered_clip", "clip_norm": 0.1},
    "quantile": {"aggregation": "norm_clip", "clip_quantile": 0.25},
    **{name: {"optimizer": name} for name in ("momentum", "adagrad", "yogi", "adam")},
    "median-adam": {"aggregation": "median", "optimizer": "adam", "lr": 0.05},
}
PRIVACY: dict[str, Keys] = {
    "central": {"privacy": {"kind": "central", "clip_norm": 0.5, "noise_multiplier": 0.4}},
    "central-epsilon": {"privacy": {"kind": "central", "epsilon": 20.0}, "cohort": {"sampling": "poisson"}},
    "central-cohorts": {
        "privacy": {"kind": "central", "noise_multiplier": 0.4, "min_cluster": 3},
        "cohort": {"sampling": "poisson", "fraction": 0.7, "dropout": 0.1},
    },
    "local": {"privacy": {"kind": "local", "clip_norm": 0.5, "noise_multiplier": 0.1}},
    "local-epsilon": {"privacy": {"kind": "local", "epsilon": 200.0, "delta": 1e-3}},
    "small-clusters": {"privacy": {"min_cluster": 4}},
}
COMPRESSION: dict[str, Keys] = {
    "bfloat16": {"compression": "bfloat16"},
    "int8": {"compression": "int8"},
    "top_k": {"compression": "top_k", "share": 0.1},
}
TOGETHER: dict[str, Keys] = {
    "attack-compressed": {"attack": {"kind": "alie", "share": 0.25}, "network": COMPRESSION["int8"]},
    "attack-rule-compressed": {
        "attack": {"kind": "sign_flip", "share": 0.25},
        "server": {"aggregation": "trimmed_mean", "byzantine_share": 0.3},
        "network": COMPRESSION["top_k"],
    },
    "attack-local-noise": {**PRIVACY["local"], "attack": {"kind": "scaling", "share": 0.25}},
    "attack-central-noise": {**PRIVACY["central"], "attack": {"kind": "noise", "share": 0.25}},
    "noise-compressed": {**PRIVACY["local"], "network": COMPRESSION["bfloat16"]},
    "central-noise-compressed": {**PRIVACY["central"], "network": COMPRESSION["int8"]},
    "everything": {
        **PRIVACY["local"],
        "attack": {"kind": "min_max", "share": 0.25, "from_round": 2},
        "network": COMPRESSION["int8"],
        "server": {"aggregation": "median"},
        "cohort": {"fraction": 0.8, "dropout": 0.1},
        "events": {"leave": [{"round": 3, "clients": [0]}]},
        "personal": {"method": "finetune", "epochs": 1},
    },
}
"""Steps that meet in one run: their order shows."""

PERSONAL: dict[str, Keys] = {
    "finetune": {"epochs": 2},
    "ditto": {"lam": 0.5},
    "best": {"epochs": 3, "layers": "head"},
}
COHORTS: dict[str, Keys] = {
    "fraction": {"fraction": 0.5},
    "size": {"fraction": 0.5, "sampling": "size"},
    "poisson": {"fraction": 0.5, "sampling": "poisson", "dropout": 0.2},
    "weights": {"fraction": 0.5, "weights": [*range(12)]},
    "dropout": {"dropout": 0.3},
    "scored": {"scored": 4},
}
LOCAL: dict[str, Keys] = {
    "adam": {"optimizer": "adam", "lr": 0.01},
    "adamw": {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1},
    "momentum": {"momentum": 0.9, "weight_decay": 0.01, "lr": 0.1, "clip_norm": 1.0},
    "steps": {"steps": 3, "epochs": 1},
    "exponential": {"lr_decay": 0.9},
    "cosine": {"schedule": "cosine", "warmup_rounds": 1, "lr_min": 0.01},
    "step": {"schedule": "step", "schedule_rounds": 2, "lr_decay": 0.5},
    "full-batch": {"batch": 0, "epochs": 2},
    "f1": {"metric": "f1_macro"},
    "auc": {"metric": "roc_auc"},
}
PARTITIONS: dict[str, Keys] = {
    "iid": {"scheme": "iid"},
    "rotation": {"scheme": "rotation", "sizes": [3, 9]},
    "inside": {"scheme": "rotation", "groups": 2, "inside": {"scheme": "dirichlet", "alpha": 0.5}},
    "concept": {"scheme": "concept", "groups": 3, "classes": [0, 1, 2, 3]},
    "majority": {"scheme": "majority", "groups": 6, "share": 0.4},
    "class_pairs": {"scheme": "class_pairs"},
    "shards": {"scheme": "shards", "per_client": 3},
    "dirichlet": {"scheme": "dirichlet", "alpha": 0.5},
    "dirichlet-classes": {"scheme": "dirichlet", "alpha": 0.5, "over": "classes"},
    "quantity": {"scheme": "quantity", "alpha": 1.0},
}
CHECKED = ("fedavg", "ifca", "cfl", "strata")
"""The algorithms that meet every step: one model, a choice of clients, splits by updates, and Strata."""


class SmallCNN(nn.Module):
    """Two convolutions and a linear layer, for images of 8 x 8 pixels."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(shape[0], 4, 3)
        self.conv2 = nn.Conv2d(4, 6, 3)
        self.head = nn.Linear(6 * 4 * 4, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self.head(torch.relu(self.conv2(torch.relu(self.conv1(x)))).flatten(1)))


class NormedCNN(nn.Module):
    """A convolution with batch normalisation, and two linear layers."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(shape[0], 4, 3, stride=2)
        self.norm = nn.BatchNorm2d(4)
        self.linear = nn.Linear(4 * 3 * 3, 8)
        self.head = nn.Linear(8, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.linear(torch.relu(self.norm(self.conv(x))).flatten(1)))
        return cast(torch.Tensor, self.head(hidden))


def simulated(keys: Keys, out: Path, **objects: Any) -> Parts:
    """A run of the simulator."""
    fs.run(dict(keys), out, quiet=True, **objects)
    return {}


def own(make: Callable[[Path], Keys], out: Path) -> Parts:
    """A run on data of one's own, which are made beside the run."""
    folder = out.with_name(f"{out.name}-data")
    folder.mkdir()
    return simulated({**DIGITS, "rounds": 2, "algorithm": {"name": "fedavg"}, **make(folder)}, out)


def with_eager(name: str) -> dict[str, Any]:
    """The table of an algorithm, with the keys by which it groups clients within a few rounds."""
    return {"name": name, **EAGER.get(name, {})}


def runs() -> Iterator[tuple[str, Run]]:
    """Every run."""
    for label, case in CASES.items():
        algorithm = {"name": case.name, **case.keys}
        yield f"digits {label}", partial(simulated, {**DIGITS, "events": EVENTS, "algorithm": algorithm})
    for engine in ("processes", "batched"):
        for name in fs.ALGORITHMS:
            keys = {**DIGITS, "rounds": 3, "algorithm": with_eager(name), "engine": {"name": engine, "workers": 2}}
            yield f"{engine} {name}", partial(simulated, keys)
    for engine in ("loop", "batched", "processes"):
        workers = {"workers": 2} if engine == "processes" else {}
        for network in ("SmallCNN", "NormedCNN"):
            keys = {**ROTATED, "model": {"name": f"{__name__}:{network}"}, "engine": {"name": engine, **workers}}
            yield f"network {engine} {network}", partial(simulated, keys)
            yield f"network {engine} {network} fedbn", partial(simulated, {**keys, "algorithm": {"name": "fedbn"}})
    for name, setting in _settings():
        yield name, partial(simulated, setting)
    yield from _own_data()
    yield from _over_flower()
    yield from _several()
    if "FEDSTRATA_DATA" in os.environ:
        for name in fs.ALGORITHMS:
            yield f"mnist {name}", partial(simulated, {**MNIST, "algorithm": with_eager(name)})


def _settings() -> Iterator[tuple[str, Keys]]:
    """Runs on the digits with other keys, on the loop engine unless their names say something else."""
    for name in CHECKED:
        base = {**SHORT, "algorithm": with_eager(name)}
        for attack in ATTACKS:
            if name in ("fedavg", "strata") or attack in ("sign_flip", "alie", "merge"):
                yield f"attack {attack} {name}", {**base, "attack": {"kind": attack, "share": 0.25}}
        for told in ("for_splits", "against_splits"):
            yield f"attack losses {told} {name}", {**base, "attack": {"kind": "sign_flip", "losses": told}}
        late = {"kind": "scaling", "where": "one_cluster", "share": 0.3, "from_round": 3, "strength": 5.0}
        yield f"attack late one_cluster {name}", {**base, "attack": late}
        flipped = {"kind": "sign_flip", "share": 0.25}
        for label, server in SERVER.items():
            if name in ("fedavg", "cfl"):
                yield f"server {label} {name}", {**base, "server": server, "attack": flipped}
        for label, table in COMPRESSION.items():
            yield f"compression {label} {name}", {**base, "network": table, "events": {}}
        for kind, named in (("privacy", PRIVACY), ("together", TOGETHER)):
            for label, keys in named.items():
                yield f"{kind} {label} {name}", {**base, **keys}
        for label, table in PERSONAL.items():
            yield f"personal {label} {name}", {**base, "personal": {"method": label, **table}}
    for name in ("hicfl", "layercfl", "fesem", "fl_hc", "fedper", "adacfl", "fedtsdp"):
        base = {**SHORT, "algorithm": with_eager(name)}
        yield f"privacy local {name}", {**base, **PRIVACY["local"]}
        yield f"privacy central {name}", {**base, **PRIVACY["central"]}
        yield f"compression top_k {name}", {**base, "network": COMPRESSION["top_k"]}
        yield f"server median {name}", {**base, "server": {"aggregation": "median"}, "attack": {"kind": "alie"}}
    for engine in ("batched", "processes"):
        for label, keys in TOGETHER.items():
            yield f"together {engine} {label}", {**ROTATED, **keys, "engine": {"name": engine, "workers": 2}}
    strata = {**SHORT, "algorithm": with_eager("strata")}
    for label, table in COHORTS.items():
        yield f"cohort {label} strata", {**strata, "cohort": table}
        yield f"cohort {label} cfl", {**SHORT, "algorithm": with_eager("cfl"), "cohort": table}
    fedavg = {**DIGITS, "rounds": 3, "algorithm": {"name": "fedavg"}}
    for label, table in LOCAL.items():
        yield f"local {label}", {**fedavg, "local": {**DIGITS["local"], **table}}
    for label, table in PARTITIONS.items():
        yield f"partition {label}", {**fedavg, "rounds": 2, "partition": table}
    data = {**DIGITS["data"], "validation": 0.2, "copies": 2, "scale": False}
    yield "data validation copies", {**strata, "data": data}
    probes = {"gap": ["cos", "dl2"], "matrices": ["l2", "dcos"], "layers": ["head", "all"]}
    yield "probe strata", {**strata, "probe": probes}
    every = {**probes, "rounds": [2, 4]}
    yield "probe hicfl", {**SHORT, "algorithm": with_eager("hicfl"), "probe": every}
    yield "baseline strata", {**strata, "report": {"baseline": True}}
    yield "default", {"rounds": 6, "label": "mine", "seed": 3, "engine": {"name": "loop"}}


# Data of one's own: four sites, whose rows differ.

NATURAL = {"scheme": "natural", "column": "site"}


def _one_each(columns: Arrays) -> dict[str, Any]:
    """The columns of a table, with one for each feature."""
    x = columns["x"]
    return {**{f"dose{place}": x[:, place] for place in range(3)}, **without(columns, "x")}


def _write_csv(path: Path, columns: Mapping[str, Any]) -> None:
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*map(list, columns.values()), strict=True))]
    path.write_text("\n".join(lines) + "\n")


def _csv(folder: Path, **data: Any) -> Keys:
    more = {"colour": ["red", "green", "blue"] * 64, "constant": [7] * 192, "number": [*range(192)]}
    _write_csv(folder / "mine.csv", _one_each(arrays()) | more)
    return {"data": {"name": str(folder / "mine.csv"), **data}, "partition": NATURAL}


def _iid_csv(folder: Path) -> Keys:
    return {**_csv(folder, clients=4), "partition": {"scheme": "iid"}}


def _split_csv(folder: Path) -> Keys:
    _write_csv(folder / "mine.csv", _one_each(arrays()) | {"split": ["train", "train", "test"] * 64})
    return {"data": {"name": str(folder / "mine.csv"), "unit": "none"}, "partition": NATURAL}


def _numbers_csv(folder: Path) -> Keys:
    mine = arrays()
    amounts = mine["y"] + mine["x"].sum(axis=1) * 2.5
    _write_csv(folder / "mine.csv", _one_each(without(mine, "y")) | {"amount": amounts})
    data = {"name": str(folder / "mine.csv"), "label": "amount", "unit": "trial"}
    return {"data": data, "partition": NATURAL, "local": {"lr": 0.05, "loss": "mse", "metric": "rmse"}}


def _npz(folder: Path) -> Keys:
    save(folder / "mine.npz", arrays())
    return {"data": {"name": str(folder / "mine.npz"), "unit": "trial"}, "partition": NATURAL}


def _client_files(folder: Path) -> Keys:
    mine = arrays()
    for site in SITES:
        rows = {name: values[mine["site"] == site] for name, values in mine.items()}
        _write_csv(folder / f"{site}.csv", _one_each(without(rows, "site")))
    return {"data": {"name": str(folder)}, "partition": {"scheme": "natural", "column": "client"}}


def _parquet(folder: Path, **data: Any) -> Keys:
    pq.write_table(pa.table(_one_each(arrays())), folder / "mine.parquet")
    return {"data": {"name": str(folder / "mine.parquet"), "unit": "trial", **data}, "partition": NATURAL}


def _images(folder: Path) -> Keys:
    rng = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (folder / label).mkdir()
        for number in range(48):
            pixels = rng.integers(0, 256, size=(8, 8), dtype=np.uint8) // (1 + (label == "dog"))
            Image.fromarray(pixels).save(folder / label / f"{number:02}.png")
    return {"data": {"name": str(folder), "clients": 4, "size": 6}, "partition": {"scheme": "iid"}}


def _in_memory(loss: str, out: Path) -> Parts:
    """Clients that a program gives, with numbers or several labels as targets."""
    rng = np.random.default_rng(1)
    clients = {}
    for place, site in enumerate(SITES):
        x = rng.normal(size=(40, 5)).astype(np.float32)
        y = (x * (-1) ** place).cumsum(axis=1)[:, -2:].astype(np.float32)
        clients[site] = (x, (y > 0).astype(np.float32) if loss == "bce" else y)
    keys = {"rounds": 3, "model": {"name": "mlp", "hidden": [8]}, "local": {"lr": 0.05}, "engine": {"name": "loop"}}
    return simulated(keys, out, clients=clients, algorithm="strata", loss=loss)


def _own_data() -> Iterator[tuple[str, Run]]:
    makes: dict[str, Callable[[Path], Keys]] = {
        "csv": _csv,
        "csv unit": partial(_csv, unit="trial"),
        "csv inputs": partial(_csv, unit="none", inputs=["dose0", "number"]),
        "csv iid": _iid_csv,
        "csv split": _split_csv,
        "csv numbers": _numbers_csv,
        "npz": _npz,
        "client files": _client_files,
        "parquet": _parquet,
        "parquet disk": partial(_parquet, memory="disk"),
        "images": _images,
    }
    for name, make in makes.items():
        yield f"own {name}", partial(own, make)
    for loss in ("mse", "mae", "huber", "bce"):
        yield f"own memory {loss}", partial(_in_memory, loss)


# Flower's messages, in this process.


@cache
def _devices() -> Any:
    """The devices, and the folder that goes when this process ends."""
    folder = TemporaryDirectory(prefix="fingerprints")
    return federation(FLOWER, Path(folder.name)), folder


def _over_messages(keys: Keys, out: Path) -> Parts:
    """A run over Flower's messages; what travelled, in the order in which it did, is in the parts."""
    made, _ = _devices()
    here = {node: Device(device.key, device.data, out / device.key) for node, device in made.devices.items()}
    members = Federation(tuple(device.key for device in here.values()), made.config.samples, wait_seconds=5.0)
    sizes = defaultdict[str, Counter[str]](Counter)
    contents = defaultdict[str, Any](hashlib.sha256)

    def seen(message: Message, reply: Message) -> list[Message]:
        for way, each in (("down", message), ("up", reply)):
            kind = f"{message.metadata.message_type}.{way}"
            parts = get_all_nested_objects(each.content) if each.has_content() else {}
            sizes[kind][message.metadata.group_id] += sum(len(part.deflate()) for part in parts.values())
            # Runs and messages have names that are drawn anew each time; tensors have none.
            for named, record in sorted(each.content.array_records.items() if parts else ()):
                for name, array in record.items():
                    contents[kind].update(f"{named} {name} {array.dtype} {array.shape}".encode() + array.data)
        return [reply]

    # Noise over Flower has a secret seed.
    drawn = patch("secrets.token_bytes", Random(0).randbytes)
    with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()), drawn:
        drive(Loopback(here, seen), load_experiment(keys), members, out, clock=Ticks().clock)
    devices = hashlib.sha256()
    for path in sorted(out.glob("*/*.safetensors")):
        if path.parent.name in {device.key for device in here.values()}:
            devices.update(path.parent.name.encode() + path.read_bytes())
    told = {f"payload.content.{kind}": content.hexdigest()[:16] for kind, content in contents.items()}
    return (
        {f"payload.bytes.{kind}": dict(size) for kind, size in sizes.items()} | told | {"devices": devices.hexdigest()}
    )


def _over_flower() -> Iterator[tuple[str, Run]]:
    names = [name for name in fs.ALGORITHMS if name not in NOT_OVER_FLOWER]
    for name in names:
        yield f"flower {name}", partial(_over_messages, {**FLOWER, "algorithm": with_eager(name)})
    steps: dict[str, Keys] = {
        **{f"compression {label}": {"network": table} for label, table in COMPRESSION.items()},
        **{f"privacy {label}": PRIVACY[label] for label in ("local", "central", "small-clusters")},
        **{f"server {rule}": {"server": {"aggregation": rule}} for rule in ("median", "norm_clip", "krum")},
        **{f"personal {label}": {"personal": {"method": label, **keys}} for label, keys in PERSONAL.items()},
        "cohort": {"cohort": {"fraction": 0.5, "scored": 3}},
        "noise-compressed": TOGETHER["noise-compressed"],
        "probe": {"probe": {"matrices": ["l2"]}},
    }
    for label, keys in steps.items():
        for name in ("fedavg", "strata"):
            run = partial(_over_messages, {**FLOWER, "algorithm": with_eager(name), **keys})
            yield f"flower {label} {name}", run


# Several runs side by side.

COMPARED: dict[str, Any] = {
    **ROTATED,
    "cohort": {"fraction": 0.75, "dropout": 0.2},
    "algorithms": {name: EAGER[name] for name in ("cfl", "ifca", "layercfl", "hicfl")},
}


def _compared(keys: Keys, algorithms: tuple[str, ...], seeds: tuple[int, ...], out: Path) -> Parts:
    rows = fs.compare(dict(keys), algorithms, seeds, out, quiet=True).table
    return {f"table.{row.algorithm}": row for row in rows}


def _swept(grid: Mapping[str, list[Any]], seeds: tuple[int, ...], out: Path) -> Parts:
    keys = {**ROTATED, "algorithm": {"name": "ifca"}, "data": {**ROTATED["data"], "validation": 0.2}}
    done = fs.sweep(keys, grid, seeds, out, quiet=True)
    assert done.choice is not None
    settings = {label: dict(setting) for label, setting in done.choice.settings.items()}
    return {"settings": settings, "best": done.best, **{f"table.{row.algorithm}": row for row in done.table}}


def _several() -> Iterator[tuple[str, Run]]:
    names = ("fedavg", "local", "cfl", "ifca", "layercfl", "hicfl", "strata")
    yield "comparison loop", partial(_compared, COMPARED, names, (0, 1))
    yield "comparison batched", partial(_compared, {**COMPARED, "engine": {"name": "batched"}}, names, (0,))
    attacked = {**COMPARED, **TOGETHER["attack-rule-compressed"]}
    yield "comparison attack", partial(_compared, attacked, ("fedavg", "cfl", "strata"), (0,))
    private = {**COMPARED, **PRIVACY["local"], "personal": {"method": "finetune", "layers": "head", "epochs": 1}}
    yield "comparison privacy personal", partial(_compared, private, ("fedavg", "ifca", "strata"), (0,))
    yield "sweep", partial(_swept, {"local.lr": [0.05, 0.2], "algorithm.k": [2, 3]}, (0, 1))
    server: dict[str, list[Any]] = {"server.aggregation": ["mean", "median"], "model.hidden": [[4], [16]]}
    yield "sweep server model", partial(_swept, server, (0,))
