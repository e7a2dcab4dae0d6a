from math import sqrt

import numpy as np
import pytest

from fedstrata.objective.metric_info import ACCURACY, METRIC_INFOS
from fedstrata.report.references import Gain, gain, paired_differences, stands_out


def test_a_difference_is_clear_beyond_two_standard_errors() -> None:
    # With 100 samples, 0.9 and 0.8 are 0.05 apart by chance alone: sqrt((0.09 + 0.16) / 100).
    assert ACCURACY.standard_error(100, 0.9, 0.8) == pytest.approx(sqrt(0.0025))
    own = {0: (100, 0.9), 1: (100, 0.9), 2: (100, 0.5), 3: (10, 0.9), 4: (100, 0.9)}
    other = {0: 0.8, 1: 0.75, 2: 0.7, 3: 0.5, 5: 0.1}
    # 0: 0.10 against 0.098, better; 1: better; 2: worse; 3: 0.4 against 0.36, better; 4 and 5 are in one alone.
    assert gain(own, other, ACCURACY, {}) == Gain(better=[0, 1, 3], worse=[2], unclear=[])
    assert gain({0: (20, 0.8)}, {0: 0.75}, ACCURACY, {}) == Gain([], [], [0])


def test_a_verdict_rests_on_the_samples_where_they_are_known() -> None:
    """Accuracies of .8 and .683 on 60 samples are less than two standard errors of different samples apart."""
    own = {0: (60, 48 / 60)}
    other = {0: 41 / 60}
    one = np.repeat([True, True, False, False], [40, 8, 1, 11])
    two = np.repeat([True, False, True, False], [40, 8, 1, 11])
    assert gain(own, other, ACCURACY, {}) == Gain([], [], [0])
    assert gain(own, other, ACCURACY, paired_differences({0: one}, {0: two})) == Gain([0], [], [])


def test_a_client_stands_out_where_the_worst_of_so_many_would_not_be_as_bad_by_chance() -> None:
    # One of 4 right at a mean of one half: chance 5/16, for 2 clients too.
    assert not stands_out(4, 0.25, 0.5, 2, ACCURACY)
    # None of 8 right: chance 1/256, which is 0.04 for the worst of 10 and 0.08 for the worst of 20.
    assert stands_out(8, 0.0, 0.5, 10, ACCURACY) and not stands_out(8, 0.0, 0.5, 20, ACCURACY)
    assert not stands_out(8, 1.0, 0.5, 1, ACCURACY), "it is better than the mean"
    assert stands_out(1, 0.0, 1.0, 100, ACCURACY), "all others are perfect"
    assert not stands_out(100, 9.0, 1.0, 2, METRIC_INFOS["mse"]), "nobody knows what is chance"
