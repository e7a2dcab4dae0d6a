"""What checks remember of the updates of each client."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from fedstrata.base.lazy_torch import torch
from fedstrata.core.server import UpdateHistory


@dataclass(frozen=True)
class DirectionHistory:
    """How the updates of each client have pointed so far.

    Attributes:
        cosines: The weighted sum over rounds of the cosine of a client's update with the sum of those of the others in
            its cluster, all scaled to norm 1 and without those of clients that are left out, (n,).
        weights: The sum of these weights, (n,); 0 before the first upload.
        backward_rounds: In how many rounds a client that had gone with the others has pointed backwards since it last
            pointed forwards, int64 (n,).
        probation: In how many more rounds in a row a client that is left out and doubted has to point forwards until it
            counts again, int64 (n,).
        left_out: Whose updates are not in the mean of their cluster, bool (n,).
        doubted: Who was left out before its record began anew, as in a cluster of its own, or was split off because its
            updates did harm to itself, bool (n,). It is left out if it is reassigned. Whoever points forwards in a
            cluster of three or more, of whom somebody is not doubted, is doubted no more.
    """

    cosines: torch.Tensor
    weights: torch.Tensor
    backward_rounds: torch.Tensor
    probation: torch.Tensor
    left_out: torch.Tensor
    doubted: torch.Tensor

    def forgetting(self, clients: torch.Tensor) -> DirectionHistory:
        """The same without what is known of some clients, bool (n,), but for whom to doubt."""
        return replace(_without(self, clients), doubted=self.doubted | (self.left_out & clients))

    def doubting(self, clients: torch.Tensor) -> DirectionHistory:
        """The same where some clients, ids, are doubted."""
        return replace(self, doubted=self.doubted.index_fill(0, clients, True))


@dataclass(frozen=True)
class NormHistory:
    """How long the updates of each client have been so far, beside those of its cluster.

    Attributes:
        logs: The weighted sum over rounds of the logarithm of the ratio of a client's norm to the median, (n,).
        weights: The sum of these weights, (n,); 0 before the first upload.
        last: The logarithm in the last of these rounds, (n,); 0 before the first one.
        left_out: Whose updates of the last round are not in the mean of a cluster, bool (n,).
        drifted: Whose updates have become longer, and who has not chosen a cluster since, bool (n,).
        largest_median: The largest median norm of a cluster so far.
    """

    logs: torch.Tensor
    weights: torch.Tensor
    last: torch.Tensor
    left_out: torch.Tensor
    drifted: torch.Tensor
    largest_median: float = 0.0

    def forgetting(self, clients: torch.Tensor) -> NormHistory:
        """The same without what is known of some clients, bool (n,)."""
        return _without(self, clients)


_History = TypeVar("_History", DirectionHistory, NormHistory)


def _without(history: _History, clients: torch.Tensor) -> _History:
    """A history in which some clients, bool (n,), have what every client has before its first upload: zeros."""
    tensors = {name: values for name, values in vars(history).items() if isinstance(values, torch.Tensor)}
    changed: dict[str, Any] = {name: values.masked_fill(clients, 0) for name, values in tensors.items()}
    return replace(history, **changed)


@dataclass(frozen=True)
class CheckHistory(UpdateHistory):
    """What is known of the updates of each client.

    Attributes:
        directions: How they have pointed; None where nobody checks it.
        norms: How long they have been; None where nobody checks it.
    """

    directions: DirectionHistory | None = None
    norms: NormHistory | None = None

    @property
    def suspect(self) -> torch.Tensor | None:
        """Who is left out because of the directions of its updates, or doubted, bool (n,)."""
        return None if self.directions is None else self.directions.left_out | self.directions.doubted

    @property
    def drifted(self) -> torch.Tensor | None:
        """Whose updates have become longer, and who has not chosen a cluster since, bool (n,)."""
        return None if self.norms is None else self.norms.drifted

    def left_out(self, n: int) -> torch.Tensor:
        """Whose updates of the last round are left out of the means of clusters, bool (n,)."""
        left_out = torch.zeros(n, dtype=torch.bool)
        for known in (self.directions, self.norms):
            left_out = left_out if known is None else left_out | known.left_out
        return left_out

    def forgetting(self, clients: torch.Tensor) -> CheckHistory:
        """The same without what is known of some clients, bool (n,), but for whom to doubt."""
        return CheckHistory(
            directions=None if self.directions is None else self.directions.forgetting(clients),
            norms=None if self.norms is None else self.norms.forgetting(clients),
        )

    def doubting(self, clients: torch.Tensor) -> CheckHistory:
        """The same where some clients, ids, are doubted."""
        return self if self.directions is None else replace(self, directions=self.directions.doubting(clients))
