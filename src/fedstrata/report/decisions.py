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
