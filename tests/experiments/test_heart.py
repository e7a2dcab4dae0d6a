from pathlib import Path
from statistics import mean, stdev

import numpy as np
import pytest
import torch
from experiments.heart import COLUMNS, HOSPITALS, Logistic, Patients
from experiments.heart_tables import (
    PUBLISHED,
    Predictions,
    difference,
    drawn_means,
    gaps_to_published,
    interval,
    known,
    over_seeds,
    predictions,
    repeated,
    wilson,
)

from experiments import heart

# Patients.


def patients(count: int, seed: int = 0) -> Patients:
    """Patients with the codes of the real files, every second one with the disease."""
    rng = np.random.default_rng(seed)
    features = rng.normal(100, 10, (count, len(COLUMNS)))
    for name, codes in (("cp", (1, 2, 3, 4)), ("restecg", (0, 1, 2)), ("thal", (3, 6, 7))):
        features[:, COLUMNS.index(name)] = np.resize(codes, count)
    disease = np.arange(count) % 2
    return Patients(features, disease, heart.training_rows(disease))


def hospitals() -> dict[str, Patients]:
    return {name: patients(40, seed) for seed, name in enumerate(HOSPITALS)}


def with_gap(given: Patients, row: int, name: str) -> Patients:
    features = given.features.copy()
    features[row, COLUMNS.index(name)] = np.nan
    return Patients(features, given.disease, given.trains)


def test_question_marks_and_nothing_are_gaps_and_any_target_above_0_is_the_disease(tmp_path: Path) -> None:
    rows = ["63,1,4,140,260,0,1,112,1,3,2,?,,2", "44,1,4,130,209,0,1,127,0,0,,,,0"] * 4
    for name in HOSPITALS.values():
        (tmp_path / f"processed.{name}.data").write_text("\n".join([",".join([*COLUMNS, "target"]), *rows]))
    found = heart.read(tmp_path)["VA"]
    assert found.disease.tolist() == [1, 0] * 4
    assert found.features[0, :11].tolist() == [63, 1, 4, 140, 260, 0, 1, 112, 1, 3, 2]
    assert np.isnan(found.features).sum(axis=1).tolist() == [2, 3] * 4


@pytest.mark.parametrize(("sick", "count", "train"), [(139, 303, 199), (98, 261, 172), (45, 46, 30), (101, 130, 85)])
def test_the_split_is_as_large_as_flambys(sick: int, count: int, train: int) -> None:
    disease = np.array([1] * sick + [0] * (count - sick))
    trains = heart.training_rows(disease)
    assert (trains.sum(), count - trains.sum()) == (train, count - train)
    # Of one healthy patient there is nothing to stratify.
    if count - sick > 2:
        assert abs(disease[trains].mean() - disease.mean()) < 0.01


def test_complete_rows_have_thirteen_features_standardised_by_the_hospital_or_by_all() -> None:
    every = hospitals()
    own, pooled = (heart.of_complete_rows(every, scale, scale) for scale in ("hospital", "pooled"))
    for (inputs, _), _ in own.values():
        assert inputs.shape == (26, 13)
        assert np.abs(inputs.mean(axis=0)).max() < 1e-5 and np.allclose(inputs.std(axis=0, ddof=1), 1, atol=1e-5)
    together = np.concatenate([train[0] for train, _ in pooled.values()])
    assert np.abs(together.mean(axis=0)).max() < 1e-5 and np.allclose(together.std(axis=0, ddof=1), 1, atol=1e-5)
    mixed = heart.of_complete_rows(every, training="pooled", testing="hospital")
    for name in HOSPITALS:
        assert np.array_equal(mixed[name][0][0], pooled[name][0][0])
        assert np.array_equal(mixed[name][1][0], own[name][1][0])


def test_test_rows_have_no_part_in_the_preparation_of_all_rows() -> None:
    before = heart.of_all_rows(hospitals())
    changed = {}
    for name, given in hospitals().items():
        features = given.features.copy()
        features[~given.trains, 3] = np.nan
        features[~given.trains, 0] = 1000.0
        changed[name] = Patients(features, given.disease, given.trains)
    after = heart.of_all_rows(changed)
    for name in HOSPITALS:
        assert np.array_equal(before[name][0][0], after[name][0][0])
        assert np.isfinite(after[name][1][0]).all()


def test_the_network_is_one_logistic_unit() -> None:
    network = Logistic(13, seed=42)
    inputs, disease = torch.randn(8, 13), torch.arange(8) % 2
    logits = network.linear(inputs)[:, 0]
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, disease.float())
    assert torch.allclose(torch.nn.functional.cross_entropy(network(inputs), disease), expected)
    assert sum(each.numel() for each in network.parameters()) == 14


def test_every_case_runs_and_says_what_it_predicts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The methods of a study are experiments that the library takes, on few rows and for one round."""
    settings = heart.settings
    short = {"rounds": 1}
    monkeypatch.setattr(heart, "settings", lambda case, seed: {**settings(case, seed), **short})
    for method in ("fedadam", "adacfl", "strata_best"):
        found = heart.one(hospitals(), heart.STUDIES["published"][method], seed=3)
        assert {len(values) for values in found["probabilities"].values()} == {14}
        assert all(0 <= value <= 1 for values in found["probabilities"].values() for value in values)
        assert len(found["groups"]) == 4


# Figures.


def made(right: dict[str, list[list[int]]], groups: tuple[tuple[int, ...], ...] = ()) -> Predictions:
    """Predictions that are right where there is a 1, of patients who all have the disease."""
    return Predictions(
        {name: np.array(rows, dtype=float) for name, rows in right.items()},
        {name: np.ones(len(rows[0]), dtype=np.int64) for name, rows in right.items()},
        groups,
    )


def test_wilsons_interval_is_that_of_the_textbook() -> None:
    # 8 of 10: Newcombe 1998, method 3.
    low, high = wilson(0.8, 10)
    assert (round(low, 3), round(high, 3)) == (0.490, 0.943)
    assert wilson(1.0, 16)[1] == pytest.approx(1.0)


def test_a_bootstrap_of_equal_answers_has_no_width_and_others_surround_their_mean() -> None:
    assert interval(drawn_means({"a": np.ones((3, 5))})) == pytest.approx((1.0, 1.0))
    low, high = interval(drawn_means({"a": np.array([[1.0, 0.0] * 50])}))
    # Its standard error is that of 100 coins, 0.05.
    assert low == pytest.approx(0.5 - 1.96 * 0.05, abs=0.011) and high == pytest.approx(0.5 + 1.96 * 0.05, abs=0.011)


def test_a_difference_is_paired_by_patient() -> None:
    one, other = made({"a": [[1, 0, 1, 0]]}), made({"a": [[1, 0, 1, 0], [1, 0, 1, 0]]})
    assert difference(one, other) == (0.0, 0.0, 0.0)
    better = made({"a": [[1, 1, 1, 0]]})
    gap, low, high = difference(better, other)
    assert gap == 0.25 and low == 0.0 < high


def test_the_interval_over_seeds_is_students() -> None:
    # The half width is t(4) s / sqrt(5) = 2.7764 * 0.015811 / 2.2361.
    gap, low, high = over_seeds([0.00, 0.01, 0.02, 0.03, 0.04])
    assert gap == pytest.approx(0.02)
    assert high - gap == pytest.approx(0.019632, abs=1e-6) == gap - low


# What is committed.


@pytest.mark.parametrize("method", [name for name in PUBLISHED if name not in ("scaffold", "cyclic")])
def test_a_published_figure_is_met_within_its_spread(method: str) -> None:
    found = predictions(known(), "published")[method]
    gaps = gaps_to_published(found, method)
    assert len(gaps) == len(found.groups) == 5
    assert abs(mean(gaps)) <= stdev(PUBLISHED[method].seeds)


def test_a_plain_loop_with_flambys_random_numbers_has_the_published_figures() -> None:
    assert repeated().count("| 4 of 4 |") == 10
