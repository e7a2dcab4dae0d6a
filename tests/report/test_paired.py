"""Two runs on the same clients, compared test sample by test sample."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from builders import run
from fedstrata.records.arrays import read_right_samples
from fedstrata.records.folder import Folder
from fedstrata.report.references import paired_difference, paired_differences


def samples(both: int, own: int, other: int, neither: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """So many samples that both models classify correctly, the first alone, the second alone, and neither."""
    counts = [both, own, other, neither]
    return np.repeat([True, True, False, False], counts), np.repeat([True, False, True, False], counts)


def test_of_nine_samples_that_differ_eight_for_one_model_are_more_than_chance() -> None:
    # Two tails of (1 + 9) / 2^9 each: 20 / 512.
    found = paired_difference(*samples(both=40, own=8, other=1, neither=11))
    assert found.p == pytest.approx(20 / 512) and found.clear
    assert found.by == pytest.approx(7 / 60)
    # 7 / 62, and 1.96 times sqrt(11 - 49 / 62) / 62.
    assert found.low == pytest.approx(0.1129 - 0.1010, abs=1e-4)
    assert found.high == pytest.approx(0.1129 + 0.1010, abs=1e-4)


def test_the_same_difference_without_agreement_is_chance() -> None:
    # 7 of 60 better off as well, but 27 against 20 of the 47 samples that differ.
    found = paired_difference(*samples(both=5, own=27, other=20, neither=8))
    assert found.by == pytest.approx(7 / 60) and not found.clear
    assert found.low < 0 < found.high


def test_models_that_agree_on_few_samples_may_differ_on_others() -> None:
    few = paired_difference(*samples(both=3, own=0, other=0, neither=2))
    many = paired_difference(*samples(both=300, own=0, other=0, neither=200))
    assert (few.by, few.p, few.clear) == (many.by, many.p, many.clear) == (0.0, 1.0, False)
    assert few.low < many.low < 0 < many.high < few.high


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))
def test_the_difference_lies_in_its_interval_and_turns_with_the_models(
    both: int, own: int, other: int, no: int
) -> None:
    one, two = samples(both, own, other, no + 1)
    found = paired_difference(one, two)
    assert found.by == pytest.approx(one.mean() - two.mean())
    assert found.low - 1e-12 <= found.by <= found.high + 1e-12
    back = paired_difference(two, one)
    assert (back.by, back.low, back.high) == pytest.approx((-found.by, -found.high, -found.low))


def test_clients_with_other_samples_are_not_compared() -> None:
    one, two = samples(1, 1, 0, 1)
    assert list(paired_differences({0: one, 1: one, 2: one}, {0: two, 1: two[:2], 3: two})) == [0]


def test_a_summary_has_the_gain_of_every_client_over_one_model_for_all(tmp_path: Path) -> None:
    found = run(tmp_path / "run", data={"samples": 60}, algorithm={"name": "oracle"}, report={"baseline": True})
    folder = Folder(found.folder)
    known = folder.summary()["baseline_gains"]
    own, other = read_right_samples(found.folder), read_right_samples(found.folder / "baseline")
    assert sorted(map(int, known)) == list(range(6))
    for client, gained in known.items():
        assert gained["by"] == pytest.approx(own[int(client)].mean() - other[int(client)].mean())
    better = [client for client, each in known.items() if each["p"] < 0.05 and each["by"] > 0]
    assert folder.summary()["baseline_better"] == len(better)
