"""What epsilon covers of what an algorithm discloses, and what has no epsilon."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from fedstrata.base.lazy_torch import torch
from fedstrata.core import Plan
from fedstrata.uploads.disclosure import Disclosure

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
    offered = any(task.offers_choice for task in plan.tasks.values())
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
    # All that are compared train on as many samples as the smallest of them has.
    outside = ("which clients are compared in a test", "the numbers of samples of the clients in a test", *outside)
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
