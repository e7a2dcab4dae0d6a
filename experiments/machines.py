"""Find out how far the vector instructions of a processor decide the digits of a result.

    FEDSTRATA_DATA=DATA python experiments/machines.py [CASE...]

Runs some federations again and again on this machine, each in a process of its own: as it is, and with torch, oneDNN or
MKL held to other instructions, as if the processor had no better ones. Nothing else differs. For every run,
``experiments/results/machines.json`` keeps the digest of the models, and accuracy, loss and clusters of every round.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from exhibits.running import alone
from outcomes import MISSING, RESULTS, table

import fedstrata as fs
from fedstrata.runner.machine import machine

HERE = Path(__file__).parent
OUT = RESULTS / "machines.json"
KEPT = ("acc_client", "loss", "clusters", "ari")

CASES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "digits, FedAvg": ("digits_rotation", ("algorithm.name=fedavg",)),
    "digits, IFCA": ("digits_rotation", ("algorithm.name=ifca", "algorithm.k=4")),
    "digits, Strata": ("digits_rotation", ("algorithm.name=strata",)),
    "MNIST, LayerCFL, 10 rounds": ("mnist_rotation", ("rounds=10",)),
    "USC-HAD, FedAvg, 15 rounds": ("usc_had_subjects", ("algorithm.name=fedavg", "rounds=15")),
}
"""An experiment file and what differs from it, by what a table calls them."""

NATIVE = "as it is"
WAYS: Mapping[str, Mapping[str, str]] = {
    NATIVE: {},
    "once more": {},
    "two threads": {"OMP_NUM_THREADS": "2"},
    "torch with AVX2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "torch without AVX": {"ATEN_CPU_CAPABILITY": "default"},
    "oneDNN with AVX2": {"DNNL_MAX_CPU_ISA": "AVX2"},
    "MKL for any processor": {"MKL_CBWR": "COMPATIBLE"},
    "all three with AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "DNNL_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"},
}
"""What the environment of a process is changed by."""


def main() -> None:
    """Run every case in every way that is not kept yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"some of: {'; '.join(CASES)}; all where none is named")
    parser.add_argument("--here", action="store_true", help="run the one case in this very process, and print it")
    given = parser.parse_args()
    if unknown := set(given.cases) - set(CASES):
        parser.error(f"there is no case {min(unknown)!r}")
    if given.here:
        print(json.dumps(run(given.cases[0])))
        return
    for case in given.cases or CASES:
        for way in WAYS:
            if way not in known()["cases"].get(case, {}):
                keep(case, way, in_a_process_of_its_own(case, way))
                print(f"{case}, {way}", flush=True)


def in_a_process_of_its_own(case: str, way: str) -> dict[str, Any]:
    """A run under a changed environment, which the libraries read only once."""
    environment = {"OMP_NUM_THREADS": "1", **os.environ, **WAYS[way]}
    command = [sys.executable, __file__, case, "--here"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def run(case: str) -> dict[str, Any]:
    """The digest of all models at the end, and the curves with all their digits."""
    experiment, sets = CASES[case]
    with TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        made = fs.run(HERE / f"{experiment}.toml", out, sets=["seed=0", "engine.name=loop", *sets], quiet=True)
        models = b"".join(path.read_bytes() for path in sorted((out / "models").glob("*.safetensors")))
        curves = {key: [record[key] for record in made.rounds] for key in KEPT}
        return {"machine": machine(), "models": hashlib.sha256(models).hexdigest()[:16], **curves}


def known() -> dict[str, Any]:
    """What was found so far."""
    found: dict[str, Any] = json.loads(OUT.read_text()) if OUT.exists() else {"cases": {}}
    return found


def keep(case: str, way: str, found: Mapping[str, Any]) -> None:
    """Add a run to the file. Another process may do so at the same time."""
    with alone(OUT.with_suffix(".lock")):
        content = known()
        ways = {**content["cases"].get(case, {}), way: dict(found)}
        cases = {**content["cases"], case: {each: ways[each] for each in WAYS if each in ways}}
        ordered = {each: cases[each] for each in CASES if each in cases}
        OUT.write_text(text({"cases": ordered}))


def text(content: Mapping[str, Any]) -> str:
    """The content as JSON, one line for each run."""
    cases = [
        f"  {json.dumps(case)}: {{\n"
        + ",\n".join(f"   {json.dumps(way)}: {json.dumps(found)}" for way, found in ways.items())
        + "\n  }"
        for case, ways in content["cases"].items()
    ]
    return '{\n "cases": {\n' + ",\n".join(cases) + "\n }\n}\n"


def largest(one: Mapping[str, Any], other: Mapping[str, Any], key: str) -> float:
    """The largest difference of a measure in any round."""
    return float(max(abs(a - b) for a, b in zip(one[key], other[key], strict=True)))


def machines() -> str:
    """The table of the documentation: how far each way is from the machine as it is, in every case."""
    rows = []
    for case, ways in known()["cases"].items():
        if NATIVE not in ways:
            continue
        native = ways[NATIVE]
        for way, found in ways.items():
            if way != NATIVE:
                rows.append((case, way, *_cells(native, found)))
    head = "run | changed | models | largest difference of loss | of accuracy | of accuracy after the last round"
    return table(head, rows or [(MISSING,)])


def _cells(native: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[str, ...]:
    if found["models"] == native["models"]:
        return ("equal in every bit", "0", "0", "0")
    last = abs(found["acc_client"][-1] - native["acc_client"][-1])
    clusters = "" if found["clusters"] == native["clusters"] else ", other clusters"
    points = (f"{100 * value:.2f} points" for value in (largest(native, found, "acc_client"), last))
    return (f"differ{clusters}", f"{largest(native, found, 'loss'):.1g}", *points)


if __name__ == "__main__":
    main()
