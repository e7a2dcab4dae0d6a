from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import pytest
from synthetic_run import TRUTH, changed, every_round, last_round, with_metrics_of

from fedstrata.records.schema import Round
from fedstrata.report.charts import all_charts, curves
from fedstrata.report.charts.curves import (
    MOST_NAMED,
    MOST_ROWS,
    cluster_charts,
    cluster_count,
    layer_charts,
    membership_map,
    metric_charts,
)
from fedstrata.report.clusters import Clusters
from fedstrata.report.drawing import GREY, PALETTE, blend, dash_of, palette
from fedstrata.report.reader import RunRecords


def test_every_figure_is_one_that_plotly_accepts_under_a_name_of_its_own(records: RunRecords) -> None:
    drawn = [plot for some in all_charts(Clusters(records)).values() for plot in some]
    for plot in drawn:
        go.Figure(data=plot.figure["data"], layout=plot.figure["layout"])
    assert len({plot.name for plot in drawn}) == len(drawn) > 12


def test_names_that_make_the_same_file_get_numbers(records: RunRecords) -> None:
    rounds = tuple(with_metrics_of(each, {"a b": 1.0, "a-b": 2.0}) for each in records.rounds)
    names = [plot.name for plot in all_charts(Clusters(replace(records, rounds=rounds)))["metrics"]]
    assert names == ["metric-a-b", "metric-a-b-no-2"]


def test_splits_are_marked_in_the_round_in_which_they_happened(records: RunRecords) -> None:
    marks = curves.scores(records)["data"][-1]
    assert marks["x"] == [4, 7]
    assert marks["text"][1] == "node 1 split into 3 and 4 on conv2<br>node 2 split into 5 and 6 on conv2"


def test_the_band_is_the_middle_of_the_clients_and_has_a_hole_where_they_are_not_known(records: RunRecords) -> None:
    held = dict(records.scores)
    held[2] = held[2]._replace(accuracy=np.linspace(0, 1, 11))
    del held[3]
    low, high = curves.scores(replace(records, scores=held))["data"][:2]
    assert (low["y"][1], high["y"][1]) == (0.1, 0.9)
    assert (low["y"][2], high["y"][2]) == (None, None)


def test_another_way_of_using_the_models_has_a_curve_of_its_own(records: RunRecords) -> None:
    rounds = tuple(
        Round.model_validate(each.model_dump() | {"acc_global": 0.25, "acc_<b>": None}) for each in records.rounds
    )
    drawn = {trace["name"]: trace["y"] for trace in curves.scores(replace(records, rounds=rounds))["data"]}
    assert drawn["global"] == [0.25] * 12
    assert drawn["&lt;b&gt;"] == [None] * 12


def test_a_value_of_the_last_round_alone_is_a_point(records: RunRecords) -> None:
    """The score without the personal stage was named in the legend, and was not to be seen."""
    *before, last = records.rounds
    rounds = (*before, Round.model_validate(last.model_dump() | {"acc_shared": 0.25}))
    drawn = {trace["name"]: trace for trace in curves.scores(replace(records, rounds=rounds))["data"]}
    assert drawn["shared"]["mode"] == "markers" and drawn["mean"]["mode"] == "lines"


def test_the_axis_of_scores_that_are_all_perfect_ends_at_the_best_value(records: RunRecords) -> None:
    """It went from 0 to 200 %."""
    perfect = every_round(replace(records, scores={}), acc_client=1.0, acc_worst=1.0)
    bottom, top = curves.scores(perfect)["layout"]["yaxis"]["range"]
    assert (bottom, top) == (0.9, pytest.approx(1.003))


def test_a_single_round_shows_as_a_point_and_an_unknown_truth_as_nothing(records: RunRecords) -> None:
    alone = replace(records, rounds=records.rounds[:1], scores={}, matrices=())
    first = every_round(alone, ari=None, acc_client=None, acc_worst=None)
    assert all_charts(Clusters(first))["cost"][1].figure["data"][0]["mode"] == "markers"
    assert len(cluster_count(first)["data"]) == 1
    assert curves.scores_by_cluster(Clusters(first)) is None
    assert curves.scores(first)["layout"]["yaxis"]["range"][0] == 0


def test_clusters_keep_their_colour_and_a_split_node_mixes_those_of_its_parts(records: RunRecords) -> None:
    clusters = Clusters(records)
    assert clusters.finals == (3, 4, 5, 6)
    assert [clusters.colour(node) for node in (3, 4, 5, 6)] == list(PALETTE[:4])
    assert clusters.colour(1) == blend(list(PALETTE[:2]))
    assert clusters.colour(99) == GREY
    assert [TRUTH[client] for client in clusters.order] == sorted(TRUTH)


def test_who_is_not_in_the_federation_is_in_no_cluster(records: RunRecords) -> None:
    away = last_round(records, labels=[-1, *records.rounds[-1].labels[1:]])
    assert Clusters(away).finals == (3, 4, 5, 6)


def test_an_algorithm_without_splits_or_tree_still_has_its_clusters(records: RunRecords) -> None:
    flat = every_round(replace(records, tree=()), events=[], pending=[])
    clusters = Clusters(flat)
    assert clusters.clustered
    assert clusters.finals == (3, 4, 5, 6)
    assert clusters.rows == ()
    assert "split" not in [trace["name"] for trace in curves.scores(flat)["data"]]


def test_gaps_have_a_curve_for_each_layer_and_a_layer_without_any_is_left_out(records: RunRecords) -> None:
    some = {
        number: tuple(gap for gap in gaps if (gap.measure, gap.layer) != ("dl2", "conv2"))
        for number, gaps in records.gaps.items()
    }
    charts = {chart.name: chart.figure for chart in layer_charts(Clusters(replace(records, gaps=some)))}
    assert [trace["name"] for trace in charts["gap-dl2"]["data"]] == ["conv1", "fc1", "fc2"]
    assert len(charts["gap-dcos"]["data"]) == 4


METRICS: dict[str, float | None] = {
    "left_out": 0.0,
    "own": 3.0,
    "mean_norm of node 3": 0.2,
    "mean_norm of node 4": 0.3,
    "stability conv1": 0.1,
    "stability fc": 0.2,
}


def with_metrics(records: RunRecords, first: float = 0.05, **keys: object) -> Clusters:
    """A run with metrics in all rounds but the second; its tree has epsilon = 0.05, but for the first node's."""
    rounds = tuple(with_metrics_of(each, METRICS if each.round != 2 else {}) for each in records.rounds)
    tree = [changed(node, criteria={"epsilon": 0.05}) for node in records.tree]
    tree[0] = changed(tree[0], criteria={"epsilon": first})
    return Clusters(replace(records, rounds=rounds, tree=tuple(tree), settings={"algorithm": {"name": "x", **keys}}))


def test_metrics_of_nodes_and_layers_are_curves_of_one_chart_each(records: RunRecords) -> None:
    clusters = with_metrics(records, eps1=0.25, epsilon="auto")
    charts = {chart.title: chart.figure["data"] for chart in metric_charts(clusters)}
    assert list(charts) == ["Stability", "Mean norm", "Own"], "what was always zero is not shown"
    assert [trace["name"] for trace in charts["Mean norm"]] == ["node 3", "node 4", "eps1 = 0.25"]
    assert charts["Mean norm"][0]["line"]["color"] == clusters.colour(3)
    assert charts["Mean norm"][0]["mode"] == "lines+markers", "round 1 is a single point"
    assert charts["Mean norm"][2]["mode"] == "lines"
    assert [trace["name"] for trace in charts["Stability"]] == ["conv1", "fc", "epsilon = 0.05"]


def test_a_threshold_that_is_zero_or_not_the_same_for_all_nodes_is_not_drawn(records: RunRecords) -> None:
    charts = {chart.title: chart.figure["data"] for chart in metric_charts(with_metrics(records, first=0.07, eps1=0))}
    assert (len(charts["Mean norm"]), len(charts["Stability"])) == (2, 2)


def test_curves_whose_colours_are_alike_have_different_styles() -> None:
    assert len({(palette(place), dash_of(place)) for place in range(len(PALETTE))}) == len(PALETTE)
    assert all(dash_of(place) != dash_of(place + 6) for place in range(24))


def with_labels(records: RunRecords, *labels: list[int]) -> Clusters:
    """A run of which only the labels matter: its first node is split in round 2, if at all."""
    like = changed(records.rounds[0], pending=[], events=[])
    rounds: list[Round] = [changed(like, round=place, labels=each) for place, each in enumerate(labels, start=1)]
    tree = tuple(changed(node, split=None if node.split is None else 2) for node in records.tree[:3])
    return Clusters(replace(records, rounds=tuple(rounds), tree=tree))


def test_clients_that_came_later_have_no_node_before(records: RunRecords) -> None:
    early = changed(records.rounds[0], labels=[0] * 10)
    drawn = membership_map(Clusters(replace(records, rounds=(early, *records.rounds[1:]))))
    assert drawn["data"][0]["z"][drawn["rows"].index("15")][0] is None
    assert drawn["data"][0]["z"][drawn["rows"].index("3")][0] == 0


def test_pending_clients_have_a_cross_and_the_cross_a_legend(records: RunRecords) -> None:
    drawn = membership_map(Clusters(records))
    assert drawn["data"][1]["name"] == "pending"
    assert drawn["data"][1]["x"] == [7, 8]
    assert drawn["layout"]["showlegend"]
    drawn = membership_map(Clusters(every_round(records, pending=[])))
    assert len(drawn["data"]) == 1
    assert not drawn["layout"]["showlegend"]


def test_every_final_cluster_has_its_name_beside_its_rows(records: RunRecords) -> None:
    names = membership_map(Clusters(records))["layout"]["annotations"]
    assert [(words["y"], words["text"]) for words in names] == [(2, "3"), (7, "4"), (12, "5"), (17, "6")]
    crowd = with_labels(records, list(range(MOST_NAMED + 1)))
    assert membership_map(crowd)["layout"]["annotations"] == []


def test_of_many_clients_evenly_spaced_ones_are_drawn(records: RunRecords) -> None:
    """A row for every second of 2000 clients."""
    crowd = with_labels(records, [0] * 2000, [1, 2] * 1000)
    drawn = membership_map(crowd)
    assert len(drawn["data"][0]["z"]) == MOST_ROWS == 1000
    assert [row[-1] for row in drawn["data"][0]["z"]] == [1] * 500 + [2] * 500
    assert any("1,000 of the 2,000 clients" in chart.text for chart in cluster_charts(crowd))
