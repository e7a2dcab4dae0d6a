"""Networks that are small enough for many methods and seeds to take minutes."""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import nn


def small_cnn(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """One convolution and one linear layer, for images of 28 x 28 pixels: 3,098 weights for one channel, ten classes.

    Args:
        shape: Of an image: channels, height, width.
        classes: The number of classes.
    """
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            conv=nn.Conv2d(shape[0], 8, 5, stride=2),
            relu=nn.ReLU(),
            pool=nn.MaxPool2d(2),
            flat=nn.Flatten(),
            linear=nn.Linear(8 * 6 * 6, classes),
        )
    )


def dropout_mlp(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Linear layers with dropout between them."""
    layers = OrderedDict[str, nn.Module](
        flatten=nn.Flatten(),
        fc1=nn.Linear(math.prod(shape), 64),
        relu=nn.ReLU(),
        drop=nn.Dropout(0.5),
        fc2=nn.Linear(64, classes),
    )
    return nn.Sequential(layers)
