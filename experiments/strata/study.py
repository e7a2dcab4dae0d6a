"""Run one experiment with several algorithms and seeds, and keep what came out.

    FEDSTRATA_DATA=DATA python -m experiments.strata.study experiments/papers/mnist_rotation.toml

Adds to ``experiments/results/<experiment>.json``, or what ``--out`` names: for every run its summary, and clusters, ARI
and accuracy over the rounds. A run of a variant and seed that are there already takes their place. ``layercfl:auto`` is
an algorithm with automatic ``eps1`` and ``eps2``; ``+KEY=VALUE`` behind a name changes a key of the experiment for that
run, e.g. ``layercfl+partition.scheme=iid``; a value may be a whole table, as in
``strata+partition={scheme="rotation",sizes=[12,5,3]}``. ``--on`` has all variants run under each of some such changes.
``--together`` does the equal local jobs of all variants of a seed once; what comes out is the same but for the seconds.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as pq

import fedstrata as fs
from fedstrata.build.build import build_run
from fedstrata.comparison.run import Lockstep
from fedstrata.config import load_experiment
from fedstrata.engine.device import one_thread
from fedstrata.engine.shared_work import LocalStores
from fedstrata.play.steps import RunSteps, run_steps
from fedstrata.records.folder import Folder

KEPT = ("clusters", "ari", "acc_client", "acc_worst", "loss")
METRICS = ("hopkins", "shared_layers")
SUMMARY = (
    *KEPT[:-1],
    "acc_weighted",
    "acc_best",
    "acc_best_round",
    "purity",
    "rounds_to_partition",
    "bytes_down",
    "bytes_up",
    "seconds",
    "seconds_server",
)


def main() -> None:
    """Run all, two at a time, and keep each result as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=Path)
    parser.add_argument("--variants", default="fedavg,local,oracle,layercfl", help="algorithms, comma-separated")
    parser.add_argument("--on", nargs="+", default=[""], help="changes for all variants, KEY=VALUE+KEY=VALUE")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--together", action="store_true", help="compare the variants, which share what is equal")
    parser.add_argument("--out", type=Path, help="where the results are kept")
    given = parser.parse_args()

    variants, seeds = separate(given.variants), [int(seed) for seed in given.seeds.split(",")]
    groups = [variants] if given.together else [[variant] for variant in variants]
    path = given.out or Path(__file__).parents[1] / "results" / f"{given.experiment.stem}.json"
    failed = False
    with ProcessPoolExecutor(given.jobs) as pool:
        jobs = {
            pool.submit(outcomes, given.experiment, group, on, seed): "+".join(filter(None, (", ".join(group), on)))
            + f", seed {seed}"
            for on in given.on
            for seed in seeds
            for group in groups
        }
        for job in as_completed(jobs):
            if error := job.exception():
                failed = True
                print(f"{given.experiment.stem}, {jobs[job]}: {type(error).__name__}: {error}", file=sys.stderr)
                continue
            for result in job.result():
                if "error" in result:
                    failed = True
                    print(f"{given.experiment.stem}, {result['variant']}: {result['error']}", file=sys.stderr)
                    continue
                keep(path, result)
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


def outcomes(experiment: Path, variants: Sequence[str], on: str, seed: int) -> list[dict[str, Any]]:
    """The results of some variants with one seed and one change for all of them.

    Of those that run together, one that fails has only an ``error`` beside its variant.

    Raises:
        ValueError: when variants that run together differ in more than their algorithms' keys.
    """
    common = [f"seed={seed}", "engine.name=loop", *filter(None, on.split("+"))]
    called = ["+".join(filter(None, (variant, on))) for variant in variants]
    with TemporaryDirectory() as folder:
        out = Path(folder)
        if len(variants) == 1:
            return [
                _result(
                    fs.run(experiment, out / "run", sets=_sets(variants[0], common), quiet=True).folder, called[0], seed
                )
            ]
        for variant in variants:
            _require_same_conditions(variant)
        folders = {variant: out / f"run-{place}" for place, variant in enumerate(variants)}
        failed = _run_together(experiment, folders, common)
        return [
            {"variant": name, "error": failed[variant]} if variant in failed else _result(folders[variant], name, seed)
            for name, variant in zip(called, variants, strict=True)
        ]


VARIANTS = {
    "hicfl_mean": "experiments.papers.variants:MeanOfMembers",
    "layercfl_retrying": "experiments.papers.variants:RetryingLayerCFL",
}
"""What variants of the papers' algorithms are called here, and their import paths."""


def _sets(variant: str, common: Sequence[str]) -> list[str]:
    """The changes of the experiment that make it the run of a variant."""
    # Naming the file's own algorithm again keeps its keys; another one has those of [algorithms.NAME].
    name = variant.split("+")[0].split(":")[0]
    return [*common, f"algorithm.name={VARIANTS.get(name, name)}", *_changes(variant)]


def _changes(variant: str) -> list[str]:
    """What a variant changes in the experiment beside the name of its algorithm."""
    name, *changes = variant.split("+")
    _, _, thresholds = name.partition(":")
    if not thresholds:
        return changes
    return [f"algorithm.eps1={thresholds}", f"algorithm.eps2={thresholds}", *changes]


def _require_same_conditions(variant: str) -> None:
    """Refuse a variant that changes more than keys of its algorithm."""
    if other := [text for text in _changes(variant) if not text.startswith("algorithm.")]:
        raise ValueError(f"{variant}: variants run together share {other[0].split('=')[0]!r}; put it behind --on")


def _run_together(experiment: Path, folders: Mapping[str, Path], common: Sequence[str]) -> dict[str, str]:
    """Run variants round by round on one federation, and do equal local work once.

    Unlike `fs.compare`, an algorithm may run several times, with other keys.

    Args:
        experiment: The file of the experiment.
        folders: The run folder of each variant.
        common: The changes of the experiment for all of them.

    Returns:
        Why variants failed.
    """
    experiments = {variant: load_experiment(experiment, _sets(variant, common)) for variant in folders}
    with one_thread():
        setup = build_run(next(iter(experiments.values())))
        runs = dict[str, RunSteps]()
        devices = {variant: LocalStores(setup.clients) for variant in experiments}
        for variant, each in experiments.items():
            server = replace(setup.server, algorithm=each.algorithm_of())
            own = replace(setup, server=server, clients=devices[variant])
            runs[variant] = run_steps(each, own, folders[variant])
        lockstep = Lockstep(runs, devices)
        while lockstep.round is not None:
            lockstep.step()
    return {variant: failure.error for variant, failure in lockstep.failures.items()}


def _result(folder: Path, variant: str, seed: int) -> dict[str, Any]:
    """What is kept of a finished run: its summary and its curves."""
    records = Folder(folder)
    rounds, summary = records.rounds(), records.summary()
    tree = json.loads((folder / "tree.json").read_text())
    gaps = [record for path in sorted((folder / "gaps").glob("*")) for record in pq.read_table(path).to_pylist()]
    last = pq.read_table(max((folder / "clients").glob("*"))).to_pylist()
    curves = {key: [_short(record[key]) for record in rounds] for key in KEPT}
    curves |= _metric_curves(rounds)
    for gap in gaps:
        curves.setdefault(f"gap {gap['measure']} {gap['layer']}", []).append(_short(gap["gap"]))
    events = [{"round": record["round"], **event} for record in rounds for event in record["events"]]
    members = {node["id"]: node["members"] for node in tree}
    return {
        "variant": variant,
        "seed": seed,
        **{key: _short(summary[key]) for key in SUMMARY},
        "versions": summary["versions"],
        "machine": summary["machine"],
        "clients": {str(client["client"]): _short(client["accuracy"]) for client in last},
        "curves": curves,
        "splits": [_torn(event, members, summary["truth"]) for event in events if event["kind"] == "split"],
        "events": [event for event in events if event["kind"] != "split"],
    }


def _metric_curves(rounds: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The metrics `METRICS` round by round, one curve for each node that they are about; None where there is none."""
    curves: dict[str, list[Any]] = {}
    for place, record in enumerate(rounds):
        for metric in record["metrics"]:
            if metric["name"] in METRICS:
                name = metric["name"] if metric["node"] is None else f"{metric['name']} of node {metric['node']}"
                curves.setdefault(name, [None] * len(rounds))[place] = _short(metric["value"])
    return curves


def _torn(event: dict[str, Any], members: Mapping[int, Sequence[int]], truth: Sequence[int] | None) -> dict[str, Any]:
    """A split, and how many true groups have members in more than one of its clusters."""
    groups = [group for node in event["into"] for group in {truth[client] for client in members[node] if truth}]
    torn = sum(groups.count(group) > 1 for group in set(groups))
    return {**{key: event[key] for key in ("round", "node", "into")}, "torn groups": torn}


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
