"""What attackers send that know what is checked: numbers to redo by hand."""

from dataclasses import replace

import pytest
import torch
from experiments.trust import adaptive_federations
from experiments.trust.adaptive_federations import BELOW_LIMIT, COSINE, NOISE, hidden_layer, sideways
from test_updates import knowledge

from fedstrata.uploads.attacks.updates import Knowledge

HONEST = [[3.0, 4.0, 0.0, 1.0], [3.0, 4.0, 0.0, -1.0], [3.0, 4.0, 0.6, 0.0]]
"""The last column is in no layer's mean, and the third one is a layer that hardly moves: its mean is 0.2."""

LAYERS = {"body": torch.tensor([0, 1, 3]), "head": torch.tensor([2])}


def known(task: str = "train") -> Knowledge:
    """Two attackers and three honest clients with one model."""
    made = knowledge([[1.0, 1.0, 1.0, 1.0]] * 2 + HONEST, [0, 1], [0] * 5)
    return replace(made, task=task, layers=LAYERS)


@pytest.mark.parametrize("attack", [hidden_layer, sideways])
def test_all_send_nearly_the_same_just_below_the_limit_of_norms_and_with_a_cosine_that_passes(attack: object) -> None:
    assert callable(attack)
    sent = attack(known())
    mean = torch.tensor(HONEST).mean(dim=0)
    median = torch.tensor(HONEST).norm(dim=1).median()
    assert sent.shape == (2, 4) and 0 < float(torch.dist(*sent)) <= 2 * NOISE * float(sent[0].norm()) * 1.02
    for each in sent:
        assert float(each.norm()) == pytest.approx(BELOW_LIMIT * float(median), rel=1.01 * NOISE)
        assert float(torch.cosine_similarity(each, mean, dim=0)) == pytest.approx(COSINE, abs=1.02 * NOISE)


def test_the_layer_that_moves_least_goes_backwards_and_the_rest_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive_federations, "NOISE", 0.0)
    sent = hidden_layer(known())[0]
    assert sent[2] < 0 < sent[0] and sent[1] / sent[0] == pytest.approx(4 / 3)
    assert sent[3] == 0
    # The head has 0.2 of 5.004 of the norm of the mean, and nearly all of that of what is sent.
    assert float(-sent[2] / sent.norm()) > 0.99


@pytest.mark.parametrize("attack", [hidden_layer, sideways])
def test_what_enters_no_model_is_honest(attack: object) -> None:
    assert callable(attack)
    assert attack(known("A")).tolist() == [[1.0] * 4] * 2
