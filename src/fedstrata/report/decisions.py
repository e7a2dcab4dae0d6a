"""Decisions in words: one sentence for every kind of decision that an algorithm takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Words = Callable[[str | None, Mapping[str, float]], str]
"""Makes the sentence of a decision from its layer and its values."""

SENTENCES: dict[str, Words] = {}
"""The sentence of each kind."""


def sentence(kind: str, layer: str | None, values: Mapping[str, float]) -> str:
    """What was decided, in one sentence; of a kind without words its name."""
    words = SENTENCES.get(kind)
    return kind.replace("_", " ") if words is None else words(layer, values)


# Groups that are given, one-shot clustering (FL+HC, FeSEM, FedClust, PACFL, FLIS, AdaCFL), and FedTSDP.


def _too_few(what: str, values: Mapping[str, float]) -> str:
    """Why clients were not compared yet."""
    first_round = int(values.get("first_round", 1))
    since = f", from round {first_round} on" if first_round > 1 else ""
    return (
        f"{values['present']:.0f} of {values['members']:.0f} {what}; "
        f"{values['min_clients']:.0f} and a share of {values['quorum']:g} are needed{since}"
    )


def _agglomerative_clustering(layer: str | None, values: Mapping[str, float]) -> str:
    cut = f"cut at {values['cut']:.4g}" if "cut" in values else "no clear step to cut at"
    return f"{values['groups']:.0f} groups of {values['clients']:.0f} clients: {cut}"


def _clustering_in_preclusters(layer: str | None, values: Mapping[str, float]) -> str:
    return f"{values['clients']:.0f} clients, {values['preclusters']:.0f} pre-clusters, {values['groups']:.0f} clusters"


def _newcomer_beyond_epsilon(layer: str | None, values: Mapping[str, float]) -> str:
    return (
        f"client {values['client']:.0f} was {values['distance']:.4g} away from the nearest cluster, "
        f"beyond epsilon = {values['epsilon']:.4g}"
    )


def _hopkins_not_above_threshold(layer: str | None, values: Mapping[str, float]) -> str:
    return f"Hopkins statistic {values['hopkins']:.3f} is not above {values['threshold']:g}"


def _hopkins_above_threshold(layer: str | None, values: Mapping[str, float]) -> str:
    count = int(values["groups"])
    by_weights = "weights" if "radius2" in values else ""
    by_predictions = "predictions" if "groups_first" in values else ""
    by = " and ".join(filter(None, (by_predictions, by_weights)))
    alone = f", {values['groups_first']:.0f} by predictions alone" if by_weights and by_predictions else ""
    return (
        f"Hopkins statistic {values['hopkins']:.3f} is above {values['threshold']:g}: "
        f"{count} group{'s' * (count > 1)} by {by}{alone}"
    )


SENTENCES |= {
    "true_groups_given": lambda layer, values: "the true groups were given",
    "random_groups_given": lambda layer, values: "the groups were drawn at random",
    "k_given": lambda layer, values: f"{values['clusters']:.0f} clusters were asked for",
    "too_few_answers": lambda layer, values: _too_few("selected members answered", values),
    "too_few_signatures": lambda layer, values: _too_few("members can be compared", values),
    "agglomerative_clustering": _agglomerative_clustering,
    "clustering_in_preclusters": _clustering_in_preclusters,
    "newcomer_beyond_epsilon": _newcomer_beyond_epsilon,
    "k_means": lambda layer, values: f"k-means of {values['clients']:.0f} models: {values['groups']:.0f} groups",
    "hopkins_not_above_threshold": _hopkins_not_above_threshold,
    "hopkins_above_threshold": _hopkins_above_threshold,
}
