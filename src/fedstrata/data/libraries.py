"""Data sets that other libraries carry: scikit-learn's digits."""

from __future__ import annotations

import numpy as np

from fedstrata.base.lazy_torch import torch
from fedstrata.data.dataset import Dataset, channel_statistics


def read_digits() -> Dataset:
    """Return 1,797 images of 8 x 8 pixels; the 17 shades of the source are spread over 0 to 255."""
    from sklearn.datasets import load_digits

    source = load_digits()
    shades = np.rint(source.images * (255 / 16)).astype(np.uint8)
    inputs = torch.from_numpy(shades[:, None])
    labels = torch.from_numpy(source.target.astype(np.int64))
    mean, std = channel_statistics(inputs)
    return Dataset("digits", inputs, labels, 10, mean, std, class_names=tuple("0123456789"))
