"""Run several algorithms with several seeds, on shared work: round by round side by side."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from fedstrata.base.errors import InputError
from fedstrata.base.files import folder_lock, root_folder
from fedstrata.build.build import build_run, on_same_clients
from fedstrata.build.problem import objective_of
from fedstrata.build.run_setup import RunSetup
from fedstrata.comparison.collect import conclude, finished
from fedstrata.comparison.document import Comparison, RunFailure, RunKey
from fedstrata.config import Experiment, folder_of
from fedstrata.config.folders import require_new_folder
from fedstrata.config.tables import EngineTable
from fedstrata.core import Clients, Plan, State
from fedstrata.engine.device import one_thread
from fedstrata.engine.shared_work import LocalStores, count_jobs, run_shared
from fedstrata.play.interrupt import Interrupt, Stopped
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
    failures = dict[RunKey, RunFailure]()
    with one_thread(), StatusLine(quiet) as line, Interrupt(line.keep) as interrupt, ExitStack() as stack:

        @cache
        def lock() -> None:
            """Keep others out of the folder, which is made if need be."""
            stack.enter_context(folder_lock(root_folder(out)))
            if not resume:
                require_new_folder(out)  # another process may have written into it in the meantime

        if resume:
            lock()
        jobs = JobCount(0, 0)
        queue = _RunQueue(experiments, out, resume, line, lock)
        while queue.waiting:
            lockstep = queue.next()
            while (round := lockstep.round) is not None and not interrupt.asked:
                jobs += lockstep.step()
                queue.progress.show(round - 1, jobs.share)
            if interrupt.asked and (round is not None or queue.waiting):
                lockstep.close()
                after = f" after round {round - 1}" if round and round > 1 else ""
                raise Stopped(f"stopped in {queue.progress.where}{after}", out)
            failures |= lockstep.failures
            del lockstep  # and with it its data, before those of the next federation are read
        lock()
        return conclude(experiments, out, failures | queue.failures, jobs)


class _Federation(NamedTuple):
    """What runs that share their work have in common.

    Attributes:
        group: The number of their network, objective and keys of data, from 0.
        seed: Their seed.
    """

    group: int
    seed: int


class _RunQueue:
    """The runs that have not begun.

    Args:
        experiments: The experiments of the comparison. Those that are finished are left out.
        out: The folder of the comparison.
        resume: Whether runs go on from the checkpoints in it.
        line: Where the choice of the engine and the progress are shown.
        before_first: The function that is called before any run begins, once its experiment is known to fit.

    Attributes:
        waiting: The federations that have not begun, in their order: all seeds of a group follow each other.
        progress: The display of the progress.
        failures: Why runs could not begin.
    """

    def __init__(
        self,
        experiments: Sequence[Experiment],
        out: Path,
        resume: bool,
        line: StatusLine,
        before_first: Callable[[], None],
    ) -> None:
        """Read no data yet."""
        self._before_first = before_first
        unfinished = [each for each in experiments if not finished(folder_of(out, each), each.rounds)]
        groups = dict[Hashable, int]()
        self._experiments = dict[_Federation, dict[str, Experiment]]()
        for each in unfinished:
            federation = _Federation(groups.setdefault(_group_key(each), len(groups)), each.seed)
            self._experiments.setdefault(federation, {})[each.title] = each
        self._first_seed = experiments[0].seed
        self._out = out
        self._resume = resume
        self._line = line
        self._engines = dict[int, EngineTable]()
        # The sort is stable: seeds stay in their order.
        self.waiting = sorted(self._experiments, key=lambda federation: federation.group)
        metric = objective_of(experiments[0]).metric_info
        self.progress = ComparisonProgress(experiments[0].rounds, [each.seed for each in self.waiting], line, metric)
        self.failures: dict[RunKey, RunFailure] = {}

    def next(self) -> Lockstep:
        """The runs of the next federation; none where it cannot begin, and is not the first one.

        Raises:
            InputError: When something that the first experiment names does not exist or does not fit.
        """
        federation = self.waiting.pop(0)
        group, seed = federation
        # All seeds of a group have the engine that was chosen for the first one.
        chosen = {"engine": self._engines[group]} if group in self._engines else {}
        experiments = {name: each.model_copy(update=chosen) for name, each in self._experiments[federation].items()}
        try:
            setup = self._prepare(experiments, group)
        except Exception as error:
            if group == 0 and seed == self._first_seed:
                raise
            # Data that can be partitioned with one seed cannot always be with another. And a seed that the machine
            # has no room for does not lose the seeds that are over.
            self.failures |= {RunKey(seed, name): RunFailure.of(error) for name in experiments}
            self.progress.begin()
            return Lockstep({})
        self.progress.begin(setup.names)
        runs = self._active_runs(seed, experiments, setup)
        self._before_first()
        return Lockstep(runs)

    def _prepare(self, experiments: Mapping[str, Experiment], group: int) -> RunSetup:
        """The federation of a seed, which all of its experiments fit.

        Raises:
            InputError: When a key of one of them does not fit the network or the data.
        """
        first = next(iter(experiments.values()))
        setup = build_run(first)
        for name, experiment in experiments.items():
            try:
                own = on_same_clients(setup, experiment)
                own.server.algorithm.init(own.server.problem)
            except InputError as error:
                raise type(error)(f"{name}: {error}") from None
        for choice in setup.choices:
            self._line.keep(choice)
        self._engines[group] = setup.engine
        return setup

    def _active_runs(
        self, seed: int, experiments: Mapping[str, Experiment], setup: RunSetup
    ) -> dict[RunKey, ActiveRun]:
        """The runs of a seed, on one federation and each on devices of its own; none has begun."""

        def note(name: str, record: Mapping[str, Any], state: State) -> None:
            self.progress.note(name, record)

        runs = {}
        for name, experiment in experiments.items():
            devices = LocalStores(setup.clients)
            running = run_steps(
                experiment,
                replace(on_same_clients(setup, experiment), clients=devices),
                folder_of(self._out, experiment),
                resume=self._resume,
                on_round=partial(note, name),
                tell=self._line.keep,
            )
            runs[RunKey(seed, name)] = ActiveRun(running, devices, setup.clients)
        return runs


def _group_key(experiment: Experiment) -> Hashable:
    """What an engine is made for. Runs that have it in common share a federation of each seed."""
    # Data may lie elsewhere when a comparison is resumed.
    samples = experiment.data.model_dump_json(exclude={"root", "memory"})
    return samples, experiment.model.model_dump_json(), objective_of(experiment)


@dataclass(frozen=True)
class ActiveRun:
    """A run that is advanced with others.

    Attributes:
        steps: The run, not begun.
        devices: The devices of its algorithm.
        engine: The engine that computes for all algorithms of the seed.
    """

    steps: RunSteps
    devices: Clients
    engine: Clients


class Lockstep:
    """Runs of several algorithms on one federation. A run that fails is dropped, and the others go on.

    Args:
        runs: The runs.

    Attributes:
        failures: Why runs were dropped.
    """

    def __init__(self, runs: Mapping[RunKey, ActiveRun]) -> None:
        """Begin every run, up to its first plan."""
        self.failures: dict[RunKey, RunFailure] = {}
        self._runs = runs
        self._plans: dict[RunKey, Plan] = {}
        for run in runs:
            self._advance(run)

    @property
    def round(self) -> int | None:
        """The next round; runs that are further on wait for it. None when all are over."""
        return min((plan.round for plan in self._plans.values()), default=None)

    def step(self) -> JobCount:
        """Do the next round, and return the local jobs of all runs in it."""
        round = self.round
        due = [run for run, plan in self._plans.items() if plan.round == round]
        replies = dict[RunKey, PlanReply]()
        done = self._answer(due, replies)
        asked = sum(count_jobs(reply.report) for reply in replies.values())
        for run, reply in replies.items():
            self._advance(run, reply)
        return JobCount(asked, done)

    def close(self) -> None:
        """Leave the runs that are not over as they are, ready to be resumed."""
        for run in self._plans:
            self._runs[run].steps.close()

    def _answer(self, runs: Sequence[RunKey], replies: dict[RunKey, PlanReply]) -> int:
        """Run the plans of some runs together; where that fails, run by run.

        Args:
            runs: The runs, at least one.
            replies: Gets the reply to each run that does not fail.

        Returns:
            The number of local jobs that were done.
        """
        plans = [self._plans[run] for run in runs]
        devices = [self._runs[run].devices for run in runs]
        try:
            shared = run_shared(plans, self._runs[runs[0]].engine, devices)
        except Exception as error:
            # Only its text is kept: an exception would keep all tensors of its frames alive.
            failure = RunFailure.of(error)
        else:
            for run, report, seconds in zip(runs, shared.reports, shared.seconds, strict=True):
                replies[run] = PlanReply(report, seconds)
            return shared.done
        if len(runs) == 1:
            self._drop(runs[0], failure)
            return 0
        return sum(self._answer([run], replies) for run in runs)

    def _advance(self, run: RunKey, reply: PlanReply | None = None) -> None:
        """Give a run its reply, and take its next plan."""
        try:
            steps = self._runs[run].steps
            self._plans[run] = next(steps) if reply is None else steps.send(reply)
        except StopIteration:
            del self._plans[run]
        except Exception as error:
            self._drop(run, RunFailure.of(error))

    def _drop(self, run: RunKey, failure: RunFailure) -> None:
        self._plans.pop(run, None)
        self.failures[run] = failure
