from dataclasses import replace

import numpy as np
import torch

from fedstrata.data import Dataset
from fedstrata.data.preparation import of_numbers
from fedstrata.engine import ClientData
from fedstrata.partition import Partition
from fedstrata.play.client_descriptions import MOST_PIXELS, describe_clients, digest_clients


def client_data(inputs: torch.Tensor, turns: list[int]) -> ClientData:
    """Two clients with two training samples each, of classes 0, 0 and 0, 1; the second swaps the classes."""
    channels = inputs.shape[1]
    labels = torch.tensor([0, 0, 0, 1, 0, 0])
    dataset = Dataset("mine", inputs, labels, 2, (0.0,) * channels, (1.0,) * channels, class_names=("a", "b"))
    train = (np.array([0, 1]), np.array([2, 3]))
    test = (np.array([4]), np.array([5]))
    partition = Partition(train, test, None, np.array(turns), np.array([[0, 1], [1, 0]]))
    return ClientData(dataset, partition, seed=0)


def test_classes_are_counted_and_inputs_averaged_as_the_clients_see_them() -> None:
    images = torch.zeros(6, 1, 2, 2)
    images[:, 0, 0, 0] = torch.tensor([1.0, 3.0, 2.0, 4.0, 9.0, 9.0])
    found = describe_clients(client_data(images, turns=[0, 1]))
    assert found.class_counts.tolist() == [[2, 0], [1, 1]]
    assert found.class_names == ("a", "b")
    assert found.mean_inputs is not None
    assert found.mean_inputs[0, 0].tolist() == [[2.0, 0.0], [0.0, 0.0]]
    assert found.mean_inputs[1, 0].tolist() == [[0.0, 0.0], [3.0, 0.0]]  # a quarter turn against the clock


def test_signals_have_a_level_in_each_channel_and_large_images_are_reduced() -> None:
    signals = torch.arange(6 * 2 * 5, dtype=torch.float32).reshape(6, 2, 5)
    found = describe_clients(client_data(signals, turns=[0, 0]))
    assert found.mean_inputs is not None
    assert found.mean_inputs[0].tolist() == [7.0, 12.0]  # channel 0 holds 0..4 and 10..14, channel 1 5..9 and 15..19
    large = describe_clients(client_data(torch.ones(6, 3, 64, 64), turns=[0, 0]))
    assert large.mean_inputs is not None
    assert large.mean_inputs.shape == (2, 3, MOST_PIXELS, MOST_PIXELS)


def test_means_of_features_are_in_standard_deviations_however_they_are_read() -> None:
    """Ages 20, 40 and 60, 80 to train on: the mean is 50, the deviation sqrt(500)."""
    ages = torch.tensor([[20.0], [40.0], [60.0], [80.0], [0.0], [0.0]])
    held = client_data(ages, turns=[0, 0])
    held.dataset = replace(held.dataset, mean=(), std=(), preparation=of_numbers(("age",), (10.0,), (5.0,)))
    found = describe_clients(held)
    assert found.mean_inputs is not None
    expected = np.array([[-20.0], [20.0]]) / 500**0.5
    assert np.allclose(found.mean_inputs, expected, atol=1e-3)


def test_the_digest_is_of_samples_and_labels() -> None:
    rows = torch.arange(12, dtype=torch.float32).reshape(6, 2)
    before = client_data(rows, turns=[0, 0])
    known = digest_clients(before)
    assert digest_clients(client_data(rows.clone(), turns=[0, 0])) == known
    for sample in (0, 3, 4, 5):
        other = rows.clone()
        other[sample, 1] += 1e-3
        assert digest_clients(client_data(other, turns=[0, 0])) != known
    before.dataset.labels[2] = 1
    assert digest_clients(before) != known


def test_pixels_that_another_decoder_rounds_in_another_way_leave_the_digest() -> None:
    images = torch.zeros(6, 1, 2, 2, dtype=torch.uint8)
    before, now = (client_data(each, turns=[0, 1]) for each in (images, images + 1))
    assert digest_clients(before) == digest_clients(now)
    before.dataset.labels[4] = 1
    assert digest_clients(before) != digest_clients(now)
