"""SHA-256 of the labels and the model files of many short runs, to show that a change of code changes no result.

Bits depend on the processor and on the versions of the libraries, so both files are made on one machine:

    python tests/fingerprints.py write before.json    # at one revision
    python tests/fingerprints.py compare before.json  # at another: names every run that differs, exit status 1
    python tests/fingerprints.py compare before.json strata hicfl  # only the runs whose names hold one of the words

The runs are:

- every case of the conformance suite, with joins, leaves, changed data and misplaced clients, on the loop engine;
- every algorithm on two processes;
- every algorithm over Flower's messages in memory;
- every algorithm on 200 images of MNIST for each of 20 clients, where ``FEDSTRATA_DATA`` names the data folder.

A run that ends in an error has the error as its fingerprint.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedstrata.algorithms import ALGORITHMS
from fedstrata.config import load_experiment
from fedstrata.flower.client_work import Device
from fedstrata.flower.federation import Federation
from fedstrata.flower.server import drive
from fedstrata.play.run import run_experiment
from test_every_algorithm import CASES, EAGER
from turns import EVENTS

# Only the folder of this script is searched for modules by itself.
sys.path.append(str(Path(__file__).parent / "flower"))

from in_process import Loopback, Ticks, federation

DIGITS: dict[str, Any] = {
    "rounds": 8,
    "data": {"name": "digits", "clients": 12, "samples": 64, "test": 0.2, "public": 64},
    "partition": {"scheme": "label_groups", "labels": [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]},
    "model": {"name": "mlp", "hidden": [16]},
    "local": {"lr": 0.5, "batch": 16},
    "engine": {"name": "loop"},
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


def fingerprint(folder: Path) -> dict[str, str]:
    """SHA-256 of the labels of all rounds, and of the model files in the order of their names."""
    records = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    labels = json.dumps([record["labels"] for record in records])
    models = hashlib.sha256()
    for path in sorted((folder / "models").glob("*.safetensors")):
        models.update(path.name.encode() + path.read_bytes())
    return {"labels": hashlib.sha256(labels.encode()).hexdigest(), "models": models.hexdigest()}


def simulated(keys: dict[str, Any], out: Path) -> None:
    """A run of the simulator."""
    run_experiment(load_experiment(keys), out, quiet=True)


def over_messages(keys: dict[str, Any], devices: dict[int, Device], members: Federation, out: Path) -> None:
    """A run over Flower's messages, in this process."""
    here = {node: Device(device.key, device.data, out / device.key) for node, device in devices.items()}
    drive(Loopback(here), load_experiment(keys), members, out, clock=Ticks().clock)


def runs(scratch: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Every run: its name, and what makes it in a folder."""
    for label, case in CASES.items():
        algorithm = {"name": case.name, **case.keys}
        yield f"digits {label}", partial(simulated, {**DIGITS, "events": EVENTS, "algorithm": algorithm})
    two = {"name": "processes", "workers": 2}
    for name in ALGORITHMS:
        algorithm = {"name": name, **EAGER.get(name, {})}
        yield f"processes {name}", partial(simulated, {**DIGITS, "rounds": 3, "algorithm": algorithm, "engine": two})
    made = federation(FLOWER, scratch)
    keys = tuple(device.key for device in made.devices.values())
    members = Federation(keys, made.config.samples, wait_seconds=5.0)
    for name in ALGORITHMS:
        if name in NOT_OVER_FLOWER:
            continue
        algorithm = {"name": name, **EAGER.get(name, {})}
        yield f"flower {name}", partial(over_messages, {**FLOWER, "algorithm": algorithm}, made.devices, members)
    if "FEDSTRATA_DATA" not in os.environ:
        return
    for name in ALGORITHMS:
        algorithm = {"name": name, **EAGER.get(name, {})}
        yield f"mnist {name}", partial(simulated, {**MNIST, "algorithm": algorithm})


def fingerprints(words: Sequence[str] = ()) -> dict[str, dict[str, str]]:
    """Those of all runs whose names hold one of the words, by name; without words those of all."""
    found = dict[str, dict[str, str]]()
    with TemporaryDirectory() as scratch:
        (Path(scratch) / "devices").mkdir()
        for place, (name, make) in enumerate(runs(Path(scratch) / "devices")):
            if words and not set(words) & set(re.findall(r"\w+", name)):
                continue
            out = Path(scratch) / str(place)
            try:
                make(out)
                found[name] = fingerprint(out)
            except Exception as error:
                found[name] = {"error": repr(error)[:300]}
            print(name, found[name].get("error", "done"), file=sys.stderr, flush=True)
    return found


def main(verb: str, path: Path, *words: str) -> int:
    """Write the fingerprints to a file, or compare them with those of a file."""
    found = fingerprints(words)
    if verb == "write":
        path.write_text(json.dumps(found, indent=1) + "\n")
        return 0
    before = json.loads(path.read_text())
    compared = [name for name in before if not words or name in found]
    different = [name for name in compared if found.get(name) != before[name]]
    print(f"{len(compared)} runs, {len(different)} differ: {', '.join(different) or 'none'}")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))
