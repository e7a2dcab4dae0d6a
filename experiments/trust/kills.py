"""Kill a run by SIGKILL, resume it, and compare what it leaves with a run that was never killed.

    PYTHONPATH=tests python -m experiments.trust.kills

Writes ``experiments/results/kills.json``. Four parts, each with runs of digits:

- ``points``: the process is killed at a labelled point of each round, and resumed.
- ``moments``: the process is killed at random moments, again and again, until it has finished.
- ``workers``: in each round, one of two worker processes is killed at a random moment.
- ``ray``: in each round, one of Ray's worker processes is killed at a random moment.

A run counts as equal if it leaves the same bytes of models and matrices, and the same tree, clients' scores and records
but for their seconds. The delays of the random moments are functions of the seed; which line of code they meet depends
on the machine. Of every resumed process it is checked that it repeats one round at most.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fedstrata as fs
from builders import left
from fedstrata.build.participation import CohortSample, Participation
from fedstrata.engine.parallel import processes, ray
from forked import forking

RESULT = Path(__file__).parents[1] / "results" / "kills.json"

ALGORITHMS: Mapping[str, Mapping[str, Any]] = {
    "layercfl": {"name": "layercfl", "eps1": 0.3, "eps2": 0.2, "gamma": 0.5, "min_split": 3},
    "strata": {"name": "strata"},
    "fedrep": {"name": "fedrep"},
}
"""One that splits, one that tests and compares, and one whose clients keep tensors."""

ROUNDS = 6
CLIENTS = 8

ROUNDS_OF_WORKERS = 70
ROUNDS_OF_RAY = 100

CLIENTS_OF_WORKERS = 24
"""Enough for the work of a round to be divided: workers get blocks of 16 client ids."""

KILLED_RUNS = 3
"""Runs of each algorithm that are killed at random moments."""

Function = Callable[..., Any]


def keys(algorithm: str, rounds: int = ROUNDS, clients: int = CLIENTS, **engine: Any) -> dict[str, Any]:
    """An experiment with clients of whom some are not selected and some do not answer."""
    return {
        "rounds": rounds,
        "data": {"name": "digits", "clients": clients, "samples": 40, "test": 0.2},
        "partition": {"scheme": "rotation", "groups": 2},
        "model": {"name": "mlp", "hidden": [16]},
        "local": {"lr": 0.1, "batch": 10},
        "cohort": {"fraction": 0.75, "dropout": 0.2},
        "algorithm": dict(ALGORITHMS[algorithm]),
        "engine": {"name": "loop", **engine},
    }


@cache
def whole(algorithm: str, rounds: int = ROUNDS, clients: int = CLIENTS) -> Any:
    """What a run leaves that was never killed."""
    with TemporaryDirectory() as folder:
        return left(fs.run(keys(algorithm, rounds, clients), Path(folder) / "run", quiet=True).folder)


def replaced(name: str, wrapped: Callable[[Function], Function]) -> None:
    """Put a function in the place of another one, ``"module:name"`` or ``"module:Class.name"``."""
    module, _, path = name.partition(":")
    place: Any = sys.modules[module]
    *owners, last = path.split(".")
    for owner in owners:
        place = getattr(place, owner)
    setattr(place, last, wrapped(getattr(place, last)))


POINTS: Mapping[str, tuple[str, bool, Callable[..., bool]]] = {
    "before the selection": ("fedstrata.build.participation:Participation.sample", False, lambda *given: True),
    "before a client trains": ("fedstrata.engine.loop:Loop._train", False, lambda *given: True),
    "before the answers are checked": (
        "fedstrata.uploads.validation:ValidAnswers.of_report",
        False,
        lambda *given: True,
    ),
    "before the decision": ("fedstrata.play.rounds:decide", False, lambda *given: True),
    "after the decision": ("fedstrata.play.rounds:decide", True, lambda *given: True),
    "before the checkpoint": ("fedstrata.play.recorder:save", False, lambda *given: True),
    "checksum written, checkpoint not": (
        "fedstrata.records.checkpoint:replace_file",
        True,
        lambda path, *given: path.suffix == ".sha256",
    ),
    "checkpoint written, not renamed": (
        "pathlib:Path.replace",
        False,
        lambda path, target: target.suffix == ".safetensors" and target.parent.name == "checkpoint",
    ),
    "checkpoint renamed": (
        "pathlib:Path.replace",
        True,
        lambda path, target: target.suffix == ".safetensors" and target.parent.name == "checkpoint",
    ),
    "before the record of a round": ("fedstrata.records.folder:RoundLog.add", False, lambda *given: True),
    "after the record of a round": ("fedstrata.records.folder:RoundLog.add", True, lambda *given: True),
    "before the tree": ("fedstrata.records.folder:Folder.add_tree", False, lambda *given: True),
}
"""The labelled points: a function, whether the process is killed after it, and the calls of it that count."""


def kill_at(point: str, time_of: int) -> None:
    """Have this process killed the given time that it comes to a point."""
    name, after, counts = POINTS[point]
    calls = count(1)

    def wrapped(function: Function) -> Function:
        def dying(*given: Any, **named: Any) -> Any:
            now = counts(*given) and next(calls) == time_of
            found = function(*given, **named) if after or not now else None
            if now:
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        return dying

    replaced(name, wrapped)


def note_rounds(path: Path) -> None:
    """Have this process write down each round that it begins."""
    sample = Participation.sample

    def noted(participation: Participation, round: int) -> CohortSample:
        with path.open("a") as file:
            file.write(f"{round}\n")
        return sample(participation, round)

    replaced("fedstrata.build.participation:Participation.sample", lambda function: noted)


class Life:
    """A process that runs or resumes an experiment.

    Args:
        experiment: The experiment.
        folder: Its run folder.
        before: What the process does first.
    """

    def __init__(self, experiment: Mapping[str, Any], folder: Path, before: Callable[[], None]) -> None:
        """Start it."""
        self._rounds = folder.parent / f"rounds-{time.monotonic_ns()}"
        self._rounds.touch()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # this process has no thread that computes
            self.pid = os.fork()
        if not self.pid:
            note_rounds(self._rounds)
            before()
            begun = (folder / "experiment.toml").exists()
            fs.run(None if begun else dict(experiment), folder, resume=begun, quiet=True)
            os._exit(0)

    def end(self) -> bool:
        """Wait for its end, and say whether it was killed."""
        _, status = os.waitpid(self.pid, 0)
        if not os.WIFSIGNALED(status) and os.waitstatus_to_exitcode(status):
            raise RuntimeError("a run failed without being killed")
        return os.WIFSIGNALED(status)

    @property
    def rounds(self) -> list[int]:
        """The rounds that it has begun."""
        return [int(line) for line in self._rounds.read_text().splitlines()]


def repeats_one_round_at_most(lives: Sequence[Life]) -> bool:
    """Whether every process begins with the last round of the one before, or with a later one."""
    begun = [life.rounds for life in lives]
    highest = 0
    for rounds in begun:
        if rounds and rounds[0] < highest:
            return False
        highest = max([highest, *rounds])
    return True


def at_points() -> dict[str, Any]:
    """Kill a run at every point of every round, and resume it."""
    found = {point: {"kills": 0, "equal": 0, "one round": 0} for point in POINTS}
    for algorithm in ALGORITHMS:
        expected = whole(algorithm)
        for point, counted in found.items():
            for time_of in range(1, ROUNDS + 1):
                with TemporaryDirectory() as room:
                    folder = Path(room) / "run"
                    first = Life(keys(algorithm), folder, lambda at=(point, time_of): kill_at(*at))  # type: ignore[misc]
                    if not first.end():
                        continue  # it does not come to this point so often
                    second = Life(keys(algorithm), folder, lambda: None)
                    second.end()
                    counted["kills"] += 1
                    counted["equal"] += left(folder) == expected
                    counted["one round"] += repeats_one_round_at_most([first, second])
        print(algorithm, json.dumps(found), flush=True)
    return {"points": found}


def at_moments(draw: random.Random) -> dict[str, Any]:
    """Kill runs at random moments until they have finished all the same."""
    runs = []
    for algorithm in ALGORITHMS:
        expected = whole(algorithm)
        began = time.monotonic()
        with TemporaryDirectory() as room:
            Life(keys(algorithm), Path(room) / "run", lambda: None).end()
        longest = time.monotonic() - began
        for _ in range(KILLED_RUNS):
            with TemporaryDirectory() as room:
                folder = Path(room) / "run"
                lives = list[Life]()
                kills = 0
                while True:
                    lives.append(Life(keys(algorithm), folder, lambda: None))
                    # Long enough for some of them to get ahead.
                    killer = threading.Timer(draw.uniform(0, 0.6 * longest), os.kill, (lives[-1].pid, signal.SIGKILL))
                    killer.start()
                    killed = lives[-1].end()
                    killer.cancel()
                    if not killed:
                        break
                    kills += 1
                equal = left(folder) == expected
                runs.append(
                    {
                        "algorithm": algorithm,
                        "kills": kills,
                        "equal": equal,
                        "one round": repeats_one_round_at_most(lives),
                    }
                )
                print(json.dumps(runs[-1]), flush=True)
    return {"moments": runs}


def descendants(pid: int) -> Iterator[int]:
    """The processes that a process has started, and those that they have."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            yield child
            try:
                yield from descendants(child)
            except FileNotFoundError:
                continue  # it has ended


def tasks_of_ray(pid: int) -> list[int]:
    """The worker processes of Ray that a process has started, while they work."""
    found = list[int]()
    for child in descendants(pid):
        try:
            command = Path(f"/proc/{child}/cmdline").read_bytes()
        except FileNotFoundError:
            continue
        if command.startswith(b"ray::_work"):
            found.append(child)
    return found


def killing(transport: type[Any], pids: Callable[[Any], Sequence[int]], draw: random.Random, kills: list[int]) -> None:
    """Have one worker of a transport killed in each round, at a random moment of it. A round that is over is missed."""
    run = transport.run
    took = [0.05]

    def killed(self: Any, *given: Any) -> Any:
        delay = draw.uniform(0, 0.8 * statistics.median(took[-10:]))

        def kill() -> None:
            time.sleep(delay)
            while not over.is_set():
                for pid in draw.sample(workers := sorted(pids(self)), len(workers)):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        kills.append(pid)
                        return
                over.wait(0.002)

        over = threading.Event()
        killer = threading.Thread(target=kill)
        began = time.monotonic()
        killer.start()
        try:
            return run(self, *given)
        finally:
            took.append(time.monotonic() - began)
            over.set()
            killer.join()

    transport.run = killed


def of_workers(draw: random.Random) -> dict[str, Any]:
    """Kill one of two worker processes in each round."""
    setattr(processes, "subprocess", forking())  # noqa: B010 (a name that the module has imported)
    kills = list[int]()
    killing(processes.Processes, lambda transport: transport.pids, draw, kills)
    runs = []
    for algorithm in ALGORITHMS:
        kills.clear()
        with TemporaryDirectory() as room:
            experiment = keys(algorithm, ROUNDS_OF_WORKERS, CLIENTS_OF_WORKERS, name="processes", workers=2)
            run = fs.run(experiment, Path(room) / "run", quiet=True)
            equal = left(run.folder) == whole(algorithm, ROUNDS_OF_WORKERS, CLIENTS_OF_WORKERS)
            runs.append({"algorithm": algorithm, "kills": len(kills), "equal": equal})
        print("workers", json.dumps(runs[-1]), flush=True)
    return {"workers": runs}


def of_ray(draw: random.Random) -> dict[str, Any]:
    """Kill one of Ray's workers in each round."""
    kills = list[int]()
    killing(ray.Ray, lambda transport: tasks_of_ray(os.getpid()), draw, kills)
    with TemporaryDirectory() as room:
        experiment = keys("layercfl", ROUNDS_OF_RAY, CLIENTS_OF_WORKERS, name="ray", workers=2)
        run = fs.run(experiment, Path(room) / "run", quiet=True)
        equal = left(run.folder) == whole("layercfl", ROUNDS_OF_RAY, CLIENTS_OF_WORKERS)
    found = {"algorithm": "layercfl", "kills": len(kills), "equal": equal}
    print("ray", json.dumps(found), flush=True)
    return {"ray": [found]}


def main() -> None:
    """Do the parts that are named, and keep what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="points,moments,workers,ray", help="comma-separated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULT, help="where the results are kept")
    given = parser.parse_args()
    parts: Mapping[str, Callable[[], dict[str, Any]]] = {
        "points": at_points,
        "moments": lambda: at_moments(random.Random(given.seed)),
        "workers": lambda: of_workers(random.Random(given.seed)),
        "ray": lambda: of_ray(random.Random(given.seed)),
    }
    for part in given.parts.split(","):
        found = parts[part]()
        known = json.loads(given.out.read_text()) if given.out.exists() else {}
        known |= {"seed": given.seed, "rounds": ROUNDS, **found}
        given.out.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
