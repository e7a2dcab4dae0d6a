from dataclasses import replace

import numpy as np
import pytest
from synthetic_run import CLIENTS, last_round

from fedstrata.records.schema import ClientDescriptions, Predictions
from fedstrata.report.client_details import MOST_CLIENTS, MOST_ROUNDS, client_details, facts_of, shown_rounds
from fedstrata.report.clusters import Clusters
from fedstrata.report.reader import RunRecords
from fedstrata.report.references import Reference

KNOWN = ClientDescriptions(np.ones((CLIENTS, 3), dtype=np.int64), None, ("cat", "dog", "<owl>"))

# Client 3: of 10 cats 4 are taken for dogs and 1 for an owl, of 5 dogs all are recognised. Client 4: no mistake.
ROWS = [(3, 0, 0, 5), (3, 0, 1, 4), (3, 0, 2, 1), (3, 1, 1, 5), (4, 2, 2, 6)]


def confused(records: RunRecords, rows: list[tuple[int, int, int, int]] = ROWS) -> Clusters:
    """The run with the classes that two of its clients confuse."""
    pairs = np.array(rows, dtype=np.int64)
    client, truth, predicted = np.repeat(pairs[:, :3], pairs[:, 3], axis=0).T
    place = np.arange(len(client))
    found = Predictions(client, place, place, truth.astype(float), predicted.astype(float), np.full(len(place), np.nan))
    return Clusters(replace(records, client_descriptions=KNOWN, predictions=found))


def fact(clusters: Clusters, client: int, name: str) -> str:
    """One of the sentences about a client."""
    found = client_details(clusters)
    assert found is not None
    facts: dict[str, str] = dict(found["clients"][str(client)]["facts"])
    return facts.get(name, "")


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
    assert fact(clusters, 3, "Closest").startswith(f"{latest.clients[closest]} (")


def test_a_client_that_waits_is_in_no_group_and_no_other_client_is_in_one_with_it(records: RunRecords) -> None:
    """Clients 0 and 3 are at node 3, the first one waits there; all others are at node 4."""
    labels = [3 if client in (0, 3) else 4 for client in range(CLIENTS)]
    clusters = Clusters(last_round(records, labels=labels, pending=[0]))
    assert fact(clusters, 0, "Group") == "It waits for a cluster, at node 3."
    assert fact(clusters, 3, "Group") == "It is alone in node 3."


def test_references_say_whether_the_client_is_clearly_better_off(records: RunRecords) -> None:
    accuracy = Clusters(records).measured[3][1]
    references = {"fedavg": Reference(0.1, {3: 0.01, 4: 1.0}), "local": Reference(0.9, {3: accuracy})}
    clusters = Clusters(replace(records, references=references))
    text = fact(clusters, 3, "Better off?")
    assert text.startswith("Yes, clearly better than with one model for all (FedAvg): accuracy 1.0 %.")
    assert "With training alone" in text and "that is no clear difference. The gain is 0.0 points" in text
    assert fact(clusters, 4, "Better off?").startswith("No, clearly worse than with one model for all")


def test_the_mistakes_of_a_client_are_counted_and_the_commonest_is_named(records: RunRecords) -> None:
    clusters = confused(records)
    assert fact(clusters, 3, "Mistakes") == (
        "It takes 5 of 15 test samples for another class. Class cat is missed most often: 5 of its 10 are recognised, "
        "and 4 taken for class dog."
    )
    assert fact(clusters, 4, "Mistakes").startswith("None: it recognises the class of all 6 test samples")


def test_a_client_that_left_has_only_that(records: RunRecords) -> None:
    clusters = Clusters(last_round(records, labels=[-1, *records.rounds[-1].labels[1:]]))
    assert ("Group", "It is not in the federation.") in facts_of(clusters, 0)


def test_a_long_run_has_as_many_rounds_as_can_be_seen_and_the_last_one(records: RunRecords) -> None:
    many = shown_rounds(list(records.rounds) * 30)
    assert len(many) <= MOST_ROUNDS
    assert many[-1] is records.rounds[-1]


def test_too_many_clients_or_no_scores_have_no_details(records: RunRecords) -> None:
    assert client_details(Clusters(replace(records, scores={}))) is None
    assert client_details(Clusters(last_round(records, labels=[0] * (MOST_CLIENTS + 1)))) is None
