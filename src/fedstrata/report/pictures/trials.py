"""The tests that decided (Strata, and proofs by twins): the p of each, and the level that it must not exceed."""

import re
from typing import NamedTuple

from fedstrata.report.groups import Groups
from fedstrata.report.pictures.drawing import Figure, Plot, axis, figure, time

OF_NODE = re.compile(r"(.+) of node (\d+)")
TESTED = ("p", "level")


class Trial(NamedTuple):
    """One test of a node."""

    node: int
    round: int
    p: float
    level: float


def proofs(groups: Groups) -> list[Plot]:
    """The p of every test that was made against what it might spend; nothing where none was."""
    found = trials(groups)
    if not found:
        return []
    traces: list[Figure] = []
    for node in sorted({trial.node for trial in found}):
        own, colour = [trial for trial in found if trial.node == node], groups.colour(node)
        hover = [f"node {node}, round {trial.round}<br>p = {trial.p:.2g}, level {trial.level:.2g}" for trial in own]
        shared = {"type": "scatter", "x": [trial.round for trial in own], "hovertext": hover}
        shared |= {"hovertemplate": "%{hovertext}<extra></extra>"}
        beside = {"mode": "markers+text", "text": [str(node)] * len(own), "textposition": "middle right"}
        traces.append({**shared, **beside, "y": [trial.p for trial in own], "marker": {"size": 9, "color": colour}})
        dash = {"symbol": "line-ew", "size": 16, "color": colour, "line": {"color": colour, "width": 2}}
        traces.append({**shared, "mode": "markers", "y": [trial.level for trial in own], "marker": dash})
    vertical = axis("p", type="log", hoverformat=".2g", dtick="D2", tickformat=".2~g")
    drawn = figure(traces, 300, hovermode="closest", xaxis=time(groups.records.rounds), yaxis=vertical)
    text = "A dot is the p of a test of the node beside it, the dash of its colour the level that it must not exceed."
    return [Plot("tests", "Tests", text + ("" if _recorded(groups) else " Of each node, the last test."), drawn)]


def trials(groups: Groups) -> list[Trial]:
    """All tests that the rounds recorded; of older runs what the tree keeps, the last one of each node."""
    if _recorded(groups):
        return [
            Trial(int(node[2]), each.round, p, level)
            for each in groups.records.rounds
            for name, p in each.figures.items()
            if (node := OF_NODE.fullmatch(name)) and node[1] == "p" and p is not None
            if (level := each.figures.get(f"level of node {node[2]}")) is not None
        ]
    examined = {decision.node: decision.matrices[0].round for decision in groups.decisions}
    return [
        Trial(node.id, examined[node.id], p, level)
        for node in groups.records.tree
        if (p := node.criteria.get("p")) is not None and (level := node.criteria.get("level")) is not None
        if node.id in examined
    ]


def _recorded(groups: Groups) -> bool:
    return any(name.startswith("p of node ") for each in groups.records.rounds for name in each.figures)
