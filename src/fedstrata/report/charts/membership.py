"""The clusters over the rounds: how many there are, which clients they hold, and which clients change theirs."""

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

MOST_NAMED = 30
"""Clusters beyond which their names do not fit beside a chart."""

MOST_ROWS = 1_000
"""The number of clients that the map of membership has room for. Of more, evenly spaced ones are drawn."""


def cluster_charts(clusters: Clusters) -> list[Chart]:
    """Draw the number of clusters, and their clients; nothing where all clients were in one cluster all the time."""
    changes = (len(set(each.labels)) > 1 or each.pending for each in clusters.records.rounds)
    if not clusters.clustered or not any(changes):
        return []
    known = any(each.ari is not None for each in clusters.records.rounds)
    counts = {"shown": f"{MOST_ROWS:,}", "clients": f"{len(clusters.order):,}"}
    return [
        chart("clusters", cluster_count(clusters.records), ari=known),
        chart("membership", membership_map(clusters), many=len(clusters.order) > MOST_ROWS, counts=counts),
    ]


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
    count = min(len(clusters.order), MOST_ROWS)
    order = [clusters.order[place * len(clusters.order) // count] for place in range(count)]
    nodes = {label for each in rounds for label in each.labels if label >= 0} or {0}
    width = max(nodes) - min(nodes) + 1
    scale = [[(node - min(nodes) + side) / width, clusters.colour(node)] for node in sorted(nodes) for side in (0, 1)]
    numbers = [each.round for each in rounds]
    # A client that comes later has no label before, and one that is not in the federation a negative one.
    rows_of_labels = [[each.labels[client] if client < len(each.labels) else -1 for each in rounds] for client in order]
    cells = heat_map(
        [[label if label >= 0 else None for label in row] for row in rows_of_labels],
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
            beside = {"x": rounds[-1].round + 0.5, "y": sum(own) / len(own), "text": str(node)}
            place = {"xanchor": "left", "yanchor": "middle", "xshift": 6}
            names.append({**beside, **place, "showarrow": False, "font": {"size": 12}})
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
