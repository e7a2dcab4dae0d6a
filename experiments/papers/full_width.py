"""LayerCFL's Figures 4 and 5 at the full width of VGG16, which takes a GPU; the exhibits have an eighth of it.

    python -m experiments.papers.full_width --seeds 0,1,2     # writes experiments/results/full_width.json

The Gap of a layer is only needed in two rounds, and takes longer than to train: it is computed from the matrices of
these rounds, which are recorded anyway.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch

import fedstrata as fs
from experiments.papers.catalogue import EXHIBITS
from experiments.papers.exhibit import Exhibit, Measured, Setting
from experiments.papers.run_folder import RunFolder
from experiments.papers.running import engine, short
from fedstrata.records.resume import origin

RESULTS = Path(__file__).parents[1] / "results" / "full_width.json"

IDS = ("L-F4", "L-F5")
"""The exhibits, which share their run."""

SETS = ("model.width=1.0", "probe.gap=[]", 'probe.matrices=["cos","l2","dcos"]', "probe.rounds=[5,30]")
"""What differs from the exhibits' setting."""


def main() -> None:
    """Run every seed, and write and print what the exhibits measure in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0", help="comma-separated")
    parser.add_argument("--set", nargs="*", default=[], help="further differences, for a trial; nothing is written")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of the results")
    given = parser.parse_args()
    exhibits = [EXHIBITS[name] for name in IDS]
    (setting,) = {setting for exhibit in exhibits for setting in exhibit.settings.values()}
    known: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {}
    for seed in given.seeds.split(","):
        known[seed] = measured(setting.but(*SETS, *given.set), exhibits, int(seed))
        print(seed, json.dumps(known[seed]), flush=True)
        if not given.set:
            given.out.write_text(json.dumps(known, indent=1) + "\n")
    for exhibit in exhibits:
        by_seed = {int(seed): found[exhibit.id] for seed, found in known.items()}
        print(exhibit.id, exhibit.verdict(Measured.of(by_seed)))


def measured(setting: Setting, exhibits: list[Exhibit], seed: int) -> Mapping[str, Any]:
    """What the exhibits measure in a run, and how long it took."""
    with TemporaryDirectory() as folder:
        began = perf_counter()
        fs.run(setting.path, Path(folder) / "run", sets=[f"seed={seed}", *setting.sets, *engine()], quiet=True)
        run = RunFolder(Path(folder) / "run")
        seconds = perf_counter() - began
        found: dict[str, Any] = {
            "seconds": round(seconds, 1),
            "made with": origin("cuda" if torch.cuda.is_available() else "cpu"),
        }
        for exhibit in exhibits:
            assert exhibit.measure is not None
            quantities = exhibit.measure(dict.fromkeys(exhibit.settings, run))
            found[exhibit.id] = {name: short(value) for name, value in quantities.items()}
    return found


if __name__ == "__main__":
    main()
