"""The words of all pages: numbers as people read them, what each measure and metric means, and events in sentences."""

import re
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, NamedTuple

from fedstrata.report.decisions import sentence

DASH = "\N{EN DASH}"


class Measure(NamedTuple):
    """What two clients are compared by.

    Attributes:
        text: What it is, with its unit and its range.
        similarity: Whether a larger value means that the clients are closer.
        comparable: Whether a value means the same in every round, so that all matrices can share one colour scale.
    """

    text: str
    similarity: bool = False
    comparable: bool = False


MEASURES: Mapping[str, Measure] = {
    "cos": Measure("Cosine similarity of the models, from -1 to 1 (same direction)", True, True),
    "dcos": Measure("Cosine similarity of the updates, from -1 to 1 (same direction)", True, True),
    "l2": Measure("Euclidean distance of the models; 0 means equal models"),
    "dl2": Measure("Euclidean distance of the updates; 0 means equal updates"),
    "js": Measure("Jensen-Shannon divergence of the predictions, in nats; 0 means equal predictions"),
    "angle": Measure("Angle between the predictions, in degrees; 0 means equal predictions"),
    "smallest angle": Measure("Smallest angle between the data's subspaces, in degrees; 0 means a shared direction"),
    "mean angle": Measure("Mean angle between the data's subspaces, in degrees; 0 means equal subspaces"),
    "likeness": Measure("Cosine similarity of the updates without their common part, over all folds of the data", True),
}
"""The measures of the matrices and gaps, by their names in the records."""


class Metric(NamedTuple):
    """What a metric of an algorithm means.

    Attributes:
        text: What it is, with its unit and which values are good.
        threshold: The hyper-parameter that it is compared with; empty where there is none.
    """

    text: str
    threshold: str = ""


METRICS: Mapping[str, Metric] = {
    "stability": Metric(
        "How much the direction of a layer's updates changes between rounds, from 0 to 2. The layer is stable below "
        "the threshold.",
        "epsilon",
    ),
    "weights_used": Metric("Share of the weights that stability is computed from, from 0 to 1."),
    "mean_norm": Metric(
        "Norm of the mean update of a node's clients. Training has converged where it is below the threshold.", "eps1"
    ),
    "max_norm": Metric(
        "Largest norm of an update in a node. Above the threshold, the node may hold several groups.", "eps2"
    ),
    "hopkins": Metric(
        "Hopkins statistic of the predictions, from 0 to 1: about 0.5 without clusters, near 1 with clear ones. Above "
        "the threshold, clients are clustered.",
        "threshold",
    ),
    "shared_layers": Metric("Number of layers that the clients of a cluster share; the others are personal."),
    "triggers": Metric("Number of clusterings so far."),
    "groups_first": Metric("Number of groups that the first stage found."),
    "radius1": Metric("Radius of the first stage, in nats of Jensen-Shannon divergence."),
    "radius2": Metric("Largest radius of the second stage, a distance of models."),
    "chosen": Metric("Number of models that at least one client chose."),
    "moved": Metric("Number of clients that changed their cluster."),
    "left_out": Metric(
        "Number of updates that were not averaged, because they were not trained from the model of the client's "
        "cluster. 0 is usual."
    ),
    "p": Metric("p-value of the test: how often chance alone gives such a result. A split needs p at most the level."),
    "level": Metric("Significance level of this test; the tests of a cluster share alpha."),
    "floor": Metric("Smallest p-value that two clear groups of so many clients are sure to reach."),
    "z": Metric("Test statistic in standard deviations of chance: about 0 for clients of one group."),
    "contrast": Metric("Mean similarity inside the two proposed clusters minus that between them. Larger is clearer."),
    "gain": Metric("Decrease of the mean loss by a model for each group, in nats. A split needs more than 0."),
    "eps1": Metric("Threshold for mean_norm."),
    "eps2": Metric("Threshold for max_norm."),
    "cross_max": Metric("Largest cosine similarity between the two proposed clusters. Lower is a clearer split."),
    "cross_mean": Metric("Mean cosine similarity between the two proposed clusters. Lower is a clearer split."),
    "bound": Metric("sqrt((1 - cross_max) / 2). A split needs more than gamma."),
    "gamma": Metric("Threshold for the bound."),
    "max_stability": Metric("Largest stability of a client, from 0 to 2. Lower is more stable."),
    "epsilon": Metric("Threshold for stability, or for the distance of a new client."),
    "ratio": Metric("mean_norm divided by max_norm, from 0 to 1. It is compared with rho."),
    "rho": Metric("Threshold for the ratio."),
    "reference": Metric("The most stable client, around which the node is split."),
    "t_statistic": Metric(
        "How many standard errors the cosines with the reference's side lie above those between the sides. Larger is "
        "clearer."
    ),
    "cut": Metric("Distance up to which clusters merge, in the unit of the compared matrix."),
    "groups": Metric("Number of clusters that were found."),
    "clients": Metric("Number of clients that were clustered."),
    "distance": Metric("Distance of a new client to the nearest cluster. It joins where this is at most epsilon."),
    "threshold": Metric("Threshold for the Hopkins statistic."),
}
"""The metrics of the rounds and the values of the decisions, in the order in which charts show them."""


def number(value: Any, digits: int = 3) -> str:
    """A number with so many decimals; an integer without decimals, a dash for an unknown number."""
    if isinstance(value, str):
        return value
    if value is None or not isfinite(value):
        return DASH
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}f}"


def brief(value: Any) -> str:
    """A number with four significant digits."""
    if isinstance(value, float) and isfinite(value):
        return f"{value:.4g}"
    return number(value)


def size(count: float) -> str:
    """Bytes in decimal units."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 1000:
            return f"{count:.3g} {unit}"
    return f"{count / 1000:,.3g} TB"


def duration(seconds: float | None) -> str:
    """Seconds, or minutes and hours where there are many; a dash where they are unknown."""
    if seconds is None:
        return DASH
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s"


def plural(count: int, noun: str) -> str:
    """One cluster, two clusters."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def ranges(ids: Iterable[int]) -> str:
    """Ids with consecutive ones as a range: 0-4, 7."""
    runs: list[list[int]] = []
    for each in sorted(ids):
        if runs and each == runs[-1][-1] + 1:
            runs[-1].append(each)
        else:
            runs.append([each])
    return ", ".join(f"{run[0]}{DASH}{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def joined(items: Iterable[object]) -> str:
    """One; one and two; one, two and three."""
    *some, last = [str(item) for item in items] or [""]
    return f"{', '.join(some)} and {last}" if some else last


def capital(text: str) -> str:
    """A text as the start of a sentence."""
    return text[:1].upper() + text[1:]


def measure_text(name: str) -> str:
    """What a measure is; the name itself where it is not known."""
    return MEASURES[name].text if name in MEASURES else name


def metric_text(name: str) -> str:
    """What a metric means; empty where it is not known."""
    return METRICS[name].text if name in METRICS else ""


def split_text(event: Mapping[str, Any]) -> str:
    """A split in words."""
    layer = f" on {event['layer']}" if event.get("layer") else ""
    return f"node {event.get('node')} split into {joined(event.get('into', []))}{layer}"


def event_text(event: Mapping[str, Any]) -> str:
    """A split, a layer scan, a rejected answer or a divergence in words; empty for other events."""
    texts = {
        "split": split_text,
        "scout": _layer_scan_text,
        "rejected": _rejection_text,
        "diverged": _divergence_text,
    }
    text = texts.get(str(event.get("kind")))
    return text(event) if text else ""


def _layer_scan_text(event: Mapping[str, Any]) -> str:
    """What a layer scan found."""
    return sentence(str(event.get("decision")), event.get("layer") or event.get("best_layer"), event)


def _rejection_text(event: Mapping[str, Any]) -> str:
    """Why answers of clients were not used."""
    reason = event.get("reason")
    if reason == "not finite":
        return "a number in the answer is not finite"
    if reason == "no samples":
        return "the answer says that it was trained on no samples"
    if reason != "norm":
        return str(event.get("why", ""))
    limit = f"at most {brief(event.get('limit'))} is accepted"
    norm = f"task {event.get('task')}: the norm of the {event.get('part')} is {brief(event.get('norm'))}"
    median = event.get("median")
    if median is None:
        return f"{norm}; {limit}"
    return f"{norm}, the median of the other clients is {brief(median)}; {limit}"


def _divergence_text(event: Mapping[str, Any]) -> str:
    """By what a divergence of training was noticed."""
    reason = event.get("reason")
    if reason == "models":
        return "the new models are not finite or too large to train from; the models from before the round were kept"
    if reason == "answers":
        return f"{len(event.get('clients', []))} of {event.get('answered')} answers are not finite"
    loss = event.get("loss")
    found = "is not finite" if loss is None or not isfinite(loss) else f"is {brief(loss)}"
    return f"the clients' median loss {found}; guessing has {brief(event.get('guessing'))}"


def warnings(summary: Mapping[str, Any]) -> list[str]:
    """What the reader of a run's results must know: that it diverged, and that answers were rejected."""
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
    """A name as part of a file name: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "x"
