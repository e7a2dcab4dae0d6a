"""The rules of aggregation that an experiment can name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

from fedstrata.core import robust_aggregation
from fedstrata.core.aggregation import Aggregation, plain_mean, weighted_mean

AGGREGATIONS: Mapping[str, Aggregation] = {
    "mean": weighted_mean,
    "plain_mean": plain_mean,
    "median": robust_aggregation.median,
    "trimmed_mean": robust_aggregation.trimmed_mean,
    "geometric_median": robust_aggregation.geometric_median,
    "krum": robust_aggregation.krum,
    "multi_krum": robust_aggregation.multi_krum,
    "norm_clip": robust_aggregation.norm_clip,
    "centered_clip": robust_aggregation.centered_clip,
}
"""The rules by the name that the key ``server.aggregation`` takes. A new rule is a function and an entry here. Its
keyword-only arguments are keys of the table ``server``."""

MEANS = ("mean", "plain_mean")
"""The rules that are not robust. Means of random buckets would change nothing in them but chance."""


def options_of(rule: str) -> tuple[str, ...]:
    """The names of the keyword-only arguments of a rule."""
    parameters = inspect.signature(AGGREGATIONS[rule]).parameters.values()
    return tuple(each.name for each in parameters if each.kind is each.KEYWORD_ONLY)


def aggregation_of(rule: str, values: Mapping[str, Any]) -> Aggregation:
    """The rule of a name, with its options.

    Args:
        rule: The name.
        values: The values of all options of all rules, by name.
    """
    options = {name: values[name] for name in options_of(rule)}
    return partial(AGGREGATIONS[rule], **options) if options else AGGREGATIONS[rule]
