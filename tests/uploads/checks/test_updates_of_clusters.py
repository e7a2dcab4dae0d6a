"""How updates point along the sums and main axes of their clusters, with and without the products of each two."""

import numpy as np
import pytest
import torch

from fedstrata.clustering.groups import GroupIndex
from fedstrata.uploads.checks import updates_of_clusters
from fedstrata.uploads.checks.updates_of_clusters import UpdatesOfClusters

OF = np.array([0, 1, 0, 1, 0, 1, 0])
CLUSTERS = [np.array([0, 2, 4, 6]), np.array([1, 3, 5])]
COUNTED = np.array([True, True, False, True, True, True, True])


WAYS = {
    "products": {"_COPIED": 0, "_GRAM_CLIENTS": 0},
    "copies and Gram matrices": {},
    "rows and power iterations": {"_COPIED": 0, "_GRAM_CLIENTS": 0},
}
"""How sums and axes may be computed, and the constants of the module that lead to it."""


def updates_of(values: torch.Tensor, *, products: bool) -> UpdatesOfClusters:
    norms = np.maximum(values.norm(dim=1).numpy(), 1e-30)
    known = (values.double() @ values.double().T).numpy() if products else None
    return UpdatesOfClusters(GroupIndex(OF, 2), values, np.arange(len(values)), norms, known)


def seven_updates() -> torch.Tensor:
    """Two clusters, each around a direction of its own; the third update is zero."""
    draw = torch.Generator().manual_seed(0)
    values = torch.randn(2, 50, generator=draw)[OF] + torch.randn(7, 50, generator=draw)
    values[2] = 0
    return values


UNITS = torch.nn.functional.normalize(seven_updates()).double().numpy()
"""The same, scaled to norm 1."""


@pytest.fixture(params=WAYS)
def seven(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> UpdatesOfClusters:
    """These updates, whose sums and axes are computed in one of the ways."""
    for name, value in WAYS[request.param].items():
        monkeypatch.setattr(updates_of_clusters, name, value)
    return updates_of(seven_updates(), products=request.param == "products")


def test_updates_point_along_the_sum_of_those_that_count(seven: UpdatesOfClusters) -> None:
    along, squares = seven.along_sums(COUNTED)
    for members in CLUSTERS:
        total = UNITS[members[COUNTED[members]]].sum(axis=0)
        assert along[members] == pytest.approx(UNITS[members] @ total, abs=1e-5)
        assert squares[members] == pytest.approx(total @ total, rel=1e-5)


def test_the_axis_is_the_first_singular_vector_of_those_that_count(seven: UpdatesOfClusters) -> None:
    along = seven.along_axes(COUNTED)
    assert along[~COUNTED].tolist() == [0]
    for members in CLUSTERS:
        own = members[COUNTED[members]]
        axis = np.linalg.svd(UNITS[own])[2][0]
        expected = UNITS[own] @ axis
        found = along[own] * (expected[0] / along[own][0])
        assert found == pytest.approx(expected, abs=1e-3)


def test_updates_that_are_nearly_zero_have_directions_although_their_products_vanish() -> None:
    values = seven_updates()
    usual, _ = updates_of(values, products=True).along_sums(COUNTED)
    tiny = values * 1e-24
    products = (tiny @ tiny.T).double().numpy()
    assert not products.any()
    norms = np.maximum(values.norm(dim=1).numpy() * np.float32(1e-24), 1e-30)
    found, _ = UpdatesOfClusters(GroupIndex(OF, 2), tiny, np.arange(7), norms, products).along_sums(COUNTED)
    assert found == pytest.approx(usual, abs=1e-4)
