"""What describes the inputs of a client in a few numbers: means of random features.

Rahimi, Recht, "Weighted sums of random kitchen sinks", NeurIPS 2008, with rectified projections as features. Inputs of
other distributions have other means, whatever the classes are. FLUX (NeurIPS 2025) compares P(X) of clients likewise.
"""

from __future__ import annotations

from functools import lru_cache

from torch import Tensor, int64, ones, randn, zeros

from fedstrata.base.randomness import generator

INPUT_FEATURES = 32
"""The numbers by which inputs are described."""

_TOKENS = 1024
"""Tokens are counted by their number modulo this one: the size of the vocabulary is not known."""


def input_features(inputs: Tensor, seed: int) -> Tensor:
    """Random features of some samples.

    Args:
        inputs: The samples as the network reads them, (s, ...) float32; or tokens, (s, length) int64, whose order does
            not count.
        seed: The seed of the run, which fixes the projection.

    Returns:
        The features, (s, `INPUT_FEATURES`) float32, each at least 0.
    """
    if inputs.dtype == int64:
        inputs = zeros(len(inputs), _TOKENS).scatter_add_(1, inputs % _TOKENS, ones(inputs.shape))
    flat = inputs.flatten(1)
    return (flat @ _projection(seed, flat.shape[1])).relu()


@lru_cache(maxsize=1)
def _projection(seed: int, width: int) -> Tensor:
    """The weights of the features, (width, `INPUT_FEATURES`). No feature grows with the width."""
    return randn(width, INPUT_FEATURES, generator=generator(seed, "inputs")).div(width**0.5)
