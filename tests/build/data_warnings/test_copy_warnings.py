"""Samples that equal or resemble others."""

from pathlib import Path

import numpy as np
import pytest
from own_table import others

from fedstrata.build.build import build_run
from fedstrata.config import load_experiment
from own_data import SITES, Arrays, arrays, as_test, built, without


def test_copies_of_training_samples_among_the_test_samples_are_counted(tmp_path: Path) -> None:
    train, test = without(arrays(), "trial"), without(arrays(seed=1), "trial")
    test["x"][:10] = train["x"][:10]
    (warning,) = others(built(tmp_path, train | as_test(test)))
    assert "10 of 192 test samples equal a training sample; by chance 0 would" in warning


def test_rows_of_a_held_out_share_that_stand_twice_are_counted(tmp_path: Path) -> None:
    columns = without(arrays(), "trial")
    twice = np.r_[np.arange(192), np.arange(0, 192, 8)]
    (warning,) = built(tmp_path, {name: values[twice] for name, values in columns.items()}, unit="none").warnings
    assert "test samples equal a training sample; by chance 0 would" in warning


@pytest.mark.parametrize("levels", [(40,), (40, 2, 6), (2, 2, 2, 3)])
def test_people_of_one_age_are_no_copies(levels: tuple[int, ...], tmp_path: Path) -> None:
    """All 185 of 185 test samples had the age of a training sample."""
    columns = without(arrays(), "trial")
    of_people = [np.random.default_rng(seed).integers(0, levels, size=(192, len(levels))) for seed in (0, 1)]
    train, test = (columns | {"x": each.astype(np.float32)} for each in of_people)
    assert built(tmp_path, train, unit="none").warnings == ()
    assert built(tmp_path, train | as_test(test), unit="none").warnings == ()


def noisy_copies() -> Arrays:
    """Three noisy copies of each of 16 samples of each site, of 12 features; ``source`` tells which."""
    rng = np.random.default_rng(5)
    columns = without(arrays(), "trial")
    source = np.concatenate([16 * site + rng.permutation(48) // 3 for site in range(4)])
    x = rng.normal(size=(64, 12))[source] + 0.1 * rng.normal(size=(192, 12))
    return columns | {"x": x.astype(np.float32), "y": source % 2, "source": source}


def test_noisy_copies_of_each_sample_are_noticed_unless_a_unit_keeps_them_together(tmp_path: Path) -> None:
    columns = noisy_copies()
    (warning,) = others(built(tmp_path, columns))
    assert "look like noisy copies" in warning
    assert any(f"client {site}" in warning for site in SITES)
    assert others(built(tmp_path, columns, unit="source")) == ()
    assert others(built(tmp_path, columns, unit="none")) == ()
    numbered = columns | {"number": np.arange(192)}
    (warning,) = others(built(tmp_path, numbered, unit="number"))
    assert "look like noisy copies" in warning


def test_samples_of_known_data_sets_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedstrata.build.data_warnings.copies.neighbours", lambda *_: pytest.fail("they were compared"))
    assert others(build_run(load_experiment({"data": {"name": "digits", "clients": 4}}))) == ()
