"""Run what exhibits need, keep what is finished, and write down what came out."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch

import fedstrata as fs
from fedstrata.records.resume import machine

from .exhibit import HERE, Exhibit, Measured, Setting, Verdict, describe
from .pictures import FOLDER as PICTURES
from .pictures import SEED as DRAWN
from .pictures import write_picture
from .run_folder import RunFolder

RESULTS = HERE.parent / "results" / "exhibits"
FOLDER = Path("runs") / "exhibits"


def run(setting: Setting, seed: int, out: Path) -> RunFolder:
    """One run, in a folder of its own below `out`: a finished one is kept, a stopped one goes on.

    Exhibits share runs, so a process that works on another exhibit may be at this one: it is waited for.
    """
    folder = folder_of(setting, seed, out)
    with alone(folder.with_suffix(".lock")):
        _finish(setting, seed, folder)
    return RunFolder(folder)


def _finish(setting: Setting, seed: int, folder: Path) -> None:
    if not (folder / "summary.json").exists():
        wall, processor = perf_counter(), process_time()
        try:
            if (folder / "experiment.toml").exists():
                fs.run(None, folder, resume=True, quiet=True)
            else:
                sets = [f"seed={seed}", *setting.sets, *engine()]
                fs.run(setting.path, folder, sets=sets, quiet=True)
        finally:
            # On a machine with other work, the seconds of the processor say more than those of the clock.
            spent = perf_counter() - wall if torch.cuda.is_available() else process_time() - processor
            _add_hours(folder, spent / 3600)


@contextmanager
def alone(file: Path) -> Iterator[None]:
    """Hold a lock, which the system gives back when the process ends however it ends."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def folder_of(setting: Setting, seed: int, out: Path) -> Path:
    """Where the run of a setting and seed is."""
    return out / setting.name / f"seed_{seed}"


def finished(exhibit: Exhibit, seed: int, out: Path) -> bool:
    """Whether all runs of an exhibit with a seed are over."""
    return all((folder_of(each, seed, out) / "summary.json").exists() for each in exhibit.settings.values())


def engine() -> list[str]:
    """What computes: the GPU where there is one, else the plain loop."""
    if torch.cuda.is_available():
        return ["engine.name=batched", "engine.device=cuda"]
    return ["engine.name=loop", "engine.device=cpu"]


def reproduce(exhibit: Exhibit, seed: int, out: Path, results: Path, pictures: Path = PICTURES) -> Verdict:
    """Run an exhibit with a seed, measure it, add the result to those of other seeds, and draw the first one."""
    assert exhibit.measure is not None
    runs = {name: run(setting, seed, out) for name, setting in exhibit.settings.items()}
    spent = perf_counter()
    quantities = exhibit.measure(runs)
    spent = (perf_counter() - spent) / 3600 + sum(_hours(each.path) for each in runs.values())
    result = {
        "measured": {name: short(value) for name, value in quantities.items()},
        "hours": short(spent),
        "machine": machine_of(runs.values()),
        "cores": os.cpu_count(),
        "source": source(),
        "versions": next((each.summary["versions"] for each in runs.values()), {"torch": torch.__version__}),
    }
    if seed == DRAWN:
        write_picture(exhibit.id, runs, pictures)
    return keep(exhibit, seed, result, results)


def draw_again(exhibit: Exhibit, out: Path, pictures: Path = PICTURES) -> Path | None:
    """Draw an exhibit from the runs that are finished; None where there is nothing to draw."""
    runs = {name: RunFolder(folder_of(setting, DRAWN, out)) for name, setting in exhibit.settings.items()}
    return write_picture(exhibit.id, runs, pictures) if finished(exhibit, DRAWN, out) else None


def keep(exhibit: Exhibit, seed: int, result: Mapping[str, Any], results: Path) -> Verdict:
    """Put the result of a seed into the exhibit's file. Results of other settings than today's are dropped."""
    path = results / f"{exhibit.id}.json"
    with alone(results / "results.lock"):
        return _keep_alone(exhibit, seed, result, path)


def _keep_alone(exhibit: Exhibit, seed: int, result: Mapping[str, Any], path: Path) -> Verdict:
    known = json.loads(path.read_text()) if path.exists() else {}
    by_seed = known["seeds"] if known.get("runs") == names_of_runs(exhibit) else {}
    by_seed = {**by_seed, str(seed): dict(result)}
    content = {
        "exhibit": exhibit.id,
        "paper": exhibit.paper,
        "command": command(exhibit, sorted(by_seed, key=int)),
        "settings": {name: describe(setting) for name, setting in exhibit.settings.items()},
        "runs": names_of_runs(exhibit),
        "seeds": {each: by_seed[each] for each in sorted(by_seed, key=int)},
    }
    return write(exhibit, content, path)


def write(exhibit: Exhibit, content: Mapping[str, Any], path: Path) -> Verdict:
    """Write an exhibit's file: what was run and measured, what the paper claims, and what follows."""
    verdict = exhibit.verdict(measured(content["seeds"]))
    judged = {
        "claim": exhibit.claim,
        "reduction": exhibit.reduction,
        "published": dict(exhibit.published),
        "verdict": asdict(verdict),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps({**content, **judged}, indent=1) + "\n")
    draft.replace(path)
    return verdict


def judge_again(exhibits: Iterable[Exhibit], results: Path) -> None:
    """Write the files of results anew, with the verdicts that today's statements of the claims lead to."""
    for exhibit in exhibits:
        path = results / f"{exhibit.id}.json"
        if path.exists():
            write(exhibit, json.loads(path.read_text()), path)


def names_of_runs(exhibit: Exhibit) -> dict[str, str]:
    """The folders of its runs, which have other names as soon as a setting changes."""
    return {name: setting.name for name, setting in exhibit.settings.items()}


def measured(by_seed: Mapping[str, Mapping[str, Any]]) -> Measured:
    """The quantities in a file of results."""
    return Measured.of({int(seed): result["measured"] for seed, result in by_seed.items()})


def command(exhibit: Exhibit, seeds: Sequence[str] | Mapping[str, object]) -> str:
    """What makes the exhibit's result again."""
    return f"python -m experiments.papers.reproduce {exhibit.id} --seeds {','.join(seeds)}"


def machine_of(runs: Iterable[RunFolder]) -> dict[str, str]:
    """The machine that all runs were made on; empty when they were made on several, or one does not tell."""
    machines = [each.summary.get("machine", {}) for each in runs] or [machine()]
    return dict(machines[0]) if all(each == machines[0] for each in machines) else {}


def source() -> str:
    """The commit of the library that ran; empty outside of a repository."""
    folder = Path(fs.__file__).parent
    asked = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def short(value: float | None) -> float | None:
    """A number with six digits."""
    return None if value is None else float(f"{value:.6g}")


def _hours_file(folder: Path) -> Path:
    return folder.with_suffix(".hours")


def _hours(folder: Path) -> float:
    """The hours that a run took so far, on one core or on the GPU."""
    file = _hours_file(folder)
    return float(file.read_text()) if file.exists() else 0.0


def _add_hours(folder: Path, hours: float) -> None:
    before = _hours(folder)
    if folder.parent.exists():
        _hours_file(folder).write_text(f"{before + hours:.6g}\n")
