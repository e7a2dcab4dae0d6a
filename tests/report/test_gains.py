from pathlib import Path

import numpy as np
import pytest

from builders import run
from fedstrata.objective.metric_info import ACCURACY, METRIC_INFOS
from fedstrata.records.arrays import last_predictions
from fedstrata.records.folder import Folder
from fedstrata.records.schema import Predictions
from fedstrata.report.differences import Effect
from fedstrata.report.references import Gain, effects, gain, mean_effect, stands_out


def rows(right: list[bool]) -> Predictions:
    """Samples of class 0, of which the model gets some right."""
    place = np.arange(len(right))
    wrong = 1.0 - np.array(right)
    return Predictions(place * 0, place, place, wrong * 0, wrong, wrong * np.nan)


def test_a_verdict_rests_on_the_samples_where_they_are_known() -> None:
    """Accuracies of .8 and .683 on 60 samples are less than two standard errors of different samples apart."""
    own, other = {0: (60, 48 / 60)}, {0: 41 / 60}
    one = rows([True] * 48 + [False] * 12)
    two = rows([True] * 40 + [False] * 8 + [True] + [False] * 11)
    assert gain(effects(own, other, ACCURACY, {}, {})) == Gain([], [], [0])
    assert gain(effects(own, other, ACCURACY, {0: one}, {0: two})) == Gain([0], [], [])


def test_whom_nobody_knows_the_chance_of_is_unclear() -> None:
    own, other = {0: (100, 0.9), 1: (100, 0.9), 2: (10, 0.5)}, {0: 0.1, 1: 0.9, 3: 0.5}
    assert gain(effects(own, other, METRIC_INFOS["f1_macro"], {}, {})) == Gain([], [], [0, 1])


def test_verdicts_are_corrected_for_the_number_of_clients() -> None:
    """p-values of 0.01 and 0.03: with two clients both are clear, with four neither the second nor a worse one is."""
    known = {0: Effect(0.1, 0.0, 0.2, 0.01), 1: Effect(-0.1, -0.2, 0.0, 0.03)}
    assert gain(known) == Gain([0], [1], [])
    assert gain({**known, 2: Effect(0.0, 0.0, 0.0, 1.0), 3: Effect(0.0, 0.0, 0.0, 1.0), 4: None}) == Gain(
        [0], [], [1, 2, 3, 4]
    )


def test_a_summary_has_the_gain_of_every_client_over_one_model_for_all(tmp_path: Path) -> None:
    found = run(tmp_path / "run", data={"samples": 60}, algorithm={"name": "oracle"}, report={"baseline": True})
    known = Folder(found.folder).summary()["baseline_gains"]
    own, other = last_predictions(found.folder), last_predictions(found.folder / "baseline")
    assert sorted(map(int, known)) == list(range(6))
    for client, gained in known.items():
        assert gained["by"] == pytest.approx(own[int(client)].right.mean() - other[int(client)].right.mean())


def test_a_client_stands_out_where_the_worst_of_so_many_would_not_be_as_bad_by_chance() -> None:
    # One of 4 right at a mean of one half: chance 5/16, for 2 clients too.
    assert not stands_out(4, 0.25, 0.5, 2, ACCURACY)
    # None of 8 right: chance 1/256, which is 0.04 for the worst of 10 and 0.08 for the worst of 20.
    assert stands_out(8, 0.0, 0.5, 10, ACCURACY) and not stands_out(8, 0.0, 0.5, 20, ACCURACY)
    assert not stands_out(8, 1.0, 0.5, 1, ACCURACY), "it is better than the mean"
    assert stands_out(1, 0.0, 1.0, 100, ACCURACY), "all others are perfect"
    assert not stands_out(100, 9.0, 1.0, 2, METRIC_INFOS["mse"]), "nobody knows what is chance"


def test_the_mean_over_clients_is_clear_where_no_client_is() -> None:
    """Ten clients with 12 of 20 right in the place of 10: each by itself is chance, and all together are not."""
    own = {client: rows([True] * 12 + [False] * 8) for client in range(10)}
    other = {client: rows([True] * 10 + [False] * 10) for client in range(10)}
    scores = {client: (20, 0.6) for client in own}
    assert gain(effects(scores, dict.fromkeys(own, 0.5), ACCURACY, own, other)).better == []
    found = mean_effect(own, other, ACCURACY)
    assert found is not None and found.by == pytest.approx(0.1) and found.low > 0.05 and found.p < 0.001
    assert mean_effect(own, {**other, 10: other[0]}, ACCURACY) is None, "a client is in one run alone"
