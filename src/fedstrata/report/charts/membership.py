"""The clusters over the rounds: how many there are, which clients they hold, and which clients change theirs."""

from collections import Counter
from itertools import pairwise

from fedstrata.report.clusters import Clusters
from fedstrata.report.drawing import (
    BARE,
    BLUE,
    ORANGE,
    WHITE_DOT,
    Chart,
    Figure,
    axis,
    chart,
    clean,
    client_ticks,
    figure,
    heat_map,
    line,
    points,
    round_axis,
)
from fedstrata.report.reader import RunRecords
from fedstrata.report.words import plural, ranges

_ABSENT = -1
"""The node of a client that is not in the federation."""

MOST_NAMED = 30
"""Clusters beyond which their names do not fit beside a chart."""

MOST_ROWS = 1_000
"""The number of clients that the map of membership has room for. Of more, evenly spaced ones are drawn."""

_MOST_IN_HOVER = 12
"""The number of names that a hover text lists."""

_BAND_GAP = 0.04
"""Space between two bands of the flow, as a share of all clients."""


def cluster_charts(clusters: Clusters) -> list[Chart]:
    """Draw the number of clusters, and their clients; nothing where all clients were in one cluster all the time."""
    if not clusters.clustered or not _anything_changes(clusters.records):
        return []
    known = any(each.ari is not None for each in clusters.records.rounds)
    counts: dict[str, Any] = {
        "shown": f"{MOST_ROWS:,}",
        "clients": f"{len(clusters.order):,}",
        "many": len(clusters.order) > MOST_ROWS,
    }
    return [
        chart("flow", flow(clusters)),
        chart("clusters", cluster_count(clusters.records), ari=known),
        chart("membership", rows, shown=f"{MOST_ROWS:,}", clients=f"{clients:,}", many=clients > MOST_ROWS),
    ]


def _anything_changes(records: RunRecords) -> bool:
    """Return whether there was ever more than one cluster, or a client outside of it or waiting."""
    return any(len(set(each.labels)) > 1 or each.pending for each in records.rounds)


def cluster_count(records: RunRecords) -> Figure:
    """Draw the number of clusters, and their agreement with the ground truth where it is known."""
    rounds = records.rounds
    most = max(each.clusters for each in rounds)
    traces = [line(rounds, (float(each.clusters) for each in rounds), "clusters", BLUE, shape="hv")]
    whole = {"dtick": 1} if most < 8 else {"nticks": 6}
    layout: Figure = {
        "xaxis": round_axis(rounds),
        "yaxis": axis("clusters", range=[0, 1.15 * most + 0.2], hoverformat="d", **whole),
    }
    known = [each.ari for each in rounds if each.ari is not None]
    if known:
        values = (each.ari for each in rounds)
        traces.append(line(rounds, values, "ARI (right axis)", ORANGE, dash="dot", shape="hv", yaxis="y2"))
        right = {"overlaying": "y", "side": "right", **BARE, "hoverformat": ".3f"}
        steps = {"range": [min(0.0, *known), 1.08], "tickmode": "linear", "tick0": 0, "dtick": 0.25}
        layout["yaxis2"] = axis("ARI", **right, **steps)
        layout["margin"] = {"l": 52, "r": 52, "t": 36, "b": 44}
    return figure(traces, 280, **layout)


def membership_map(clusters: Clusters) -> Figure:
    """Draw the node of every client in every round, clients in the order of the final clusters, at most `MOST_ROWS`."""
    rounds = clusters.records.rounds
    order = _evenly_spaced(clusters.order, MOST_ROWS)
    nodes = {label for each in rounds for label in each.labels} or {0}
    width = max(nodes) - min(nodes) + 1
    scale = [[(node - min(nodes) + side) / width, clusters.colour(node)] for node in sorted(nodes) for side in (0, 1)]
    numbers = [each.round for each in rounds]
    cells = heat_map(
        [[each.labels[client] if client < len(each.labels) else None for each in rounds] for client in order],
        "round %{x}<br>client %{customdata[0]}<br>node %{z}",
        scale,
        x=numbers,
        y=list(range(len(order))),
        zmin=min(nodes) - 0.5,
        zmax=max(nodes) + 0.5,
        showscale=False,
        xgap=1 if len(rounds) <= 60 else 0,
        ygap=1 if len(order) <= 60 else 0,
    )
    rows = {client: row for row, client in enumerate(order)}
    names_of_rows = [clusters.names.of(client) for client in order]
    pending = [(each.round, client) for each in rounds for client in each.pending if client in rows]
    texts = [f"round {number}<br>client {clean(clusters.names.of(client))}<br>pending" for number, client in pending]
    numbers_of, rows_of = [number for number, _ in pending], [rows[client] for _, client in pending]
    crosses = points(numbers_of, rows_of, texts, symbol="x", size=8, **WHITE_DOT) | {"name": "pending"}
    names = []
    for node in clusters.finals:
        own = [row for row, client in enumerate(order) if clusters.node_of[client] == node]
        if own:
            names.append(_name_beside(rounds[-1].round + 0.5, sum(own) / len(own), str(node)))
    drawn = figure(
        [cells, crosses] if pending else [cells],
        100 + min(max(15 * len(order), 120), 640),
        hovermode="closest",
        xaxis=round_axis(rounds, showgrid=False),
        yaxis=axis("client", autorange="reversed", **BARE, **client_ticks(names_of_rows)),
        margin={"l": 52, "r": 48, "t": 30 if pending else 12, "b": 44},
        annotations=names if len(names) <= MOST_NAMED else [],
        showlegend=bool(pending),
    )
    return drawn | {"rows": [clean(name) for name in names_of_rows], "columns": numbers}


def _evenly_spaced(clients: list[int], most: int) -> list[int]:
    """Return all clients, or as many as there is room for, evenly spaced."""
    count = min(len(clients), most)
    return [clients[place * len(clients) // count] for place in range(count)]


def flow(clusters: Clusters) -> Figure:
    """Show how many clients are in each node, and how many go from which node to which."""
    columns = _columns(clusters)
    bands: dict[tuple[int, bool], Figure] = {}
    dots = points([], [], [], size=7, **WHITE_DOT) | {"showlegend": False}
    for (start, before), (end, after) in pairwise(columns):
        left = _tops(clusters, before)
        right = _tops(clusters, after)
        for (source, target), clients in _moves(clusters, before, after):
            stays = source == target
            count = len(clients)
            band = bands.setdefault((target, stays), _empty_bands(clusters.colour(target), 0.9 if stays else 0.5))
            heights = (left[source], right[target], right[target] + count, left[source] + count, left[source])
            gap = [None] if band["x"] else []
            band["x"] += [*gap, start, end, end, start, start]
            band["y"] += [*gap, *(round(height, 2) for height in heights)]
            if not stays or start == columns[0][0]:
                path = _node_name(target) if stays else f"{_node_name(source)} to {_node_name(target)}"
                dots["x"].append((start + end) / 2)
                dots["y"].append((left[source] + right[target] + count) / 2)
                told = f"{plural(count, 'client')}: {_brief_list(clusters, clients)}"
                dots["text"].append(f"round {end}<br>{path}<br>{told}")
            left[source] += count
            right[target] += count
    last, labels = columns[-1]
    sizes = Counter(labels)
    names = [
        _name_beside(last, top + sizes[node] / 2, f"{_node_name(node)}: {sizes[node]}")
        for node, top in _tops(clusters, labels).items()
    ]
    order = sorted(bands, key=lambda key: (clusters.rank(key[0]), not key[1]))
    return figure(
        [*(bands[key] for key in order), dots],
        max(320, 100 + 14 * len(names)) if len(names) <= MOST_NAMED else 320,
        hovermode="closest",
        xaxis=round_axis(clusters.records.rounds, range=[columns[0][0], last], showgrid=False),
        yaxis=axis("clients", autorange="reversed", **BARE, showticklabels=False),
        margin={"l": 36, "r": 84, "t": 12, "b": 44},
        annotations=names if len(names) <= MOST_NAMED else [],
        showlegend=False,
    )


def _brief_list(clusters: Clusters, clients: list[int]) -> str:
    """Return the names of some clients; of many, the first few, because a hover text has no room for more."""
    if clusters.names.plain:
        return clean(ranges(clients, _MOST_IN_HOVER))
    if len(clients) <= _MOST_IN_HOVER:
        return clean(clusters.names.listed(clients))
    return f"{clean(clusters.names.listed(clients[:_MOST_IN_HOVER]))} and {len(clients) - _MOST_IN_HOVER} more"


def _name_beside(x: float, y: float, text: str) -> Figure:
    """Draw words to the right of a point, as an annotation."""
    place = {"x": x, "y": y, "xanchor": "left", "yanchor": "middle", "xshift": 6}
    return {**place, "text": clean(text), "showarrow": False, "font": {"size": 12}}


def _columns(clusters: Clusters) -> list[tuple[int, list[int]]]:
    """Return the round and the node of each client: at the start, and before and after every round with a change."""
    rounds = clusters.records.rounds
    n = max(len(each.labels) for each in rounds)
    full = [(each.round, [*each.labels, *[_ABSENT] * (n - len(each.labels))]) for each in rounds]
    first, labels = full[0]
    # All clusters come from node 0, but for those that were given before round 1.
    tree = clusters.records.tree
    together = bool(tree) and first == 1 and tree[0].split != 0
    start = [0 if label != _ABSENT else _ABSENT for label in labels] if together else labels
    full = [(first - 1, start), *full]
    changed = {place for place, (one, two) in enumerate(pairwise(full), start=1) if one[1] != two[1]}
    kept = {0, len(full) - 1} | changed | {place - 1 for place in changed}
    return [full[place] for place in sorted(kept)]


def _tops(clusters: Clusters, labels: list[int]) -> dict[int, float]:
    """Return where each node's band begins, in clients from the top."""
    tops = {}
    top = 0.0
    sizes = Counter(labels)
    for node in sorted(sizes, key=clusters.rank):
        tops[node] = top
        top += sizes[node] + _BAND_GAP * len(labels)
    return tops


def _moves(clusters: Clusters, before: list[int], after: list[int]) -> list[tuple[tuple[int, int], list[int]]]:
    """Return the clients that stay in a node or change it: the nodes before and after, and the client ids."""
    moves: dict[tuple[int, int], list[int]] = {}
    for client, pair in enumerate(zip(before, after, strict=True)):
        moves.setdefault(pair, []).append(client)
    return sorted(moves.items(), key=lambda move: (clusters.rank(move[0][0]), clusters.rank(move[0][1])))


def _node_name(node: int) -> str:
    return "absent" if node == _ABSENT else f"node {node}"


def _empty_bands(colour: str, opacity: float) -> Figure:
    """Draw bands of the flow in one colour, as a trace of polygons."""
    shape = {"type": "scatter", "mode": "lines", "line": {"width": 0}, "x": [], "y": []}
    look = {"fill": "toself", "fillcolor": colour, "opacity": opacity}
    return {**shape, **look, "hoverinfo": "skip", "showlegend": False}
