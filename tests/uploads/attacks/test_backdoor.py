"""The trigger of a backdoor, and the samples that have it."""

import numpy as np
import torch

from fedstrata.data import Dataset
from fedstrata.partition import Partition
from fedstrata.uploads.attacks.backdoor import Trigger, trigger_of, with_backdoor


def test_the_trigger_of_an_image_is_its_bottom_right_corner() -> None:
    trigger = Trigger(torch.tensor([255, 200], dtype=torch.uint8), target=0)
    images = torch.zeros(1, 2, 7, 14, dtype=torch.uint8)
    stamped = trigger.stamp(images)
    # A seventh of 7 rows is one, of 14 columns two.
    assert stamped[0, :, 6, 12:].tolist() == [[255, 255], [200, 200]]
    assert int(stamped.long().sum()) == 2 * 255 + 2 * 200 and not images.any()
    assert int((trigger.stamp(torch.zeros(1, 2, 28, 28, dtype=torch.uint8)) > 0).sum()) == 2 * 16
    assert int((trigger.stamp(torch.zeros(1, 2, 8, 8, dtype=torch.uint8)) > 0).sum()) == 2 * 4  # rounded up


def test_the_trigger_of_other_samples_is_their_end() -> None:
    features = torch.zeros(2, 14)
    stamped = Trigger(torch.arange(14.0), target=0).stamp(features)
    assert stamped[:, 12:].tolist() == [[12.0, 13.0]] * 2 and not stamped[:, :12].any()
    signals = Trigger(torch.tensor([1.5]), target=0).stamp(torch.zeros(1, 1, 21))
    assert signals.flatten().tolist() == [0.0] * 18 + [1.5] * 3


def images(samples: int) -> Dataset:
    """Images without light but for one pixel, of classes 0, 1, 2, 0, 1, 2, and so on."""
    inputs = torch.zeros(samples, 1, 7, 7, dtype=torch.uint8)
    inputs[0, 0, 3, 3] = 250
    return Dataset("images", inputs, torch.arange(samples) % 3, 3, (0.0,), (1.0,))


def partition_of(turns: list[int], relabel: list[list[int]]) -> Partition:
    """Two clients with twelve samples for training and three for testing."""
    index = np.arange(30)
    train = (index[:12], index[15:27])
    return Partition(train, (index[12:15], index[27:]), None, np.array(turns), np.array(relabel))


def test_a_share_of_the_samples_of_other_classes_have_the_trigger_and_are_called_the_target() -> None:
    dataset = images(30)
    trigger = trigger_of(dataset, target=2)
    assert trigger.largest.tolist() == [250]
    partition = partition_of([0, 0], [[0, 1, 2], [0, 1, 2]])
    found = with_backdoor(dataset, partition, [1], trigger, 0.3, seed=0)
    changed = (found.inputs[:, 0, 6, 6] == 250).nonzero().flatten()
    # Eight of the twelve are of other classes, and 0.3 of eight is 2.4.
    assert len(changed) == 3 and set(changed.tolist()) <= set(range(15, 27))
    assert found.labels[changed].tolist() == [2, 2, 2] and 2 not in dataset.labels[changed].tolist()
    same = torch.ones(30, dtype=torch.bool).index_fill(0, changed, False)
    assert torch.equal(found.labels[same], dataset.labels[same])
    assert torch.equal(found.inputs[same], dataset.inputs[same])
    assert not dataset.inputs[:, 0, 6, 6].any()  # the data that were given are as they were
    again = with_backdoor(dataset, partition, [1], trigger, 0.3, seed=0)
    other = with_backdoor(dataset, partition, [1], trigger, 0.3, seed=1)
    assert torch.equal(again.inputs, found.inputs) and not torch.equal(other.inputs, found.inputs)


def test_a_client_with_turned_images_and_other_labels_sees_the_trigger_in_its_corner_and_the_target() -> None:
    dataset = images(30)
    partition = partition_of([0, 1], [[0, 1, 2], [1, 2, 0]])
    found = with_backdoor(dataset, partition, [1], trigger_of(dataset, target=0), 1.0, seed=0)
    index = torch.arange(15, 27)
    seen = torch.rot90(found.inputs[index], 1, dims=(2, 3))
    labels = torch.tensor([1, 2, 0])[found.labels[index]]
    assert labels.tolist() == [0] * 12  # all of other classes, and those that were the target before
    # The target was class 2 of the data set before: its four samples have no trigger.
    assert (seen[:, 0, 6, 6] == 250).tolist() == (dataset.labels[index] != 2).tolist()
