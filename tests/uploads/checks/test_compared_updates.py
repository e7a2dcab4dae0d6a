"""Whose updates a cluster compares, and which columns of them."""

import torch

from fedstrata.core import TRAIN, Layout, Report, Result, Rows, TensorSpec
from fedstrata.uploads.checks.compared_updates import compared_columns, own_clusters


def test_only_who_has_trained_the_model_of_its_cluster_is_compared() -> None:
    """Client 4 is pending, and client 2 tries the model of another cluster. Client 3 has not answered."""
    labels = torch.tensor([0, 1, 1, 0, -1])
    rows = Rows(torch.tensor([4, 2, 1, 0]), torch.zeros(4, 1))
    result = Result(rows, torch.tensor([0, 0, 1, 0]), torch.ones(4), torch.zeros(4, 1))
    assert own_clusters(Report({TRAIN: result}), labels).tolist() == [-1, -1, 1, 0]


def test_normalisation_layers_and_running_statistics_are_not_compared() -> None:
    linear, other = (TensorSpec(name, name, "linear", (1,)) for name in "ab")
    norm = TensorSpec("norm.weight", "norm", "norm", (1,))
    updates = Rows(torch.tensor([3]), torch.tensor([[1.0, 9.0, 2.0]]))
    some = compared_columns(Layout((linear, norm, other)), updates)
    assert some.clients.tolist() == [3] and some.values.tolist() == [[1.0, 2.0]]
    assert compared_columns(Layout((linear, other)), some) is some
