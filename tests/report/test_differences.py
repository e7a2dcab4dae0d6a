"""How much better one model or method is than another, with numbers that a reader can redo."""

from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn import metrics

from fedstrata.objective.metric_info import ACCURACY, METRIC_INFOS
from fedstrata.records.schema import Predictions
from fedstrata.report.differences import Effect, corrected, of_clients, of_counts, of_samples, over_seeds, sample_gains

AUC = METRIC_INFOS["roc_auc"]


def predictions(
    truth: NDArray[Any], predicted: NDArray[Any] | None = None, score: NDArray[Any] | None = None
) -> Predictions:
    """What one client's model predicts; without predictions those of the scores."""
    samples = np.arange(len(truth))
    score = np.full(len(truth), np.nan) if score is None else score
    predicted = (score > 0).astype(float) if predicted is None else predicted.astype(float)
    return Predictions(np.zeros(len(truth), np.int64), samples, samples, truth.astype(float), predicted, score)


def accuracy_of(both: int, own: int, other: int, neither: int) -> Effect:
    """Two models of which both, the first, the second, and neither classify so many independent samples correctly."""
    gains = np.repeat([0.0, 1.0, -1.0, 0.0], [both, own, other, neither])
    return of_samples(gains, np.arange(len(gains)), ACCURACY)


def test_of_nine_samples_that_differ_eight_for_one_model_are_more_than_chance() -> None:
    # Two tails of (1 + 9) / 2^9 each: 20 / 512.
    found = accuracy_of(both=40, own=8, other=1, neither=11)
    assert found.p == pytest.approx(20 / 512) and found.by == pytest.approx(7 / 60)
    # 7 / 62, and 1.96 times sqrt(11 - 49 / 62) / 62.
    assert found.low == pytest.approx(0.1129 - 0.1010, abs=1e-4)
    assert found.high == pytest.approx(0.1129 + 0.1010, abs=1e-4)


def test_the_same_difference_without_agreement_is_chance() -> None:
    # 7 of 60 better off as well, but 27 against 20 of the 47 samples that differ.
    found = accuracy_of(both=5, own=27, other=20, neither=8)
    assert found.by == pytest.approx(7 / 60) and found.p > 0.05 and found.low < 0 < found.high


def test_models_that_agree_on_few_samples_may_differ_on_others() -> None:
    few = accuracy_of(both=3, own=0, other=0, neither=2)
    many = accuracy_of(both=300, own=0, other=0, neither=200)
    assert (few.by, few.p) == (many.by, many.p) == (0.0, 1.0)
    assert few.low < many.low < 0 < many.high < few.high


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))
def test_the_difference_lies_in_its_interval_and_turns_with_the_models(
    both: int, own: int, other: int, no: int
) -> None:
    found = accuracy_of(both, own, other, no + 1)
    assert found.low - 1e-12 <= found.by <= found.high + 1e-12
    back = accuracy_of(both, other, own, no + 1)
    assert (back.by, back.low, back.high) == pytest.approx((-found.by, -found.high, -found.low))


def test_windows_of_one_recording_say_one_thing() -> None:
    """Of four recordings of ten windows, three are recognised by the first model alone, and one by the second."""
    gains = np.repeat([1.0, 1.0, 1.0, -1.0], 10)
    recordings = of_samples(gains, np.repeat(np.arange(4), 10), ACCURACY)
    windows = of_samples(gains, np.arange(40), ACCURACY)
    assert recordings.by == windows.by == 0.5
    assert windows.p < 0.01 and recordings.p > 0.2


@pytest.mark.parametrize("key", ["accuracy", "balanced_accuracy", "roc_auc", "mse", "rmse", "mae", "r2"])
def test_the_mean_of_what_samples_say_is_the_difference_of_the_metrics(key: str) -> None:
    """With scikit-learn's metrics."""
    rng = np.random.default_rng(4)
    numbers = key in ("mse", "rmse", "mae", "r2")
    truth = rng.normal(size=40) if numbers else (rng.random(40) < 0.3).astype(float)
    scores = [truth + rng.normal(size=40) * noise - 0.3 for noise in (0.8, 1.5)]
    one, two = (predictions(truth, each if numbers else None, each) for each in scores)
    measure = {
        "accuracy": metrics.accuracy_score,
        "balanced_accuracy": metrics.balanced_accuracy_score,
        "mse": metrics.mean_squared_error,
        "rmse": metrics.root_mean_squared_error,
        "mae": metrics.mean_absolute_error,
        "r2": metrics.r2_score,
        "roc_auc": metrics.roc_auc_score,
    }[key]
    values = [measure(truth, each.score if key == "roc_auc" else each.predicted) for each in (one, two)]
    gains = sample_gains(one, two, METRIC_INFOS[key])
    assert gains is not None and gains.mean() == pytest.approx(METRIC_INFOS[key].gain(*values))


def test_the_error_of_a_difference_of_areas_is_that_of_delong() -> None:
    """DeLong's covariance of the placements, computed from its definition."""
    rng = np.random.default_rng(1)
    truth = (np.arange(400) % 3 == 0).astype(float)
    scores = [truth * 0.8 + rng.normal(size=400), truth + rng.normal(size=400)]
    gains = sample_gains(predictions(truth, score=scores[0]), predictions(truth, score=scores[1]), AUC)
    assert gains is not None
    wins = [(score[truth == 1][:, None] > score[truth == 0]).astype(float) for score in scores]
    variance = sum(
        np.var(wins[0].mean(axis=axis) - wins[1].mean(axis=axis), ddof=1) / wins[0].shape[1 - axis] for axis in (0, 1)
    )
    found = of_samples(gains, np.arange(400), AUC)
    assert (found.high - found.low) / 2 == pytest.approx(1.966 * sqrt(variance), rel=0.04)


@pytest.mark.parametrize("positives", [1, 4])
def test_an_area_of_few_samples_of_a_class_is_not_judged(positives: int) -> None:
    """Of one positive sample the variance would be 0."""
    truth = (np.arange(54) < positives).astype(float)
    one, two = predictions(truth, score=truth - 0.5), predictions(truth, score=0.5 - truth)
    assert sample_gains(one, two, AUC) is None


def test_means_over_starts_that_say_opposite_things_are_no_votes() -> None:
    """30 samples gain a fifth, and 8 lose all: the mean is a loss, which a count of samples would call a gain."""
    gains = np.repeat([0.2, -1.0], [30, 8])
    found = of_samples(gains, np.arange(38), ACCURACY)
    assert found.by < 0 and found.p > 0.05


def test_a_metric_that_is_no_mean_is_not_compared_sample_by_sample() -> None:
    truth = np.array([0, 1, 2])
    one = predictions(truth, truth)
    assert sample_gains(one, one, METRIC_INFOS["f1_macro"]) is None
    assert sample_gains(one, one, AUC) is None, "there are three classes"
    others = one._replace(sample=one.sample + 10)
    assert sample_gains(one, others, ACCURACY) is None, "they are other samples"
    own = replace(ACCURACY, meaning="of the user's own")
    assert sample_gains(one, one, own) is None, "a metric of the user's own may be called accuracy"


def test_the_corrected_resampled_t_test_is_that_of_nadeau_and_bengio() -> None:
    """Five seeds with a quarter held out: the variance is s² (1/5 + 1/3)."""
    values = [0.01, 0.03, 0.02, 0.05, 0.04]
    found = over_seeds(values, overlap=0.25)
    assert found is not None
    error = sqrt(np.var(values, ddof=1) * (1 / 5 + 1 / 3))
    assert found.by == pytest.approx(0.03)
    assert (found.high - found.low) / 2 == pytest.approx(2.7764 * error, rel=1e-4)
    # t = 2.598 with 4 degrees of freedom; not corrected, it is 4.243 with p = .013.
    assert found.p == pytest.approx(0.0602, abs=1e-3)
    plain = over_seeds(values, 0.0)
    assert plain is not None and plain.p == pytest.approx(0.0132, abs=1e-3)


def test_a_single_seed_and_seeds_that_agree_do_not_tell_the_noise() -> None:
    assert over_seeds([0.1], 0.0) is None and over_seeds([0.1, 0.1], 0.0) is None
    assert over_seeds([0.9 - 0.8, 0.8 - 0.7, 0.7 - 0.6], 0.0) is None, "they differ by rounding alone"


def test_a_spread_that_nobody_sees_counts_as_the_smallest_that_is_seen() -> None:
    """Differences of 10.00, 10.03 and 10.05 points are clear, and not as clear as their spread of 0.025 says."""
    found = over_seeds([0.1, 0.1003, 0.1005], 0.0, smallest=0.0005)
    assert found is not None and found.high - found.by == pytest.approx(4.3027 * 0.0005 / sqrt(3), rel=1e-4)


def test_holm_multiplies_the_smallest_by_the_number_of_comparisons() -> None:
    """0.01, 0.04 and 0.03: 3 x 0.01, 2 x 0.03, and no less than that for 0.04. Unknown ones do not count."""
    effects = [None if p is None else Effect(0.0, 0.0, 0.0, p) for p in (0.01, None, 0.04, 0.03)]
    assert corrected(effects) == [pytest.approx(0.03), None, pytest.approx(0.06), pytest.approx(0.06)]
    assert corrected([]) == [] and corrected([None]) == [None]


def test_of_devices_that_keep_their_samples_the_error_is_that_of_different_samples() -> None:
    # Of 98 samples 88 and 78 are right, with a success and a failure more 89 and 79 of 100.
    found = of_counts(98, 88 / 98, 78 / 98, ACCURACY)
    error = sqrt((0.89 * 0.11 + 0.79 * 0.21) / 100)
    assert found is not None and found.by == pytest.approx(10 / 98)
    assert (found.low, found.high) == pytest.approx((0.1 - 1.96 * error, 0.1 + 1.96 * error), abs=1e-4)
    three = of_counts(3, 1.0, 0.0, ACCURACY)
    assert three is not None and three.p > 0.01 and three.low < 1, "three samples are few"
    assert of_counts(100, 0.9, 0.8, METRIC_INFOS["f1_macro"]) is None, "nobody knows how much of it is chance"


def test_the_mean_over_clients_has_the_error_of_all_their_units() -> None:
    """Clients with gains of 1, 0 and of 0, 0: a mean of 1/4, with the variance 2 x 2 x 0.25² / 4 of the first alone."""
    found = of_clients([np.array([1.0, 0.0]), np.zeros(2)], [np.arange(2)] * 2)
    assert found is not None and found.by == 0.25
    # sqrt(2 * (0.5² + 0.5²) / 2²) / 2 clients, and 4.303 of two degrees of freedom
    assert found.high - found.by == pytest.approx(4.3027 * 0.25, rel=1e-4)
    assert of_clients([np.zeros(2), np.ones(1)], [np.arange(2), np.arange(1)]) is None, "nobody knows the error of one"
