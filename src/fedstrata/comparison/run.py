"""Run several algorithms with several seeds, on shared work: round by round side by side."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from fedstrata.base.errors import InputError
from fedstrata.base.files import folder_lock, root_folder
from fedstrata.build.build import build_run, on_same_clients
from fedstrata.build.problem import objective_of
from fedstrata.build.run_setup import RunSetup
from fedstrata.comparison.collect import conclude, finished
from fedstrata.comparison.document import Comparison, RunFailure
from fedstrata.config import Experiment, folder_of
from fedstrata.config.folders import require_new_folder
from fedstrata.config.tables import EngineTable
from fedstrata.core import Plan, State
from fedstrata.engine.device import one_thread
from fedstrata.engine.shared_work import LocalStores, count_jobs, run_shared
from fedstrata.play.interrupt import Stopped, interruptible
from fedstrata.play.progress import ComparisonProgress, StatusLine
from fedstrata.play.rounds import PlanReply
from fedstrata.play.steps import RunSteps, run_steps
from fedstrata.report.comparison.folder import JobCount


def compare_experiments(
    experiments: Sequence[Experiment], out: Path, *, resume: bool = False, quiet: bool = False
) -> Comparison:
    """Run experiments that differ in algorithm, training, server, cohort, network, data keys and seed, or go on.

    All runs of a federation go round by round, and equal local jobs are done once. A federation has one seed, network,
    objective and way to read the data. Federations follow each other.

    Each run is recorded in a folder of its own, as if it had been run alone: bit for bit, or within the tolerance of
    the batched engine. Its seconds are those of its own work and its part of what was shared. A run that fails does
    not lose the others.

    Args:
        experiments: The experiments, checked and complete.
        out: The folder of the comparison; made if need be.
        resume: Whether to go on from the checkpoints in the folder. Finished runs stay as they are, unless the
            experiments have more rounds.
        quiet: Whether to show no progress.

    Raises:
        InputError: When something that the experiments name does not exist or does not fit; nothing is made then. Also
            when another process works in the folder.
        Stopped: After Ctrl-C, when the round is over.
    """
    failures = dict[Path, RunFailure]()
    jobs = JobCount(0, 0)
    engines = dict[Hashable, EngineTable]()
    first = _federation_of(experiments[0])
    federations = dict[_Federation, dict[str, Experiment]]()
    for each in experiments:
        if not finished(folder_of(out, each), each.rounds):
            federations.setdefault(_federation_of(each), {})[each.title] = each
    with one_thread(), StatusLine(quiet) as line, interruptible(line.keep) as interrupt, ExitStack() as stack:

        @cache
        def lock() -> None:
            """Keep others out of the folder, which is made if need be."""
            stack.enter_context(folder_lock(root_folder(out)))
            if not resume:
                require_new_folder(out)  # another process may have written into it in the meantime

        if resume:
            lock()
        metric = objective_of(experiments[0]).metric_info
        for place, (federation, named) in enumerate(federations.items(), start=1):
            # All seeds have the engine that was chosen for the first one.
            chosen = {"engine": engines[federation.kind]} if federation.kind in engines else {}
            own = {name: each.model_copy(update=chosen) for name, each in named.items()}
            try:
                setups = _prepare(own)
            except Exception as error:
                if federation == first:
                    raise
                # Data that can be partitioned with one seed cannot always be with another. And a seed that the machine
                # has no room for does not lose the seeds that are over.
                failures |= {folder_of(out, each): RunFailure.of(error) for each in own.values()}
                continue
            setup = next(iter(setups.values()))
            for choice in setup.choices:
                line.keep_once(choice)
            engines[federation.kind] = setup.engine
            lock()
            known = (experiments[0].rounds, line, federation.seed, place, len(federations))
            progress = ComparisonProgress(*known, setup.names, metric)
            lockstep = _begin(own, setups, out, progress, line, resume=resume)
            while (round := lockstep.round) is not None and not interrupt.asked:
                jobs += lockstep.step()
                progress.show(round - 1, jobs.share)
            if interrupt.asked and (round is not None or place < len(federations)):
                lockstep.close()
                after = f" after round {round - 1}" if round and round > 1 else ""
                raise Stopped(f"stopped in seed {federation.seed}{after}", out)
            failures |= {folder_of(out, own[name]): failure for name, failure in lockstep.failures.items()}
            del lockstep, setups, setup  # and with them the data, before those of the next federation are read
        lock()
        return conclude({folder_of(out, each): each for each in experiments}, out, failures, jobs)


class _Federation(NamedTuple):
    """What runs that share their work have in common.

    Attributes:
        kind: Their network, objective and keys of data.
        seed: Their seed.
    """

    kind: Hashable
    seed: int


def _federation_of(experiment: Experiment) -> _Federation:
    """The federation of an experiment."""
    # Data may lie elsewhere when a comparison is resumed.
    samples = experiment.data.model_dump_json(exclude={"root", "memory"})
    return _Federation((samples, experiment.model.model_dump_json(), objective_of(experiment)), experiment.seed)


def _prepare(experiments: Mapping[str, Experiment]) -> dict[str, RunSetup]:
    """The setups of the experiments of a federation, on the same clients.

    Raises:
        InputError: When a key of one of them does not fit the network or the data.
    """
    shared = build_run(next(iter(experiments.values())))
    setups = {}
    for name, experiment in experiments.items():
        try:
            own = on_same_clients(shared, experiment)
            own.server.algorithm.init(own.server.problem)
        except InputError as error:
            raise type(error)(f"{name}: {error}") from None
        setups[name] = own
    return setups


def _begin(
    experiments: Mapping[str, Experiment],
    setups: Mapping[str, RunSetup],
    out: Path,
    progress: ComparisonProgress,
    line: StatusLine,
    *,
    resume: bool,
) -> Lockstep:
    """The runs of a federation up to their first plans, each with local stores of its own."""
    devices = {name: LocalStores(setup.clients) for name, setup in setups.items()}

    def note(name: str, record: Mapping[str, Any], state: State) -> None:
        progress.note(name, record)

    runs = {
        name: run_steps(
            experiment,
            replace(setups[name], clients=devices[name]),
            folder_of(out, experiment),
            resume=resume,
            on_round=partial(note, name),
            tell=line.keep_once,
        )
        for name, experiment in experiments.items()
    }
    return Lockstep(runs, devices)


class Lockstep:
    """Runs of several algorithms on one federation, round by round. A run that fails is dropped; the others go on.

    Args:
        runs: The runs, not begun, by their names.
        devices: The clients of each run. They share an engine.

    Attributes:
        failures: Why runs were dropped, by their names.
    """

    def __init__(self, runs: Mapping[str, RunSteps], devices: Mapping[str, LocalStores]) -> None:
        """Begin every run, up to its first plan."""
        self.failures: dict[str, RunFailure] = {}
        self._runs = runs
        self._devices = devices
        self._plans: dict[str, Plan] = {}
        for name in runs:
            self._advance(name)

    @property
    def round(self) -> int | None:
        """The next round; runs that are further on wait for it. None when all are over."""
        return min((plan.round for plan in self._plans.values()), default=None)

    def step(self) -> JobCount:
        """Do the next round, and return the local jobs of all runs in it."""
        round = self.round
        due = [name for name, plan in self._plans.items() if plan.round == round]
        replies = dict[str, PlanReply]()
        done = self._answer(due, replies)
        asked = sum(count_jobs(reply.report) for reply in replies.values())
        for name, reply in replies.items():
            self._advance(name, reply)
        return JobCount(asked, done)

    def close(self) -> None:
        """Leave the runs that are not over as they are, ready to be resumed."""
        for name in self._plans:
            self._runs[name].close()

    def _answer(self, names: Sequence[str], replies: dict[str, PlanReply]) -> int:
        """Run the plans of some runs together. Where that fails, go run by run.

        Args:
            names: The names of the runs.
            replies: Gets the reply to each run that does not fail.

        Returns:
            The number of local jobs that were done.
        """
        try:
            shared = run_shared([self._plans[name] for name in names], [self._devices[name] for name in names])
        except Exception as error:
            # Only its text is kept: an exception would keep all tensors of its frames alive.
            failure = RunFailure.of(error)
        else:
            for name, report, seconds in zip(names, shared.reports, shared.seconds, strict=True):
                replies[name] = PlanReply(report, seconds)
            return shared.done
        if len(names) == 1:
            self._drop(names[0], failure)
            return 0
        return sum(self._answer([name], replies) for name in names)

    def _advance(self, name: str, reply: PlanReply | None = None) -> None:
        """Give a run its reply, and take its next plan."""
        try:
            steps = self._runs[name]
            self._plans[name] = next(steps) if reply is None else steps.send(reply)
        except StopIteration:
            del self._plans[name]
        except Exception as error:
            self._drop(name, RunFailure.of(error))

    def _drop(self, name: str, failure: RunFailure) -> None:
        self._plans.pop(name, None)
        self.failures[name] = failure
