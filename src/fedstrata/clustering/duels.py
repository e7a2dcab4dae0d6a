"""Whether models of two groups of clients suit them differently, on samples that trained neither model.

Of two models and a sample, let f be 1 where only the first is wrong, -1 where only the second is, else 0. If all
clients share one distribution, f has the same mean over the samples of either group, whatever the models are and
however they were chosen, as long as the samples had no part in it. So the *advantage*, by how much each group's own
model errs less on its samples than the other one's, both groups added, has mean 0; and since f lies in [-1, 1], it
seldom is large (Hoeffding, "Probability inequalities for sums of bounded random variables", 1963, Theorem 2)::

    P(advantage >= t) <= exp(-2 t^2 / sum of (2 w_c)^2 / n_c)

with n_c independent samples of client c and its weight w_c in the mean of its group. No normality, no resampling, and
no least number of clients: two are told apart by a few hundred samples each.
"""

from __future__ import annotations

from math import exp

from fedstrata.clustering.arrays import Array, Numbers, tensor


def advantage(own: Numbers, other: Numbers, first: Array) -> float:
    """By how much the models of two groups suit their own clients better, the means over both groups added.

    Args:
        own: share of errors of each client's samples under the model of its group, (m,).
        other: the same under the model of the other group, (m,).
        first: who is in the first group, bool (m,).
    """
    away, group = tensor(other).double() - tensor(own).double(), tensor(first)
    return float(away[group].mean() + away[~group].mean())


def duel(own: Numbers, other: Numbers, first: Array, samples: Numbers) -> float:
    """A bound on the probability of such an `advantage`, if all clients share one distribution.

    Args:
        own: share of errors of each client's samples under the model of its group, (m,).
        other: the same under the model of the other group, (m,).
        first: who is in the first group, bool (m,).
        samples: of each client, the number that are independent of each other, (m,), at least 1.

    Returns:
        p, valid for any models and groups that the samples did not choose; 1 where a group has no client.
    """
    group, numbers = tensor(first), tensor(samples).double()
    if not bool(group.any()) or bool(group.all()):
        return 1.0
    apart = advantage(own, other, first)
    spread = sum(float((4 / numbers[side]).sum()) / int(side.sum()) ** 2 for side in (group, ~group))
    return exp(-2 * apart**2 / spread) if apart > 0 else 1.0
