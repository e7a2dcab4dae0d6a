"""The nouns of the library, the two protocols that connect them, and the two moves that end a round.

Six letters count things everywhere: n clients, m in this round, k models (clusters), p parameters (the columns
of a row), l tensors, c offers. One round, whatever the algorithm and wherever the clients are:

    plan = algorithm.plan(problem, state, cohort)
    report = validate(problem.layout, plan, clients.run(plan)).report
    state, notes = algorithm.update(problem, state, report)
"""

from fedstrata.core.advance import advance
from fedstrata.core.layout import Kind, Layout, Mask, Slot
from fedstrata.core.messages import FACTS, PARTS, VECTORS, Fit, Matrix, Notes, Plan, Report, Result, Score, Use
from fedstrata.core.problem import Problem, Recipe
from fedstrata.core.protocols import Algorithm, Clients
from fedstrata.core.rounds import asked, begin, broadcast, grouped, offers, serve, settle
from fedstrata.core.rows import Rows, empty_rows, mix
from fedstrata.core.state import State, move, wait
from fedstrata.core.tree import Node, Tree, Verdict, descends

__all__ = [
    "FACTS",
    "PARTS",
    "VECTORS",
    "Algorithm",
    "Clients",
    "Fit",
    "Kind",
    "Layout",
    "Mask",
    "Matrix",
    "Node",
    "Notes",
    "Plan",
    "Problem",
    "Recipe",
    "Report",
    "Result",
    "Rows",
    "Score",
    "Slot",
    "State",
    "Tree",
    "Use",
    "Verdict",
    "advance",
    "asked",
    "begin",
    "broadcast",
    "descends",
    "empty_rows",
    "grouped",
    "mix",
    "move",
    "offers",
    "serve",
    "settle",
    "wait",
]
