"""Sums of clipped updates with Gaussian noise: client-level differential privacy inside every cluster.

The server clips the whole update of a client, sums the updates of a cluster with equal weights, adds noise, and divides
by a number that does not depend on what the clients sent (DP-FedAvg with the fixed-denominator estimator): McMahan et
al., "Learning differentially private recurrent language models", ICLR 2018, Algorithm 1. A client is in one cluster, so
the clusters of a round compose in parallel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedstrata.base.lazy_torch import torch
from fedstrata.base.randomness import secret_generator
from fedstrata.core.layout import Layout, Mask
from fedstrata.core.rows import Rows

SIMULATED_RUN = 16 * "0"
"""The name of a run whose noise is no secret."""


@dataclass(frozen=True)
class NoiseSeed:
    """What the noise of a run is drawn from.

    Attributes:
        secret: A number of at most 128 bits. Whoever knows it, and what the noise hides, can take the noise away.
        run: The name of the run.
    """

    secret: int
    run: str = SIMULATED_RUN


@dataclass(frozen=True)
class CentralPrivacy:
    """What the server does with updates before anything that is made of them leaves it.

    Attributes:
        layout: The tensors of the network.
        released: The tensors that clients upload, (l,). The others get no update and no noise.
        clip_norm: The largest L2 norm of what a client adds to the sum (S).
        noise_multiplier: The standard deviation of the noise of a sum, divided by `clip_norm` (z).
        answers: A function from a round to the number of clients that are expected to answer; None is every client
            that is in a cluster.
        min_cluster: Clusters of fewer members, at least 1, get no update, and take no step.
        noise_seed: The seed of the noise.
    """

    layout: Layout
    released: Mask
    clip_norm: float
    noise_multiplier: float
    answers: Callable[[int], float] | None = None
    min_cluster: int = 1
    noise_seed: NoiseSeed = NoiseSeed(0)

    def means(
        self, updates: Rows, labels: torch.Tensor, k: int, everyone: torch.Tensor, purpose: str, round: int
    ) -> torch.Tensor:
        """The noisy mean update of every cluster, (k, p).

        Args:
            updates: The updates of the clients that answered, (m, p).
            labels: The cluster of each, (m,) in 0..k-1.
            k: The number of clusters.
            everyone: The cluster of every client, whether it answered or not, (n,); -1 for a pending client.
            purpose: What the means are for. It names the random numbers, so no other means of the round may have it.
            round: The round.
        """
        placed = everyone[everyone >= 0]
        # Those that were pending before the round and answered are in a cluster now. So the share may be above that of
        # a cohort in all clients, as long as many wait. With one cluster, the number of all placed clients cancels.
        share = 1.0 if self.answers is None else self.answers(round) / max(len(placed), 1)
        each = torch.eye(k, dtype=torch.bool)
        return self.means_of_groups(updates, labels, each, placed.bincount(minlength=k), purpose, round, share)

    def means_of_groups(
        self,
        updates: Rows,
        subsets: torch.Tensor,
        contained: torch.Tensor,
        members: torch.Tensor,
        purpose: str,
        round: int,
        share: float = 1.0,
    ) -> torch.Tensor:
        """The noisy mean update of every group, where groups may share clients, (q, p).

        Only the sums of disjoint subsets of the clients are released: a client adds at most `clip_norm` to one of them.
        The groups are unions of subsets, so their sums follow from these, noise and all.

        Args:
            updates: The updates of the clients that answered, (m, p).
            subsets: The subset of each, (m,) in 0..a-1.
            contained: The subsets that are in each group, bool (q, a).
            members: The number of clients of each group, whether they answered or not, (q,).
            purpose: As in `means`.
            round: The round.
            share: The number of clients that are expected to answer for each member.
        """
        sums = self.sums(updates, subsets, contained.shape[1], purpose, round)
        # It depends on the decision who is in a group, and on nothing else that clients sent.
        expected = share * members.clamp(min=1).double()
        scale = torch.where(self.large_enough(members), 1 / expected, 0.0)
        return ((contained.double() @ sums) * scale[:, None]).float()

    def large_enough(self, members: torch.Tensor) -> torch.Tensor:
        """Which groups get an update, bool (q,), by their numbers of members, (q,)."""
        return members >= self.min_cluster

    def sums(self, updates: Rows, subsets: torch.Tensor, count: int, purpose: str, round: int) -> torch.Tensor:
        """The noisy sums of the clipped updates of disjoint subsets, (a, p) float64; with noise even where nobody sent.

        Args:
            updates: The updates of the clients that answered, (m, p).
            subsets: The subset of each, (m,) in 0..a-1.
            count: The number of subsets, a.
            purpose: As in `means`.
            round: The round.
        """
        columns = self.layout.columns(self.released)
        total = torch.zeros(count, len(columns), dtype=torch.float64)
        for row in updates.clients.argsort().tolist():
            total[int(subsets[row])] += clip_to_norm(updates.values[row, columns], self.clip_norm)
        for subset in range(count):
            total[subset] += gaussian_noise(
                total[subset],
                self.noise_multiplier * self.clip_norm,
                self.noise_seed,
                purpose=f"central {purpose}",
                round=round,
                place=subset,
            )
        sums = torch.zeros(count, updates.values.shape[1], dtype=torch.float64)
        sums[:, columns] = total
        return sums


def clip_to_norm(update: torch.Tensor, norm: float) -> torch.Tensor:
    """An update (p,) scaled down to a largest L2 norm, in float64."""
    values = update.double()
    length = float(values.norm())
    return values * (norm / length) if length > norm else values


def gaussian_noise(
    hidden: torch.Tensor, scale: float, seed: NoiseSeed, *, purpose: str, round: int, place: int
) -> torch.Tensor:
    """Gaussian noise for some numbers, (p,) float64.

    The same numbers get the same noise, so that a resumed run goes on with the same bits. Other numbers get other
    noise: the difference of two noisy vectors never shows the difference of what they hide.

    Args:
        hidden: The numbers that the noise will be added to, (p,) float64.
        scale: The standard deviation.
        seed: What the noise is drawn from.
        purpose: What the numbers are for.
        round: The round.
        place: The client, or the subset of the clients.
    """
    names = (seed.run, purpose, round, place, len(hidden))
    draw = secret_generator(seed.secret, names, hidden.contiguous().numpy().data)
    return torch.from_numpy(scale * draw.standard_normal(len(hidden)))
