"""Figures and sentences as people read them."""

import re
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

from fedstrata.report.decisions import sentence

DASH = "\N{EN DASH}"
MEASURES = {
    "cos": "Cosine similarity of the models",
    "dcos": "Cosine similarity of the updates",
    "l2": "Euclidean distance of the models",
    "dl2": "Euclidean distance of the updates",
    "js": "Jensen-Shannon divergence of the predictions, in nats",
    "angle": "Angle between the predictions, in degrees",
    "smallest angle": "Smallest angle between the data's subspaces, in degrees",
    "mean angle": "Mean angle between the data's subspaces, in degrees",
    "likeness": "Likeness of the updates without what all have in common, by all parts of the data",
}


def number(value: Any, digits: int = 3) -> str:
    """A figure to so many decimals, integers as they are, a dash for what is not known."""
    if isinstance(value, str):
        return value
    if value is None or not isfinite(value):
        return DASH
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}f}"


def brief(value: Any) -> str:
    """A figure of unknown size to four significant digits."""
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
    """Seconds, or minutes and hours where there are many."""
    if seconds is None:
        return DASH
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s"


def plural(count: int, noun: str) -> str:
    """One group, two groups."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def ranges(ids: Iterable[int]) -> str:
    """Ids with runs drawn together: 0-4, 7."""
    runs: list[list[int]] = []
    for each in sorted(ids):
        if runs and each == runs[-1][-1] + 1:
            runs[-1].append(each)
        else:
            runs.append([each])
    return ", ".join(f"{run[0]}{DASH}{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def listed(items: Iterable[object]) -> str:
    """One, one and two, or one, two and three."""
    *some, last = [str(item) for item in items] or [""]
    return f"{', '.join(some)} and {last}" if some else last


def capital(text: str) -> str:
    """A text as the start of a sentence."""
    return text[:1].upper() + text[1:]


def measure(name: str) -> str:
    """What a measure measures."""
    return MEASURES.get(name, name)


def told(event: Mapping[str, Any]) -> str:
    """A split in words."""
    layer = f" on {event['layer']}" if event.get("layer") else ""
    return f"node {event.get('node')} split into {listed(event.get('into', []))}{layer}"


def happened(event: Mapping[str, Any]) -> str:
    """A split, a layer scan, a rejected answer or a divergence in words; empty for other events."""
    said = {"split": told, "scout": layer_scan, "rejected": rejection, "diverged": divergence}.get(
        str(event.get("kind"))
    )
    return said(event) if said else ""


def layer_scan(event: Mapping[str, Any]) -> str:
    """What a layer scan found."""
    return sentence(str(event.get("decision")), event.get("layer") or event.get("best_layer"), event)


def rejection(event: Mapping[str, Any]) -> str:
    """Why answers of clients were not used."""
    reason, why = event.get("reason"), str(event.get("why", ""))
    if reason == "not finite":
        return "a number in the answer is not finite"
    if reason == "no samples":
        return "the answer claims to be of no samples"
    if reason != "norm":
        return why
    limit = f"at most {brief(event.get('limit'))} is accepted"
    norm = f"task {event.get('task')}: the norm of the {event.get('part')} is {brief(event.get('norm'))}"
    median = event.get("median")
    if median is None:
        return f"{norm}; {limit}"
    return f"{norm}, the median of the other clients is {brief(median)}; {limit}"


def divergence(event: Mapping[str, Any]) -> str:
    """How it showed that training diverged."""
    reason = event.get("reason")
    if reason == "models":
        return "the new models are not finite or too large to train from; the models from before the round were kept"
    if reason == "answers":
        return f"{len(event.get('clients', []))} of {event.get('answered')} answers are not finite"
    loss = event.get("loss")
    found = "is not finite" if loss is None or not isfinite(loss) else f"is {brief(loss)}"
    return f"the clients' median loss {found}; guessing has {brief(event.get('guessing'))}"


def warnings(summary: Mapping[str, Any]) -> list[str]:
    """What the reader of a run's results has to know: that it diverged, and that answers were rejected."""
    rounds = (summary.get("diverged") or {}).get("rounds", [])
    done, rejected = summary.get("rounds"), summary.get("rejected", 0)
    told = []
    if rounds:
        several = "rounds" if len(rounds) > 1 else "round"
        told.append(f"training diverged in {len(rounds)} of {done} rounds ({several} {ranges(rounds)}); lower local.lr")
    if rejected:
        answers = "1 answer was" if rejected == 1 else f"{rejected} answers were"
        told.append(f"{answers} rejected; the events of the rounds say whose and why")
    return told


def slug(name: str) -> str:
    """A name as part of a file's: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "x"
