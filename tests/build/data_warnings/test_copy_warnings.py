"""Samples that equal or resemble others."""

from pathlib import Path

import numpy as np
import pytest

from fedstrata.build.build import build_run
from fedstrata.config import load_experiment
from own_data import SITES, Arrays, arrays, as_test, built, without


def test_copies_of_training_samples_among_the_test_samples_are_counted(tmp_path: Path) -> None:
    train, test = without(arrays(), "trial"), without(arrays(seed=1), "trial")
    test["x"][:10] = train["x"][:10]
    (warning,) = built(tmp_path, train | as_test(test)).warnings
    assert "10 of 192 test samples equal a training sample" in warning


def noisy_copies() -> Arrays:
    """Three noisy copies of each of 16 samples of each site, of 12 features; ``source`` tells which."""
    rng = np.random.default_rng(5)
    columns = without(arrays(), "trial")
    source = np.concatenate([16 * site + rng.permutation(48) // 3 for site in range(4)])
    x = rng.normal(size=(64, 12))[source] + 0.1 * rng.normal(size=(192, 12))
    return columns | {"x": x.astype(np.float32), "y": source % 2, "source": source}


def test_noisy_copies_of_each_sample_are_noticed_unless_a_unit_keeps_them_together(tmp_path: Path) -> None:
    columns = noisy_copies()
    (warning,) = built(tmp_path, columns).warnings
    assert "2 others of the same client" in warning and "data.unit is not set" in warning
    assert any(f"client {site}" in warning for site in SITES)
    assert built(tmp_path, columns, unit="source").warnings == ()
    assert built(tmp_path, columns, unit="none").warnings == ()
    numbered = columns | {"number": np.arange(192)}
    (warning,) = built(tmp_path, numbered, unit="number").warnings
    assert "data.unit = 'number' does not keep them together" in warning


def test_samples_of_known_data_sets_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fedstrata.build.data_warnings.copies.near_copies", lambda *_: pytest.fail("they were compared")
    )
    assert build_run(load_experiment({"data": {"name": "digits", "clients": 4}})).warnings == ()
