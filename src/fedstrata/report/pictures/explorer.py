"""Every matrix that was looked at, round by round: what the slider on the page goes through.

Of a matrix the page gets the half above the diagonal as 16-bit numbers, a tenth of what plotly's JSON would take.
"""

from base64 import b64encode
from typing import Any

import numpy as np

from fedstrata.report.groups import Groups
from fedstrata.report.pictures.drawing import Figure, clean
from fedstrata.report.pictures.heatmaps import ANGULAR, FAR, NEAR, SHOWN, heat, similar, span, square, strips, telling
from fedstrata.report.records import Matrix
from fedstrata.report.words import capital, measure, told

STEPS = 65534
"""Levels between the least and the largest value; one more number says that there is none."""


def explorer(groups: Groups) -> dict[str, Any] | None:
    """The views (a layer by a measure), the rounds with the matrices of all nodes, and the empty heat map.

    None where there is nothing to go through: no matrix, or those of one round that the pictures of the splits show.
    """
    by_round: dict[int, list[Matrix]] = {}
    for matrix in groups.records.matrices:
        by_round.setdefault(matrix.round, []).append(matrix)
    elsewhere = {id(matrix) for each in groups.decisions if each.event for matrix in telling(each)[:SHOWN]}
    if not by_round or (len(by_round) == 1 and elsewhere.issuperset(map(id, groups.records.matrices))):
        return None
    order = sorted({client for some in by_round.values() for m in some for client in m.clients}, key=groups.final_rank)
    places = {client: place for place, client in enumerate(order)}
    keys = list(dict.fromkeys((matrix.layer, matrix.measure) for matrix in groups.records.matrices))
    return {
        "figure": square(heat(len(order), True, ""), order, strips(groups, order)),
        "views": [_view(groups, layer, name) for layer, name in keys],
        "frames": [
            {
                "round": number,
                "parts": [_part(matrix, keys.index((matrix.layer, matrix.measure)), places) for matrix in some],
                "texts": _texts(groups, number, {matrix.node for matrix in some}),
            }
            for number, some in sorted(by_round.items())
        ],
    }


def _view(groups: Groups, layer: str, name: str) -> Figure:
    some = tuple(m for m in groups.records.matrices if (m.layer, m.measure) == (layer, name))
    shared = tuple(m for m in groups.records.matrices if m.measure == name)
    alike = similar(some[0])
    return {
        "name": f"{layer}, {name}",
        "text": measure(name),
        "hover": clean(name),
        "similar": alike,
        "range": span(shared) if name in ANGULAR else None,
        "colorscale": NEAR if alike else FAR,
    }


def _part(matrix: Matrix, view: int, places: dict[int, int]) -> dict[str, Any]:
    clients = sorted(matrix.clients, key=places.__getitem__)
    rows = [matrix.clients.index(client) for client in clients]
    values = matrix.values[np.ix_(rows, rows)].astype(np.float64)
    values = values[np.triu_indices(len(rows), 1)]
    held = values[np.isfinite(values)]
    low, high = (float(held.min()), float(held.max())) if held.size else (0.0, 0.0)
    known = np.where(np.isfinite(values), values, low)
    levels = np.rint((known - low) / ((high - low) or 1.0) * STEPS)
    codes = np.where(np.isfinite(values), levels, STEPS + 1).astype("<u2")
    return {
        "view": view,
        "node": matrix.node,
        "clients": [places[client] for client in clients],
        "low": low,
        "high": high,
        "codes": b64encode(codes.tobytes()).decode(),
    }


def _texts(groups: Groups, number: int, nodes: set[int]) -> list[str]:
    """What came of the examinations of some nodes in a round, in words."""
    splits = next(each.splits for each in groups.records.rounds if each.round == number)
    decided = {decision.node: decision for decision in groups.decisions}
    texts, spoken = [], set[int]()
    for node in sorted(nodes):
        decision = decided.get(node)
        event = decision.event if decision and decision.matrices[0].round == number else None
        if decision and event is not None:
            spoken.add(node)
            later = f" in round {decision.at.round}" if decision.at.round != number else ""
            texts.append(f"{capital(told(event))}{later}")
        elif groups.alive(node, number):
            texts.append(f"Node {node} stayed whole")
    # One clustering of everybody splits nodes that have no matrix of their own.
    texts += [capital(told(event)) for event in splits if event.get("node") not in {*spoken, *decided}]
    return texts
