"""The handwritten digits that scikit-learn carries, so that something real runs without any file."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from fedstrata.data.dataset import Dataset, moments
from fedstrata.lazy_torch import torch


def read_digits() -> Dataset:
    """1,797 images, inputs (1797, 1, 8, 8) uint8; the 17 shades of the source are spread over 0 to 255."""
    source = load_digits()
    shades = np.rint(source.images * (255 / 16)).astype(np.uint8)
    inputs = torch.from_numpy(shades[:, None])
    labels = torch.from_numpy(source.target.astype(np.int64))
    mean, std = moments(inputs)
    return Dataset("digits", inputs, labels, 10, mean, std, class_names=tuple("0123456789"))
