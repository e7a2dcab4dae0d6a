"""How good the probabilities of classes are: whether they rank samples rightly, and whether they can be believed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedstrata.objective.metrics import roc_auc

BINS = 10
"""The ranges of probabilities, of equal width, whose samples are compared with what was observed."""


def probability_scores(clients: Tensor, truth: Tensor, outputs: Tensor) -> dict[str, Any]:
    """Score the class probabilities of test samples, of all clients together and of each client.

    Args:
        clients: The client of each sample, (s,).
        truth: The class of each sample, (s,).
        outputs: The logits of its model, (s, classes); of at least two classes.

    Returns:
        ``samples``; ``roc_auc``, the area under the ROC curve of the probability of the second of two classes, of more
        classes the mean over those that occur, each against the rest; and ``brier``, the mean squared error of this
        probability, of more classes its sum over the classes (Brier, 1950). ``reliability`` has a row for each range of
        probabilities with samples: ``from`` and ``to``, ``samples``, the mean probability ``predicted``, and the share
        ``observed`` of the second class; of more classes, of the predicted class. ``clients`` has ``client``,
        ``samples``, ``roc_auc`` and ``brier`` of each client, where there are two classes. The area is None where all
        samples are of one class. Nothing where an output is not finite.
    """
    if not bool(outputs.isfinite().all()):
        return {}
    classes = outputs.shape[1]
    two = classes == 2
    probabilities = outputs.double().softmax(1)
    right = torch.nn.functional.one_hot(truth, classes)
    # Both classes have the same error.
    errors = (probabilities - right).square().sum(1) / (2 if two else 1)
    if two:
        logits, targets = outputs.double().diff(dim=1), right[:, 1:].double()
        chosen = torch.ones_like(truth)
    else:
        logits, targets = outputs, truth
        chosen = probabilities.argmax(1)

    def scores(some: Tensor) -> dict[str, Any]:
        area = roc_auc(logits[some], targets[some]) if len(truth[some].unique()) > 1 else None
        return {"samples": len(truth[some]), "roc_auc": area, "brier": float(errors[some].mean())}

    return {
        **scores(torch.ones_like(truth, dtype=torch.bool)),
        "reliability": _reliability(*(each.gather(1, chosen[:, None])[:, 0] for each in (probabilities, right))),
        "clients": [{"client": each, **scores(clients == each)} for each in clients.unique().tolist()] if two else [],
    }


def _reliability(probabilities: Tensor, right: Tensor) -> list[dict[str, Any]]:
    """Compare probabilities (s,) with what came true, (s,) of 0 and 1, in ranges of equal width."""
    places = (probabilities * BINS).long().clamp(max=BINS - 1)
    rows = []
    for place in places.unique().tolist():
        inside = places == place
        means = {"predicted": float(probabilities[inside].mean()), "observed": float(right[inside].double().mean())}
        rows.append({"from": place / BINS, "to": (place + 1) / BINS, "samples": int(inside.sum()), **means})
    return rows
