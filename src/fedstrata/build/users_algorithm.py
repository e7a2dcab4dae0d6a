"""An algorithm of the user's own, whose errors say in which function and round it failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch

from fedstrata.base.errors import UserCodeError
from fedstrata.core import Algorithm, Diagnostics, Evaluation, Plan, Problem, Report, State
from fedstrata.core.state import StateT
from fedstrata.objective.objective import in_user_code


def with_place_of_errors(algorithm: Algorithm[StateT]) -> Algorithm[StateT]:
    """The algorithm, whose errors are those of the user's code if it is not one of the library's own."""
    kind = type(algorithm)
    if kind.__module__.split(".")[0] == "fedstrata":
        return algorithm
    return cast(Algorithm[StateT], _UsersAlgorithm(algorithm, f"the algorithm {kind.__module__}:{kind.__qualname__}"))


@dataclass(frozen=True)
class _UsersAlgorithm:
    """An algorithm that is called as `in_user_code` calls functions.

    Attributes:
        algorithm: The algorithm.
        called: What messages call it.
    """

    algorithm: Algorithm[Any]
    called: str

    def init(self, problem: Problem) -> State:
        """The first state."""
        found: State = in_user_code(f"{self.called}: init", self.algorithm.init, problem)
        self._require(isinstance(found, State), "init: expected a State", found)
        return found

    def plan(self, problem: Problem, state: State, cohort: torch.Tensor) -> Plan:
        """What the clients of a round are asked."""
        place = f"plan of round {state.round + 1}"
        found = in_user_code(f"{self.called}: {place}", self.algorithm.plan, problem, state, cohort)
        self._require(isinstance(found, Plan), f"{place}: expected a Plan", found)
        return found

    def update(self, problem: Problem, state: State, report: Report) -> tuple[State, Diagnostics]:
        """The state after a round."""
        place = f"update of round {state.round + 1}"
        found: Any = in_user_code(f"{self.called}: {place}", self.algorithm.update, problem, state, report)
        is_pair = isinstance(found, tuple) and len(found) == 2
        fits = is_pair and isinstance(found[0], State) and isinstance(found[1], Diagnostics)
        self._require(fits, f"{place}: expected a State and Diagnostics", found)
        return found[0], found[1]

    def evaluations(self, problem: Problem, state: State, clients: torch.Tensor) -> dict[str, Evaluation]:
        """Which models clients score."""
        place = f"{self.called}: evaluations after round {state.round}"
        return dict(in_user_code(place, self.algorithm.evaluations, problem, state, clients))

    def _require(self, fits: bool, expected: str, found: object) -> None:
        """Refuse what a function returned if it does not fit."""
        if not fits:
            kind = type(found).__name__
            if isinstance(found, tuple):
                kind = f"({', '.join(type(each).__name__ for each in found)})"
            raise UserCodeError(f"{self.called}: {expected}, found {kind}")
