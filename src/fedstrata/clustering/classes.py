"""How evenly a client holds its classes."""

from __future__ import annotations

from fedstrata.clustering.arrays import Numbers, require_finite, tensor


def entropy(counts: Numbers) -> float:
    """Entropy of one client's labels: 0 for one class (or no sample), log2(c) for c equal ones (AdaCFL Eq. 4).

    Args:
        counts: The number of samples of each class, (c,), at least 0.

    Returns:
        The entropy in bits.

    Raises:
        ValueError: When a count is negative or not finite.
    """
    samples = tensor(counts).double()
    if samples.ndim != 1 or (samples < 0).any():
        raise ValueError(f"expected counts (c,) of at least 0, found {samples.tolist()}")
    held = require_finite(samples[samples > 0], "counts")
    shares = held / held.sum()
    return max(0.0, -float((shares * shares.log2()).sum()))
