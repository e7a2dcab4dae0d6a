"""The metrics that the library names: outputs and targets of one client's test samples to a number.

Shapes are as in `fedstrata.objective.training`. The names and meanings are scikit-learn's, which computes all but
accuracy. Which values are better says `fedstrata.objective.metric_info.METRIC_INFOS`. Targets that are all padding have
no score: it is nan, and that of ROC AUC is 0.5.
"""

from __future__ import annotations

import warnings
from functools import partial
from math import nan
from typing import Any

import torch
from torch import Tensor

from fedstrata.objective.training import IGNORED, counted_share


def _sklearn() -> Any:
    """Scikit-learn's metrics, read at the first use: a device that measures accuracy needs none of them."""
    from sklearn import metrics

    return metrics


def mistakes(outputs: Tensor, targets: Tensor, *, labels: bool | None = None) -> Tensor:
    """How wrong each sample is, (b,) in [0, 1].

    For classes 1 is wrong and 0 is right; for tokens and for labels of 0 and 1 it is the share of them that is wrong.
    For numbers it is the mean over outputs of e^2 / (1 + e^2), where e is the error: bounded, as the error-rate test
    of Strata needs it.

    Args:
        outputs: The outputs for the samples.
        targets: What they are compared with.
        labels: Whether targets that are floats are labels, and outputs their logits. None goes by whether all targets
            of the batch are 0 or 1.
    """
    if not targets.is_floating_point():
        wrong = (outputs.argmax(-1) != targets).float()
        counted = (targets != IGNORED).float()
        if targets.ndim == 1:
            return wrong * counted
        return (wrong * counted).flatten(1).sum(1) / counted.flatten(1).sum(1).clamp(min=1)
    if is_binary(targets) if labels is None else labels:
        return ((outputs > 0) != (targets > 0.5)).float().flatten(1).mean(1)
    squares = (outputs - targets).square()
    return (squares / (1 + squares)).flatten(1).mean(1)


def is_binary(targets: Tensor) -> bool:
    """Whether all targets are 0 or 1."""
    return bool(((targets == 0) | (targets == 1)).all())


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The share of samples, tokens or labels that is right; the mean over samples that have a target."""
    wrong = mistakes(outputs, targets)[counted_share(targets) > 0]
    return 1 - float(wrong.double().mean())


def balanced_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The mean over classes of the share of the class's samples that is right (recall)."""
    truth, predicted = _classes(outputs, targets)
    if not len(truth):
        return nan
    with warnings.catch_warnings():
        # A client need not have every class that its model predicts, and may have one alone.
        warnings.filterwarnings("ignore", message="y_pred contains classes not in y_true|A single label was found")
        return float(_sklearn().balanced_accuracy_score(truth, predicted))


def _f1(outputs: Tensor, targets: Tensor, average: str) -> float:
    truth, predicted = _classes(outputs, targets)
    if not len(truth):
        return nan
    return float(_sklearn().f1_score(truth, predicted, average=average, zero_division=0.0))


f1_macro = partial(_f1, average="macro")
"""The mean over classes or labels of the F1 score."""

f1_micro = partial(_f1, average="micro")
"""The F1 score of all decisions together."""

f1_weighted = partial(_f1, average="weighted")
"""The mean over classes or labels of the F1 score, weighted by their samples."""


def roc_auc(outputs: Tensor, targets: Tensor) -> float:
    """The area under the ROC curve, the mean over labels that a client has with 0 and with 1; 0.5 without any.

    Of classes it is the mean over the client's classes, each against the rest (one-vs-rest, macro average).
    """
    # A model that overflowed cannot tell samples apart. The difference of two outputs has to be finite, too.
    largest = torch.finfo(torch.float32).max
    finite = outputs.double().nan_to_num(nan=0.0, posinf=largest, neginf=-largest)
    if targets.is_floating_point():
        truth, scores = (targets > 0.5).double().flatten(1), finite.flatten(1)
    else:
        truth, scores = _one_vs_rest(finite, targets)
    both = [column for column in range(truth.shape[1]) if len(truth[:, column].unique()) == 2]
    found = [float(_sklearn().roc_auc_score(truth[:, column].numpy(), scores[:, column].numpy())) for column in both]
    return sum(found) / len(found) if found else 0.5


def r2(outputs: Tensor, targets: Tensor) -> float:
    """The coefficient of determination: 1 is perfect, 0 is as good as the mean; the mean over outputs.

    One sample has no variance that could be explained: its value is unknown, nan.
    """
    if len(targets) < 2:
        return nan
    return float(_sklearn().r2_score(*_numbers(outputs, targets)))


def mse(outputs: Tensor, targets: Tensor) -> float:
    """The mean squared error."""
    return float(_sklearn().mean_squared_error(*_numbers(outputs, targets)))


def rmse(outputs: Tensor, targets: Tensor) -> float:
    """The root of the mean squared error."""
    return float(_sklearn().root_mean_squared_error(*_numbers(outputs, targets)))


def mae(outputs: Tensor, targets: Tensor) -> float:
    """The mean absolute error."""
    return float(_sklearn().mean_absolute_error(*_numbers(outputs, targets)))


def _one_vs_rest(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Whether samples or tokens are of a class, and the log-odds that they are: (s, c) of the c classes that occur."""
    counted = targets.flatten() != IGNORED
    labels = targets.flatten()[counted]
    logits = outputs.flatten(0, -2)[counted]
    found = labels.unique()
    truth = (labels[:, None] == found).double()
    columns = torch.arange(logits.shape[1])
    odds = [logits[:, label] - logits[:, columns != label].logsumexp(1) for label in found.tolist()]
    return truth, torch.stack(odds, dim=1) if odds else truth


def _classes(outputs: Tensor, targets: Tensor) -> tuple[Any, Any]:
    """The true and the predicted classes (s,) of samples or tokens, or labels (s, outputs), as arrays."""
    if targets.is_floating_point():
        labels = (targets > 0.5).int().numpy()
        found = (outputs > 0).int().numpy()
        # scikit-learn takes one column for one class per sample, several for labels.
        return (labels.ravel(), found.ravel()) if labels.shape[1:] == (1,) else (labels, found)
    truth = targets.flatten()
    predicted = outputs.argmax(-1).flatten()
    counted = truth != IGNORED
    return truth[counted].numpy(), predicted[counted].numpy()


def _numbers(outputs: Tensor, targets: Tensor) -> tuple[Any, Any]:
    """The true and the predicted numbers, (s, outputs) float64. A model that overflowed predicts the largest number."""
    largest = torch.finfo(torch.float32).max
    found = outputs.double().flatten(1).nan_to_num(nan=largest, posinf=largest, neginf=-largest)
    return targets.double().flatten(1).numpy(), found.numpy()


# How good class probabilities are: whether they rank samples rightly, and whether they can be believed.

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
        probabilities with samples: ``least``, ``most``, ``samples``, the mean probability ``predicted``, and the share
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
        rows.append({"least": place / BINS, "most": (place + 1) / BINS, "samples": int(inside.sum()), **means})
    return rows
