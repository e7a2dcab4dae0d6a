"""Decisions in words: one sentence for every kind of decision that an algorithm takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_Words = Callable[[str | None, Mapping[str, float]], str]
"""Makes the sentence of a decision from its layer and its values."""


def sentence(kind: str, layer: str | None, values: Mapping[str, Any]) -> str:
    """Return what was decided, in one sentence.

    Args:
        kind: The kind of the decision. A kind without a sentence is shown as it is.
        layer: The layers that were compared.
        values: The values of the decision. A record that lacks one of them has the kind alone.
    """
    words = SENTENCES.get(kind, "")
    try:
        text = words if isinstance(words, str) else words(layer, values)
        return text.format_map({**values, "layer": layer}) or kind.replace("_", " ")
    except (KeyError, TypeError, ValueError):
        return kind.replace("_", " ")


# Below, a text in braces stands for a value of the decision, and a function chooses between texts by the values.
# CFL, LayerCFL and HiCFL: recursive bipartition, model stability, the reference split, the layer scan.

_THEOREM_1 = (
    "{first_part:.0f} and {second_part:.0f} clients, largest cosine across {cross_max:.3f}, "
    "Theorem 1's bound {bound:.3f}"
)
_CHANCE = "p = {p:.2g}, level {level:.2g}"


def _too_few_members(layer: str | None, values: Mapping[str, float]) -> str:
    early = ", {not_ready:.0f} of them too few times since they came here" if values["not_ready"] else ""
    return (
        "{answered:.0f} of {asked:.0f} asked members answered" + early + "; "
        "{min_split:.0f} and a share of {quorum:g} are needed"
    )


def _no_stable_layer(layer: str | None, values: Mapping[str, float]) -> str:
    if values["every_member"]:
        return "no layer is stable in every member: {max_stability:.4g} is not below {epsilon:.4g}"
    return "no layer is stable in the members' mean: {stability:.4g} is not below {epsilon:.4g}"


def _of_sides(text: str) -> _Words:
    """Return a text that begins with the sizes of the two sides of a reference split."""

    def words(layer: str | None, values: Mapping[str, float]) -> str:
        ending = "at the ending, " if values["at_ending"] else ""
        sides = "{with_reference:.0f} clients with client {reference:.0f}, the reference, and {without:.0f} without"
        return ending + sides + text

    return words


def _split(layer: str | None, values: Mapping[str, float]) -> str:
    if "reference" in values:
        return _of_sides("; mean cosine across {cross_mean:.3f}")(layer, values)
    return _THEOREM_1 + " is above gamma = {gamma:.3f}"


def _scan_without_samples(layer: str | None, values: Mapping[str, float]) -> str:
    needed = f"the {values['samples_needed']:.0f} samples that two parts need"
    return f"no scan: {values['compared_clients']:.0f} clients have {needed}, too few for a test"


def _scan_without_answers(layer: str | None, values: Mapping[str, float]) -> str:
    needed = f"{values['compared_clients']:.0f} clients have the {values['samples_needed']:.0f} samples"
    return f"no scan: {needed} that two parts need, but in no round did enough answer with all parts of their data"


def _scan_without_clients(layer: str | None, values: Mapping[str, float]) -> str:
    reach = f"p = {values['floor']:.2g} at best, above the level {values['level']:.2g}"
    return f"no scan: {values['compared_clients']:.0f} clients reach {reach}"


def _no_separation(layer: str | None, values: Mapping[str, float]) -> str:
    rounds = f"{values['rounds']:.0f} round{'s' * (values['rounds'] != 1)}"
    found = (
        "no separation: the similarities of the clients do not replicate between halves of their data "
        f"(best layer {{layer}}, correlation {values['correlation']:.2f}; p = {values['p']:.2g} for the best of all "
        f"layers, level {values['level']:.2g}); skew too weak to be seen with {values['compared_clients']:.0f} clients "
        f"in {rounds} may still be there"
    )
    if values.get("bias_p", 1.0) <= values["level"]:
        found += ", and the bias of the last layer alone does replicate: classes may occur unequally often"
    return found


_STABLE_AGREEMENT = 0.5
"""The choice of a layer is unstable if fewer of the repeats choose it too."""


def _layer_chosen(layer: str | None, values: Mapping[str, float]) -> str:
    stable = values["agreement"] >= _STABLE_AGREEMENT
    found = (
        f"{{layer}} separates the clients most clearly: their similarities replicate between halves of their data "
        f"(correlation {values['correlation']:.2f}; p = {values['p']:.2g} for the best of all layers)"
        f"{_other_layer(values)}, {'and' if stable else 'but the choice is unstable, as only'} "
        f"{values['agreement']:.0%} of repeats without some of the clients choose it too; "
    )
    if "bias_correlation" not in values:
        return found + "what kind of skew it is was not measured, as the last layer has no bias"
    found += (
        "the bias of the last layer, which sees little but how often each class occurs, replicates at "
        f"{values['bias_correlation']:.2f}, which suggests "
    )
    if values["label_skew"]:
        return found + "label skew: classes that occur more often with some clients than with others"
    return found + "skew other than of class frequencies: in what inputs look like, or in what labels mean"


def _other_layer(values: Mapping[str, float]) -> str:
    """Why the layer of the largest correlation is not the one that is named, if it is another."""
    if "largest_correlation" not in values:
        return ""
    found = f", that of another layer is {values['largest_correlation']:.2f}, "
    if values["largest_p"] <= values["level"]:
        return found + "which is as good, but updates have more in common there"
    return found + f"but by itself it may be chance (p = {values['largest_p']:.2g})"


# Groups that are given, one-shot clustering (FL+HC, FeSEM, FedClust, PACFL, FLIS, AdaCFL), and FedTSDP.


def _too_few(what: str) -> _Words:
    """Return the sentence of clients that were not compared yet."""

    def words(layer: str | None, values: Mapping[str, float]) -> str:
        since = ", from round {first_round:.0f} on" if values.get("first_round", 1) > 1 else ""
        needed = "; {min_clients:.0f} and a share of {quorum:g} are needed" + since
        return "{present:.0f} of {members:.0f} " + what + needed

    return words


def _agglomerative_clustering(layer: str | None, values: Mapping[str, float]) -> str:
    cut = "cut at {cut:.4g}" if "cut" in values else "no clear step to cut at"
    return "{groups:.0f} groups of {clients:.0f} clients: " + cut


def _hopkins_above_threshold(layer: str | None, values: Mapping[str, float]) -> str:
    by_predictions = ["predictions"] if "groups_first" in values else []
    by_weights = ["weights"] if "radius2" in values else []
    alone = ", {groups_first:.0f} by predictions alone" if by_weights and by_predictions else ""
    groups = "{groups:.0f} groups" if values["groups"] > 1 else "{groups:.0f} group"
    by = " and ".join(by_predictions + by_weights)
    return "Hopkins statistic {hopkins:.3f} is above {threshold:g}: " + groups + " by " + by + alone


# Strata: split-half tests and hold-out comparisons.


def _too_few_compared(layer: str | None, values: Mapping[str, float]) -> str:
    """Return that too few members answered, or that too few of those who did have answered with each other."""
    needed = "at least {least:.0f} are needed"
    if values["members"] < values["least"] or "compared" not in values:  # as in earlier records
        return _NOT_TESTED + "{members:.0f} members answered with all folds, " + needed
    return (
        _NOT_TESTED + "{members:.0f} members answered with all folds, of whom {compared:.0f} can be compared; " + needed
    )


def _gain(values: Mapping[str, float], *, gain: bool) -> str:
    sides = "two sides that differ in more than their class mixes" if "beyond_mixes" in values else "the two sides"
    groups = "{groups:.0f} groups" if values["groups"] > 2 else sides
    change = "lower" if gain else "do not lower"
    loss = f"{change} the loss of their members on hold-out data"
    if "p_gain" in values:
        chance = "p = {p_gain:.2g}, level {level_gain:.2g}"
        trained = "after {trained_rounds:.0f} rounds of training, " if "trained_rounds" in values else ""
        models = f"{trained}personal models made from those of {groups}"
        return f"{models} {loss} beyond chance (by {{gain:.2g}} nats, {chance})"
    return f"own models of {groups} {loss} (by {{gain:.2g}} nats)"


def _confirmed(finding: str, *, gain: bool) -> _Words:
    """Make the sentence of a split that a permutation test confirmed, with what hold-out data said of it, if any."""

    def words(layer: str | None, values: Mapping[str, float]) -> str:
        parts = ["round {round:.0f}, {layer}: " + finding + " (Z = {z:.1f}, " + _CHANCE + ")"]
        if "splits_inside" in values:
            splits = "splits" if values["splits_inside"] > 1 else "split"
            count = "the same holds for {splits_inside:.0f} more " + splits + " inside them "
            parts.append(count + "(p = {p_inside:.2g}, level {level_inside:.2g} at most)")
        if "p_holdout" in values:
            chance = "(p = {p_holdout:.2g}, level {level_holdout:.2g})"
            parts.append("inside, the models of others fit the clients worse " + chance)
        if "gain" in values:
            parts.append(_gain(values, gain=gain))
        return "; ".join(parts)

    return words


def _models_differ(finding: str, *, gain: bool) -> _Words:
    """Return the sentence of a split that error rate tests alone confirmed."""
    finding = "round {round:.0f}: " + finding + " (" + _CHANCE + "); "
    return lambda layer, values: finding + _gain(values, gain=gain)


_NOT_TESTED = "not tested in round {round:.0f}: "
_GROUPS_REPLICATE = "the groups found in one fold of the data are found again in the other"
_NEWCOMERS_DIFFER = "the newcomers differ from the members"
_MODELS_DIFFER = "the models of others fit the clients worse"
_OUTLIERS_DIFFER = "few clients differ from all others: each side's model fits the other side worse"

SENTENCES: Mapping[str, str | _Words] = {
    # Recursive bipartition.
    "too_few_members": _too_few_members,
    "not_stationary": "the mean update, {mean_norm:.4g}, is not below eps1 = {eps1:.4g}",
    "members_converged": "the members have converged: the longest update, {max_norm:.4g}, is not above "
    "eps2 = {eps2:.4g}",
    "layers_not_trained": "no member moves {layer}, which is compared, while other layers move",
    "no_stable_layer": _no_stable_layer,
    "members_agree": "the members agree: mean update / longest update, {ratio:.3f}, is not below rho = {rho:g}",
    "theorem_1_not_met": _THEOREM_1 + " is not above gamma = {gamma:.3f}",
    "split": _split,
    "same_direction": "all updates point in the direction of client {reference:.0f}, the reference",
    "clustering_complete": "the clustering is complete",
    "merged": "merged into node {into:.0f}: the models of both moved alike",
    "no_layer_found": "no layer has been found so far in which the members differ",
    "scan_without_samples": _scan_without_samples,
    "scan_without_answers": _scan_without_answers,
    "scan_without_clients": _scan_without_clients,
    "no_separation": _no_separation,
    "layer_chosen": _layer_chosen,
    # Given groups, one-shot clustering and FedTSDP.
    "true_groups_given": "the true groups were given",
    "random_groups_given": "the groups were drawn at random",
    "k_given": "{clusters:.0f} clusters were asked for",
    "too_few_answers": _too_few("selected members answered"),
    "too_few_signatures": _too_few("members can be compared"),
    "agglomerative_clustering": _agglomerative_clustering,
    "clustering_in_preclusters": "{clients:.0f} clients, {preclusters:.0f} pre-clusters, {groups:.0f} clusters",
    "newcomer_beyond_epsilon": "client {client:.0f} was {distance:.4g} away from the nearest cluster, "
    "beyond epsilon = {epsilon:.4g}",
    "k_means": "k-means of {clients:.0f} models: {groups:.0f} groups",
    "hopkins_not_above_threshold": "Hopkins statistic {hopkins:.3f} is not above {threshold:g}",
    "hopkins_above_threshold": _hopkins_above_threshold,
    # Strata.
    "p_above_level": "not split: " + _CHANCE + " in round {round:.0f}",
    "groups_replicate": _confirmed(_GROUPS_REPLICATE, gain=True),
    "groups_replicate_without_gain": _confirmed(_GROUPS_REPLICATE, gain=False),
    "newcomers_differ": _confirmed(_NEWCOMERS_DIFFER, gain=True),
    "newcomers_differ_without_gain": _confirmed(_NEWCOMERS_DIFFER, gain=False),
    "models_differ": _models_differ(_MODELS_DIFFER, gain=True),
    "models_differ_without_gain": _models_differ(_MODELS_DIFFER, gain=False),
    "outliers_differ": _models_differ(_OUTLIERS_DIFFER, gain=True),
    "not_tested_too_few_samples": _NOT_TESTED + "{able:.0f} of {members:.0f} members are known to have {samples:.0f} "
    "samples, enough for {folds:.0f} folds; these are too few clients to tell apart",
    "not_tested_too_few_answers": _too_few_compared,
    "not_tested_too_few_members": _NOT_TESTED + "{members:.0f} members, at least {least:.0f} are needed",
    "not_tested_level_out_of_reach": _NOT_TESTED + "{members:.0f} members reach p = {floor:.2g} at best, above the "
    "level {level:.2g}",
    "not_tested_similarities_not_finite": _NOT_TESTED + "the similarities are not finite",
    "not_tested_no_pattern": _NOT_TESTED + "the similarities have no pattern",
}
"""The sentence of each kind of decision."""


def plain_sentence(kind: str, values: Mapping[str, Any]) -> str:
    """Return what was decided for a reader who knows no statistics, in whole sentences.

    Args:
        kind: The kind of the decision. A kind without such sentences has an empty text.
        values: The values of the decision. A record that lacks one of them has an empty text.
    """
    known = {name: value for name, value in values.items() if value is not None}
    try:
        chance = {f"{name}_chance": _percent(known[name]) for name in ("p", "level", "floor") if name in known}
        fit = _FIT_OF_PERSONAL_MODELS if "p_gain" in known else _FIT_OF_MODELS
        text = _PLAIN.get(kind, "")
        return (text if isinstance(text, str) else text(known)).format_map({**known, **chance, **fit})
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return ""


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


_PULLED_APART = (
    "The clients trained the shared model in different directions: what the clients of one group changed was like what "
    "others of the group changed, and unlike what the other groups changed."
)
_FOUND_TWICE = (
    "The groups that were found in one part of every client's data were found again in the other part. Chance alone "
    "would do so in {p_chance} of cases; up to {level_chance} was allowed."
)
_FIT_OF_MODELS = {
    "fit": "A model for each group fitted data that it had not seen better than one model did.",
    "no_fit": "A model for each group did not fit data that it had not seen better than one model did.",
}
_FIT_OF_PERSONAL_MODELS = {
    "fit": "The personal models that clients make from a model for each group fitted data that they had not seen "
    "better than those that they make from one model.",
    "no_fit": "The personal models that clients make from a model for each group did not clearly fit data that they "
    "had not seen better than those that they make from one model.",
}
_OTHERS_FIT_WORSE = (
    "The models of the other groups fitted the clients' data worse than their own group's. Chance alone would do so in "
    "{p_chance} of cases; up to {level_chance} was allowed."
)
_ALIKE = "The clients changed the shared model in similar ways, so they stay together."
_TOO_FEW_ANSWERS = "Too few clients answered in the same round to be compared."


def _plain_too_few_answers(values: Mapping[str, Any]) -> str:
    """Return that too few clients answered, or that the first round of a clustering had not come."""
    enough = values["present"] >= values["min_clients"] and values["present"] / values["members"] >= values["quorum"]
    if enough and values.get("first_round", 1) > 1:
        return "Clients are grouped from round {first_round:.0f} on, which had not come."
    return _TOO_FEW_ANSWERS


def _plain_too_few_members(values: Mapping[str, Any]) -> str:
    """Return that too few clients answered, or that those who did had not been there for long enough."""
    if values["answered"] >= max(values["min_split"], values["quorum"] * values["asked"]):
        return "Too few clients had answered often enough to be compared."
    return _TOO_FEW_ANSWERS


def _plain_agglomerative_clustering(values: Mapping[str, Any]) -> str:
    """Return how clients were put together; or why all of them were."""
    if values["groups"] == 1 and "cut" not in values:
        return "No groups stood out: how far apart clients were in what was compared had no clear step."
    if values["groups"] == 1:
        return "All clients were close to each other in what was compared, so they stay together."
    return (
        "Clients that were close to each other in what was compared were put together, until the groups were too far "
        "apart."
    )


_PLAIN: Mapping[str, str | Callable[[Mapping[str, Any]], str]] = {
    "split": _PULLED_APART,
    "groups_replicate": _FOUND_TWICE + " {fit}",
    "groups_replicate_without_gain": _FOUND_TWICE + " {no_fit}",
    "newcomers_differ": "Clients that came later differ from those that were there. " + _FOUND_TWICE + " {fit}",
    "newcomers_differ_without_gain": "Clients that came later differ from those that were there. "
    + _FOUND_TWICE
    + " {no_fit}",
    "models_differ": _OTHERS_FIT_WORSE + " {fit}",
    "models_differ_without_gain": _OTHERS_FIT_WORSE + " {no_fit}",
    "outliers_differ": "A few clients differ from all others: the model of either side fitted the other side's data "
    "worse. Chance alone would do so in {p_chance} of cases; up to {level_chance} was allowed. {fit}",
    "true_groups_given": "The groups were given: they are the true groups of the simulation.",
    "random_groups_given": "The groups were drawn at random. They say nothing about the clients.",
    "k_given": "The number of groups, {clusters:.0f}, was given. In every round, each client took the group whose "
    "model fitted its training data best.",
    "k_means": "The number of groups was given. Clients whose models were close to each other were put together.",
    "agglomerative_clustering": _plain_agglomerative_clustering,
    "clustering_in_preclusters": "Clients with classes of similar variety, and with similar changes of the model, were "
    "put together.",
    "hopkins_above_threshold": "What the clients' models predict falls into clear groups.",
    "newcomer_beyond_epsilon": "Client {client:.0f} came later and was too far from every group, so it has its own.",
    # What keeps clients together.
    "p_above_level": "No clear groups: chance alone would give groups as clear as those that were found in {p_chance} "
    "of cases, and at most {level_chance} was allowed.",
    "not_tested_too_few_samples": "Groups were not looked for: {able:.0f} of {members:.0f} clients are known to have "
    "the {samples:.0f} training samples that a test needs of each, which is too few clients.",
    "not_tested_too_few_members": "Groups were not looked for: a test needs at least {least:.0f} clients, and there "
    "are {members:.0f}.",
    "not_tested_too_few_answers": "Groups were not looked for: a test needs at least {least:.0f} clients that answered "
    "and can be compared. {members:.0f} answered.",
    "not_tested_level_out_of_reach": "Groups were not looked for: with {members:.0f} clients, even clear groups could "
    "be chance in {floor_chance} of cases, and only {level_chance} was allowed.",
    "not_stationary": "The shared model was still changing much, so no split was considered.",
    "members_converged": "Training has nearly come to rest for every client, so one model serves them all.",
    "layers_not_trained": "Training does not change the layers that are compared, so they show no groups.",
    "members_agree": _ALIKE,
    "theorem_1_not_met": "No way to part the clients was clear enough: some on different sides changed the shared "
    "model in similar ways.",
    "same_direction": _ALIKE,
    "hopkins_not_above_threshold": "What the clients' models predict does not fall into clear groups.",
    "no_layer_found": "No layer of the network has been found in which the clients differ.",
    "too_few_members": _plain_too_few_members,
    "too_few_answers": _plain_too_few_answers,
    "too_few_signatures": "Too few clients could be compared.",
}
"""What was decided in plain words, by the kind of the decision. ``{p_chance}`` and the like are shares in percent."""
