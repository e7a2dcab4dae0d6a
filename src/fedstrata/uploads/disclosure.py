"""What each algorithm discloses about single clients, and what of that epsilon covers.

Plans alone do not show what becomes of updates on the server, so it is said here, beside the accountant: a row for
each algorithm of the library. An algorithm of your own has a row by `register_disclosure`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

from fedstrata.algorithms import ALGORITHMS
from fedstrata.base.errors import ContractError, check_rules
from fedstrata.base.lazy_torch import torch
from fedstrata.core import Algorithm, Plan

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
        compares_group_models: Whether clients compare models that they do not choose among, such as those of proposed
            groups.
        further_sums: With central noise, the number of sums, at most, that the updates of a client enter in the run
            beside those of the clusters, such as those of such models.
        further_uploads: With local noise, the number of updates, at most, that a client sends in the run beside one for
            each of the tasks that the first plan asks of it, which count in every round. It is not read where
            `no_local_noise` says why there is none.
        no_central_noise: Why there is no central differential privacy, as the end of a sentence; "" if there is.
            There is one only if every model that leaves the server moves by `Problem.aggregation` alone, as with
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
        known = get_args(ServerNeeds)
        compares = self.compares_group_models or self.further_sums > 0
        rules = {
            f"server_needs is one of {', '.join(map(repr, known))}": self.server_needs in known,
            "further_uploads and further_sums are at least 0": min(self.further_uploads, self.further_sums) >= 0,
            "given_clusters goes with server_needs = 'sums'": not self.given_clusters or self.server_needs == "sums",
            "compares_group_models and further_sums go with server_needs = 'updates'": (
                not compares or self.server_needs == "updates"
            ),
        }
        check_rules("disclosure", rules, self, ContractError)


Row: TypeAlias = "Disclosure | Callable[[Any, int], Disclosure]"
"""What an algorithm discloses; or a function that says it of the algorithm and the number of rounds of the run."""


def _layercfl(algorithm: Any, rounds: int) -> Disclosure:
    """Single updates decide. LayerCFL that chooses its layers asks for uploads when it has to."""
    reason = "with algorithm.layers = 'auto' the number of uploads is not known before the run"
    return Disclosure(server_needs="updates", no_local_noise=reason if algorithm.layers == "auto" else "")


def _ifca(algorithm: Any, rounds: int) -> Disclosure:
    """The losses of single clients decide."""
    reason = "with algorithm.average = 'gradient' the number of clients that chose a model scales every update"
    return Disclosure(server_needs="updates", no_central_noise=reason if algorithm.average == "gradient" else "")


def _strata(algorithm: Any, rounds: int) -> Disclosure:
    """Single updates decide. Clients also send updates of half of their data, and judge models of groups."""
    # Here, as it loads torch.
    from fedstrata.algorithms.evidence.split_half import split_half_rounds

    uploads = split_half_rounds(rounds)
    return Disclosure("updates", compares_group_models=True, further_sums=uploads, further_uploads=uploads)


_SUMS = Disclosure(server_needs="sums")
_GIVEN_SUMS = Disclosure(server_needs="sums", given_clusters=True)
_UPDATES = Disclosure(server_needs="updates")
_PERSONAL_VALUES = "clients send the values of their own layers, which no small norm clips"

DISCLOSURES: Mapping[str, Row] = {
    "fedavg": _SUMS,
    "local": Disclosure(server_needs="nothing"),
    "centralized": Disclosure(server_needs="data"),
    "oracle": _GIVEN_SUMS,
    "random_groups": _GIVEN_SUMS,
    "finetune": _SUMS,
    "fedprox": _SUMS,
    "ditto": _SUMS,
    "fedper": _SUMS,
    "fedrep": _SUMS,
    "lg_fedavg": _SUMS,
    "fedbn": _SUMS,
    "ifca": _ifca,
    "clove": Disclosure("updates", compares_group_models=True),
    "cfl": _UPDATES,
    "layercfl": _layercfl,
    "hicfl": _UPDATES,
    "fedtsdp": Disclosure("updates", no_central_noise=_PERSONAL_VALUES, no_local_noise=_PERSONAL_VALUES),
    "adacfl": Disclosure(
        "updates", no_central_noise="the cluster of a newcomer starts from what this client sent, without noise"
    ),
    "fl_hc": _UPDATES,
    "fesem": _UPDATES,
    "fedclust": _UPDATES,
    "pacfl": _UPDATES,
    "flis": _UPDATES,
    "strata": _strata,
}
"""What the algorithms of the library disclose, by name."""

_REGISTERED: dict[type, Row] = {}
"""What other algorithms disclose, by class."""


def register_disclosure(kind: type[Algorithm[Any]], row: Row) -> None:
    """Say what an algorithm of your own discloses. Without that, it has no differential privacy.

    Args:
        kind: Its class. Subclasses of it are other algorithms, which may do something else with the same updates.
        row: What it discloses.
    """
    _REGISTERED[kind] = row


def disclosure_of(algorithm: Algorithm[Any], rounds: int) -> Disclosure | None:
    """What an algorithm discloses; None where nobody has said it.

    Args:
        algorithm: The algorithm, without a personal stage.
        rounds: The number of rounds of the run.

    Raises:
        ContractError: When its function returns something else.
    """
    kind = type(algorithm)
    row = _REGISTERED.get(kind)
    if row is None:
        known = getattr(kind, "made_by", kind)
        row = next((each for name, each in DISCLOSURES.items() if ALGORITHMS.get(name) is known), None)
    if row is None or isinstance(row, Disclosure):
        return row
    found = row(algorithm, rounds)
    if not isinstance(found, Disclosure):
        raise ContractError(f"disclosure of {kind.__name__}: expected a Disclosure, found {found!r:.60}")
    return found


_MODELS = "the models of the clusters in every round"

_LOSSES = "which model a client chooses where it has a choice, and the losses of these models"

_ANSWERS = "how many clients have answered, while some are in no cluster yet"

UNDECLARED = (
    "what an algorithm of your own sends and gives away is not known; say it with `register_disclosure`, see "
    "docs/methods/adding.md"
)
"""Why an algorithm that says nothing about what it discloses has no privacy."""

_NO_UPDATES = {"nothing": "no client sends anything", "data": "the union of all data is no client"}
"""Why an algorithm whose server needs no updates has no differential privacy, by what the server needs."""


@dataclass(frozen=True)
class Coverage:
    """What an algorithm gives away, beside one update of each client in each round.

    Attributes:
        further_queries: The further uploads (local noise) or sums (central noise) of a client in a run, at most.
        covered: What epsilon covers, in words.
        not_covered: What it does not cover, in words.
        decisions: Whether it covers who is in which cluster. Clusters that never depend on the data are covered.
    """

    further_queries: int
    covered: tuple[str, ...]
    not_covered: tuple[str, ...]
    decisions: bool


def coverage_of(
    kind: Literal["central", "local"],
    disclosure: Disclosure | None,
    plan: Plan,
    rounds: int,
    *,
    newcomers: bool = False,
) -> Coverage | str:
    """What epsilon covers in a run of an algorithm; or why it has none, as the end of a sentence.

    Args:
        kind: Where the noise is added.
        disclosure: What the algorithm says that it discloses; None if it says nothing.
        plan: Its first plan.
        rounds: The number of rounds.
        newcomers: Whether clients may have to be placed after the first round.
    """
    if disclosure is None:
        return UNDECLARED
    if disclosure.server_needs in _NO_UPDATES:
        return _NO_UPDATES[disclosure.server_needs]
    no_noise = disclosure.no_central_noise if kind == "central" else disclosure.no_local_noise
    if no_noise:
        return no_noise
    if any(any(task.upload_values) for task in plan.tasks.values()):
        return "clients send values of layers, which no small norm clips"
    found = _central(disclosure) if kind == "central" else _local(disclosure, plan, rounds)
    offered = any(((task.candidates >= 0).sum(dim=1) > 1).any() for task in plan.tasks.values())
    if disclosure.server_needs == "sums" and (offered or (newcomers and disclosure.given_clusters)):
        outside = (_LOSSES, _ANSWERS) if kind == "central" else (_LOSSES,)
        return replace(found, not_covered=(*outside, *found.not_covered), decisions=False)
    return found


def uploads_of_plan(plan: Plan) -> int:
    """The number of updates that a client sends for a plan, at most: of the tasks that it is asked to do."""
    sent = torch.zeros(len(plan.cohort), dtype=torch.int64)
    for task in plan.tasks.values():
        if any(task.upload):
            sent += (task.candidates >= 0).any(dim=1)
    return int(sent.max()) if len(sent) else 0


def _central(disclosure: Disclosure) -> Coverage:
    """The server adds noise to sums."""
    outside: tuple[str, ...] = ("the records of the run, with the scores of clients",)
    if disclosure.server_needs == "sums":
        return Coverage(0, (_MODELS,), outside, decisions=True)
    outside = ("which client is in which cluster, and when clusters split", _ANSWERS, *outside)
    if not disclosure.further_sums:
        return Coverage(0, (_MODELS,), outside, decisions=False)
    covered = (_MODELS, "the models of groups that members compare")
    outside = ("which clients are compared in a test", *outside)
    return Coverage(disclosure.further_sums, covered, outside, decisions=False)


def _local(disclosure: Disclosure, plan: Plan, rounds: int) -> Coverage:
    """Clients add noise to uploads. The server sees no other update, so all that it makes of them is covered."""
    outside = ["the numbers of samples", "the scores of clients"]
    by_sums = disclosure.server_needs == "sums"
    if not by_sums:
        outside.append(_LOSSES)
    if plan.client_stats:
        outside.append("statistics of the data that clients send")
    further_queries = rounds * (uploads_of_plan(plan) - 1) + disclosure.further_uploads
    return Coverage(further_queries, ("every update that a client sends",), tuple(outside), decisions=by_sums)
