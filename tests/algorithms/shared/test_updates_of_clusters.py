"""How updates point along the sums and main axes of their clusters, with and without the products of each two."""

import numpy as np
import pytest
import torch

from fedstrata.algorithms.shared import updates_of_clusters
from fedstrata.algorithms.shared.groups import GroupIndex
from fedstrata.algorithms.shared.updates_of_clusters import UpdatesOfClusters

OF = np.array([0, 1, 0, 1, 0, 1, 0])
CLUSTERS = [np.array([0, 2, 4, 6]), np.array([1, 3, 5])]
COUNTED = np.array([True, True, False, True, True, True, True])


def updates_of(values: torch.Tensor, *, few: bool) -> UpdatesOfClusters:
    norms = np.maximum(values.norm(dim=1).numpy(), 1e-30)
    products = (values.double() @ values.double().T).numpy() if few else None
    return UpdatesOfClusters(GroupIndex(OF, 2), values, np.arange(len(values)), norms, products)


def seven_updates() -> torch.Tensor:
    """Two clusters, each around a direction of its own; the third update is zero."""
    draw = torch.Generator().manual_seed(0)
    values = torch.randn(2, 50, generator=draw)[OF] + torch.randn(7, 50, generator=draw)
    values[2] = 0
    return values


@pytest.mark.parametrize(("few", "copied"), [(True, 0), (False, 2**20), (False, 0)])
def test_updates_point_along_the_sum_of_those_that_count(
    few: bool, copied: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates_of_clusters, "_COPIED", copied)
    values = seven_updates()
    units = torch.nn.functional.normalize(values).double().numpy()
    along, squares = updates_of(values, few=few).along_sums(COUNTED)
    for members in CLUSTERS:
        total = units[members[COUNTED[members]]].sum(axis=0)
        assert along[members] == pytest.approx(units[members] @ total, abs=1e-5)
        assert squares[members] == pytest.approx(total @ total, rel=1e-5)


@pytest.mark.parametrize(("few", "gram"), [(True, 0), (False, 512), (False, 0)])
def test_the_axis_is_the_first_singular_vector_of_those_that_count(
    few: bool, gram: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates_of_clusters, "_GRAM_CLIENTS", gram)
    values = seven_updates()
    units = torch.nn.functional.normalize(values).double().numpy()
    along = updates_of(values, few=few).along_axes(COUNTED)
    assert along[~COUNTED].tolist() == [0]
    for members in CLUSTERS:
        own = members[COUNTED[members]]
        axis = np.linalg.svd(units[own])[2][0]
        expected = units[own] @ axis
        found = along[own] * (expected[0] / along[own][0])
        assert found == pytest.approx(expected, abs=1e-3)


def test_updates_that_are_nearly_zero_have_directions_although_their_products_vanish() -> None:
    values = seven_updates()
    usual, _ = updates_of(values, few=True).along_sums(COUNTED)
    tiny = values * 1e-24
    products = (tiny @ tiny.T).double().numpy()
    assert not products.any()
    norms = np.maximum(values.norm(dim=1).numpy() * np.float32(1e-24), 1e-30)
    found, _ = UpdatesOfClusters(GroupIndex(OF, 2), tiny, np.arange(7), norms, products).along_sums(COUNTED)
    assert found == pytest.approx(usual, abs=1e-4)
