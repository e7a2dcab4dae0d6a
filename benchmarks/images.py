"""Images without content, which matters neither for speed nor for memory."""

from __future__ import annotations

import numpy as np
import torch

from fedstrata import data


def noise(samples: int) -> data.Dataset:
    """So many images of CIFAR-10's shape, in ten classes."""
    rng = np.random.default_rng(0)
    return data.Dataset(
        name="noise",
        inputs=torch.from_numpy(rng.integers(0, 256, (samples, 3, 32, 32), dtype=np.uint8)),
        labels=torch.from_numpy(rng.integers(0, 10, samples)),
        classes=10,
        mean=(0.5, 0.5, 0.5),
        std=(0.25, 0.25, 0.25),
    )
