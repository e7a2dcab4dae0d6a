from dataclasses import replace
from typing import Any

import pytest
import torch

from fedstrata.core import Score
from fedstrata.records.measures import complete, summarise
from fedstrata.report.summary import warnings

MEASURES = dict(clusters=2, ari=0.5, purity=1.0, acc_client=0.1, acc_weighted=0.2, acc_cluster=0.3, acc_worst=0.0)
COSTS = dict(bytes_down=10, bytes_up=5, seconds=1.0, seconds_training=0.5, seconds_server=0.25)


def lines(*changes: dict[str, Any]) -> list[dict[str, Any]]:
    """The records of rounds 1, 2, ..."""
    same = {**MEASURES, **COSTS, "labels": [0, 0], "rejected": []}
    return [{**same, "round": round, **change} for round, change in enumerate(changes, start=1)]


SCORE = Score(torch.arange(4), torch.tensor([1, 4, 9, 0]), torch.tensor([2, 8, 10, 10]), torch.tensor([1.0, 2, 3, 6]))


def test_the_four_accuracies_of_a_round() -> None:
    labels, truth = torch.tensor([0, 0, 1, -1]), torch.tensor([0, 0, 1, 1])
    record = complete({"round": 3}, labels, truth, {"client": SCORE})
    assert record["acc_client"] == pytest.approx((0.5 + 0.5 + 0.9 + 0.0) / 4)
    assert record["acc_weighted"] == pytest.approx(14 / 30)
    assert record["acc_cluster"] == pytest.approx((5 / 10 + 9 / 10) / 2)  # the pending client is in no cluster
    assert record["acc_worst"] == 0.0 and record["loss"] == 3.0 and record["round"] == 3
    assert 0 < record["ari"] < 1 and record["purity"] == 1.0


def test_a_client_of_unknown_score_counts_neither_in_means_nor_as_the_worst() -> None:
    """The 1, 4 and 0 correct samples of 2, 8 and 10 count; client 2 of the second cluster is unknown."""
    score = replace(SCORE, correct=torch.tensor([1.0, 4.0, torch.nan, 0.0], dtype=torch.float64))
    record = complete({}, torch.tensor([0, 0, 1, 0]), None, {"client": score, "global": score})
    assert record["acc_client"] == record["acc_global"] == pytest.approx((0.5 + 0.5 + 0.0) / 3)
    assert record["acc_weighted"] == record["acc_cluster"] == pytest.approx(5 / 20)
    assert record["acc_worst"] == 0.0 and record["loss"] == 3.0


def test_other_ways_of_using_the_models_are_recorded_by_name() -> None:
    better = Score(SCORE.clients, SCORE.samples, SCORE.samples, SCORE.loss)
    record = complete({}, torch.tensor([-1] * 4), None, {"client": SCORE, "personal": better})
    assert record["acc_personal"] == 1.0 and record["ari"] is None and record["acc_cluster"] is None


def test_a_summary_takes_measures_of_the_last_round_and_sums_of_all() -> None:
    partitions = [[0, 0], [1, 2], [0, 0], [1, 2], [1, 2]]
    rounds = lines(*({"labels": labels, "rejected": [7]} for labels in partitions))
    summary = summarise(rounds, torch.tensor([0, 0]))
    assert summary["rounds"] == 5 and summary["rounds_to_partition"] == 4
    assert summary["bytes_down"] == 50 and summary["seconds"] == 5.0 and summary["acc_client"] == 0.1
    assert summary["rejected"] == 5 and summary["purity"] == 1.0 and summary["truth"] == [0, 0]
    unknown = summarise(rounds[:1], None)
    assert unknown["truth"] is None and unknown["rounds_to_partition"] == 1


def test_a_round_of_which_all_answers_were_rejected_has_diverged() -> None:
    answers = [([0, 1, 2], []), ([2], [0, 1]), ([0, 1], []), ([], [0, 1, 2])]
    rounds = lines(*({"cohort": [0, 1, 2], "absent": away, "rejected": rejected} for rejected, away in answers))
    # In round 2 only client 2 answers, and in round 4 nobody does.
    assert summarise(rounds, None)["diverged"] == {"rounds": [1, 2], "clients": 0}


@pytest.mark.parametrize(
    ("losses", "unfinished"),
    [
        ([2.0 - 0.1 * round for round in range(10)], {"rounds": 2, "loss_before": 1.35, "loss": 1.15}),
        ([0.1 + 0.8**round for round in range(10)], {"rounds": 2, "loss_before": 0.336, "loss": 0.251}),
        ([0.1 + 0.7**round for round in range(20)], None),
        ([2.0, 1.0, *[0.5, 0.52] * 5], None),
        ([2.0 - 0.1 * round for round in range(9)], None),  # nobody expects nine rounds to be enough
        ([0.1 + 0.1 * round for round in range(10)], None),
        ([*[2.0 - 0.1 * round for round in range(9)], float("inf")], None),
    ],
)
def test_training_is_far_from_done_if_the_loss_still_falls_clearly(
    losses: list[float], unfinished: dict[str, float] | None
) -> None:
    rounds = lines(*({"loss": loss} for loss in losses))
    found = summarise(rounds, None).get("unfinished")
    assert found == (unfinished and pytest.approx(unfinished, abs=1e-3))
    assert len(warnings({"unfinished": found})) == bool(found)
    assert "unfinished" not in summarise(rounds, None, all_score=False)


def test_the_loss_of_personal_models_is_no_end_of_training() -> None:
    rounds = lines(*({"loss": 1.0} for _ in range(10)), {"loss": 0.1, "acc_shared": 0.5})
    assert "unfinished" not in summarise(rounds, None)


def test_the_best_accuracy_is_that_of_the_first_round_that_has_it() -> None:
    rounds = lines(*({"acc_client": value} for value in (0.25, 0.5, None, 0.75, 0.5, 0.75)))
    summary = summarise(rounds, None)
    assert (summary["acc_best"], summary["acc_best_round"], summary["acc_client"]) == (0.75, 4, 0.75)
    assert summarise(rounds, None, all_score=False)["acc_best"] is None
