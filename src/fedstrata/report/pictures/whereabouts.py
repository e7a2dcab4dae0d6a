"""Where the clients were: the node of each in every round, and the flow of all between nodes."""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from fedstrata.report.groups import Groups
from fedstrata.report.pictures.drawing import Figure, axis, clean, figure, ticks, time
from fedstrata.report.words import plural, ranges

AWAY = -1
"""The node of a client that is not in the federation."""
LABELS = 30
"""Groups beyond which their names do not fit beside a picture."""
GAP = 0.04
"""Between two bands of the flow, as a share of all clients."""


def membership(groups: Groups) -> Figure:
    """The node of every client in every round, clients in final cluster order."""
    rounds, order = groups.records.rounds, groups.order
    nodes = {label for each in rounds for label in each.labels} or {0}
    least, most = min(nodes), max(nodes)
    width = most - least + 1
    scale = [[(node - least + side) / width, groups.colour(node)] for node in sorted(nodes) for side in (0, 1)]
    placed: Figure = {
        "type": "heatmap",
        "x": [each.round for each in rounds],
        "y": list(range(len(order))),
        "z": [[each.labels[client] if client < len(each.labels) else None for each in rounds] for client in order],
        "hovertemplate": "round %{x}<br>client %{customdata[0]}<br>node %{z}<extra></extra>",
        "colorscale": scale,
        "zmin": least - 0.5,
        "zmax": most + 0.5,
        "showscale": False,
        "xgap": 1 if len(rounds) <= 60 else 0,
        "ygap": 1 if len(order) <= 60 else 0,
    }
    rows = {client: row for row, client in enumerate(order)}
    waits = [(each.round, client) for each in rounds for client in each.pending if client in rows]
    pending: Figure = {
        "type": "scatter",
        "mode": "markers",
        "name": "pending",
        "x": [number for number, _ in waits],
        "y": [rows[client] for _, client in waits],
        "text": [f"round {number}<br>client {client}<br>pending" for number, client in waits],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"symbol": "x", "size": 8, "color": "#ffffff", "line": {"color": "#111111", "width": 1}},
    }
    vertical = axis("client", autorange="reversed", showgrid=False, zeroline=False, **ticks(order))
    height = 100 + min(max(15 * len(order), 120), 640)
    middles = {
        node: sum(held) / len(held)
        for node in groups.finals
        if (held := [row for row, client in enumerate(order) if groups.label[client] == node])
    }
    named = [_beside(rounds[-1].round + 0.5, middle, str(node)) for node, middle in middles.items()]
    layout: Figure = {
        "hovermode": "closest",
        "xaxis": time(rounds, showgrid=False),
        "yaxis": vertical,
        "margin": {"l": 52, "r": 48, "t": 30 if waits else 12, "b": 44},
        "annotations": named if len(named) <= LABELS else [],
        "showlegend": bool(waits),
    }
    drawn = figure([placed, *([pending] if waits else [])], height, **layout)
    return drawn | {"rows": order, "columns": [each.round for each in rounds]}


@dataclass(frozen=True)
class Band:
    """Clients that stay in a node, or go from one to another, between two rounds; heights in clients from the top."""

    source: int
    target: int
    start: int
    end: int
    left: float
    right: float
    thickness: int
    text: str


def flow(groups: Groups) -> Figure:
    """How many clients were in each node, and who went from where to where."""
    columns = _columns(groups)
    held = [
        band
        for (start, before), (end, after) in pairwise(columns)
        for band in _bands(groups, start, before, end, after)
    ]
    nodes = sorted({band.target for band in held}, key=groups.rank)
    traces: list[Figure] = []
    for node in nodes:
        for stays, opacity in ((True, 0.9), (False, 0.5)):
            some = [band for band in held if band.target == node and (band.source == node) == stays]
            if some:
                traces.append(_filled(some, groups.colour(node), opacity))
    told = [band for band in held if band.source != band.target or band.start == columns[0][0]]
    traces.append(
        {
            "type": "scatter",
            "mode": "markers",
            "x": [(band.start + band.end) / 2 for band in told],
            "y": [(band.left + band.right + band.thickness) / 2 for band in told],
            "text": [band.text for band in told],
            "hovertemplate": "%{text}<extra></extra>",
            "marker": {"size": 7, "color": "#ffffff", "line": {"color": "#111111", "width": 1}},
            "showlegend": False,
        }
    )
    last, stacks = columns[-1][0], _stack(groups, columns[-1][1])
    sizes = Counter(columns[-1][1])
    named = [_beside(last, top + sizes[node] / 2, _called(node, sizes[node])) for node, top in stacks.items()]
    layout: Figure = {
        "hovermode": "closest",
        "xaxis": time(groups.records.rounds, range=[columns[0][0], last], showgrid=False),
        "yaxis": axis("clients", autorange="reversed", showgrid=False, zeroline=False, showticklabels=False),
        "margin": {"l": 36, "r": 84, "t": 12, "b": 44},
        "annotations": named if len(named) <= LABELS else [],
        "showlegend": False,
    }
    return figure(traces, 320, **layout)


def _beside(x: float, y: float, text: str) -> Figure:
    place = {"x": x, "y": y, "xanchor": "left", "yanchor": "middle", "xshift": 6}
    return {**place, "text": clean(text), "showarrow": False, "font": {"size": 12}}


def _called(node: int, size: int) -> str:
    return f"away: {size}" if node == AWAY else f"node {node}: {size}"


def _columns(groups: Groups) -> list[tuple[int, list[int]]]:
    """The round and everyone's node, of the start and of the rounds before and in which somebody's changed."""
    rounds = groups.records.rounds
    n = max(len(each.labels) for each in rounds)
    full = [(each.round, [*each.labels, *[AWAY] * (n - len(each.labels))]) for each in rounds]
    first, labels = full[0]
    # Clusters that were given before round 1 were never one; others all came out of the first node.
    together = groups.records.tree and first == 1 and groups.records.tree[0].split != 0
    start = [0 if label != AWAY else AWAY for label in labels] if together else labels
    full = [(first - 1, start), *full]
    changed = {place for place, (one, two) in enumerate(pairwise(full), start=1) if one[1] != two[1]}
    kept = {0, len(full) - 1} | changed | {place - 1 for place in changed}
    return [full[place] for place in sorted(kept)]


def _stack(groups: Groups, labels: list[int]) -> dict[int, float]:
    """Where each node's band begins, from the top down in the order of the walk."""
    tops, top = {}, 0.0
    sizes = Counter(labels)
    for node in sorted(sizes, key=groups.rank):
        tops[node] = top
        top += sizes[node] + GAP * len(labels)
    return tops


def _bands(groups: Groups, start: int, before: list[int], end: int, after: list[int]) -> list[Band]:
    left, right = _stack(groups, before), _stack(groups, after)
    moves: dict[tuple[int, int], list[int]] = {}
    for client, pair in enumerate(zip(before, after, strict=True)):
        moves.setdefault(pair, []).append(client)
    bands = []
    for source, target in sorted(moves, key=lambda pair: (groups.rank(pair[0]), groups.rank(pair[1]))):
        clients = moves[source, target]
        stays = f"node {target}" if source == target else f"node {source} to node {target}"
        where = stays.replace(f"node {AWAY}", "away")
        text = f"round {end}<br>{where}<br>{plural(len(clients), 'client')}: {ranges(clients)}"
        bands.append(Band(source, target, start, end, left[source], right[target], len(clients), text))
        left[source] += len(clients)
        right[target] += len(clients)
    return bands


def _filled(bands: list[Band], colour: str, opacity: float) -> Figure:
    """Some bands as one trace of polygons."""
    x: list[float | None] = []
    y: list[float | None] = []
    for band in bands:
        bottoms = band.left + band.thickness, band.right + band.thickness
        x += [band.start, band.end, band.end, band.start, band.start, None]
        y += [*(round(place, 2) for place in (band.left, band.right, *reversed(bottoms), band.left)), None]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x[:-1],
        "y": y[:-1],
        "fill": "toself",
        "fillcolor": colour,
        "opacity": opacity,
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
    }
