from dataclasses import replace

from synthetic_run import changed

from fedstrata.records.schema import Round
from fedstrata.report.charts.curves import MOST_NAMED, MOST_ROWS, cluster_charts, membership_map
from fedstrata.report.clusters import Clusters
from fedstrata.report.reader import RunRecords


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
    placed = replace(records, rounds=tuple(changed(each, pending=[]) for each in records.rounds))
    drawn = membership_map(Clusters(placed))
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
