"""A test of whether the models of two groups suit them differently, on samples that trained neither model."""

from __future__ import annotations

from math import exp

from fedstrata.clustering.arrays import Array, Numbers, tensor


def error_rate_test(own: Numbers, other: Numbers, first: Array, samples: Numbers) -> float:
    """Test whether the models of two groups suit them differently, on samples that trained neither model.

    Of two models and a sample, let f be 1 where only the first model is wrong, -1 where only the second is, else 0. If
    all clients share one distribution, f has the same mean over the samples of either group, whatever the models are
    and however they were chosen, as long as the samples had no part in it. The *advantage* is the mean of f in the
    second group minus that in the first. It is positive if each group's own model has the fewer errors. Under the null
    hypothesis its mean is 0, and because f lies in [-1, 1], it is seldom large (Hoeffding, "Probability inequalities
    for sums of bounded random variables", 1963, Theorem 2)::

        P(advantage >= t) <= exp(-2 t^2 / sum of (2 w_c)^2 / n_c)

    with n_c independent samples of client c and its weight w_c in the mean of its group. No normality, no resampling
    and no minimum number of clients are needed.

    Args:
        own: The share of errors of each client's samples under the model of its group, (m,).
        other: The same under the model of the other group, (m,).
        first: Who is in the first group, bool (m,).
        samples: The number of independent samples of each client, (m,), at least 1.

    Returns:
        p, valid for any models and groups that the samples did not choose. It is 1 where a group has no client.
    """
    group = tensor(first)
    if not bool(group.any()) or bool(group.all()):
        return 1.0
    numbers = tensor(samples).double()
    difference = tensor(other).double() - tensor(own).double()
    advantage = float(difference[group].mean() + difference[~group].mean())
    if advantage <= 0:
        return 1.0
    spread = sum(float((4 / numbers[side]).sum()) / int(side.sum()) ** 2 for side in (group, ~group))
    return exp(-2 * advantage**2 / spread)
