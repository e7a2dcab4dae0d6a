"""The four answers at the top of a page."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from synthetic_run import CLIENTS, changed, every_round, last_round, write

from fedstrata.objective.metric_info import METRIC_INFOS
from fedstrata.records.schema import Scores
from fedstrata.report.clusters import Clusters
from fedstrata.report.overview import MOST_CONCERNS, concerns, gains, overview, reasons
from fedstrata.report.page import render
from fedstrata.report.reader import RunRecords, read
from fedstrata.report.references import Reference

RUNS = Path(__file__).parent / "runs"


def of(records: RunRecords) -> SimpleNamespace:
    clusters = Clusters(records)
    found = overview(clusters)
    assert found is not None
    return SimpleNamespace(**found)


def scored(records: RunRecords, accuracies: dict[int, float], samples: int = 100) -> RunRecords:
    """The run whose clients have an accuracy of 0.8 at the end, but for some."""
    last = records.scores[12]
    values = np.array([accuracies.get(client, 0.8) for client in last.client.tolist()])
    scores = Scores(last.client, last.node, np.full(CLIENTS, samples), values, last.loss)
    assert records.summary is not None
    summary = changed(records.summary, acc_client=float(values.mean()))
    return replace(records, scores={**records.scores, 12: scores}, summary=summary)


def test_one_group_is_said_to_be_one_and_why(records: RunRecords) -> None:
    criteria = {"p": 0.8, "level": 0.025, "round": 9.0}
    why = changed(records.tree[0], split=None, layer=None, criteria=criteria, why="p_above_level")
    found = of(every_round(replace(records, tree=(why,)), labels=[0] * CLIENTS, clusters=1, pending=[], events=[]))
    assert "all 20 clients share one model" in found.groups and found.listed == []
    assert "80 % of cases" in found.why[0] and "2.5 %" in found.why[0]


def test_a_cluster_whose_groups_are_compared_by_personal_models_next_is_neither_split_nor_not(
    records: RunRecords,
) -> None:
    criteria = {"p": 0.001, "level": 0.025, "round": 9.0, "gain": 0.5, "groups": 2.0}
    why = changed(records.tree[0], split=None, layer="conv2", criteria=criteria, why="groups_on_trial")
    run = every_round(replace(records, tree=(why,)), labels=[0] * CLIENTS, clusters=1, pending=[], events=[])
    (text,) = of(run).why
    assert text.endswith("Personal models of these groups are compared next, and only then the clients may be split.")
    page = render(run)
    assert "<b>Not decided:</b>" in page and "<b>Not split" not in page


@pytest.mark.parametrize("name", sorted(folder.name for folder in RUNS.iterdir()))
def test_every_small_run_says_why_its_groups_are_so(name: str) -> None:
    records = read(RUNS / name)
    told = reasons(Clusters(records))
    assert bool(told) == Clusters(records).clustered
    assert all(text.endswith(".") and "_" not in text and "{" not in text for text in told)


def test_the_gain_is_told_with_both_means_and_the_clients_that_lose(records: RunRecords) -> None:
    own = scored(records, {})
    others = {**dict.fromkeys(range(CLIENTS), 0.5), 3: 0.99, 4: 0.8}
    known = replace(own, references={"fedavg": Reference(0.5, others)})
    (text,) = gains(Clusters(known))
    assert text.startswith("Accuracy 80.0 % on average, 50.0 % with one model for all (FedAvg): 30.0 points higher.")
    assert "18 clearly better off" in text and "1 clearly worse off (3), 1 without a clear difference" in text


def test_without_a_reference_the_command_for_one_is_given(records: RunRecords) -> None:
    assert "report.baseline=true" in of(records).command and "not known" in of(records).gained[0]
    unfinished = of(replace(records, summary=None))
    assert unfinished.command == "" and "before the run is finished" in unfinished.gained[0]
    known = of(replace(records, references={"fedavg": Reference(0.5, {})}))
    assert known.command == "" and "not known" not in known.gained[0]


def test_errors_that_nobody_can_judge_are_compared_without_a_claim(records: RunRecords) -> None:
    own = scored(records, {3: 9.0})
    known = replace(own, metric=METRIC_INFOS["mse"], references={"fedavg": Reference(2.0, {3: 5.0, 4: 5.0})})
    (text,) = gains(Clusters(known))
    assert "none clearly better off" in text and "none clearly worse off, 2 without a clear difference" in text


def quiet(records: RunRecords) -> RunRecords:
    """The run in which everybody always answered."""
    return every_round(records, absent=[], rejected=[], pending=[])


def test_no_client_stands_out_where_all_do_alike(records: RunRecords) -> None:
    found = of(quiet(scored(records, {7: 0.75}, samples=20)))
    assert found.concerns == []
    assert found.worst is not None and found.worst.client == 7
    assert "75.0 %" in found.worst.why and "20 test samples may be as bad" in found.worst.why


def test_a_client_far_below_the_mean_stands_out(records: RunRecords) -> None:
    (found,) = concerns(Clusters(quiet(scored(records, {7: 0.3}))))
    assert found.client == 7 and "30.0 %, clearly lower than the mean, 77.5 %" in found.why


def test_a_client_with_several_reasons_comes_first_and_has_them_all(records: RunRecords) -> None:
    own = quiet(scored(records, {7: 0.3, 8: 0.2}))
    rounds = tuple(changed(each, absent=[7], rejected=[2] if each.round == 5 else []) for each in own.rounds)
    known = replace(own, rounds=rounds, references={"fedavg": Reference(0.5, {7: 0.9})})
    found = concerns(Clusters(known))
    assert [each.client for each in found] == [7, 8, 2]
    assert "90.0 % with one model for all" in found[0].why and "0 of the 12 rounds" in found[0].why
    assert "1 answer of it was rejected" in found[2].why


def test_a_client_alone_and_one_that_waits_are_named(records: RunRecords) -> None:
    labels = [6 if client == 3 else 3 + client % 3 for client in range(CLIENTS)]
    own = last_round(quiet(scored(records, {})), labels=labels, pending=[5])
    found = {each.client: each.why for each in concerns(Clusters(own))}
    assert "alone in node 6" in found[3] and "waits for a cluster" in found[5]


def test_of_many_clients_to_look_at_the_first_are_named_and_the_others_counted(records: RunRecords) -> None:
    found = of(quiet(scored(records, dict.fromkeys(range(8), 0.1))))
    assert len(found.concerns) == MOST_CONCERNS
    assert found.rest == 8 - MOST_CONCERNS


def test_before_the_first_round_there_is_no_answer(tmp_path: Path) -> None:
    records = read(write(tmp_path / "run", count=1, finished=False))
    nothing = replace(records, rounds=(), matrices=(), scores={})
    assert overview(Clusters(nothing)) is None
    assert "In short" not in render(nothing)
