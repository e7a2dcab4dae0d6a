"""The local tensors of clients, which they keep to themselves."""

from __future__ import annotations

from collections.abc import Mapping

import torch

RESIDUAL = 999_999_999
"""In the place of the number of a tensor: what compression has left out of the updates of a client so far."""

_VERSIONS = 2
"""Rounds of which a tensor is kept, so that an interrupted round can be run again."""


class ClientStore:
    """The local tensors of clients, each in the versions of its last two rounds."""

    def __init__(self) -> None:
        """Start empty."""
        self._kept: dict[int, dict[int, dict[int, torch.Tensor]]] = {}  # client -> tensor -> round -> values

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Replace everything by what `tensors` once returned."""
        self._kept.clear()
        for name, values in tensors.items():
            client, tensor, round = map(int, name.split("/"))
            self._kept.setdefault(client, {}).setdefault(tensor, {})[round] = values

    def read(self, client: int, before: int) -> dict[int, torch.Tensor]:
        """The newest version from before a round of every tensor of a client, by the index of the tensor.

        If one of them is not finite, the client has none. Otherwise nothing that it sends would be finite again.
        """
        newest = {}
        for tensor, versions in self._kept.get(client, {}).items():
            rounds = [round for round in versions if round < before]
            if rounds and tensor != RESIDUAL:
                newest[tensor] = versions[max(rounds)]
        return newest if all(bool(values.isfinite().all()) for values in newest.values()) else {}

    def residual(self, client: int, before: int) -> torch.Tensor | None:
        """What was left out of the updates of a client before a round, (p,); None where nothing was."""
        versions = self._kept.get(client, {}).get(RESIDUAL, {})
        rounds = [round for round in versions if round < before]
        return versions[max(rounds)] if rounds else None

    def write_residual(self, client: int, round: int, values: torch.Tensor) -> None:
        """Save what was left out of the updates of a client up to a round, (p,), as `write` saves tensors."""
        self.write(client, round, {RESIDUAL: values})

    def spoilt(self, round: int) -> tuple[int, ...]:
        """The clients that saved tensors in a round that are not finite, ascending ids."""
        saved = ((client, own.get(round)) for client, kept in self._kept.items() for own in kept.values())
        return tuple(sorted({client for client, values in saved if values is not None and not values.isfinite().all()}))

    def write(self, client: int, round: int, tensors: Mapping[int, torch.Tensor]) -> None:
        """Save tensors of a round, and forget what an interrupted run saved of them in this round or later."""
        own = self._kept.setdefault(client, {})
        for tensor, values in tensors.items():
            versions = own.get(tensor, {})
            rounds = sorted(kept for kept in versions if kept < round)[1 - _VERSIONS :]
            own[tensor] = {kept: versions[kept] for kept in rounds} | {round: values.clone()}

    def forget(self, client: int) -> None:
        """Forget all that a client has saved."""
        self._kept.pop(client, None)

    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors by ``"client/tensor/round"``, in ascending order of the numbers."""
        return {
            f"{client}/{tensor}/{round}": values
            for client, own in sorted(self._kept.items())
            for tensor, versions in sorted(own.items())
            for round, values in sorted(versions.items())
        }
