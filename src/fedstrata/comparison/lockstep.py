"""Runs on one federation or on several, advanced round by round side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedstrata.comparison.table import Failure, Who
from fedstrata.core import Clients, Plan
from fedstrata.engine.sharing import Asked, all_together, jobs
from fedstrata.runner.rounds import Answer, Steps, ask


@dataclass(frozen=True)
class Lane:
    """One of the runs.

    Attributes:
        steps: the run, not begun.
        devices: of its algorithm.
        engine: computes for all algorithms of the seed.
    """

    steps: Steps
    devices: Clients
    engine: Clients


Count = Callable[[int, int, Mapping[str, int], int], None]
"""Told, for a seed and a round, how many local jobs each algorithm asked for, and how many were done."""


@dataclass(frozen=True)
class Answered:
    """What came back.

    Attributes:
        answers: for each run that did not fail.
        done: jobs, by seed.
    """

    answers: Mapping[Who, Answer]
    done: Mapping[int, int]


class Lockstep:
    """Runs of several algorithms, with one seed or with several whose federations are one batch to the engine.

    One that fails drops out, and the others go on.

    Args:
        lanes: of the runs.

    Attributes:
        failures: why runs dropped out.
    """

    def __init__(self, lanes: Mapping[Who, Lane]) -> None:
        """Begin every run, up to what it first asks of the clients."""
        self.failures: dict[Who, Failure] = {}
        self._lanes, self._apart = lanes, False
        self._plans: dict[Who, Plan] = {}
        for who in lanes:
            self._advance(who)

    @property
    def round(self) -> int | None:
        """The next round; runs that are further on wait for it. None when all are over."""
        return min((plan.round for plan in self._plans.values()), default=None)

    def step(self, count: Count) -> None:
        """Do the next round.

        Args:
            count: told of every seed before any run goes on.
        """
        round = self.round
        assert round is not None
        seeds = _by_seed(who for who, plan in self._plans.items() if plan.round == round)
        found = self._answered(seeds)
        for seed, runs in seeds.items():
            asked = {who.algorithm: jobs(found.answers[who].report) for who in runs if who in found.answers}
            count(seed, round, asked, found.done.get(seed, 0))
        for who, answer in found.answers.items():
            self._advance(who, answer)

    def close(self) -> None:
        """Leave the runs that are not over as they are, ready to be resumed."""
        for who in self._plans:
            self._lanes[who].steps.close()

    def _answered(self, seeds: Mapping[int, Sequence[Who]]) -> Answered:
        """What comes back when everything is one batch; else seed by seed, and where that fails run by run."""
        if len(seeds) > 1 and self._apart:
            return self._one_by_one([{seed: runs} for seed, runs in seeds.items()])
        found = self._tried(seeds)
        if isinstance(found, Answered):
            return found
        # Alone, only what cannot be answered fails; and what was too much for one batch would be so again.
        if len(seeds) > 1:
            self._apart = True
            return self._answered(seeds)
        ((seed, runs),) = seeds.items()
        if len(runs) > 1:
            return self._one_by_one([{seed: [who]} for who in runs])
        self._drop(runs[0], found)
        return Answered({}, {})

    def _tried(self, seeds: Mapping[int, Sequence[Who]]) -> Answered | Failure:
        """What comes back, or in words why nothing does: an exception would keep all tensors on its way alive."""
        try:
            found = all_together([self._asked(runs) for runs in seeds.values()])
        except Exception as error:
            return Failure.of(error)
        answers = {
            who: Answer(report, seconds)
            for runs, common in zip(seeds.values(), found, strict=True)
            for who, report, seconds in zip(runs, common.reports, common.seconds, strict=True)
        }
        return Answered(answers, {seed: common.done for seed, common in zip(seeds, found, strict=True)})

    def _asked(self, runs: Sequence[Who]) -> Asked:
        lanes = [self._lanes[who] for who in runs]
        return Asked([self._plans[who] for who in runs], lanes[0].engine, [lane.devices for lane in lanes])

    def _one_by_one(self, parts: Iterable[Mapping[int, Sequence[Who]]]) -> Answered:
        answers, done = dict[Who, Answer](), dict[int, int]()
        for part in parts:
            found = self._answered(part)
            answers.update(found.answers)
            done.update({seed: done.get(seed, 0) + count for seed, count in found.done.items()})
        return Answered(answers, done)

    def _advance(self, who: Who, answer: Answer | None = None) -> None:
        """Let a run take its answer, up to what it asks next."""
        try:
            self._plans[who] = ask(self._lanes[who].steps, answer)
        except StopIteration:
            del self._plans[who]
        except Exception as error:
            self._drop(who, Failure.of(error))

    def _drop(self, who: Who, failure: Failure) -> None:
        self._plans.pop(who, None)
        self.failures[who] = failure


def _by_seed(runs: Iterable[Who]) -> dict[int, list[Who]]:
    seeds = dict[int, list[Who]]()
    for who in runs:
        seeds.setdefault(who.seed, []).append(who)
    return seeds
