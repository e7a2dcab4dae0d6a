"""Run one experiment with several algorithms and seeds, and keep what came out.

    FEDSTRATA_DATA=DATA python experiments/study.py experiments/mnist_rotation.toml

Adds to ``experiments/results/<experiment>.json``, or what ``--out`` names: for every run its summary, and clusters, ARI
and accuracy over the rounds. A run of a variant and seed that are there already takes their place. ``layercfl:auto`` is
an algorithm with automatic ``eps1`` and ``eps2``; ``+KEY=VALUE`` behind a name changes a key of the experiment for that
run, e.g. ``layercfl+partition.scheme=iid``; a value may be a whole table, as in
``strata+partition={scheme="rotation",sizes=[12,5,3]}``. ``--on`` has all variants run under each of some such changes.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as pq

import fedstrata as fs

KEPT = ("clusters", "ari", "acc_client", "acc_worst", "loss")
SUMMARY = (*KEPT[:-1], "acc_weighted", "purity", "rounds_to_partition", "bytes_down", "bytes_up", "seconds")


def main() -> None:
    """Run all, two at a time, and keep each result as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=Path)
    parser.add_argument("--variants", default="fedavg,oracle,layercfl", help="algorithms, comma-separated")
    parser.add_argument("--on", nargs="+", default=[""], help="changes for all variants, KEY=VALUE+KEY=VALUE")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, help="where the results are kept")
    given = parser.parse_args()

    variants = ["+".join(filter(None, (variant, on))) for on in given.on for variant in separate(given.variants)]
    path = given.out or Path(__file__).parent / "results" / f"{given.experiment.stem}.json"
    failed = False
    with ProcessPoolExecutor(given.jobs) as pool:
        jobs = {
            pool.submit(one, given.experiment, variant, int(seed)): f"{variant}, seed {seed}"
            for variant in variants
            for seed in given.seeds.split(",")
        }
        for job in as_completed(jobs):
            if error := job.exception():
                failed = True
                print(f"{given.experiment.stem}, {jobs[job]}: {type(error).__name__}: {error}", file=sys.stderr)
                continue
            keep(path, result := job.result())
            shown = {key: result[key] for key in ("variant", "seed", "acc_client", "ari", "clusters")}
            print(given.experiment.stem, json.dumps(shown), flush=True)
    sys.exit(failed)


def separate(variants: str) -> list[str]:
    """Variants between commas; a comma inside brackets is one of a list or a table."""
    parts, depth = [""], 0
    for letter in variants:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def keep(path: Path, result: dict[str, Any]) -> None:
    """Put a result into a file, in the place of an earlier one of the same variant and seed.

    Another study may do so at the same time, so the file is read anew, alone, and replaced as a whole.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        known: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
        runs = {(run["variant"], run["seed"]): run for run in [*known, result]}
        variants = list(dict.fromkeys(variant for variant, _ in runs))
        # In the same order whichever run was over first.
        order = sorted(runs, key=lambda run: (variants.index(run[0]), run[1]))
        draft = path.with_suffix(".new")
        draft.write_text("[\n" + ",\n".join(json.dumps(runs[run]) for run in order) + "\n]\n")
        draft.replace(path)
    finally:
        os.close(directory)


def one(experiment: Path, variant: str, seed: int) -> dict[str, Any]:
    """One run: its summary and its curves."""
    name, *changes = variant.split("+")
    name, _, thresholds = name.partition(":")
    # Naming the file's own algorithm again keeps its keys, another one starts from its defaults.
    sets = [f"seed={seed}", f"algorithm.name={name}", "engine.name=loop", *changes]
    if thresholds:
        sets += [f"algorithm.eps1={thresholds}", f"algorithm.eps2={thresholds}"]
    with TemporaryDirectory() as folder:
        run = fs.run(experiment, Path(folder) / "run", sets=sets, quiet=True)
        gaps = [
            record for path in sorted((run.folder / "gaps").glob("*")) for record in pq.read_table(path).to_pylist()
        ]
        last = pq.read_table(max((run.folder / "clients").glob("*"))).to_pylist()
    curves = {key: [_short(record[key]) for record in run.rounds] for key in KEPT}
    for gap in gaps:
        curves.setdefault(f"gap {gap['measure']} {gap['layer']}", []).append(_short(gap["gap"]))
    summary = {key: _short(run.summary[key]) for key in SUMMARY}
    events = [{"round": record["round"], **event} for record in run.rounds for event in record["events"]]
    splits = [_torn(event, run) for event in events if event["kind"] == "split"]
    others = [event for event in events if event["kind"] != "split"]
    versions = run.summary["versions"]
    return {
        "variant": variant,
        "seed": seed,
        **summary,
        "versions": versions,
        "clients": {str(client["client"]): _short(client["accuracy"]) for client in last},
        "curves": curves,
        "splits": splits,
        "events": others,
    }


def _torn(event: dict[str, Any], run: fs.Run) -> dict[str, Any]:
    """A split, and how many true groups have members in more than one of its clusters."""
    truth = run.summary["truth"] or []
    groups = [group for node in event["into"] for group in {truth[c] for c in run.tree[node].members if truth}]
    torn = sum(groups.count(group) > 1 for group in set(groups))
    return {**{key: event[key] for key in ("round", "node", "into")}, "torn groups": torn}


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
