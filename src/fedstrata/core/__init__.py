"""The data types of the library, the two protocols that connect them, and the functions of the standard round.

Six letters count things everywhere: n clients, m clients in this round, k models (clusters), p parameters (the columns
of a row), l tensors, c candidate models. One round, whatever the algorithm and wherever the clients are:

    plan = algorithm.plan(problem, state, cohort)
    report = clients.run(plan)
    state, diagnostics = algorithm.update(problem, state, report)

`problem` has what is fixed for a run, `state` what changes, and `messages` what travels. `layout` and `rows` are
networks as rows of numbers, with `row_products`; `lr_schedule` is how the step size of clients changes.

`standard_round` has `Algorithm` and what most algorithms are made of. `aggregation` makes one update of many,
`server` has what may come before and after that.
"""

from fedstrata.core.aggregation import Aggregation, RuleAggregation, weighted_mean
from fedstrata.core.layout import Kind, Layout, Mask, TensorSpec
from fedstrata.core.lr_schedule import LearningRateSchedule, Schedule
from fedstrata.core.messages import (
    CLIENT,
    CLIENT_STATS,
    FOLDS,
    SHARED,
    SINGULAR_VECTORS,
    TRAIN,
    VALIDATION,
    Clients,
    Diagnostics,
    Evaluation,
    LocalTask,
    LocalTraining,
    Matrix,
    Metric,
    Plan,
    Report,
    Result,
    Score,
)
from fedstrata.core.problem import Problem, Server
from fedstrata.core.rows import Rows, empty_rows, evenly_spread
from fedstrata.core.server import ServerMoments, ServerOptimizer, ServerOptimizerName
from fedstrata.core.standard_round import (
    Algorithm,
    aggregate,
    assign_pending,
    candidate_models,
    cluster_evaluation,
    fedavg_plan,
    fixed_clusters,
    initial_state,
    members_in_cohort,
)
from fedstrata.core.state import (
    Decision,
    Node,
    State,
    Tree,
    descends,
    extend_state,
    make_pending,
    reassign,
    tree_events,
)

__all__ = [
    "CLIENT",
    "CLIENT_STATS",
    "FOLDS",
    "SHARED",
    "SINGULAR_VECTORS",
    "TRAIN",
    "VALIDATION",
    "Aggregation",
    "Algorithm",
    "Clients",
    "Decision",
    "Diagnostics",
    "Evaluation",
    "Kind",
    "Layout",
    "LearningRateSchedule",
    "LocalTask",
    "LocalTraining",
    "Mask",
    "Matrix",
    "Metric",
    "Node",
    "Plan",
    "Problem",
    "Report",
    "Result",
    "Rows",
    "RuleAggregation",
    "Schedule",
    "Score",
    "Server",
    "ServerMoments",
    "ServerOptimizer",
    "ServerOptimizerName",
    "State",
    "TensorSpec",
    "Tree",
    "aggregate",
    "assign_pending",
    "candidate_models",
    "cluster_evaluation",
    "descends",
    "empty_rows",
    "evenly_spread",
    "extend_state",
    "fedavg_plan",
    "fixed_clusters",
    "initial_state",
    "make_pending",
    "members_in_cohort",
    "reassign",
    "tree_events",
    "weighted_mean",
]
