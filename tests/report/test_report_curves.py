from dataclasses import replace
from math import nan

import numpy as np
import plotly.graph_objects as go
import pytest
from synthetic_run import TRUTH, write

from fedstrata.report.colours import GREY, PALETTE, blend
from fedstrata.report.groups import Groups
from fedstrata.report.pictures import curves, pictures
from fedstrata.report.pictures.layers import layers
from fedstrata.report.pictures.watched import watched
from fedstrata.report.read import read
from fedstrata.report.records import Gap, Records, Scores


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Records:
    return read(write(tmp_path_factory.mktemp("curves") / "run", count=12))


def test_every_figure_is_one_that_plotly_accepts_under_a_name_of_its_own(records: Records) -> None:
    drawn = [plot for some in pictures(Groups(records)).values() for plot in some]
    for plot in drawn:
        go.Figure(data=plot.figure["data"], layout=plot.figure["layout"])
    assert len({plot.name for plot in drawn}) == len(drawn) > 15


def test_names_that_make_the_same_file_get_numbers(records: Records) -> None:
    rounds = tuple(replace(each, figures={"a b": 1.0, "a-b": 2.0}) for each in records.rounds)
    names = [plot.name for plot in pictures(Groups(replace(records, rounds=rounds)))["watched"]]
    assert names == ["watched-a-b", "watched-a-b-no-2"]


def test_splits_are_marked_in_the_round_in_which_they_happened(records: Records) -> None:
    marks = curves.accuracy(records)["data"][-1]
    assert marks["x"] == [4, 7]
    assert marks["text"][1] == "node 1 split into 3 and 4 on conv2<br>node 2 split into 5 and 6 on conv2"


def test_the_band_is_the_middle_of_the_clients_and_has_a_hole_where_they_are_not_known(records: Records) -> None:
    held = dict(records.scores)
    held[2] = replace(held[2], accuracy=np.linspace(0, 1, 11))
    del held[3]
    low, high = curves.accuracy(replace(records, scores=held))["data"][:2]
    assert (low["y"][1], high["y"][1]) == (0.1, 0.9)
    assert (low["y"][2], high["y"][2]) == (None, None)


def test_another_way_of_using_the_models_has_a_curve_of_its_own(records: Records) -> None:
    rounds = tuple(replace(each, others={"global": 0.25, "<b>": None}) for each in records.rounds)
    drawn = {trace["name"]: trace["y"] for trace in curves.accuracy(replace(records, rounds=rounds))["data"]}
    assert drawn["global"] == [0.25] * 12
    assert drawn["&lt;b&gt;"] == [None] * 12


def test_a_single_round_shows_as_a_point_and_an_unknown_truth_as_nothing(records: Records) -> None:
    first = replace(records, rounds=(replace(records.rounds[0], ari=None, acc_client=None, acc_worst=None),), scores={})
    assert curves.seconds(first)["data"][0]["mode"] == "markers"
    assert len(curves.clusters(first)["data"]) == 1
    assert curves.by_cluster(Groups(first)) is None
    assert curves.accuracy(first)["layout"]["yaxis"]["range"][0] == 0


def test_seconds_and_bytes_are_told_apart_where_they_are_known(records: Records) -> None:
    assert [trace["name"] for trace in curves.seconds(records)["data"]] == ["the round"]
    assert [trace["name"] for trace in curves.traffic(records)["data"]] == ["down", "up"]
    known = {"seconds_training": 0.5, "seconds_server": 0.1, "bytes_data": 9}
    rounds = (replace(records.rounds[0], **known), *records.rounds[1:])  # type: ignore[arg-type]  # of several types
    full = replace(records, rounds=rounds)
    assert [trace["name"] for trace in curves.seconds(full)["data"]] == ["the round", "training", "the server"]
    assert curves.traffic(full)["data"][2]["y"] == [9] * 12, "what was sent once stays sent"


def test_scores_that_are_not_known_leave_a_hole_in_their_cluster(records: Records) -> None:
    first = records.scores[1]
    unknown = Scores(first.client, first.node, first.samples, np.full(20, nan), first.loss)
    drawn = curves.by_cluster(Groups(replace(records, scores=dict(records.scores) | {1: unknown})))
    assert drawn is not None
    assert drawn["data"][0]["y"][0] is None
    assert drawn["data"][0]["y"][1] is not None


def test_clusters_keep_their_colour_and_a_split_node_mixes_those_of_its_parts(records: Records) -> None:
    groups = Groups(records)
    assert groups.finals == (3, 4, 5, 6)
    assert [groups.colour(node) for node in (3, 4, 5, 6)] == list(PALETTE[:4])
    assert groups.colour(1) == blend(list(PALETTE[:2]))
    assert groups.colour(99) == GREY
    assert [TRUTH[client] for client in groups.order] == sorted(TRUTH)


def test_who_is_not_in_the_federation_is_in_no_cluster(records: Records) -> None:
    away = replace(records.rounds[-1], labels=[-1, *records.rounds[-1].labels[1:]])
    assert Groups(replace(records, rounds=(*records.rounds[:-1], away))).finals == (3, 4, 5, 6)


def test_an_algorithm_without_splits_or_tree_still_has_its_clusters(records: Records) -> None:
    flat = replace(records, tree=(), rounds=tuple(replace(each, events=[], pending=[]) for each in records.rounds))
    groups = Groups(flat)
    assert groups.sought
    assert groups.finals == (3, 4, 5, 6)
    assert groups.rows == ()
    assert "split" not in [trace["name"] for trace in curves.accuracy(flat)["data"]]


def test_gaps_have_a_curve_for_each_layer_and_a_layer_without_any_is_left_out(records: Records) -> None:
    some = tuple(gap for gap in records.gaps if (gap.measure, gap.layer) != ("dl2", "conv2"))
    plots = {plot.name: plot.figure for plot in layers(replace(records, gaps=some))}
    assert [trace["name"] for trace in plots["gap-dl2"]["data"]] == ["conv1", "fc1", "fc2"]
    assert len(plots["gap-dcos"]["data"]) == 4


def test_the_profile_of_the_layers_ends_at_zero_and_keeps_what_is_below(records: Records) -> None:
    gaps = (Gap(4, "conv1", "dcos", 0.5), Gap(4, "fc", "dcos", -0.2), Gap(9, "conv1", "dcos", nan))
    profile = layers(replace(records, gaps=gaps))[1].figure["data"]
    assert [trace["name"] for trace in profile] == ["round 4, the first split", "round 9"]
    assert profile[0]["y"] == [0.5, 0.0]
    assert profile[0]["customdata"] == [0.5, -0.2]
    assert profile[1]["y"] == [None, None]
    whole = tuple(replace(each, events=[]) for each in records.rounds)
    assert len(layers(replace(records, gaps=gaps, rounds=whole))[1].figure["data"]) == 1


def test_figures_of_nodes_and_layers_are_curves_of_one_picture_each(records: Records) -> None:
    figures: dict[str, float | None] = {
        "left_out": 0.0,
        "own": 3.0,
        "mean_norm of node 3": 0.2,
        "mean_norm of node 4": 0.3,
        "stability conv1": 0.1,
        "stability fc": 0.2,
    }
    rounds = tuple(replace(each, figures=figures if each.round != 2 else {}) for each in records.rounds)
    keys = {"name": "x", "eps1": 0.25, "epsilon": "auto"}
    tree = tuple(replace(node, criteria={"epsilon": 0.05}) for node in records.tree)
    groups = Groups(replace(records, rounds=rounds, tree=tree, settings={"algorithm": keys}))
    plots = {plot.title: plot.figure["data"] for plot in watched(groups)}
    assert list(plots) == ["Stability", "Mean norm", "Own"], "what was always zero is not shown"
    assert [trace["name"] for trace in plots["Mean norm"]] == ["node 3", "node 4", "eps1 = 0.25"]
    assert plots["Mean norm"][0]["line"]["color"] == groups.colour(3)
    assert plots["Mean norm"][0]["mode"] == "lines+markers", "round 1 stands alone"
    assert plots["Mean norm"][2]["mode"] == "lines"
    assert [trace["name"] for trace in plots["Stability"]] == ["conv1", "fc", "epsilon = 0.05"]
    apart = (replace(tree[0], criteria={"epsilon": 0.07}), *tree[1:])
    mixed = Groups(replace(groups.records, tree=apart, settings={"algorithm": {"eps1": 0}}))
    plots = {plot.title: plot.figure["data"] for plot in watched(mixed)}
    assert (len(plots["Mean norm"]), len(plots["Stability"])) == (2, 2), "no threshold, or not the same for all"
    alone = Groups(replace(groups.records, rounds=rounds[:1], settings={}, matrices=()))
    assert watched(alone)[1].figure["data"][0]["mode"] == "markers"
