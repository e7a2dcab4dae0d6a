"""Images without content, which matters neither for speed nor for memory."""

from __future__ import annotations

import numpy as np
import torch

from fedstrata import data


def noise(samples: int, shape: tuple[int, int, int] = (3, 32, 32)) -> data.Dataset:
    """So many images, of CIFAR-10's shape unless another one is given, in ten classes."""
    rng = np.random.default_rng(0)
    return data.Dataset(
        name="noise",
        inputs=torch.from_numpy(rng.integers(0, 256, (samples, *shape), dtype=np.uint8)),
        labels=torch.from_numpy(rng.integers(0, 10, samples)),
        classes=10,
        mean=(0.5,) * shape[0],
        std=(0.25,) * shape[0],
    )
