"""Runs on one federation or on several, advanced round by round side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedstrata.comparison.table import Failure, Who
from fedstrata.core import Clients, Plan
from fedstrata.engine.sharing import Turn, all_together
from fedstrata.train import Answer, Steps, ask


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
        self._lanes = lanes
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
        turn = [who for who, plan in self._plans.items() if plan.round == round]
        answers, done = self._answered(turn)
        for seed in _seeds(turn):
            jobs = {who.algorithm: _jobs(answer) for who, answer in answers.items() if who.seed == seed}
            count(seed, round, jobs, done.get(seed, 0))
        for who, answer in answers.items():
            self._advance(who, answer)

    def close(self) -> None:
        """Leave the runs that are not over as they are, ready to be resumed."""
        for who in self._plans:
            self._lanes[who].steps.close()

    def _answered(self, turn: Sequence[Who]) -> tuple[dict[Who, Answer], dict[int, int]]:
        """What comes back for each run, and how many jobs were done for each seed."""
        seeds = {seed: [who for who in turn if who.seed == seed] for seed in _seeds(turn)}
        try:
            found = all_together([self._turn(runs) for runs in seeds.values()])
        except Exception as error:
            return self._apart([*seeds.values()], error)
        answers, done = dict[Who, Answer](), dict[int, int]()
        for (seed, runs), common in zip(seeds.items(), found, strict=True):
            answers |= zip(runs, map(Answer, common.reports, common.seconds), strict=True)
            done[seed] = common.done
        return answers, done

    def _turn(self, runs: Sequence[Who]) -> Turn:
        lanes = [self._lanes[who] for who in runs]
        return Turn([self._plans[who] for who in runs], lanes[0].engine, [lane.devices for lane in lanes])

    def _apart(self, seeds: Sequence[Sequence[Who]], error: Exception) -> tuple[dict[Who, Answer], dict[int, int]]:
        """What comes back when something cannot be answered; alone it is the only one to fail."""
        parts = seeds if len(seeds) > 1 else [[who] for who in seeds[0]]
        answers, done = dict[Who, Answer](), dict[int, int]()
        if len(parts) == 1:
            self._drop(parts[0][0], error)
            return answers, done
        for part in parts:
            own, jobs = self._answered(part)
            answers |= own
            done |= {seed: done.get(seed, 0) + count for seed, count in jobs.items()}
        return answers, done

    def _advance(self, who: Who, answer: Answer | None = None) -> None:
        """Let a run take its answer, up to what it asks next."""
        try:
            self._plans[who] = ask(self._lanes[who].steps, answer)
        except StopIteration:
            del self._plans[who]
        except Exception as error:
            self._drop(who, error)

    def _drop(self, who: Who, error: Exception) -> None:
        self._plans.pop(who, None)
        self.failures[who] = Failure.of(error)


def _seeds(turn: Iterable[Who]) -> list[int]:
    return list(dict.fromkeys(who.seed for who in turn))


def _jobs(answer: Answer) -> int:
    return sum(len(part.sizes) for part in answer.report.results)
