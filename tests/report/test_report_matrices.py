from base64 import b64decode
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from synthetic_run import TRUTH

from fedstrata.records.arrays import ClientMatrix
from fedstrata.records.schema import ALL_CLIENTS
from fedstrata.report.charts.matrices import (
    _LEVELS as LEVELS,
)
from fedstrata.report.charts.matrices import (
    MOST_SHOWN,
    matrix_slider,
    split_charts,
)
from fedstrata.report.clusters import Clusters
from fedstrata.report.drawing import SEQUENTIAL, Chart
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


def test_matrices_of_all_clients_are_a_view_of_their_own_and_decide_nothing(records: RunRecords) -> None:
    probed = [ClientMatrix(number, ALL_CLIENTS, "dcos", "fc1", np.eye(4), [6, 4, 2, 0]) for number in (4, 12)]
    clusters = Clusters(replace(records, matrices=(*records.matrices, *probed)))
    assert clusters.splits == Clusters(records).splits
    slider = matrix_slider(clusters)
    assert slider is not None
    names = [view["name"] for view in slider["views"]]
    assert names.index("fc1, dcos, all clients") != names.index("fc1, dcos")
    (frame,) = [frame for frame in slider["frames"] if frame["round"] == 12]
    assert [part["node"] for part in frame["parts"]][-1] == ALL_CLIENTS
    assert not any("-1" in text for text in frame["texts"])
