from dataclasses import replace

import pytest
from synthetic_run import CLIENTS, write

from fedstrata.report.client_details import MOST_CLIENTS, MOST_ROUNDS, client_details, shown_rounds, text_of
from fedstrata.report.clusters import Clusters
from fedstrata.report.reader import RunRecords, read
from fedstrata.report.references import Reference


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> RunRecords:
    return read(write(tmp_path_factory.mktemp("details") / "run", count=12))


def test_every_client_has_its_own_curve_beside_the_mean_of_all(records: RunRecords) -> None:
    found = client_details(Clusters(records))
    assert found is not None
    assert len(found["clients"]) == CLIENTS
    last = records.scores[12]
    place = last.client.tolist().index(7)
    assert found["clients"]["7"]["curve"][-1] == pytest.approx(last.accuracy[place], rel=1e-3)
    mean, one = found["figure"]["data"]
    assert mean["y"][-1] == pytest.approx(last.accuracy.mean(), rel=1e-3)
    assert one["x"] == [each.round for each in records.rounds]


def test_a_client_is_told_its_closest_clients_of_the_latest_matrix(records: RunRecords) -> None:
    clusters = Clusters(records)
    latest = max((each for each in records.matrices if 3 in each.clients), key=lambda each: each.round)
    row = latest.clients.index(3)
    others = [place for place in range(len(latest.clients)) if place != row]
    closest = max(others, key=lambda place: float(latest.values[row, place]))
    assert f"is closest to: {latest.clients[closest]} (" in text_of(clusters, 3)


def test_references_say_whether_the_client_is_clearly_better_off(records: RunRecords) -> None:
    accuracy = Clusters(records).measured[3][1]
    references = {"fedavg": Reference(0.1, {3: 0.01}), "local": Reference(0.9, {3: accuracy})}
    text = text_of(Clusters(replace(records, references=references)), 3)
    assert "With one model for all (FedAvg), it is 1.0 %: clearly worse." in text
    assert text.endswith("no clear difference.")


def test_a_long_run_has_as_many_rounds_as_can_be_seen_and_the_last_one(records: RunRecords) -> None:
    many = shown_rounds(list(records.rounds) * 30)
    assert len(many) <= MOST_ROUNDS
    assert many[-1] is records.rounds[-1]


def test_too_many_clients_or_no_scores_have_no_details(records: RunRecords) -> None:
    assert client_details(Clusters(replace(records, scores={}))) is None
    last = records.rounds[-1].model_copy(update={"labels": [0] * (MOST_CLIENTS + 1)})
    assert client_details(Clusters(replace(records, rounds=(*records.rounds[:-1], last)))) is None
