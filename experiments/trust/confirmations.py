"""Whether other seeds confirm what a comparison of eight methods says, on motion recordings of 14 people.

    FEDSTRATA_DATA=DATA python -m experiments.trust.confirmations

Compares the methods with five seeds and, apart from that, with twenty others. Every seed holds out other recordings of
the same people. ``experiments/results/confirmations.json`` keeps the differences of both comparisons.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fedstrata as fs
from experiments.strata.federations import RESULTS
from experiments.tools.outcomes import MISSING, table

PATH = RESULTS / "confirmations.json"
EXPERIMENT = Path(__file__).with_suffix(".toml")
METHODS = ("fedavg", "local", "ifca", "fesem", "cfl", "layercfl", "adacfl", "strata")
SEEDS: Mapping[str, range] = {"first": range(5), "fresh": range(100, 120)}


def compared(seeds: range) -> dict[str, Any]:
    """The differences of a comparison, as ``comparison.json`` has them, with the pairs in one order."""
    with TemporaryDirectory() as folder:
        found = fs.compare(EXPERIMENT, METHODS, list(seeds), Path(folder) / "compared")
    document = found.document.model_dump(mode="json")
    means = {row.algorithm: row.figures["acc_client"] for row in found.table}
    return {
        "seeds": list(seeds),
        "overlap": document["overlap"],
        "accuracy": {name: round(number.mean, 4) for name, number in means.items() if number is not None},
        "one_group": sorted({run.algorithm for run in found.runs if run.one_group}),
        "differences": [
            {**written, "clear": each.clear}
            for written, each in zip(document["differences"], found.differences, strict=True)
        ],
    }


def confirmations(path: Path = PATH) -> str:
    """The pairs that the first seeds tell apart, and what the fresh ones say of them."""
    if not path.exists():
        return table("better | than | first seeds | fresh seeds | confirmed", [(MISSING,) * 5])
    known = json.loads(path.read_text())
    rows = []
    for each in known["first"]["differences"]:
        if not each["clear"]:
            continue
        pair = each["algorithm"], each["other"]
        (fresh,) = (one for one in known["fresh"]["differences"] if {one["algorithm"], one["other"]} == set(pair))
        same = (fresh["algorithm"], fresh["other"]) == pair
        confirmed = "yes" if same and fresh["clear"] else "no"
        rows.append((*pair, _shown(each, forwards=True), _shown(fresh, forwards=same), confirmed))
    return table("better | than | first seeds | fresh seeds | confirmed", rows or [("none", "", "", "", "")])


def _shown(difference: Mapping[str, Any], *, forwards: bool) -> str:
    """A mean difference in points with its interval."""
    effect = difference["effect"]
    if effect is None:
        return MISSING
    low, high = (effect["low"], effect["high"]) if forwards else (-effect["high"], -effect["low"])
    by = effect["by"] if forwards else -effect["by"]
    return f"{100 * by:+.1f} ({100 * low:.1f} to {100 * high:.1f})"


def main() -> None:
    """Make what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PATH, help="where the results are kept")
    given = parser.parse_args()
    known = json.loads(given.out.read_text()) if given.out.exists() else {}
    for name, seeds in SEEDS.items():
        if name not in known:
            known[name] = compared(seeds)
            given.out.write_text(json.dumps(known, indent=1) + "\n")
    print(confirmations(given.out))


if __name__ == "__main__":
    main()
