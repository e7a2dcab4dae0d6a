"""Runs on one federation, advanced round by round side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedstrata.comparison.table import Failure
from fedstrata.core import Clients, Plan
from fedstrata.engine.sharing import together
from fedstrata.train import Answer, Steps, ask


@dataclass(frozen=True)
class Lane:
    """One of the runs.

    Attributes:
        steps: the run, not begun.
        devices: of its algorithm.
    """

    steps: Steps
    devices: Clients


class Lockstep:
    """Runs of several algorithms with one seed, by the name of the algorithm.

    One that fails drops out, and the others go on.

    Args:
        lanes: by name.
        engine: computes for all of them.

    Attributes:
        failures: why runs dropped out, by name.
    """

    def __init__(self, lanes: Mapping[str, Lane], engine: Clients) -> None:
        """Begin every run, up to what it first asks of the clients."""
        self.failures: dict[str, Failure] = {}
        self._lanes, self._engine = lanes, engine
        self._plans: dict[str, Plan] = {}
        for name in lanes:
            self._advance(name)

    @property
    def round(self) -> int | None:
        """The next round; runs that are further on wait for it. None when all are over."""
        return min((plan.round for plan in self._plans.values()), default=None)

    def step(self, count: Callable[[Mapping[str, int], int], None]) -> None:
        """Do the next round.

        Args:
            count: told how many local jobs each run asked for, and how many were done, before any run goes on.
        """
        answers, done = self._answered({name: plan for name, plan in self._plans.items() if plan.round == self.round})
        count({name: sum(len(part.sizes) for part in answer.report.results) for name, answer in answers.items()}, done)
        for name, answer in answers.items():
            self._advance(name, answer)

    def close(self) -> None:
        """Leave the runs that are not over as they are, ready to be resumed."""
        for name in self._plans:
            self._lanes[name].steps.close()

    def _answered(self, turn: Mapping[str, Plan]) -> tuple[dict[str, Answer], int]:
        """What comes back for each plan, and how many jobs were done."""
        try:
            common = together(list(turn.values()), self._engine, [self._lanes[name].devices for name in turn])
        except Exception as error:
            return self._one_by_one(turn, error)
        return dict(zip(turn, map(Answer, common.reports, common.seconds), strict=True)), common.done

    def _one_by_one(self, turn: Mapping[str, Plan], error: Exception) -> tuple[dict[str, Answer], int]:
        """What comes back when one of the plans cannot be answered; alone it is the only one to fail."""
        answers, done = dict[str, Answer](), 0
        for name, plan in turn.items():
            if len(turn) == 1:
                self._drop(name, error)
            else:
                own, jobs = self._answered({name: plan})
                answers, done = answers | own, done + jobs
        return answers, done

    def _advance(self, name: str, answer: Answer | None = None) -> None:
        """Let a run take its answer, up to what it asks next."""
        try:
            self._plans[name] = ask(self._lanes[name].steps, answer)
        except StopIteration:
            del self._plans[name]
        except Exception as error:
            self._drop(name, error)

    def _drop(self, name: str, error: Exception) -> None:
        self._plans.pop(name, None)
        self.failures[name] = Failure.of(error)
