"""Updates that lie on one side of those of their cluster in nearly all columns."""

import numpy as np
import torch

from builders import trained
from fedstrata.core import Layout, TensorSpec
from fedstrata.uploads.checks.compared_updates import compared_updates
from fedstrata.uploads.checks.one_sided_updates import balances, one_sided

COLUMNS = 400
LAYOUT = Layout((TensorSpec("0.weight", "0", "linear", (1, COLUMNS)),))


def honest(count: int, seed: int = 0) -> torch.Tensor:
    """Updates of clients that differ by chance, (count, columns)."""
    return torch.randn(count, COLUMNS, generator=torch.Generator().manual_seed(seed))


def found(updates: torch.Tensor, labels: list[int] | None = None, chosen: list[int] | None = None) -> list[int]:
    """Whose update is one-sided."""
    known = torch.tensor(labels or [0] * len(updates))
    report = trained(updates, chosen=known if chosen is None else chosen)
    return np.flatnonzero(one_sided(compared_updates(LAYOUT, report, known))).tolist()


def shifted(others: torch.Tensor, strength: float) -> torch.Tensor:
    """What ALIE sends: the mean minus the strength times the standard deviation, in each column."""
    return others.mean(dim=0) - strength * others.std(dim=0)


def test_a_balance_is_the_share_of_columns_above_the_median_minus_that_below() -> None:
    """The median of each column is 0. Of four columns, row 1 is above in three and row 2 in one."""
    values = torch.tensor([[0.0] * 4, [1.0, 1.0, 1.0, -1.0], [-1.0, -1.0, -1.0, 1.0]]).repeat(1, 100)
    assert balances(values[None].numpy()).tolist() == [[0.0, 0.5, -0.5]]


def test_columns_in_which_nobody_differs_do_not_count() -> None:
    values = torch.tensor([[0.0, 0.0], [2.0, 0.0], [-2.0, 0.0]]).repeat(1, 100)
    assert balances(values[None].numpy()).tolist() == [[0.0, 1.0, -1.0]]
    assert balances(values[None, :, :198].numpy()).tolist() == [[0.0, 0.0, 0.0]]  # 99 columns say too little


def test_an_update_below_all_others_in_each_column_is_found_and_so_is_one_above() -> None:
    others = honest(6)
    assert found(torch.cat([others, shifted(others, 1.5)[None]])) == [6]
    assert found(torch.cat([others, shifted(others, -1.5)[None]])) == [6]


def test_two_of_five_are_found() -> None:
    """The median of a column is the lowest honest value, so the honest ones have a balance of 2/3 or so."""
    others = honest(3)
    attack = shifted(others, 2.0)[None]
    assert found(torch.cat([others, attack, attack])) == [3, 4]


def test_honest_updates_are_not_found() -> None:
    for seed in range(20):
        assert found(honest(5, seed)) == []


def test_where_half_are_one_sided_nobody_is() -> None:
    """Each update is a step of all weights at once: the outer ones are on one side of the median everywhere."""
    steps = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0])[:, None].expand(-1, COLUMNS)
    assert found(steps) == []


def test_clients_are_compared_with_those_of_their_own_cluster() -> None:
    """The second cluster is below the first in all columns, and nobody in it is below the others."""
    assert found(torch.cat([honest(4), honest(3, seed=1) - 10.0]), labels=[0, 0, 0, 0, 1, 1, 1]) == []


def test_every_cluster_is_looked_at_whatever_its_size() -> None:
    """Two clusters of five and one of six, whose clients alternate; the first and the last have an attacker."""
    labels = [0, 1, 2] * 5 + [2]
    updates = honest(len(labels), seed=2)
    for attacker, cluster in ((12, 0), (15, 2)):
        others = [row for row, label in enumerate(labels) if label == cluster and row != attacker]
        updates[attacker] = shifted(updates[others], 1.5)
    assert found(updates, labels) == [12, 15]


def test_who_has_trained_another_model_is_not_compared() -> None:
    others = honest(6)
    updates = torch.cat([others, shifted(others, 1.5)[None]])
    assert found(updates, chosen=[0, 0, 0, 0, 0, 0, 1]) == []


def test_two_clients_are_not_compared() -> None:
    others = honest(2)
    assert found(torch.stack([others[0], others[0] - 10.0])) == []
