"""Decisions in words: one sentence for every kind of decision that an algorithm takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Words = Callable[[str | None, Mapping[str, float]], str]
"""Makes the sentence of a decision from its layer and its values."""

SENTENCES: dict[str, Words] = {}
"""The sentence of each kind."""


def sentence(kind: str, layer: str | None, values: Mapping[str, Any]) -> str:
    """What was decided, in one sentence.

    Args:
        kind: The kind of the decision. A kind without a sentence is shown as it is.
        layer: The layers that were compared.
        values: The values of the decision. A record that lacks one of them has the kind alone.
    """
    words = SENTENCES.get(kind)
    try:
        return words(layer, values) if words else kind.replace("_", " ")
    except (KeyError, TypeError, ValueError):
        return kind.replace("_", " ")


# CFL, LayerCFL and HiCFL: recursive bipartition, model stability, the reference split, the split guard, the layer scan.


def _too_few_members(layer: str | None, values: Mapping[str, float]) -> str:
    early = ""
    if values["not_ready"]:
        early = f", {values['not_ready']:.0f} of them too few times since they came here"
    return (
        f"{values['answered']:.0f} of {values['asked']:.0f} asked members answered{early}; "
        f"{values['min_split']:.0f} and a share of {values['quorum']:g} are needed"
    )


def _not_stationary(layer: str | None, values: Mapping[str, float]) -> str:
    return f"the mean update, {values['mean_norm']:.4g}, is not below eps1 = {values['eps1']:.4g}"


def _members_converged(layer: str | None, values: Mapping[str, float]) -> str:
    longest = f"the longest update, {values['max_norm']:.4g}, is not above eps2 = {values['eps2']:.4g}"
    return f"the members have converged: {longest}"


def _no_stable_layer(layer: str | None, values: Mapping[str, float]) -> str:
    whom = "every member" if values["every_member"] else "the members' mean"
    found = values["max_stability"] if values["every_member"] else values["stability"]
    return f"no layer is stable in {whom}: {found:.4g} is not below {values['epsilon']:.4g}"


def _members_agree(layer: str | None, values: Mapping[str, float]) -> str:
    ratio = f"mean update / longest update, {values['ratio']:.3f}, is not below rho = {values['rho']:g}"
    return f"the members agree: {ratio}"


def _theorem_1(values: Mapping[str, float]) -> str:
    return (
        f"{values['first_part']:.0f} and {values['second_part']:.0f} clients, largest cosine across "
        f"{values['cross_max']:.3f}, Theorem 1's bound {values['bound']:.3f}"
    )


def _theorem_1_not_met(layer: str | None, values: Mapping[str, float]) -> str:
    return f"{_theorem_1(values)} is not above gamma = {values['gamma']:.3f}"


def _sides(values: Mapping[str, float]) -> str:
    sides = (
        f"{values['with_reference']:.0f} clients with client {values['reference']:.0f}, the reference, "
        f"and {values['without']:.0f} without"
    )
    return f"at the ending, {sides}" if values["at_ending"] else sides


def _split(layer: str | None, values: Mapping[str, float]) -> str:
    if "reference" in values:
        return f"{_sides(values)}; mean cosine across {values['cross_mean']:.3f}"
    return f"{_theorem_1(values)} is above gamma = {values['gamma']:.3f}"


def _same_direction(layer: str | None, values: Mapping[str, float]) -> str:
    return f"all updates point in the direction of client {values['reference']:.0f}, the reference"


def _sides_not_opposed(layer: str | None, values: Mapping[str, float]) -> str:
    return f"{_sides(values)}: the mean cosine across, {values['cross_mean']:.3f}, is not below 0"


def _sides_not_distinct(layer: str | None, values: Mapping[str, float]) -> str:
    if "t_statistic" not in values:
        return f"{_sides(values)}: without the reference, those on one side do not agree or the sides do"
    apart = f"without the reference, t = {values['t_statistic']:.1f}"
    return f"{_sides(values)}: {apart}, at least {values['min_t_statistic']:g} is needed"


def _merged(layer: str | None, values: Mapping[str, float]) -> str:
    return f"merged into node {values['into']:.0f}: the models of both moved alike"


def _p_value(values: Mapping[str, float]) -> str:
    return f"p = {values['p']:.2g}, level {values['level']:.2g}"


def _split_confirmed(layer: str | None, values: Mapping[str, float]) -> str:
    test = f"a split-half test confirmed groups in round {values['test_round']:.0f}"
    return f"{_split(layer, values)}; {test} (Z = {values['z']:.1f}, {_p_value(values)})"


def _split_not_confirmed(layer: str | None, values: Mapping[str, float]) -> str:
    test = f"{_p_value(values)} in round {values['test_round']:.0f}"
    return f"proposed but not confirmed: {test}; {_split(layer, values)}"


def _split_awaits_test(layer: str | None, values: Mapping[str, float]) -> str:
    return f"proposed but not confirmed: no test so far; {_split(layer, values)}"


def _split_not_tested(layer: str | None, values: Mapping[str, float]) -> str:
    able = (
        f"{values['tested_members']:.0f} members answered with all parts of their data, who reach "
        f"p = {values['floor']:.2g} at best, level {values['level']:.2g}"
    )
    return (
        f"proposed but not confirmed: not tested in round {values['test_round']:.0f}: {able}; {_split(layer, values)}"
    )


def _split_not_tested_for_samples(layer: str | None, values: Mapping[str, float]) -> str:
    able = (
        f"{values['able_members']:.0f} of {values['tested_members']:.0f} members are known to have "
        f"{values['samples_needed']:.0f} samples, too few members for a test"
    )
    return (
        f"proposed but not confirmed: not tested in round {values['test_round']:.0f}: {able}; {_split(layer, values)}"
    )


def _split_not_tested_again(layer: str | None, values: Mapping[str, float]) -> str:
    return f"proposed but not confirmed: some members that differed have left since the test; {_split(layer, values)}"


def _scan_without_samples(layer: str | None, values: Mapping[str, float]) -> str:
    needed = f"the {values['samples_needed']:.0f} samples that two parts need"
    return f"no scan: {values['compared_clients']:.0f} clients have {needed}, too few for a test"


def _scan_without_clients(layer: str | None, values: Mapping[str, float]) -> str:
    reach = f"p = {values['floor']:.2g} at best, above the level {values['level']:.2g}"
    return f"no scan: {values['compared_clients']:.0f} clients reach {reach}"


def _no_separation(layer: str | None, values: Mapping[str, float]) -> str:
    rounds = f"{values['rounds']:.0f} round{'s' * (values['rounds'] != 1)}"
    found = (
        "no separation: the similarities of the clients do not replicate between halves of their data "
        f"(best layer {layer}, correlation {values['correlation']:.2f}; p = {values['p']:.2g} for the best of all "
        f"layers, level {values['level']:.2g}); skew too weak to be seen with {values['compared_clients']:.0f} clients "
        f"in {rounds} may still be there"
    )
    if values.get("bias_p", 1.0) <= values["level"]:
        found += ", and the bias of the last layer alone does replicate: classes may occur unequally often"
    return found


def _layer_chosen(layer: str | None, values: Mapping[str, float]) -> str:
    found = (
        f"{layer} separates the clients most clearly: their similarities replicate between halves of their data "
        f"(correlation {values['correlation']:.2f}; p = {values['p']:.2g} for the best of all layers), and "
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


SENTENCES |= {
    "too_few_members": _too_few_members,
    "not_stationary": _not_stationary,
    "members_converged": _members_converged,
    "no_stable_layer": _no_stable_layer,
    "members_agree": _members_agree,
    "theorem_1_not_met": _theorem_1_not_met,
    "split": _split,
    "same_direction": _same_direction,
    "sides_not_opposed": _sides_not_opposed,
    "sides_not_distinct": _sides_not_distinct,
    "clustering_complete": lambda layer, values: "the clustering is complete",
    "merged": _merged,
    "no_layer_found": lambda layer, values: "no layer has been found so far in which the members differ",
    "split_confirmed": _split_confirmed,
    "split_not_confirmed": _split_not_confirmed,
    "split_awaits_test": _split_awaits_test,
    "split_not_tested": _split_not_tested,
    "split_not_tested_for_samples": _split_not_tested_for_samples,
    "split_not_tested_again": _split_not_tested_again,
    "scan_without_samples": _scan_without_samples,
    "scan_without_clients": _scan_without_clients,
    "no_separation": _no_separation,
    "layer_chosen": _layer_chosen,
}


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


# Strata: split-half tests and hold-out comparisons.


def _strata_chance(values: Mapping[str, float], suffix: str = "") -> str:
    return f"p = {values['p' + suffix]:.2g}, level {values['level' + suffix]:.2g}"


def _strata_not_tested(reason: str) -> Words:
    def words(layer: str | None, values: Mapping[str, float]) -> str:
        return f"not tested in round {values['round']:.0f}: {reason.format(**values)}"

    return words


def _strata_p_above_level(layer: str | None, values: Mapping[str, float]) -> str:
    return f"not split: {_strata_chance(values)} in round {values['round']:.0f}"


def _strata_confirmed(finding: str, *, gain: bool) -> Words:
    """The sentence of a split that a permutation test confirmed, and what hold-out data said of it, if they did."""

    def words(layer: str | None, values: Mapping[str, float]) -> str:
        parts = [
            f"round {values['round']:.0f}, {layer}: {finding} (Z = {values['z']:.1f}, {_strata_chance(values)})",
        ]
        if "splits_inside" in values:
            count = f"{values['splits_inside']:.0f} more split{'s' * (values['splits_inside'] > 1)} inside them"
            parts.append(f"the same holds for {count} ({_strata_chance(values, '_inside')} at most)")
        if "p_holdout" in values:
            parts.append(f"inside, the models of others fit the clients worse ({_strata_chance(values, '_holdout')})")
        if "gain" in values:
            parts.append(_strata_gain(values, gain=gain))
        return "; ".join(parts)

    return words


def _strata_models_differ(*, gain: bool) -> Words:
    """The sentence of a split that error rate tests alone confirmed."""

    def words(layer: str | None, values: Mapping[str, float]) -> str:
        finding = f"the models of others fit the clients worse ({_strata_chance(values)})"
        return f"round {values['round']:.0f}: {finding}; {_strata_gain(values, gain=gain)}"

    return words


def _strata_gain(values: Mapping[str, float], *, gain: bool) -> str:
    groups = f"{values['groups']:.0f} groups" if values["groups"] > 2 else "the two sides"
    change = "lower" if gain else "do not lower"
    return f"own models of {groups} {change} the loss of their members on hold-out data (by {values['gain']:.2g} nats)"


_GROUPS_REPLICATE = "the groups found in one part of the data are found again in the other"
_NEWCOMERS_DIFFER = "the newcomers differ from the members"

SENTENCES |= {
    "p_above_level": _strata_p_above_level,
    "groups_replicate": _strata_confirmed(_GROUPS_REPLICATE, gain=True),
    "groups_replicate_without_gain": _strata_confirmed(_GROUPS_REPLICATE, gain=False),
    "newcomers_differ": _strata_confirmed(_NEWCOMERS_DIFFER, gain=True),
    "newcomers_differ_without_gain": _strata_confirmed(_NEWCOMERS_DIFFER, gain=False),
    "models_differ": _strata_models_differ(gain=True),
    "models_differ_without_gain": _strata_models_differ(gain=False),
    "not_tested_too_few_samples": _strata_not_tested(
        "{able:.0f} of {members:.0f} members are known to have {samples:.0f} samples, enough for {folds:.0f} folds; "
        "these are too few clients to tell apart"
    ),
    "not_tested_too_few_answers": _strata_not_tested(
        "{members:.0f} members answered with all folds, at least {least:.0f} are needed"
    ),
    "not_tested_too_few_members": _strata_not_tested("{members:.0f} members, at least {least:.0f} are needed"),
    "not_tested_level_out_of_reach": _strata_not_tested(
        "{members:.0f} members reach p = {floor:.2g} at best, above the level {level:.2g}"
    ),
    "not_tested_similarities_not_finite": _strata_not_tested("the similarities are not finite"),
    "not_tested_no_pattern": _strata_not_tested("the similarities have no pattern"),
}
