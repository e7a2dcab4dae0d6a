"""What lives on a client's device: the tensors that it keeps to itself."""

from __future__ import annotations

from collections.abc import Mapping

import torch

VERSIONS = 2
"""Rounds that are kept of a tensor, so that a round that was cut short can be run again."""


class ClientStore:
    """Tensors of clients, each in the versions of its last two rounds."""

    def __init__(self) -> None:
        """Start empty."""
        self._kept: dict[int, dict[int, dict[int, torch.Tensor]]] = {}  # client -> tensor -> round -> values

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Go back to what `tensors` once returned."""
        self._kept.clear()
        for name, values in tensors.items():
            client, tensor, round = map(int, name.split("/"))
            self._kept.setdefault(client, {}).setdefault(tensor, {})[round] = values

    def read(self, client: int, before: int) -> dict[int, torch.Tensor]:
        """The newest version from before a round of every tensor that the client has: tensor index -> values.

        If one of them is not finite, the client has none: with it, all that it ever sent again would not be either.
        """
        newest = {}
        for tensor, versions in self._kept.get(client, {}).items():
            rounds = [round for round in versions if round < before]
            if rounds:
                newest[tensor] = versions[max(rounds)]
        return newest if all(bool(values.isfinite().all()) for values in newest.values()) else {}

    def spoilt(self, round: int) -> tuple[int, ...]:
        """Clients that were left with tensors in a round that are not finite, ascending ids."""
        left = ((client, own.get(round)) for client, kept in self._kept.items() for own in kept.values())
        return tuple(sorted({client for client, values in left if values is not None and not values.isfinite().all()}))

    def write(self, client: int, round: int, tensors: Mapping[int, torch.Tensor]) -> None:
        """Keep tensors as of a round; what an interrupted run left of this round or later is forgotten."""
        own = self._kept.setdefault(client, {})
        for tensor, values in tensors.items():
            versions = own.get(tensor, {})
            rounds = sorted(kept for kept in versions if kept < round)[1 - VERSIONS :]
            own[tensor] = {kept: versions[kept] for kept in rounds} | {round: values.clone()}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Everything, by ``"client/tensor/round"``, in ascending order of the numbers."""
        return {
            f"{client}/{tensor}/{round}": values
            for client, own in sorted(self._kept.items())
            for tensor, versions in sorted(own.items())
            for round, values in sorted(versions.items())
        }
