"""How good class probabilities are, beside scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, roc_auc_score

from fedstrata.objective.probabilities import probability_scores

RNG = torch.Generator().manual_seed(0)
CLIENTS = torch.arange(90) % 3


def test_scores_of_two_classes_are_those_of_scikit_learn_together_and_of_each_client() -> None:
    truth = torch.randint(0, 2, (90,), generator=RNG) * (CLIENTS > 0)
    outputs = torch.randn(90, 2, generator=RNG) + torch.nn.functional.one_hot(truth, 2)
    found = probability_scores(CLIENTS, truth, outputs)
    second = outputs.softmax(1)[:, 1].numpy()
    parts = [(found, truth >= 0), *((each, each["client"] == CLIENTS) for each in found["clients"])]
    for scores, own in parts:
        labels, own = truth[own].numpy(), own.numpy()
        assert scores["samples"] == own.sum()
        assert scores["brier"] == pytest.approx(brier_score_loss(labels, second[own]))
        area = roc_auc_score(labels, second[own]) if labels.any() else None
        assert scores["roc_auc"] == (area if area is None else pytest.approx(area))
    observed, predicted = calibration_curve(truth.numpy(), second, n_bins=10)
    rows = found["reliability"]
    assert np.allclose([(row["observed"], row["predicted"]) for row in rows], np.stack([observed, predicted], 1))
    assert sum(row["samples"] for row in rows) == 90 and len(found["clients"]) == 3


def test_of_more_classes_each_is_against_the_rest_and_the_predicted_one_is_to_be_believed() -> None:
    truth = torch.randint(0, 3, (90,), generator=RNG)
    outputs = torch.randn(90, 4, generator=RNG) + torch.nn.functional.one_hot(truth, 4)
    found = probability_scores(CLIENTS, truth, outputs)
    said = outputs.softmax(1).numpy()
    one = [roc_auc_score(truth.numpy() == label, said[:, label]) for label in range(3)]
    assert found["roc_auc"] == pytest.approx(np.mean(one)), "the fourth class has no sample"
    assert found["brier"] == pytest.approx(((said - np.eye(4)[truth]) ** 2).sum(1).mean())
    right = sum(row["samples"] * row["observed"] for row in found["reliability"])
    assert right == pytest.approx(int((outputs.argmax(1) == truth).sum())) and found["clients"] == []


def test_what_is_not_finite_has_no_probabilities() -> None:
    assert probability_scores(torch.zeros(2), torch.tensor([0, 1]), torch.tensor([[0.0, 1.0], [torch.inf, 0.0]])) == {}
