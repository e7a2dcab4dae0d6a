"""Whose updates a cluster compares, which columns of them, and how they point along its sum and its main axis."""

import numpy as np
import pytest
import torch

from builders import trained
from fedstrata.clustering.groups import GroupIndex
from fedstrata.core import Layout, Rows, TensorSpec
from fedstrata.uploads.checks.compared_updates import UpdatesOfClusters, compared_columns, compared_updates

OF = np.array([0, 1, 0, 1, 0, 1, 0])
CLUSTERS = [np.array([0, 2, 4, 6]), np.array([1, 3, 5])]
COUNTED = np.array([True, True, False, True, True, True, True])


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


@pytest.fixture(params=["products", "rows"])
def seven(request: pytest.FixtureRequest) -> UpdatesOfClusters:
    """These updates, whose sums and axes are computed from their products, or row by row."""
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


def test_only_who_has_trained_the_model_of_its_cluster_is_compared() -> None:
    """Client 4 is pending, and client 2 tries the model of another cluster. Client 3 has not answered."""
    labels = torch.tensor([0, 1, 1, 0, -1])
    report = trained(torch.zeros(4, 1), clients=[4, 2, 1, 0], chosen=[0, 0, 1, 0])
    layout = Layout((TensorSpec("a", "a", "linear", (1,)),))
    assert compared_updates(layout, report, labels).own.tolist() == [-1, -1, 1, 0]


def test_normalisation_layers_and_running_statistics_are_not_compared() -> None:
    linear, other = (TensorSpec(name, name, "linear", (1,)) for name in "ab")
    norm = TensorSpec("norm.weight", "norm", "norm", (1,))
    updates = Rows(torch.tensor([3]), torch.tensor([[1.0, 9.0, 2.0]]))
    some = compared_columns(Layout((linear, norm, other)), updates)
    assert some.clients.tolist() == [3] and some.values.tolist() == [[1.0, 2.0]]
    assert compared_columns(Layout((linear, other)), some) is some
