"""Samples for validation: nothing is trained on them, they are no test samples, and every engine scores them alike."""

from pathlib import Path

import numpy as np
import pytest
import torch

from builders import federation, keys, run
from fedstrata.base.errors import PartitionError
from fedstrata.partition import Partition, with_validation

pytestmark = pytest.mark.usefixtures("forked_workers")

KEYS = keys(data={"clients": 4, "samples": 50, "validation": 0.2}, local={"lr": 0.3})


def partition_of(train: list[int], test: list[int]) -> Partition:
    arrays = [(np.array(each, dtype=np.int64),) for each in (train, test)]
    turns = np.zeros(1, dtype=np.int64)
    return Partition(arrays[0], arrays[1], None, turns, np.array([[0, 1]]))


def test_a_share_of_each_class_is_taken_out_of_the_training_samples() -> None:
    labels = np.array([0, 1] * 10)
    found = with_validation(partition_of(list(range(16)), [16, 17]), labels, 0.25, seed=0)
    assert labels[found.validation[0]].tolist().count(0) == labels[found.validation[0]].tolist().count(1) == 2
    assert sorted([*found.train[0], *found.validation[0]]) == list(range(16))
    assert found.test[0].tolist() == [16, 17]


def test_no_unit_is_divided_between_training_and_validation() -> None:
    units = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3])
    found = with_validation(partition_of(list(range(9)), [9, 10, 11]), np.zeros(12, dtype=np.int64), 0.3, 0, units)
    assert not set(units[found.train[0]]) & set(units[found.validation[0]])


def test_a_client_with_too_few_samples_is_named() -> None:
    with pytest.raises(PartitionError, match=r"^data.validation = 0.5: client 0 cannot be split: it has 1 samples"):
        with_validation(partition_of([0], [1]), np.array([0, 0]), 0.5, seed=0)


def test_the_test_samples_are_those_of_a_run_without_validation() -> None:
    with_some, without = (federation(KEYS, data={"validation": share}).client_data for share in (0.2, 0.0))
    for client in range(4):
        assert torch.equal(with_some.test(client), without.test(client))
        taken = with_some.held_out(client, "validation")
        both = torch.cat([with_some.train(client), taken]).sort().values
        assert torch.equal(both, without.train(client)) and len(taken) == 10
    assert with_some.validates and not without.validates


def test_the_summary_has_the_round_that_validation_selects(tmp_path: Path) -> None:
    found = run(tmp_path / "run", KEYS)
    accuracies = [record["acc_validation"] for record in found.rounds]
    selected = accuracies.index(max(accuracies))
    assert found.summary["selected_round"] == selected + 1
    assert found.summary["acc_selected"] == found.rounds[selected]["acc_client"]
    plain = run(tmp_path / "plain", KEYS, data={"validation": 0.0})
    assert "acc_selected" not in plain.summary and "acc_validation" not in plain.rounds[0]
