"""The local tensors of clients, which they keep to themselves."""

from __future__ import annotations

from collections.abc import Mapping

import torch

RESIDUAL = 999_999_999
"""In the place of the number of a tensor: what has been left out of the updates of a client so far."""

_MAX_VERSIONS = 2
"""Rounds of which a tensor is kept, so that an interrupted round can be run again."""


def stored_name(client: int, tensor: int, round: int) -> str:
    """The name of a tensor that a client saved in a round, where tensors have names."""
    return f"{client}/{tensor}/{round}"


def parse_stored_name(name: str) -> tuple[int, int, int]:
    """The client, the tensor and the round of a name that `stored_name` made."""
    client, tensor, round = map(int, name.split("/"))
    return client, tensor, round


class ClientStore:
    """The local tensors of clients, each in the versions of its last two rounds."""

    def __init__(self) -> None:
        """Start empty."""
        self._versions: dict[int, dict[int, dict[int, torch.Tensor]]] = {}  # client -> tensor -> round -> values

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Replace everything by what `tensors` once returned."""
        self._versions.clear()
        for name, values in tensors.items():
            client, tensor, round = parse_stored_name(name)
            self._versions.setdefault(client, {}).setdefault(tensor, {})[round] = values

    def read(self, client: int, before: int) -> dict[int, torch.Tensor]:
        """The newest version from before a round of every tensor of a client, by the index of the tensor.

        If one of them is not finite, the client has none. Otherwise nothing that it sends would be finite again.
        """
        newest = {}
        for tensor, versions in self._versions.get(client, {}).items():
            rounds = [round for round in versions if round < before]
            if rounds and tensor != RESIDUAL:
                newest[tensor] = versions[max(rounds)]
        return newest if all(bool(values.isfinite().all()) for values in newest.values()) else {}

    def residual(self, client: int, before: int) -> torch.Tensor | None:
        """What was left out of the updates of a client before a round, (p,); None where nothing was."""
        versions = self._versions.get(client, {}).get(RESIDUAL, {})
        rounds = [round for round in versions if round < before]
        return versions[max(rounds)] if rounds else None

    def write_residual(self, client: int, round: int, values: torch.Tensor) -> None:
        """Save what was left out of the updates of a client up to a round, (p,), as `write` saves tensors."""
        self.write(client, round, {RESIDUAL: values})

    def not_finite_clients(self, round: int) -> tuple[int, ...]:
        """The clients that saved tensors in a round that are not finite, ascending ids."""
        saved = ((client, own.get(round)) for client, tensors in self._versions.items() for own in tensors.values())
        return tuple(sorted({client for client, values in saved if values is not None and not values.isfinite().all()}))

    def savers(self, rounds: range) -> set[int]:
        """The clients that saved tensors in some of the rounds."""
        return {
            client
            for client, tensors in self._versions.items()
            if any(round in rounds for versions in tensors.values() for round in versions)
        }

    def write(self, client: int, round: int, tensors: Mapping[int, torch.Tensor]) -> None:
        """Save tensors of a round, and forget what an interrupted run saved of them in this round or later."""
        own = self._versions.setdefault(client, {})
        for tensor, values in tensors.items():
            versions = own.get(tensor, {})
            rounds = sorted(older for older in versions if older < round)[1 - _MAX_VERSIONS :]
            own[tensor] = {older: versions[older] for older in rounds} | {round: values.clone()}

    def forget(self, client: int) -> None:
        """Forget all that a client has saved."""
        self._versions.pop(client, None)

    def saved_in(self, round: int) -> dict[str, torch.Tensor]:
        """What `tensors` has of one round."""
        return {name: values for name, values in self.tensors().items() if parse_stored_name(name)[2] == round}

    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors by `stored_name`, in ascending order of the numbers."""
        return {
            stored_name(client, tensor, round): values
            for client, own in sorted(self._versions.items())
            for tensor, versions in sorted(own.items())
            for round, values in sorted(versions.items())
        }
