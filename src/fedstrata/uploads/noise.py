"""Gaussian noise on clipped updates: client-level differential privacy, by the server or by every client.

By the server (central): it clips the whole update of a client, sums the updates of a cluster with equal weights, adds
noise, and divides by a number that does not depend on what the clients sent (DP-FedAvg with the fixed-denominator
estimator): McMahan et al., "Learning differentially private recurrent language models", ICLR 2018, Algorithm 1. A
client is in one cluster, so the clusters of a round compose in parallel.

By every client (local): the server sees no update without noise, and the noise is far larger for the same epsilon. It
has to follow the protocol: its config says how much noise clients add, unless a device demands a least. Duchi, Jordan,
Wainwright, "Local privacy and statistical minimax rates", FOCS 2013.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from secrets import token_hex

from fedstrata.base.errors import RecordError
from fedstrata.base.files import read_file, replace_file
from fedstrata.base.lazy_torch import torch
from fedstrata.base.randomness import secret_generator
from fedstrata.core import Layout, Mask, Plan, Report, Result, Rows, empty_rows, weighted_mean
from fedstrata.core.aggregation import Rule

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
class CentralNoise:
    """An aggregation of noisy sums: nothing else that is made of updates leaves the server.

    Attributes:
        layout: The tensors of the network.
        released: The tensors that clients upload, (l,). The others get no update and no noise.
        clip_norm: The largest L2 norm of what a client adds to the sum (S).
        noise_multiplier: The standard deviation of the noise of a sum, divided by `clip_norm` (z).
        answers: A function from a round to the number of clients that are expected to answer; None is every client
            that is in a cluster.
        least_clients: Clusters of fewer members, at least 1, get no update, and take no step.
        noise_seed: The seed of the noise.
        rule: What the server looks at without noise is made by it.
    """

    layout: Layout
    released: Mask
    clip_norm: float
    noise_multiplier: float
    answers: Callable[[int], float] | None = None
    least_clients: int = 1
    noise_seed: NoiseSeed = NoiseSeed(0)
    rule: Rule = weighted_mean

    @property
    def exact(self) -> bool:
        """No: no client may change how another one counts, and a mean of few is mostly noise."""
        return False

    def means(
        self,
        updates: Rows,
        weights: torch.Tensor,
        labels: torch.Tensor,
        k: int,
        everyone: torch.Tensor,
        *,
        purpose: str,
        round: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The noisy mean update of every cluster, (k, p), and which have enough members. All clients weigh alike.

        Who answered is not to be seen. The purpose names the random numbers: no other means of the round may have it.
        """
        placed = everyone[everyone >= 0]
        # Those that were pending before the round and answered are in a cluster now. So the share may be above that of
        # a cohort in all clients, as long as many wait. With one cluster, the number of all placed clients cancels.
        share = 1.0 if self.answers is None else self.answers(round) / max(len(placed), 1)
        each = torch.eye(k, dtype=torch.bool)
        members = placed.bincount(minlength=k)
        means = self.means_of_unions(updates, labels, each, members, purpose, round, share)
        return means, members >= self.least_clients

    def group_means(
        self,
        layout: Layout,
        updates: Rows,
        places: torch.Tensor,
        inside: torch.Tensor,
        parents: torch.Tensor,
        *,
        purpose: str,
        round: int,
    ) -> torch.Tensor:
        """The noisy mean update of every group, (q, p). A group that is too small has none."""
        # The clients that are in the same groups are a subset.
        contained, subsets = inside.unique(dim=1, return_inverse=True)
        # Nobody else than those who were compared was asked, so that all of them are expected in every cohort.
        return self.means_of_unions(updates, subsets[places], contained, inside.sum(dim=1), purpose, round)

    def means_of_unions(
        self,
        updates: Rows,
        subsets: torch.Tensor,
        contained: torch.Tensor,
        members: torch.Tensor,
        purpose: str,
        round: int,
        share: float = 1.0,
    ) -> torch.Tensor:
        """The noisy mean update of every union of some subsets of the clients, (q, p).

        Only the sums of disjoint subsets are released: a client adds at most `clip_norm` to one of them. The sums of
        the unions follow from these, noise and all.

        Args:
            updates: The updates of the clients that answered, (m, p).
            subsets: The subset of each, (m,) in 0..a-1.
            contained: The subsets that are in each union, bool (q, a).
            members: The number of clients of each union, whether they answered or not, (q,).
            purpose: As in `means`.
            round: The round.
            share: The number of clients that are expected to answer for each member.
        """
        sums = self.sums(updates, subsets, contained.shape[1], purpose, round)
        # It depends on the decision who is in a union, and on nothing else that clients sent.
        expected = share * members.clamp(min=1).double()
        scale = torch.where(members >= self.least_clients, 1 / expected, 0.0)
        return ((contained.double() @ sums) * scale[:, None]).float()

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
            names = (f"central {purpose}", round, subset)
            total[subset] += gaussian_noise(
                total[subset], self.noise_multiplier * self.clip_norm, self.noise_seed, names
            )
        sums = torch.zeros(count, updates.values.shape[1], dtype=torch.float64)
        sums[:, columns] = total
        return sums


def clip_to_norm(update: torch.Tensor, norm: float) -> torch.Tensor:
    """An update (p,) scaled down to a largest L2 norm, in float64."""
    values = update.double()
    length = float(values.norm())
    return values * (norm / length) if length > norm else values


def gaussian_noise(hidden: torch.Tensor, scale: float, seed: NoiseSeed, names: tuple[str, int, int]) -> torch.Tensor:
    """Gaussian noise for some numbers, (p,) float64.

    The same numbers get the same noise, so that a resumed run goes on with the same bits. Other numbers get other
    noise: the difference of two noisy vectors never shows the difference of what they hide.

    Args:
        hidden: The numbers that the noise will be added to, (p,) float64.
        scale: The standard deviation.
        seed: What the noise is drawn from.
        names: What the numbers are for; the round; and the client, or the subset of the clients.
    """
    draw = secret_generator(seed.secret, (seed.run, *names, len(hidden)), hidden.contiguous().numpy().data)
    return torch.from_numpy(scale * draw.standard_normal(len(hidden)))


@dataclass(frozen=True)
class LocalNoise:
    """A step in which clients clip their updates and add noise, before they send them.

    Attributes:
        layout: The tensors of the network.
        clip_norm: The largest L2 norm of an update (S).
        noise_multiplier: The standard deviation of the noise of each number, divided by `clip_norm` (z).
        noise_seed: The seed of the noise.
    """

    layout: Layout
    clip_norm: float
    noise_multiplier: float
    noise_seed: NoiseSeed

    def of_report(self, plan: Plan, report: Report) -> Report:
        """A report in which all updates are clipped and have noise."""
        return report.with_results(partial(self._of_result, plan))

    def _of_result(self, plan: Plan, name: str, result: Result) -> Result:
        upload = plan.tasks[name].upload
        if not any(upload):
            return result
        columns = self.layout.columns(upload)
        sent = result.updates
        # Rows that do not fit into memory lie on the disk, and so do those that are made here.
        values = empty_rows(*sent.values.shape)
        for row, client in enumerate(sent.clients.tolist()):
            values[row] = sent.values[row]
            update = clip_to_norm(sent.values[row, columns], self.clip_norm)
            names = (f"local {name}", plan.round, client)
            noise = gaussian_noise(update, self.noise_multiplier * self.clip_norm, self.noise_seed, names)
            values[row, columns] = (update + noise).float()
        return replace(result, updates=Rows(sent.clients, values))


def secret_seed(path: Path) -> int:
    """The secret seed in a file, which never leaves the server or the device that adds the noise.

    Raises:
        RecordError: When the file holds something else.
    """
    return int(random_digits(path, 32), 16)


def random_digits(path: Path, count: int) -> str:
    """The random hexadecimal digits in a file, an even number of them.

    They are drawn and written first where there is none, so that a resumed run has the same.

    Raises:
        RecordError: When the file holds something else.
    """
    try:
        found = read_file(path, limit=100).decode(errors="replace")
    except FileNotFoundError:
        found = token_hex(count // 2)
        replace_file(path, found.encode(), private=True)
    if re.fullmatch(f"[0-9a-f]{{{count}}}", found) is None:
        raise RecordError(f"{path}: expected {count} hexadecimal digits, found others; restore it, or start a new run")
    return found
