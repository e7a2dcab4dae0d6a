"""What an algorithm discloses about single clients. Differential privacy rests on it.

An algorithm declares it beside its code, as its plans alone do not show what becomes of updates on the server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from fedstrata.base.errors import ContractError
from fedstrata.core.protocols import Algorithm

ServerNeeds = Literal["nothing", "sums", "updates", "data"]
"""What the server needs of the clients; `Disclosure` says what each means."""


@dataclass(frozen=True)
class Disclosure:
    """What an algorithm discloses about single clients in a run.

    Attributes:
        server_needs: What the server needs of the clients. "sums" are the sums of the updates of each cluster in the
            task `TRAIN`, where clusters do not depend on updates. "updates" are single updates, losses or statistics,
            by which clusters are decided. "nothing" means that no client sends anything. "data" are all training data
            in one place, which only a simulation has.
        given_clusters: Whether several clusters are given before round 1. A client that has none, such as one that
            comes later, takes the one with the lowest loss on its data.
        compares_group_models: Whether clients compare models of proposed groups, as for a split.
        further_sums: With central noise, the number of sums, at most, that the updates of a client enter in the run
            beside those of the clusters, such as those of such models.
        further_uploads: With local noise (``Problem.local_noise``), the number of updates, at most, that a client sends
            in the run beside one for each of the tasks that the first plan asks of it, which count in every round. It
            is not read where `no_local_noise` says why there is none.
        no_central_noise: Why there is no central differential privacy, as the end of a sentence; "" if there is.
            There is one only if every model that leaves the server moves by ``Problem.released_means`` alone, as with
            `aggregate`.
        no_local_noise: Why there is no local differential privacy, likewise. There is one only if the number of
            updates that a client sends is known before the run.
    """

    server_needs: ServerNeeds
    given_clusters: bool = False
    compares_group_models: bool = False
    further_sums: int = 0
    further_uploads: int = 0
    no_central_noise: str = ""
    no_local_noise: str = ""

    @property
    def clients_keep_data(self) -> bool:
        """Whether clients keep their data, so that updates travel where there are any."""
        return self.server_needs != "data"

    def __post_init__(self) -> None:
        """Refuse words that mean nothing, and what no algorithm with these needs has."""
        if self.server_needs not in get_args(ServerNeeds):
            expected = ", ".join(map(repr, get_args(ServerNeeds)))
            raise ContractError(f"server_needs = {self.server_needs!r}: expected one of {expected}")
        if min(self.further_uploads, self.further_sums) < 0:
            raise ContractError(
                f"further_uploads = {self.further_uploads}, further_sums = {self.further_sums}: expected at least 0"
            )
        if self.given_clusters and self.server_needs != "sums":
            raise ContractError(f"given_clusters: expected server_needs = 'sums', found {self.server_needs!r}")
        if (self.compares_group_models or self.further_sums) and self.server_needs != "updates":
            raise ContractError(
                f"compares_group_models, further_sums: expected server_needs = 'updates', found {self.server_needs!r}"
            )


@runtime_checkable
class DeclaresDisclosure(Protocol):
    """An algorithm that says what it discloses. Without that, it has no differential privacy."""

    def disclosure(self, rounds: int) -> Disclosure:
        """What it discloses in a run of so many rounds."""


def disclosure_of(algorithm: Algorithm[Any], rounds: int) -> Disclosure | None:
    """What an algorithm says that it discloses; None where its class says nothing.

    A class does not inherit what another one says of itself, as it may do something else with the same updates.

    Args:
        algorithm: The algorithm, without a personal stage.
        rounds: The number of rounds of the run.

    Raises:
        ContractError: When it returns something else.
    """
    if "disclosure" not in vars(type(algorithm)) or not isinstance(algorithm, DeclaresDisclosure):
        return None
    found = algorithm.disclosure(rounds)
    if not isinstance(found, Disclosure):
        raise ContractError(f"{type(algorithm).__name__}.disclosure: expected a Disclosure, found {found!r:.60}")
    return found
