from collections.abc import Callable

import numpy as np
import pytest
import torch

from fedstrata.clustering import ari, purity


@pytest.mark.parametrize("measure", [ari, purity])
@pytest.mark.parametrize("labels", [[5], [0, 0, 0], [3, 1, 3, 1], [0, 1, 2, 3]])
def test_the_same_groups_by_any_name_agree_fully(measure: Callable[..., float], labels: list[int]) -> None:
    assert measure(labels, [10 - label for label in labels]) == pytest.approx(1)
    assert measure(torch.tensor(labels), np.array(labels)) == pytest.approx(1)


def test_ari_of_a_textbook_pair() -> None:
    # pairs together in both 1, in the first 1 + 1, in the second 3, of 6: (1 - 2*3/6) / ((2 + 3)/2 - 2*3/6) = 0
    assert ari([0, 0, 1, 1], [0, 0, 0, 1]) == pytest.approx(0)
    # 2 in both, 4 in each of 10: (2 - 16/10) / (4 - 16/10) = 1/6
    assert ari([0, 0, 0, 1, 1], [0, 0, 1, 1, 1]) == pytest.approx(1 / 6)


def test_purity_counts_each_cluster_s_majority() -> None:
    labels, truth = [0, 0, 0, 1, 1], [0, 0, 1, 1, 1]
    assert purity(labels, truth) == 4 / 5  # 2 of 3, and 2 of 2
    assert purity([0, 1, 2, 3, 4], truth) == 1
    assert purity(truth, [0, 1, 2, 3, 4]) == 2 / 5


def test_each_pending_client_is_a_group_of_its_own() -> None:
    truth = [0, 0, 1, 1]
    for measure in (ari, purity):
        assert measure([0, 0, -1, -1], truth) == measure([0, 0, 1, 2], truth)
    assert ari([-1, -1, -1], [0, 1, 2]) == 1
