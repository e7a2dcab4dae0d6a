"""Find out how far the vector instructions of a processor decide the digits of a result.

    FEDSTRATA_DATA=DATA python -m experiments.speed.instructions [CASE...]

Runs some federations again and again on this machine, each in a process of its own: as it is, and with torch, oneDNN or
MKL held to other instructions, as if the processor had no better ones. Nothing else differs.
``experiments/results/instructions.json`` keeps the digest of the models of each run, and accuracy, loss and clusters of
every round.
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

import fedstrata as fs
from experiments.papers.running import alone
from experiments.tools import outcomes
from experiments.tools.outcomes import MISSING, table
from fedstrata.records.resume import machine

EXPERIMENTS = {path.stem: path for path in Path(__file__).parents[1].glob("*/*.toml")}
KEPT = ("acc_client", "loss", "clusters", "ari")

CASES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "digits, FedAvg": ("digits_rotation", ("algorithm.name=fedavg", "rounds=20")),
    "digits, IFCA": ("digits_rotation", ("algorithm.name=ifca", "algorithm.k=4", "rounds=20")),
    "digits, Strata": ("digits_rotation", ("algorithm.name=strata", "rounds=20")),
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
    command = [sys.executable, "-m", "experiments.speed.instructions", case, "--here"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def run(case: str) -> dict[str, Any]:
    """The digest of all models at the end, and the curves with all their digits."""
    experiment, sets = CASES[case]
    with TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        made = fs.run(EXPERIMENTS[experiment], out, sets=["seed=0", "engine.name=loop", *sets], quiet=True)
        models = b"".join(path.read_bytes() for path in sorted((out / "models").glob("*.safetensors")))
        curves = {key: [record[key] for record in made.rounds] for key in KEPT}
        return {"machine": machine(), "models": hashlib.sha256(models).hexdigest()[:16], **curves}


def known() -> dict[str, Any]:
    """What was found so far."""
    file = kept_in()
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"cases": {}}
    return found


def kept_in() -> Path:
    """The file of the results."""
    return outcomes.RESULTS / "instructions.json"


def keep(case: str, way: str, found: Mapping[str, Any]) -> None:
    """Add a run to the file. Another process may do so at the same time."""
    with alone(kept_in().with_suffix(".lock")):
        content = known()
        ways = {**content["cases"].get(case, {}), way: dict(found)}
        cases = {**content["cases"], case: {each: ways[each] for each in WAYS if each in ways}}
        ordered = {each: cases[each] for each in CASES if each in cases}
        kept_in().write_text(text({"cases": ordered}))


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


def instructions() -> str:
    """The table of the documentation: how far runs with other instructions are from the machine as it is."""
    rows = [_row(case, ways) for case, ways in known()["cases"].items() if NATIVE in ways]
    head = "run | equal in every bit | other bits | largest difference of loss | largest difference of accuracy"
    return table(f"{head} | accuracy after the last round, % | clusters", rows or [(MISSING,)])


def _row(case: str, ways: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    native = ways[NATIVE]
    equal = [way for way, found in ways.items() if way != NATIVE and found["models"] == native["models"]]
    others = [way for way, found in ways.items() if found["models"] != native["models"]]
    losses, accuracies = ([largest(native, ways[way], key) for way in others] for key in ("loss", "acc_client"))
    last = sorted({f"{100 * found['acc_client'][-1]:.2f}" for found in ways.values()})
    clusters = "equal" if all(found["clusters"] == native["clusters"] for found in ways.values()) else "differ"
    return (
        case,
        ", ".join(equal) or "-",
        ", ".join(others) or "-",
        f"{max(losses, default=0):.1g}",
        f"{100 * max(accuracies, default=0):.2f} points",
        last[0] if len(last) == 1 else f"{last[0]} to {last[-1]}",
        clusters,
    )


if __name__ == "__main__":
    main()
