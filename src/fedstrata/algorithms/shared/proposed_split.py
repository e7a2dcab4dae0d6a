"""How recursive bipartition would divide each cluster in a round, whether or not a split is due.

HiCFL compares bipartitions from before and after the model is stable (Table IV). What is here is recorded, and changes
no state.
"""

from __future__ import annotations

from fedstrata.algorithms.shared.bipartition_round import Examine
from fedstrata.algorithms.shared.recursive_bipartition import BipartitionState, SplitRules, collect_answers
from fedstrata.base.lazy_torch import torch
from fedstrata.core import Problem, ProposedSplit, Report, State

NEVER_REACHED = 1e30
"""A threshold that no norm and no stability reaches."""


def proposed_splits(
    problem: Problem, state: State, report: Report, examine: Examine, usable: torch.Tensor | None = None
) -> tuple[ProposedSplit, ...]:
    """The bipartition of every cluster of which two members can be compared.

    Args:
        problem: What is fixed for the run.
        state: The state before the round.
        report: The report of the round.
        examine: Decides about one cluster, with thresholds that let every split be made.
        usable: The clients that can be compared, bool (n,). None is everyone.
    """
    k = len(state.models)
    unknown = BipartitionState(torch.zeros(k), torch.zeros(k), torch.zeros(k, dtype=torch.bool))
    columns = problem.layout.conv_and_linear
    every_pair = SplitRules(first=1, quorum=0.0, min_split=2)
    answers = collect_answers(problem, state, unknown, report, columns, every_pair, usable)
    found = list[ProposedSplit]()
    for cluster, result in answers.usable.items():
        decision = examine(answers, cluster)
        if decision.reason.kind in ("split", "same_direction"):
            clients = result.updates.clients
            first, second = decision.parts or (clients, clients[:0])
            found.append(ProposedSplit(int(state.nodes[cluster]), first, second))
    return tuple(found)
