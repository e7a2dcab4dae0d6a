"""Runs on one federation or on several, advanced round by round side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedstrata.comparison.document import RunFailure, RunKey
from fedstrata.core import Clients, Plan
from fedstrata.engine.shared_work import SharedRequest, count_jobs, run_shared
from fedstrata.play.rounds import PlanReply
from fedstrata.play.steps import RunSteps


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


@dataclass(frozen=True)
class RoundResults:
    """What came back for one round.

    Attributes:
        replies: The reply to each run that did not fail.
        jobs_done: The jobs that were done, by seed.
    """

    replies: Mapping[RunKey, PlanReply]
    jobs_done: Mapping[int, int]


class Lockstep:
    """Runs of several algorithms, with one seed or with several whose federations are one batch to the engine.

    A run that fails is dropped, and the others go on.

    Args:
        runs: The runs.

    Attributes:
        failures: Why runs were dropped.
    """

    def __init__(self, runs: Mapping[RunKey, ActiveRun]) -> None:
        """Begin every run, up to its first plan."""
        self.failures: dict[RunKey, RunFailure] = {}
        self._runs = runs
        self._one_batch = True
        self._plans: dict[RunKey, Plan] = {}
        for run in runs:
            self._advance(run)

    @property
    def round(self) -> int | None:
        """The next round; runs that are further on wait for it. None when all are over."""
        return min((plan.round for plan in self._plans.values()), default=None)

    def step(self, count: Callable[[int, int, Mapping[str, int], int], None]) -> None:
        """Do the next round.

        Args:
            count: Is called for every seed before any run goes on, with the seed, the round, the local jobs that each
                algorithm asked for, and the number that was done.
        """
        round = self.round
        assert round is not None
        seeds = _by_seed(run for run, plan in self._plans.items() if plan.round == round)
        results = self._run_plans(seeds)
        for seed, runs in seeds.items():
            asked = {run.algorithm: count_jobs(results.replies[run].report) for run in runs if run in results.replies}
            count(seed, round, asked, results.jobs_done.get(seed, 0))
        for run, reply in results.replies.items():
            self._advance(run, reply)

    def close(self) -> None:
        """Leave the runs that are not over as they are, ready to be resumed."""
        for run in self._plans:
            self._runs[run].steps.close()

    def _run_plans(self, seeds: Mapping[int, Sequence[RunKey]]) -> RoundResults:
        """Run the plans of all seeds as one batch. Where that fails, go seed by seed, and then run by run."""
        several = len(seeds) > 1
        if self._one_batch or not several:
            results = self._try_plans(seeds)
            if isinstance(results, RoundResults):
                return results
            runs = [run for runs in seeds.values() for run in runs]
            if len(runs) == 1:
                self._drop(runs[0], results)
                return RoundResults({}, {})
            if several:
                # What was too much for one batch would be so again.
                self._one_batch = False
        if several:
            parts = [{seed: runs} for seed, runs in seeds.items()]
        else:
            # One by one, only the runs fail whose plans cannot be run.
            parts = [{seed: [run]} for seed, runs in seeds.items() for run in runs]
        replies = dict[RunKey, PlanReply]()
        jobs_done = dict[int, int]()
        for part in parts:
            results = self._run_plans(part)
            replies.update(results.replies)
            jobs_done.update({seed: jobs_done.get(seed, 0) + count for seed, count in results.jobs_done.items()})
        return RoundResults(replies, jobs_done)

    def _try_plans(self, seeds: Mapping[int, Sequence[RunKey]]) -> RoundResults | RunFailure:
        """Run the plans, or say why they fail. An exception would keep all tensors of its frames alive."""
        try:
            found = run_shared([self._plans_of_seed(runs) for runs in seeds.values()])
        except Exception as error:
            return RunFailure.of(error)
        replies = {
            run: PlanReply(report, seconds)
            for runs, shared in zip(seeds.values(), found, strict=True)
            for run, report, seconds in zip(runs, shared.reports, shared.seconds, strict=True)
        }
        return RoundResults(replies, {seed: shared.done for seed, shared in zip(seeds, found, strict=True)})

    def _plans_of_seed(self, runs: Sequence[RunKey]) -> SharedRequest:
        active = [self._runs[run] for run in runs]
        return SharedRequest([self._plans[run] for run in runs], active[0].engine, [each.devices for each in active])

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


def _by_seed(runs: Iterable[RunKey]) -> dict[int, list[RunKey]]:
    seeds = dict[int, list[RunKey]]()
    for run in runs:
        seeds.setdefault(run.seed, []).append(run)
    return seeds
