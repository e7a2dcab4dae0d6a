"""How good class probabilities are, beside scikit-learn; `play/test_predictions.py` has those of a run."""

import numpy as np
import pytest
import torch
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss

from fedstrata.objective.metrics import probability_scores

RNG = torch.Generator().manual_seed(0)
CLIENTS = torch.arange(90) % 3


@pytest.mark.parametrize("classes", [2, 4])
def test_probabilities_are_compared_with_what_was_observed(classes: int) -> None:
    """Of two classes it is the probability of the second one, of more that of the class that is predicted."""
    truth = torch.randint(0, classes, (90,), generator=RNG)
    outputs = torch.randn(90, classes, generator=RNG) + torch.nn.functional.one_hot(truth, classes)
    found = probability_scores(CLIENTS, truth, outputs)
    said = outputs.double().softmax(1).numpy()
    assert found["brier"] == pytest.approx(brier_score_loss(truth.numpy(), said, labels=range(classes)))
    right, probability = (truth, said[:, 1]) if classes == 2 else (truth == outputs.argmax(1), said.max(1))
    observed, predicted = calibration_curve(right.numpy(), probability, n_bins=10)
    rows = found["reliability"]
    assert np.allclose([(row["observed"], row["predicted"]) for row in rows], np.stack([observed, predicted], 1))
    assert sum(row["samples"] for row in rows) == 90 and len(found["clients"]) == (3 if classes == 2 else 0)


def test_what_is_not_finite_has_no_probabilities() -> None:
    assert probability_scores(torch.zeros(2), torch.tensor([0, 1]), torch.tensor([[0.0, 1.0], [torch.inf, 0.0]])) == {}
