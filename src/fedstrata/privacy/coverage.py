"""What epsilon covers of what an algorithm gives away, and which algorithms cannot have one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from fedstrata.core import Plan

_MODELS = "the models of the clusters in every round"

FIXED_CLUSTERS = (
    "fedavg",
    "finetune",
    "fedprox",
    "ditto",
    "fedbn",
    "fedper",
    "fedrep",
    "lg_fedavg",
    "oracle",
    "random_groups",
)
"""The algorithms whose clusters do not depend on what clients send."""

_GIVEN_CLUSTERS = ("oracle", "random_groups")
"""Those of them with several models. A client that comes later has the model with the lowest loss on its data."""

_LOSSES = "which model a client chooses where it has a choice, and the losses of these models"

_BY_UPDATES = ("cfl", "layercfl", "hicfl", "fl_hc", "fesem", "fedclust", "flis", "pacfl", "ifca", "strata")
"""Those whose clusters do, and whose models move by noisy means alone."""

_REFUSED = {
    "centralized": "the union of all data is no client",
    "local": "no client sends anything",
    "adacfl": "the cluster of a newcomer starts from what this client sent, without noise",
    "fedtsdp": "clients send the values of their own layers, which no small norm clips",
}
"""Why other algorithms of the library have no differential privacy."""


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
    name: str,
    keys: Mapping[str, Any],
    plan: Plan,
    rounds: int,
    *,
    newcomers: bool = False,
) -> Coverage | str:
    """What epsilon covers in a run of an algorithm; or why it has none, as the end of a sentence.

    Args:
        kind: Where the noise is added.
        name: The name of the algorithm.
        keys: Its hyper-parameters, with defaults.
        plan: Its first plan.
        rounds: The number of rounds.
        newcomers: Whether clients may have to be placed after the first round.
    """
    if name in _REFUSED:
        return _REFUSED[name]
    if name not in (*FIXED_CLUSTERS, *_BY_UPDATES):
        return "what an algorithm of your own sends and gives away is not known"
    if any(any(task.upload_values) for task in plan.tasks.values()):
        return "clients send values of layers, which no small norm clips"
    if name == "strata" and keys["test_schedule"] != "schedule":
        return "with algorithm.test_schedule = 'stability' the number of tests is not known before the run"
    found = _central(name, keys, rounds) if kind == "central" else _local(name, keys, plan, rounds)
    if isinstance(found, Coverage) and newcomers and name in _GIVEN_CLUSTERS:
        return replace(found, not_covered=(_LOSSES, *found.not_covered), decisions=False)
    return found


def _central(name: str, keys: Mapping[str, Any], rounds: int) -> Coverage | str:
    """The server adds noise to sums."""
    if name == "ifca" and keys["average"] == "gradient":
        return "with algorithm.average = 'gradient' the number of clients that chose a model scales every update"
    outside = ["the records of the run, with the scores of clients"]
    if name in FIXED_CLUSTERS:
        return Coverage(0, (_MODELS,), tuple(outside), decisions=True)
    outside = ["which client is in which cluster, and when clusters split", *outside]
    if name != "strata":
        return Coverage(0, (_MODELS,), tuple(outside), decisions=False)
    # A test of the last round is followed by no comparison.
    compared = _split_half_rounds(rounds - 1)
    if not compared:
        return Coverage(0, (_MODELS,), tuple(outside), decisions=False)
    covered = (_MODELS, "the models of groups that members compare")
    return Coverage(compared, covered, ("which clients are compared in a test", *outside), decisions=False)


def _local(name: str, keys: Mapping[str, Any], plan: Plan, rounds: int) -> Coverage | str:
    """Clients add noise to uploads. The server sees no other update, so all that it makes of them is covered."""
    if keys.get("split_guard", "none") != "none":
        return f"with algorithm.split_guard = {keys['split_guard']!r} the number of uploads is not known before the run"
    if keys.get("layers") == "auto":
        return "with algorithm.layers = 'auto' the number of uploads is not known before the run"
    outside = ["the numbers of samples", "the scores of clients"]
    if name in _BY_UPDATES:
        outside.append(_LOSSES)
    if plan.client_stats:
        outside.append("statistics of the data that clients send")
    further_queries = rounds * (sum(any(task.upload) for task in plan.tasks.values()) - 1)
    if name == "strata":
        folds = 2 if keys["folds"] == 2 else 4
        further_queries += folds * _split_half_rounds(rounds) + _outlier_rounds(rounds)
    return Coverage(
        further_queries, ("every update that a client sends",), tuple(outside), decisions=name in FIXED_CLUSTERS
    )


def _split_half_rounds(rounds: int) -> int:
    """The number of rounds of a run in which Strata tests clusters."""
    # Here, as algorithms load all that they compute with.
    from fedstrata.algorithms.shared.split_half import is_split_half_round

    return sum(map(is_split_half_round, range(1, rounds + 1)))


def _outlier_rounds(rounds: int) -> int:
    """The number of rounds of a run in which a client may send an update as an outlier: after a test, until one came.

    An update that came too late was seen, and the client is asked again.
    """
    from fedstrata.algorithms.shared.split_half import is_split_half_round
    from fedstrata.algorithms.strata.outliers import MAX_SEARCH_ROUNDS

    return sum(
        any(map(is_split_half_round, range(max(1, round - MAX_SEARCH_ROUNDS), round))) for round in range(1, rounds + 1)
    )
