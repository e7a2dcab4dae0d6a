from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from synthetic_run import CLIENTS, write

from fedstrata.records.folder import Folder
from fedstrata.records.schema import CLIENT_DATA, ClientDescriptions
from fedstrata.report.charts.groups import clients_of, describe_clusters, feature_means, group_charts
from fedstrata.report.clusters import Clusters
from fedstrata.report.reader import RunRecords, read


def described(records: RunRecords, counts: list[list[int]], means: np.ndarray | None = None) -> Clusters:
    """The run with the class counts of its four groups, the group of a client being its id modulo 4."""
    of_clients = np.array([counts[client % 4] for client in range(CLIENTS)])
    return Clusters(replace(records, client_descriptions=ClientDescriptions(of_clients, means, ("cat", "dog", "owl"))))


def test_classes_that_are_more_and_less_frequent_are_named_with_both_shares(records: RunRecords) -> None:
    # Of 100 samples the first group has 80, 10, 10; the others together have 30, 60, 10 of 100.
    clusters = described(records, [[80, 10, 10], [30, 60, 10], [30, 60, 10], [30, 60, 10]])
    node, text = next(iter(describe_clusters(clusters).items()))
    assert clients_of(clusters, node) == [0, 4, 8, 12, 16]
    assert text == "More of class cat (80%, elsewhere 30%); less of class dog (10%, elsewhere 60%)."


def test_a_difference_within_three_standard_errors_is_not_told(records: RunRecords) -> None:
    # 20 against 14 %: with 5 x 10 and 15 x 50 samples the standard error is 5 points, with a hundred times more 0.5.
    few = described(records, [[2, 8, 0], [7, 43, 0], [7, 43, 0], [7, 43, 0]])
    assert "as frequent" in next(iter(describe_clusters(few).values()))
    many = described(records, [[200, 800, 0], [700, 4300, 0], [700, 4300, 0], [700, 4300, 0]])
    assert next(iter(describe_clusters(many).values())).startswith("More of class cat (20%, elsewhere 14%)")


def test_the_features_that_differ_most_are_named_and_drawn(records: RunRecords) -> None:
    means = np.zeros((CLIENTS, 20), dtype=np.float32)
    means[::4, 17] = 2.0
    clusters = described(records, [[1, 1, 1]] * 4, means)
    assert "feature 17 by +2.0" in next(iter(describe_clusters(clusters).values()))
    known = clusters.records.client_descriptions
    assert known is not None
    drawn = feature_means(clusters, known, means).figure
    column = drawn["data"][0]["x"].index("17")
    assert [row[column] for row in drawn["data"][0]["z"]] == [2.0, 0.0, 0.0, 0.0]


def test_features_whose_names_are_shortened_alike_are_two_columns(records: RunRecords) -> None:
    """Of two columns with one text, the page showed the second alone."""
    names = ("blood_pressure_systolic_mmHg", "blood_pressure_diastolic_mmHg", "age")
    means = np.zeros((CLIENTS, 3), dtype=np.float32)
    means[::4, 0] = 2.0
    means[::4, 1] = -2.0
    known = ClientDescriptions(np.ones((CLIENTS, 3), dtype=np.int64), means, ("cat", "dog", "owl"), names)
    drawn = feature_means(Clusters(replace(records, client_descriptions=known)), known, means).figure
    assert drawn["data"][0]["x"] == list(names) == drawn["layout"]["xaxis"]["tickvals"]
    texts = drawn["layout"]["xaxis"]["ticktext"]
    assert texts[0] == texts[1] and len(texts[0]) < 20 and texts[2] == "age"


def test_mean_images_are_those_of_the_clusters(records: RunRecords) -> None:
    means = np.zeros((CLIENTS, 3, 2, 2), dtype=np.float32)
    means[1::4, :, 0, 0] = 3.0
    mix, images = group_charts(described(records, [[1, 1, 1]] * 4, means))
    assert mix.figure["data"][0]["z"][0] == pytest.approx([33.3, 33.3, 33.3])
    assert [trace["z"][0][0] for trace in images.figure["data"]] == [0.0, 3.0, 0.0, 0.0]


def test_samples_without_classes_are_described_by_their_features_alone(records: RunRecords) -> None:
    one = np.full((CLIENTS, 1), 7)
    means = np.zeros((CLIENTS, 5), dtype=np.float32)
    same = Clusters(replace(records, client_descriptions=ClientDescriptions(one, means, ("all samples",))))
    assert "class" not in next(iter(describe_clusters(same).values()))
    assert [chart.name for chart in group_charts(same)] == ["feature-means"]
    nothing = Clusters(replace(records, client_descriptions=ClientDescriptions(one, None, ("all samples",))))
    assert describe_clusters(nothing) == {} and group_charts(nothing) == []


def test_nothing_is_said_without_data_or_with_one_cluster(records: RunRecords) -> None:
    assert describe_clusters(Clusters(records)) == {}
    assert group_charts(Clusters(records)) == []
    first = replace(records, rounds=records.rounds[:1])
    assert describe_clusters(described(first, [[1, 1, 1]] * 4)) == {}


@pytest.mark.parametrize("shape", [(3, 4, 4), (6,)])
def test_descriptions_are_read_as_they_were_written(tmp_path: Path, shape: tuple[int, ...]) -> None:
    run = write(tmp_path / "run", count=3)
    counts = np.arange(CLIENTS * 2).reshape(CLIENTS, 2)
    means = np.random.default_rng(0).normal(size=(CLIENTS, *shape)).astype(np.float32)
    Folder(run).add_client_descriptions(ClientDescriptions(counts, means, ("<a>", "é")))
    found = read(run).client_descriptions
    assert found is not None and found.class_names == ("<a>", "é")
    assert np.array_equal(found.class_counts, counts)
    assert found.mean_inputs is not None and np.array_equal(found.mean_inputs, means)


def test_damaged_descriptions_are_left_out_with_a_note(tmp_path: Path) -> None:
    run = write(tmp_path / "run", count=3)
    folder = Folder(run)
    for damage in (b"no archive", None):
        if damage is None:  # of another number of clients
            folder.add_client_descriptions(ClientDescriptions(np.ones((3, 2), dtype=np.int64), None, ()))
        else:
            (run / CLIENT_DATA).write_bytes(damage)
        found = read(run)
        assert found.client_descriptions is None
        assert any(CLIENT_DATA in note for note in found.notes)
