from base64 import b64decode
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from synthetic_run import TRUTH, changed

from fedstrata.records.arrays import ClientMatrix
from fedstrata.records.schema import ALL_CLIENTS, MetricRecord
from fedstrata.report.charts.matrices import (
    _LEVELS as LEVELS,
)
from fedstrata.report.charts.matrices import (
    MOST_SHOWN,
    dendrogram_charts,
    matrix_slider,
    split_charts,
)
from fedstrata.report.clusters import Clusters
from fedstrata.report.drawing import RULE, SEQUENTIAL, Chart
from fedstrata.report.reader import RunRecords


def lone(records: RunRecords, values: Any, clients: list[int], layers: int = 1, measure: str = "l2") -> list[Chart]:
    few = tuple(ClientMatrix(7, 1, measure, f"layer{layer}", np.array(values), clients) for layer in range(layers))
    return split_charts(Clusters(replace(records, matrices=few)))


def test_clients_are_ordered_by_side_then_by_final_cluster_with_a_line_between_the_sides(
    records: RunRecords,
) -> None:
    plots = {plot.title: plot for plot in split_charts(Clusters(records))}
    drawn = plots["Round 4, node 0, conv2: split into nodes 1 and 2"].figure
    assert [TRUTH[int(client)] for client in drawn["rows"]] == sorted(TRUTH)
    rules = [shape for shape in drawn["layout"]["shapes"] if shape["type"] == "line"]
    assert {shape["x0"] for shape in rules} == {9.5, -0.5}
    assert "Round 7, node 2, conv2: split into nodes 5 and 6" in plots


def test_a_split_is_shown_by_the_last_matrices_before_it_and_never_by_later_ones(records: RunRecords) -> None:
    early = tuple(matrix for matrix in records.matrices if matrix.round != 4)
    late = ClientMatrix(11, 0, "dcos", "conv2", np.eye(2), [0, 1])
    plot = split_charts(Clusters(replace(records, matrices=(*early, late))))[0]
    assert plot.title == "Round 4, node 0, conv2: split into nodes 1 and 2"
    assert plot.text.endswith("Computed in round 3.")
    only = split_charts(Clusters(replace(records, matrices=(late,))))
    assert only == []


def test_a_cell_holds_the_value_of_the_two_clients_at_its_axes(records: RunRecords) -> None:
    plot = split_charts(Clusters(records))[0]
    matrix = next(each for each in records.matrices if each.round == 4)
    one, two = int(plot.figure["rows"][2]), int(plot.figure["columns"][14])
    value = matrix.values[matrix.clients.index(one), matrix.clients.index(two)]
    assert plot.figure["data"][0]["z"][2][14] == pytest.approx(value, rel=1e-3)


def test_distances_are_darkest_at_zero_and_similarities_at_one(records: RunRecords) -> None:
    heat = lone(records, [[0.0, 2.0, 3.0], [2.0, 0.0, 4.0], [3.0, 4.0, 0.0]], [0, 4, 8])[0].figure["data"][0]
    assert (heat["zmin"], heat["zmax"]) == (0.0, 4.0)
    assert heat["colorscale"][0][1] == SEQUENTIAL[-1][1]
    assert split_charts(Clusters(records))[0].figure["data"][0]["colorscale"] == SEQUENTIAL
    assert lone(records, np.eye(2), [0, 4], measure="own")[0].figure["data"][0]["colorscale"] == SEQUENTIAL
    zeros = [[0.0, 0.2, -0.3], [0.2, 0.0, 0.1], [-0.3, 0.1, 0.0]]
    heat = lone(records, zeros, [0, 4, 8], measure="likeness")[0].figure["data"][0]
    assert (heat["zmin"], heat["zmax"], heat["colorscale"]) == (-0.3, 0.2, SEQUENTIAL), (
        "likeness is a similarity with zeros on its diagonal"
    )


def test_cosines_have_one_scale_on_the_whole_page(records: RunRecords) -> None:
    heats = [plot.figure["data"][0] for plot in split_charts(Clusters(records))]
    assert len({(heat["zmin"], heat["zmax"]) for heat in heats}) == 1


def test_matrices_without_a_pair_and_of_unknown_clients_are_drawn(records: RunRecords) -> None:
    assert "zmin" not in lone(records, [[0.0]], [4])[0].figure["data"][0]
    assert lone(records, np.empty((0, 0)), [])[0].figure["rows"] == []
    assert lone(records, np.eye(2), [77, 4])[0].figure["rows"] == ["4", "77"]


def test_many_layers_are_cut_short_and_the_caption_says_where_the_rest_is(records: RunRecords) -> None:
    plots = lone(records, np.eye(2), [0, 4], layers=9)
    assert len(plots) == MOST_SHOWN
    assert plots[0].text.endswith("3 more in matrices/00007.npz.")


def values(part: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    codes = np.frombuffer(b64decode(part["codes"]), dtype="<u2")
    return np.where(codes > LEVELS, np.nan, part["low"] + (part["high"] - part["low"]) * codes / LEVELS)


def test_the_slider_holds_the_half_above_the_diagonal_of_every_matrix(records: RunRecords) -> None:
    found = matrix_slider(Clusters(records))
    assert found is not None
    assert [frame["round"] for frame in found["frames"]] == [1, 2, 3, 4, 5, 6, 7, 10]
    assert [view["name"] for view in found["views"]] == ["conv2, dcos", "fc1, dcos"]
    order = list(map(int, found["figure"]["rows"]))
    assert [TRUTH[client] for client in order] == sorted(TRUTH)
    part = found["frames"][4]["parts"][0]
    matrix = next(each for each in records.matrices if (each.round, each.node, each.layer) == (5, 1, "conv2"))
    assert part["clients"] == sorted(part["clients"])
    one, two = (matrix.clients.index(order[place]) for place in part["clients"][:2])
    assert values(part)[0] == pytest.approx(matrix.values[one, two], abs=1e-4)
    assert len(values(part)) == 10 * 9 / 2


def test_a_clustering_of_all_names_the_splits_of_nodes_without_a_matrix(records: RunRecords) -> None:
    """FedTSDP compares all clients in every clustering, under the first node."""
    again = tuple(replace(matrix, node=0) for matrix in records.matrices if matrix.round in (4, 7))
    found = matrix_slider(Clusters(replace(records, matrices=again)))
    assert found is not None
    assert found["frames"][0]["texts"] == ["Node 0 split into 1 and 2 on conv2"]
    assert found["frames"][1]["texts"] == ["Node 1 split into 3 and 4 on conv2", "Node 2 split into 5 and 6 on conv2"]


def test_unknown_values_and_equal_values_are_encoded_on_the_slider(records: RunRecords) -> None:
    holes = np.array([[0.0, 2.0, np.nan], [2.0, 0.0, 2.0], [np.nan, 2.0, 0.0]])
    some = (ClientMatrix(12, 3, "l2", "a", holes, [0, 4, 8]), ClientMatrix(12, 3, "l2", "b", np.zeros((1, 1)), [0]))
    found = matrix_slider(Clusters(replace(records, matrices=some)))
    assert found is not None
    first, second = found["frames"][0]["parts"]
    assert values(first).tolist() == pytest.approx([2.0, np.nan, 2.0], nan_ok=True)
    assert (second["low"], second["high"], values(second).tolist()) == (0.0, 0.0, [])
    assert found["views"][0]["range"] is None, "distances have a scale in each round"


def test_there_is_no_slider_where_there_is_nothing_to_go_through(records: RunRecords) -> None:
    assert matrix_slider(Clusters(replace(records, matrices=()))) is None
    split = tuple(matrix for matrix in records.matrices if (matrix.round, matrix.layer) == (4, "conv2"))
    assert matrix_slider(Clusters(replace(records, matrices=split))) is None
    both = tuple(matrix for matrix in records.matrices if matrix.round == 4)
    assert matrix_slider(Clusters(replace(records, matrices=both))) is not None


# 0 and 4 are 1 apart, 8 is 3 from both; 1 is 8 from them all: merges at 1, 3 and 8.
MERGING = [[0.0, 1.0, 3.0, 8.0], [1.0, 0.0, 3.0, 8.0], [3.0, 3.0, 0.0, 8.0], [8.0, 8.0, 8.0, 0.0]]
AGGLOMERATIVE = {"algorithm": {"name": "x", "linkage": "average", "cut": "auto"}}


def merging(
    records: RunRecords, layer: str = "fc", cuts: Sequence[MetricRecord] = (), **criteria: float
) -> list[Chart]:
    tree = tuple(changed(node, layer="fc", criteria=criteria) for node in records.tree)
    matrix = ClientMatrix(12, 3, "l2", layer, np.array(MERGING), [0, 4, 8, 1])
    rounds = (*records.rounds[:-1], changed(records.rounds[-1], metrics=list(cuts)))
    return dendrogram_charts(
        Clusters(replace(records, matrices=(matrix,), tree=tree, rounds=rounds, settings=AGGLOMERATIVE))
    )


def test_a_dendrogram_shows_the_merges_with_their_heights_and_the_cut(records: RunRecords) -> None:
    (plot,) = merging(records, cut=5.0)
    tops, leaves = plot.figure["data"][-1], plot.figure["data"][-2]
    assert sorted(tops["y"]) == [1.0, 3.0, 8.0]
    assert sorted(plot.figure["layout"]["xaxis"]["ticktext"]) == ["0", "1", "4", "8"]
    assert plot.figure["layout"]["annotations"][0]["text"] == "cut at 5"
    clusters = Clusters(records)
    assert set(leaves["marker"]["color"]) == {clusters.colour(3), clusters.colour(4)}
    drawn = {trace["line"]["color"]: max(filter(None, trace["y"])) for trace in plot.figure["data"][:-2]}
    assert drawn == {clusters.colour(3): 3.0, RULE: 8.0}, "what merges below the cut has its cluster's colour"


def test_the_cut_of_a_precluster_is_its_own_and_one_may_not_be_clear(records: RunRecords) -> None:
    cuts = [
        MetricRecord(name="cut", value=value, layer=f"fc of pre-cluster {place}")
        for place, value in enumerate([2.0, 4.0])
    ]
    (plot,) = merging(records, "fc of pre-cluster 1", cuts)
    assert plot.figure["layout"]["annotations"][0]["text"] == "cut at 4"
    (plain,) = merging(records)
    assert "annotations" not in plain.figure["layout"]
    assert plain.text.endswith("No step is clear enough to cut.")


def test_nothing_merges_without_a_cut_a_pair_or_a_distance(records: RunRecords) -> None:
    assert dendrogram_charts(Clusters(records)) == []
    for matrix in (
        ClientMatrix(12, 3, "l2", "fc", np.zeros((1, 1)), [0]),
        ClientMatrix(12, 3, "dcos", "fc", np.eye(2), [0, 4]),
        ClientMatrix(12, 3, "l2", "fc", np.full((2, 2), np.nan), [0, 4]),
    ):
        assert dendrogram_charts(Clusters(replace(records, matrices=(matrix,), settings=AGGLOMERATIVE))) == []


def test_matrices_of_all_clients_are_a_view_of_their_own_and_decide_nothing(records: RunRecords) -> None:
    probed = [ClientMatrix(number, ALL_CLIENTS, "dcos", "fc1", np.eye(4), [6, 4, 2, 0]) for number in (4, 12)]
    clusters = Clusters(replace(records, matrices=(*records.matrices, *probed)))
    assert clusters.comparisons == Clusters(records).comparisons
    slider = matrix_slider(clusters)
    assert slider is not None
    names = [view["name"] for view in slider["views"]]
    assert names.index("fc1, dcos, all clients") != names.index("fc1, dcos")
    (frame,) = [frame for frame in slider["frames"] if frame["round"] == 12]
    assert [part["node"] for part in frame["parts"]][-1] == ALL_CLIENTS
    assert not any("-1" in text for text in frame["texts"])
