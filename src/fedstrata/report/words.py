"""The words of all pages: numbers as people read them, what each measure and metric means, and events in sentences."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, NamedTuple

from fedstrata.clustering.client_measures import CLIENT_MEASURES
from fedstrata.metric_info import MetricInfo
from fedstrata.report.decisions import sentence

DASH = "\N{EN DASH}"

_MOST_WRITTEN_OUT = 1e6
"""Larger numbers that are not whole have a power of ten."""


COMPARED_BY: Mapping[str, str] = {
    **{name: measure.about for name, measure in CLIENT_MEASURES.items()},
    "js": "Jensen-Shannon divergence of the predictions, in nats; 0 means equal predictions",
    "angle": "Angle between the predictions, in degrees; 0 means equal predictions",
    "smallest angle": "Smallest angle between the data's subspaces, in degrees; 0 means a shared direction",
    "mean angle": "Mean angle between the data's subspaces, in degrees; 0 means equal subspaces",
    "likeness": "Cosine similarity of the updates without their common part, over all folds of the data",
}
"""What clients are compared by in matrices and gaps, with its unit and range."""

SIMILARITIES = (*(name for name, measure in CLIENT_MEASURES.items() if measure.larger_is_closer), "likeness")
"""Client measures of which a larger value means that clients are closer."""

COMPARABLE = tuple(name for name, measure in CLIENT_MEASURES.items() if measure.fixed_scale)
"""Client measures whose values mean the same in every round, so that all matrices share one colour scale."""

METRICS: Mapping[str, str] = {
    "stability": "Change of direction of a layer's updates from round to round, 0 to 2. Stable is below the threshold.",
    "weights_used": "Share of the weights that stability is computed from, from 0 to 1.",
    "mean_norm": "Norm of the mean update of a node's clients. Training has converged where it is below the threshold.",
    "max_norm": "Largest norm of an update in a node. Above the threshold, the node may hold several groups.",
    "hopkins": "Hopkins statistic of the predictions: 0.5 without clusters, near 1 with clear ones; see threshold.",
    "shared_layers": "Number of layers that the clients of a cluster share; the others are personal.",
    "personal_layers": "Number of layers that stay on each client; 0 is FedAvg.",
    "triggers": "Number of clusterings so far.",
    "groups_first": "Number of groups that the first stage found.",
    "radius1": "Radius of the first stage, in nats of Jensen-Shannon divergence.",
    "radius2": "Largest radius of the second stage, a distance of models.",
    "chosen": "Number of models that at least one client chose.",
    "moved": "Number of clients that changed their cluster.",
    "left_out": "Number of updates that were not averaged: they started from another cluster's model, or their cluster "
    "had fewer than privacy.min_cluster. 0 is usual.",
    "p": "p-value of the test: how often chance alone gives such a result. A split needs p at most the level.",
    "level": "Significance level of this test; the tests of a cluster share alpha.",
    "floor": "Smallest p-value that two clear groups of so many clients are sure to reach.",
    "z": "Test statistic in standard deviations of chance: about 0 for clients of one group.",
    "contrast": "Mean similarity inside the two proposed clusters minus that between them. Larger is clearer.",
    "gain": "Decrease of the mean loss by a model for each group, in nats. A split needs more than 0.",
    "eps1": "Threshold for mean_norm.",
    "eps2": "Threshold for max_norm.",
    "cross_max": "Largest cosine similarity between the two proposed clusters. Lower is a clearer split.",
    "cross_mean": "Mean cosine similarity between the two proposed clusters. Lower is a clearer split.",
    "bound": "sqrt((1 - cross_max) / 2). A split needs more than gamma.",
    "gamma": "Threshold for the bound.",
    "max_stability": "Largest stability of a client, from 0 to 2. Lower is more stable.",
    "epsilon": "Threshold for stability, or for the distance of a new client.",
    "ratio": "mean_norm divided by max_norm, from 0 to 1. It is compared with rho.",
    "rho": "Threshold for the ratio.",
    "reference": "The most stable client, around which the node is split.",
    "t_statistic": "Mean cosine inside the reference's side minus that across, in standard errors. Larger is clearer.",
    "bipartition_accuracy": "Share of a node's clients that a bipartition would put on the right side. 1 is best.",
    "smaller_side": "Number of clients on the smaller side of that bipartition; 0 if all are on one side.",
    "cut": "Distance up to which clusters merge, in the unit of the compared matrix; of cosines it is 1 - cosine.",
    "groups": "Number of clusters that were found.",
    "clients": "Number of clients that were clustered.",
    "distance": "Distance of a new client to the nearest cluster. It joins where this is at most epsilon.",
    "threshold": "Threshold for the Hopkins statistic.",
}
"""The metrics of the rounds and the values of the decisions, with their units, in the order of the charts."""


class Tile(NamedTuple):
    """A number at the top of the page.

    Attributes:
        title: What it is called. In this and in the meaning, ``{metric}`` stands for the name of the run's metric,
            ``{Metric}`` for the same with a capital, ``{scale}`` for its values, and ``{better}`` and ``{worst}`` for
            "higher" and "lowest", or "lower" and "highest" of an error.
        meaning: What it is, and which values are good.
        of_clusters: Whether it is about clusters, and is left out in a run without them.
        of_metric: Whether the number is a value of the run's metric, and is shown as one.
    """

    title: str
    meaning: str
    of_clusters: bool = False
    of_metric: bool = False

    def about(self, metric: MetricInfo) -> Tile:
        """Return the tile of a run with a metric."""
        words = metric_words(metric)
        return self._replace(title=self.title.format_map(words), meaning=self.meaning.format_map(words))


def metric_words(metric: MetricInfo) -> dict[str, str]:
    """Return the words that texts about a metric hold in braces."""
    return {
        "metric": metric.name,
        "Metric": capital(metric.name),
        "scale": metric.scale,
        "better": metric.better,
        "worst": metric.worst,
    }


TILES: Mapping[str, Tile] = {
    "acc_client": Tile("{Metric}", "mean over clients, each on its own test data; {scale}", of_metric=True),
    "acc_worst": Tile("Worst client", "{worst} {metric} of a client; good is close to the mean", of_metric=True),
    "acc_weighted": Tile("By samples", "{metric}, mean weighted by test samples; {better} is better", of_metric=True),
    "acc_shared": Tile(
        "Without personal models",
        "{metric} with the models that clients would use without the personal stage; the mean should be {better}",
        of_metric=True,
    ),
    "acc_cluster": Tile(
        "By cluster", "{metric}, mean over the clusters; {better} is better", of_clusters=True, of_metric=True
    ),
    "acc_validation": Tile(
        "Validation", "{metric} on samples for validation, mean over clients; {better} is better", of_metric=True
    ),
    "ari": Tile("ARI", "agreement with the ground truth: 1 is the same partition, 0 is chance", of_clusters=True),
    "purity": Tile(
        "Purity",
        "share of clients in the commonest true group of their cluster; 1 is best, and usual for tiny clusters",
        of_clusters=True,
    ),
}
"""The measures of `fedstrata.records.measures` that the page shows at its top, by their names in the records.

A new measure is a value in the record of a round, and an entry here.
"""

REFERENCE_TILES: Mapping[str, Tile] = {
    "fedavg": Tile(
        "FedAvg reference",
        "{metric} with one model for all, mean over the same clients; this run's should be {better}",
        of_metric=True,
    ),
    "local": Tile(
        "Training alone",
        "{metric} when every client trains alone, mean over the same clients; this run's should be {better}",
        of_metric=True,
    ),
}

OTHER_USE = "{metric} with this model, mean over clients; {better} is better"
"""What the tile of a further way to use the models says."""

MEASURES: Mapping[str, str] = {
    "acc_client": "{metric}, mean over clients",
    "acc_weighted": "{metric}, mean weighted by test samples",
    "acc_cluster": "{metric}, mean over clusters",
    "acc_worst": "{metric} of the worst client",
    "acc_best": "{metric} of the best round, chosen by test samples",
    "acc_validation": "{metric} on validation data, mean over clients",
    "acc_shared": "{metric} without the personal stage, mean over clients",
    "acc_selected": "{metric} of the round that validation data select",
    "target": "{metric} to reach, mean over clients",
    "baseline_acc_client": "{metric} of FedAvg, mean over clients",
    "baseline_acc_worst": "{metric} of FedAvg's worst client",
}
"""What the values of a summary are that are values of the run's metric."""

THRESHOLDS = {
    "stability": "epsilon",
    "max_stability": "epsilon",
    "mean_norm": "eps1",
    "max_norm": "eps2",
    "hopkins": "threshold",
}
"""The hyper-parameter that a metric is compared with."""


def format_number(value: Any, digits: int = 3) -> str:
    """Return a number with so many decimals; an integer without decimals, a dash for an unknown number.

    A number of seven digits or more before the point, such as the loss of training that diverges, has a power of ten.
    """
    if isinstance(value, str):
        return value
    if value is None or not isfinite(value):
        return DASH
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.{digits}f}" if abs(value) < _MOST_WRITTEN_OUT else f"{value:.4g}"


def brief(value: Any) -> str:
    """Return a number with four significant digits."""
    if isinstance(value, float) and isfinite(value):
        return f"{value:.4g}"
    return format_number(value)


def size(count: float) -> str:
    """Return bytes in decimal units."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 1000:
            return f"{count:.3g} {unit}"
    return f"{count / 1000:,.3g} TB"


def duration(seconds: float | None) -> str:
    """Return seconds, or minutes and hours where there are many; a dash where they are unknown."""
    if seconds is None:
        return DASH
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, such as "1 cluster" or "2 clusters"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def ranges(ids: Iterable[int], most: int | None = None) -> str:
    """Return ids with consecutive ones as a range: 0-4, 7.

    Args:
        ids: The ids.
        most: The number of ranges after which the other ids are only counted; None for no limit.
    """
    runs: list[list[int]] = []
    for each in sorted(ids):
        if runs and each == runs[-1][-1] + 1:
            runs[-1].append(each)
        else:
            runs.append([each])
    texts = [f"{run[0]}{DASH}{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs[:most]]
    more = 0 if most is None else sum(map(len, runs[most:]))
    return ", ".join(texts) + (f" and {more:,} more" if more else "")


def joined(items: Iterable[object]) -> str:
    """Join items as in a sentence: one; one and two; one, two and three."""
    *some, last = [str(item) for item in items] or [""]
    return f"{', '.join(some)} and {last}" if some else last


_KEY = re.compile(r"[a-z_]+\.[a-z_]+\b")
"""A key of an experiment, at the beginning of a text."""

IN_MEMORY = "memory:"
"""Begins the name of data that a program gave to the run; a digest follows, which says nothing to a reader."""


def data_name(name: str) -> str:
    """Return what the data of a run are called."""
    return "data in memory" if name.startswith(IN_MEMORY) else name


def capital(text: str) -> str:
    """Begin a text with a capital, unless it begins with a key, such as ``data.copies``."""
    return text if _KEY.match(text) else text[:1].upper() + text[1:]


def summary_rows(summary: Mapping[str, Any], metric: MetricInfo) -> list[tuple[str, str, str]]:
    """Return the numbers and names of a summary: the key, the value, and what it is where the key does not say it."""
    rows = []
    for key, value in summary.items():
        if key in ("attack", "privacy") and isinstance(value, Mapping):
            rows += _condition_rows(key, value, metric)
        if isinstance(value, Mapping | list):
            continue
        of_metric = key in MEASURES or (key.startswith("acc_") and key != "acc_best_round")
        if of_metric and (value is None or isinstance(value, int | float)):
            known = MEASURES.get(key, "{metric} with another model, mean over clients")
            text = "-" if value is None else metric.text(value)
            rows.append((key, text, known.format_map(metric_words(metric))))
        elif key == "baseline_gain" and isinstance(value, int | float):
            rows.append((key, metric.gain_text(value), f"{metric.better} than FedAvg: what grouping gained"))
        elif isinstance(value, float):
            rows.append((key, f"{value:.4g}", ""))
        else:
            rows.append((key, "-" if value is None else str(value), ""))
    return rows


def _condition_rows(table: str, found: Mapping[str, Any], metric: MetricInfo) -> list[tuple[str, str, str]]:
    """Return the rows of clients that attack, or of differential privacy: without them the others are misread."""
    if table == "privacy":
        delta = found.get("delta")
        return [("privacy.epsilon", brief(found.get("epsilon")), f"for any one client, at delta {brief(delta)}")]
    attackers = found.get("clients", [])
    texts = {"acc_honest": "mean over clients that do not attack", "acc_honest_worst": "worst of these clients"}
    rows = [("attack.clients", ranges(attackers), "these attack; all rows but attack.* are about all clients")]
    return rows + [
        (f"attack.{key}", metric.text(found[key]), f"{metric.name}, {text}")
        for key, text in texts.items()
        if found.get(key) is not None
    ]


def split_text(event: Mapping[str, Any]) -> str:
    """Return a split in words."""
    layer = f" on {event['layer']}" if event.get("layer") else ""
    return f"node {event.get('node')} split into {joined(event.get('into', []))}{layer}"


def event_text(event: Mapping[str, Any]) -> str:
    """Return an event in words: a split, a layer scan, a rejected answer, a secure sum; empty for most others."""
    texts = {
        "split": split_text,
        "scout": _layer_scan_text,
        "rejected": _rejection_text,
        "diverged": _divergence_text,
        "reversed": _reversal_text,
        "doubted": _doubt_text,
        "oversized": _excess_text,
        "clipped": _clipping_text,
        "copied": _copy_text,
        "drifted": _drift_text,
        "multi_round": _multi_round_text,
        "multi_round_given_up": _ended_multi_round_text,
        "no_sum": _no_sum_text,
        "cut_updates": _cut_updates_text,
    }
    text = texts.get(str(event.get("kind")))
    return text(event) if text else ""


def _layer_scan_text(event: Mapping[str, Any]) -> str:
    """What a layer scan found."""
    return sentence(str(event.get("why")), event.get("layer") or event.get("best_layer"), event.get("values", {}))


def _rejection_text(event: Mapping[str, Any]) -> str:
    """Return why answers of clients were not used."""
    reason = event.get("reason")
    if reason == "not finite":
        return "a number in the answer is not finite"
    if reason == "no samples":
        return "the answer says that it was trained on no samples"
    if reason == "negative variance":
        return "a running variance of a normalisation layer would be negative"
    if reason != "norm":
        return str(event.get("why", ""))
    limit = f"at most {brief(event.get('limit'))} is accepted"
    norm = f"task {event.get('task')}: the norm of the {event.get('part')} is {brief(event.get('norm'))}"
    median = event.get("median")
    if median is None:
        return f"{norm}; {limit}"
    return f"{norm}, the median of the other clients is {brief(median)}; {limit}"


def _reversal_text(event: Mapping[str, Any]) -> str:
    """Return why updates are not in the mean of their cluster."""
    return "updates that keep pointing against those of the cluster; they are not in its mean until they point forwards"


def _doubt_text(event: Mapping[str, Any]) -> str:
    """Return why clients are split off."""
    return "updates that raise the loss of their own senders; these are split off, and others go on without them"


def _excess_text(event: Mapping[str, Any]) -> str:
    """Return why updates are not in the mean of their cluster."""
    return "the updates of the last rounds are much longer than those of the cluster; they are not in its mean"


def _clipping_text(event: Mapping[str, Any]) -> str:
    """Return why updates count less in the mean of their cluster."""
    return "updates more than twice as long as the median of the cluster; they count as if they were twice as long"


def _copy_text(event: Mapping[str, Any]) -> str:
    """Return why updates are not in the mean of their cluster."""
    return "the same update as another client of the cluster, which counts once"


def _multi_round_text(event: Mapping[str, Any]) -> str:
    """Return what happens to groups whose gain is not clear."""
    return "the models of its groups are trained beside one for all for some rounds, and compared then"


def _ended_multi_round_text(event: Mapping[str, Any]) -> str:
    """Return why a comparison over several rounds has no result."""
    return "the comparison of its groups has ended without a result: too few clients answered, or a model diverged"


def _drift_text(event: Mapping[str, Any]) -> str:
    """Return why clients are offered the models of all clusters."""
    return "updates have suddenly become much longer, as when data change; all models are offered in the next round"


def _no_sum_text(event: Mapping[str, Any]) -> str:
    """Return why a secure sum was not opened."""
    kept = "the model stays as it is"
    if event.get("reason") == "sum out of range":
        return f"the secure sum is none that clients of this run can have, and is not used; {kept}"
    clients = len(event.get("clients", []))
    found = f"{event.get('answered')} of {clients} clients stayed to the end, {event.get('needed')} are needed"
    return f"the secure sum was not opened: {found}; {kept}"


def _cut_updates_text(event: Mapping[str, Any]) -> str:
    """Return how many updates did not fit into the range of a secure sum."""
    updates = plural(int(event.get("cut", 0)), "update")
    return f"{updates} in the secure sum had numbers above {brief(event.get('limit'))}, which were cut; raise sum_limit"


def _divergence_text(event: Mapping[str, Any]) -> str:
    """Return by what a divergence of training was noticed."""
    reason = event.get("reason")
    if reason == "models":
        found = "are not finite, are too large to train from or have a negative running variance"
        return f"the new models {found}; the models from before the round were kept"
    if reason == "answers":
        return f"{len(event.get('clients', []))} of {event.get('answered')} answers are not finite"
    loss = event.get("loss")
    found = "is not finite" if loss is None or not isfinite(loss) else f"is {brief(loss)}"
    guessing = event.get("guessing")
    return f"the clients' median loss {found}" + ("" if guessing is None else f"; guessing has {brief(guessing)}")


def warnings(summary: Mapping[str, Any]) -> list[str]:
    """Return what the reader of a run's results must know: divergence, and rejected answers."""
    rounds = (summary.get("diverged") or {}).get("rounds", [])
    rejected = summary.get("rejected", 0)
    found = []
    if rounds:
        several = "rounds" if len(rounds) > 1 else "round"
        share = f"{len(rounds)} of {summary.get('rounds')} rounds ({several} {ranges(rounds)})"
        found.append(f"training diverged in {share}; lower local.lr")
    if rejected:
        answers = "1 answer was" if rejected == 1 else f"{rejected} answers were"
        found.append(f"{answers} rejected; the events of the rounds say whose and why")
    return found


def slug(name: str) -> str:
    """Return a name as part of a file name: lower-case letters, digits and dashes."""
    plain = unicodedata.normalize("NFKD", name).lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-") or "x"
