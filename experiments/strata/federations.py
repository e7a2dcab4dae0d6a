"""Follow several algorithms on one federation up to the first split of each, and keep what came out, by seed.

As long as they have not split, most algorithms ask for the very same work, which is done once for all of them. So all
of them together cost little more than FedAvg.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch

import fedstrata
from fedstrata.build.build import build_run
from fedstrata.config import load_experiment
from fedstrata.config.hyperparameters import algorithm_from
from fedstrata.core import Algorithm, Diagnostics, Plan, State
from fedstrata.engine.device import one_thread
from fedstrata.engine.shared_work import LocalStores, run_shared
from fedstrata.play.rounds import PlanReply, PlayedRound, Rules, no_events, play_rounds
from fedstrata.uploads.checks.update_checks import Checks

RESULTS = Path(__file__).parents[1] / "results"

_ACCOUNTED = ("epsilon", "delta", "noise_multiplier", "sums")
"""What is kept of the accounting of a private run."""

KEPT = 20
"""Federations after which the results are written down."""


@dataclass(frozen=True)
class Step:
    """One round of one algorithm that has not split before it.

    Attributes:
        name: of the algorithm.
        plan: what it asked.
        state: after the round.
        notes: of the round.
        truth: which clients truly belong together, (n,).
    """

    name: str
    plan: Plan
    state: State
    diagnostics: Diagnostics
    truth: torch.Tensor | None

    @property
    def split(self) -> bool:
        """Whether there is more than one cluster now."""
        return len(self.state.models) > 1


def follow(keys: Mapping[str, Any], algorithms: Mapping[str, Mapping[str, Any]]) -> Iterator[Step]:
    """Run some algorithms on one federation, each until it has split.

    Args:
        keys: of the experiment, without its algorithm.
        algorithms: their tables, by what they are called.
    """
    experiment = load_experiment({**keys, "algorithm": {"name": "fedavg"}, "engine": {"name": "loop"}})
    with one_thread():
        setup = build_run(experiment)
        problem = setup.server.problem
        running: dict[str, Generator[Plan, PlanReply, State]] = {}
        played: dict[str, PlayedRound[Any]] = {}
        for called, table in algorithms.items():
            algorithm = _algorithm(table)
            checks = getattr(algorithm, "default_checks", ())
            own = replace(problem, checks=Checks(checks) if checks else None)
            rules = replace(Rules.of(setup), algorithm=algorithm, problem=own, apply_events=no_events)
            running[called] = play_rounds(
                rules,
                algorithm.init(own),
                stop=lambda state: state.round >= experiment.rounds or (state.round > 0 and len(state.models) > 1),
                observe=partial(played.__setitem__, called),
            )
        devices = {called: LocalStores(setup.clients) for called in running}
        plans = {called: next(steps) for called, steps in running.items()}
        while plans:
            asked = dict(plans)
            answers = run_shared(list(asked.values()), [devices[called] for called in asked])
            for called, report in zip(asked, answers.reports, strict=True):
                try:
                    plans[called] = running[called].send(PlanReply(report, 0.0))
                except StopIteration:
                    del plans[called]
                done = played[called]
                yield Step(called, done.plan, done.state, done.diagnostics, setup.truth(done.plan.round))


def _algorithm(table: Mapping[str, Any]) -> Algorithm[Any]:
    return algorithm_from(str(table["name"]), {key: value for key, value in table.items() if key != "name"})


def run_study(
    name: str,
    about: str | None,
    conditions: Mapping[str, Mapping[str, Any]],
    one: Callable[[str, int], dict[str, Any]],
    federations: int,
) -> None:
    """Compute what is missing of a study, as its command line says.

    Args:
        name: of the study, and of its file of results.
        about: what the study is, for ``--help``.
        conditions: what the results of each case depend on, by the name of the case.
        one: computes a result from the name of a case and a seed.
        federations: of each case, by default.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--federations", type=int, default=federations, help="of each case")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS / f"{name}.json", help="where the results are kept")
    given = parser.parse_args()
    for case, held in conditions.items():
        gather(given.out, case, held, one, range(given.federations), given.jobs)


def with_keys(algorithms: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The methods that are algorithms with some keys, by the name of the algorithm."""
    return {name: {"algorithm": {"name": name, **keys}} for name, keys in algorithms.items()}


def outcomes_of(
    cases: Mapping[str, Mapping[str, Any]], methods: Mapping[str, Mapping[str, Any]], name: str, seed: int
) -> dict[str, Any]:
    """One federation under each method: accuracy, agreement with the true groups, clusters, rounds of splits.

    Args:
        cases: the experiments, by name.
        methods: the tables of each method, by its name.
        name: of the federation.
        seed: of the run.
    """
    found: dict[str, Any] = {"seed": seed}
    with TemporaryDirectory() as folder:
        for method, tables in methods.items():
            experiment = {**cases[name], **tables, "seed": seed}
            found[method] = _outcome(fedstrata.run(experiment, Path(folder) / method, quiet=True))
    return found


def _outcome(run: fedstrata.Run) -> dict[str, Any]:
    splits = [each["round"] for each in run.rounds if any(event["kind"] == "split" for event in each["events"])]
    found = {key: run.summary[key] for key in ("acc_client", "acc_worst", "ari", "clusters")}
    accounted = {key: run.summary["privacy"][key] for key in _ACCOUNTED} if "privacy" in run.summary else {}
    return {**found, "splits": splits, **run.summary.get("attack", {}), **accounted}


def gather(
    path: Path,
    name: str,
    conditions: Mapping[str, Any],
    one: Callable[[str, int], dict[str, Any]],
    seeds: range,
    jobs: int,
) -> list[dict[str, Any]]:
    """Have the results of some seeds in a file, and compute those that it does not hold yet.

    Args:
        path: of the file; several names share it.
        name: of these results.
        conditions: what else they depend on.
        one: computes a result from the name and a seed.
        seeds: wanted.
        jobs: processes.

    Returns:
        All results of the name, by seed.

    Raises:
        ValueError: when the file holds results of the name under other conditions.
    """
    wanted = json.loads(json.dumps(conditions))
    known = read(path).get(name, {**wanted, "runs": []})
    if {key: value for key, value in known.items() if key != "runs"} != wanted:
        raise ValueError(f"{path}: holds {name!r} under other conditions; use another --out, or take them out")
    runs = {run["seed"]: run for run in known["runs"]}
    missing = [seed for seed in seeds if seed not in runs]
    began = perf_counter()
    with ProcessPoolExecutor(jobs) as pool:
        tasks = [pool.submit(one, name, seed) for seed in missing]
        for count, task in enumerate(as_completed(tasks), start=1):
            run = task.result()
            runs[run["seed"]] = run
            if count % KEPT == 0 or count == len(missing):
                write(path, name, {**wanted, "runs": [runs[seed] for seed in sorted(runs)]})
                each = (perf_counter() - began) / count
                print(f"{name}: {count} of {len(missing)}, {each:.2f} s each", flush=True)
    return [runs[seed] for seed in sorted(runs)]


def read(path: Path) -> dict[str, Any]:
    """All that a file holds, by name; nothing while there is none."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def runs_of(held: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The runs of a name in what `read` gave; none while there are none."""
    runs: list[dict[str, Any]] = held.get(name, {"runs": []})["runs"]
    return runs


def write(path: Path, name: str, results: Mapping[str, Any]) -> None:
    """Put the results of a name into a file, one run a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sections = []
    for section, held in {**read(path), name: results}.items():
        rows = ",\n".join(json.dumps(run) for run in held["runs"])
        head = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in held.items() if key != "runs"]
        sections.append(f"{json.dumps(section)}: {{" + ", ".join([*head, f'"runs": [\n{rows}\n]']) + "}")
    draft = path.with_suffix(".new")
    draft.write_text("{\n" + ",\n".join(sections) + "\n}\n")
    draft.replace(path)
