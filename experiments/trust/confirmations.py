"""Whether other seeds confirm what a comparison of eight methods says, on motion recordings of 14 people.

    FEDSTRATA_DATA=DATA python -m experiments.trust.confirmations

Compares the methods with five seeds and, apart from that, with twenty others. Every seed holds out other recordings of
the same people. ``experiments/results/confirmations.json`` keeps the differences of both comparisons.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fedstrata as fs
from experiments.strata.federations import RESULTS
from experiments.tools import outcomes
from experiments.tools.outcomes import MISSING, table
from fedstrata.objective.metric_info import SMALLEST_DIFFERENCE
from fedstrata.report.comparison.folder import Difference
from fedstrata.report.differences import corrected, over_seeds

PATH = RESULTS / "confirmations.json"
EXPERIMENT = Path(__file__).with_suffix(".toml")
METHODS = ("fedavg", "local", "ifca", "fesem", "cfl", "layercfl", "adacfl", "strata")
SEEDS: Mapping[str, range] = {"first": range(5), "fresh": range(100, 120)}


def compared(seeds: range) -> dict[str, Any]:
    """What is kept of a comparison: the difference of every two methods with each seed, and the seeds' overlap."""
    with TemporaryDirectory() as folder:
        done = fs.compare(EXPERIMENT, METHODS, list(seeds), Path(folder) / "compared")
    means = {row.algorithm: row.figures["acc_client"] for row in done.table}
    return {
        "seeds": list(seeds),
        "overlap": done.document.overlap,
        "accuracy": {name: round(number.mean, 4) for name, number in means.items() if number is not None},
        "differences": [
            {name: getattr(each, name) for name in ("algorithm", "other", "values", "another_start")}
            for each in done.differences
        ],
    }


def judged(known: Mapping[str, Any]) -> dict[tuple[str, str], Difference]:
    """The differences of a comparison that was kept, by the two methods, judged as on its page."""
    pairs = [
        Difference(
            each["algorithm"],
            each["other"],
            tuple(known["seeds"]),
            tuple(each["values"]),
            effect=over_seeds(each["values"], known["overlap"], SMALLEST_DIFFERENCE),
            another_start=each["another_start"],
        )
        for each in known["differences"]
    ]
    p_values = corrected([each.effect for each in pairs])
    return {(each.algorithm, each.other): replace(each, corrected=p) for each, p in zip(pairs, p_values, strict=True)}


def confirmations(path: Path | None = None) -> str:
    """The pairs that the first seeds or the fresh ones tell apart, and what each of them say."""
    path = path or outcomes.RESULTS / PATH.name
    known = json.loads(path.read_text()) if path.exists() else {}
    titles = "better | than | five seeds | twenty fresh seeds"
    if not SEEDS.keys() <= known.keys():
        return table(titles, [(MISSING,) * 4])
    first, fresh = judged(known["first"]), judged(known["fresh"])
    pairs = [pair for pair in {**first, **fresh} if any(pair in each and each[pair].clear for each in (first, fresh))]
    return table(titles, [(*pair, _shown(first.get(pair)), _shown(fresh.get(pair))) for pair in pairs])


def _shown(difference: Difference | None) -> str:
    """A mean difference in points with its interval and what a page says; a dash where the other method is better."""
    if difference is None or difference.effect is None:
        return MISSING
    effect = difference.effect
    verdict = "better" if difference.clear else "cannot be told apart"
    return f"{100 * effect.by:+.1f} ({100 * effect.low:.1f} to {100 * effect.high:.1f}), {verdict}"


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
