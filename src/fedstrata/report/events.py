"""The events of a run in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from fedstrata.report.decisions import sentence
from fedstrata.report.words import brief, joined


def split_text(event: Mapping[str, Any]) -> str:
    """Return a split in words."""
    layer = f" on {event['layer']}" if event.get("layer") else ""
    return f"node {event.get('node')} split into {joined(event.get('into', []))}{layer}"


def event_text(event: Mapping[str, Any]) -> str:
    """Return an event in words: a split, a layer scan, a rejected answer; empty for most others."""
    texts = {
        "split": split_text,
        "scout": _layer_scan_text,
        "rejected": _rejection_text,
        "diverged": _divergence_text,
        "reversed": _reversal_text,
        "doubted": _doubt_text,
        "oversized": _excess_text,
        "clipped": _clipping_text,
        "one_sided": _one_sided_text,
        "copied": _copy_text,
        "drifted": _drift_text,
        "multi_round": _multi_round_text,
        "multi_round_given_up": _ended_multi_round_text,
        "reset": _reset_text,
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
    return "updates more than twice as long as the median of the cluster; they count as shorter ones"


def _one_sided_text(event: Mapping[str, Any]) -> str:
    """Return why updates are not in the mean of their cluster."""
    return "updates on one side of those of the cluster in nearly all columns; they are not in its mean"


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


def _reset_text(event: Mapping[str, Any]) -> str:
    """Why clients have lost the tensors of their own."""
    return "training with tensors of their own gave numbers that are not finite; they start from the shared ones again"


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
