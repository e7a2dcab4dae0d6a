"""Networks that are small enough for many methods and seeds to take minutes."""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import nn


def small_cnn(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """One convolution and one linear layer, for images of at least 7 x 7 pixels.

    It has 3,098 weights for 28 x 28 pixels of one channel and ten classes.

    Args:
        shape: Of an image: channels, height, width.
        classes: The number of classes.
    """
    # A kernel of 5 with a stride of 2, then pools of 2.
    height, width = (((pixels - 5) // 2 + 1) // 2 for pixels in shape[1:])
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            conv=nn.Conv2d(shape[0], 8, 5, stride=2),
            relu=nn.ReLU(),
            pool=nn.MaxPool2d(2),
            flat=nn.Flatten(),
            linear=nn.Linear(8 * height * width, classes),
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
