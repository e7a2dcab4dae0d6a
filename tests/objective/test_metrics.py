from math import isnan

import pytest
import torch
from sklearn.metrics import roc_auc_score

from fedstrata.objective import METRICS, Objective
from fedstrata.objective.metric_info import METRICS_OF_NUMBERS
from fedstrata.objective.metrics import mistakes

LOGITS = torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 2.0, 0.0], [2.0, 0.0, 0.0]])
CLASSES = torch.tensor([0, 1, 2, 0])
LABELS = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
SIGNS = torch.tensor([[1.0, -1.0], [1.0, -1.0], [1.0, 1.0]])
NUMBERS = torch.tensor([[1.0], [2.0], [3.0]])
FOUND = torch.tensor([[1.0], [2.0], [5.0]])

INF = float("inf")


@pytest.mark.parametrize(
    ("name", "outputs", "targets", "expected"),
    [
        ("accuracy", LOGITS, CLASSES, 3 / 4),
        ("balanced_accuracy", LOGITS, CLASSES, 2 / 3),
        ("f1_macro", LOGITS, CLASSES, (1 + 2 / 3 + 0) / 3),
        ("f1_weighted", LOGITS, CLASSES, (2 * 1 + 2 / 3 + 0) / 4),
        ("accuracy", SIGNS, LABELS, 5 / 6),
        ("f1_micro", SIGNS, LABELS, 6 / 7),
        ("roc_auc", torch.tensor([[0.9], [0.1], [0.4]]), torch.tensor([[1.0], [0.0], [1.0]]), 1.0),
        ("roc_auc", torch.tensor([[0.9], [0.1]]), torch.tensor([[1.0], [1.0]]), 0.5),
        ("roc_auc", torch.tensor([[0.9], [0.1], [0.4]]), torch.tensor([[0.8], [0.3], [0.7]]), 1.0),
        ("roc_auc", torch.tensor([[-INF, INF], [INF, -INF]]), torch.tensor([1, 0]), 1.0),
        ("roc_auc", torch.tensor([[0.0, 3.0], [0.0, 1.0], [1.0, 0.0]]), torch.tensor([1, 0, 1]), 1 / 2),
        ("roc_auc", torch.tensor([[0.0, 3.0], [0.0, 1.0]]), torch.tensor([1, 1]), 0.5),
        ("r2", FOUND, NUMBERS, 1 - 4 / 2),
    ],
)
def test_a_metric_is_what_its_name_says(
    name: str, outputs: torch.Tensor, targets: torch.Tensor, expected: float
) -> None:
    assert METRICS[name](outputs, targets) == pytest.approx(expected)


def test_the_roc_auc_of_several_classes_is_the_mean_of_each_against_the_rest() -> None:
    """The client has classes 0, 1 and 3 of four."""
    outputs = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(50) % 2 + 2 * (torch.arange(50) % 3 == 0)
    targets[targets == 2] = 0
    probabilities = outputs.double().softmax(1)
    each = [roc_auc_score(targets == label, probabilities[:, label]) for label in (0, 1, 3)]
    assert METRICS["roc_auc"](outputs, targets) == pytest.approx(sum(each) / 3)


def test_padded_tokens_are_not_counted() -> None:
    outputs = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])
    targets = torch.tensor([[0, 1, -100]])
    assert mistakes(outputs, targets).tolist() == [0.5]
    assert METRICS["accuracy"](outputs, targets) == 0.5
    assert METRICS["f1_macro"](outputs, targets) == pytest.approx((2 / 3 + 0) / 2)


def test_samples_of_padding_alone_are_not_right() -> None:
    outputs = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]]])
    targets = torch.tensor([[0, 1], [-100, -100]])
    assert METRICS["accuracy"](outputs, targets) == Objective().metric_of(outputs, targets) == 0.5


@pytest.mark.parametrize("name", ["f1_macro", "f1_micro", "f1_weighted", "balanced_accuracy", "accuracy"])
def test_the_score_of_padding_alone_is_unknown(name: str) -> None:
    """Scikit-learn refuses to score nothing, which ended a run."""
    assert isnan(METRICS[name](torch.zeros(1, 3, 2), torch.full((1, 3), -100)))


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_is_a_number_of_as_many_samples_as_it_says(name: str) -> None:
    """The hardest clients have samples of one class, or equal numbers."""
    for samples in (samples for samples in (1, 2, 3) if not Objective(metric=name).may_be_unknown(samples)):
        outputs = FOUND[:samples] if name in METRICS_OF_NUMBERS else LOGITS[:samples]
        targets = NUMBERS[[0] * samples] if name in METRICS_OF_NUMBERS else CLASSES[[0] * samples]
        assert not isnan(METRICS[name](outputs, targets))


def test_how_wrong_a_number_is_is_bounded() -> None:
    errors = mistakes(torch.tensor([[0.0], [1.0], [1e30]]), torch.tensor([[0.5], [0.5], [0.5]]))
    assert errors[:2].tolist() == pytest.approx([0.2, 0.2]) and 0 <= float(errors.nan_to_num(1.0).max()) <= 1


def test_what_outputs_mean_does_not_depend_on_the_batch() -> None:
    """Errors of .1 are .01 / 1.01 for numbers, whether the others are 0 and 1 or not; soft labels are labels."""
    outputs, targets = torch.tensor([[0.1], [0.9]]), torch.tensor([[0.0], [1.0]])
    assert Objective("mse").mistakes(outputs, targets).tolist() == pytest.approx([0.01 / 1.01] * 2)
    soft = torch.tensor([[0.1], [0.9]])
    assert Objective("bce").mistakes(torch.tensor([[-2.0], [3.0]]), soft).tolist() == [0.0, 0.0]
    assert Objective("bce").metric_of(torch.tensor([[2.0], [3.0]]), soft) == 0.5
