"""The nouns of the library, the two protocols that connect them, and the two moves that end a round.

Six letters count things everywhere: n clients, m in this round, k models (clusters), p parameters (the columns
of a row), l tensors, c offers. One round, whatever the algorithm and wherever the clients are:

    plan = algorithm.plan(problem, state, cohort)
    report = validate(problem.layout, plan, clients.run(plan)).report
    state, notes = algorithm.update(problem, state, report)
"""

from fedstrata.core.aggregation import aggregate
from fedstrata.core.layout import Kind, Layout, Mask, TensorSpec
from fedstrata.core.messages import (
    CLIENT_STATS,
    FOLDS,
    SINGULAR_VECTORS,
    Diagnostics,
    Evaluation,
    LocalTask,
    Matrix,
    Plan,
    Report,
    Result,
    Score,
)
from fedstrata.core.problem import LocalTraining, Problem
from fedstrata.core.protocols import Algorithm, Clients
from fedstrata.core.rows import Rows, empty_rows, weighted_mean
from fedstrata.core.standard_round import (
    assign_pending,
    candidate_models,
    cluster_evaluation,
    fedavg_plan,
    fixed_clusters,
    initial_state,
    selected,
)
from fedstrata.core.state import State, make_pending, reassign
from fedstrata.core.tree import Decision, Node, Tree, descends

__all__ = [
    "CLIENT_STATS",
    "FOLDS",
    "SINGULAR_VECTORS",
    "Algorithm",
    "Clients",
    "Decision",
    "Diagnostics",
    "Evaluation",
    "Kind",
    "Layout",
    "LocalTask",
    "LocalTraining",
    "Mask",
    "Matrix",
    "Node",
    "Plan",
    "Problem",
    "Report",
    "Result",
    "Rows",
    "Score",
    "State",
    "TensorSpec",
    "Tree",
    "aggregate",
    "assign_pending",
    "candidate_models",
    "cluster_evaluation",
    "descends",
    "empty_rows",
    "fedavg_plan",
    "fixed_clusters",
    "initial_state",
    "make_pending",
    "reassign",
    "selected",
    "weighted_mean",
]
