"""Single rounds of clients whose updates are given, where `fedstrata.testing.play` begins at the first one."""

from collections.abc import Sequence
from typing import Any

import torch

from builders import with_tree_events
from fedstrata.core import Algorithm, Diagnostics, Problem
from fedstrata.core.state import StateT
from fedstrata.testing import Scripted


def next_round(
    algorithm: Algorithm[StateT],
    problem: Problem,
    state: StateT,
    updates: torch.Tensor,
    cohort: Sequence[int] | None = None,
    **script: Any,
) -> tuple[StateT, Diagnostics]:
    """Play one more round in which clients, by default all, answer with updates (n, p).

    Args:
        algorithm: The algorithm with its hyper-parameters.
        problem: What is fixed for the run.
        state: The state before the round.
        updates: The updates of all clients, (n, p).
        cohort: The clients that are asked, and answer.
        script: The sizes or the statistics of clients, as in `Scripted`.
    """
    ids = torch.arange(problem.clients) if cohort is None else torch.tensor(cohort, dtype=torch.int64)
    report = Scripted([updates], **script).run(algorithm.plan(problem, state, ids))
    return with_tree_events(state, *algorithm.update(problem, state, report))
