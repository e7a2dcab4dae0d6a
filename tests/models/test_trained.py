import numpy as np
import pytest
import torch
from torch import nn

from fedstrata.base.errors import DataError
from fedstrata.data import SampleFormat, load_dataset
from fedstrata.data.sample_format import Answer
from fedstrata.models import make
from fedstrata.models.trained import TrainedModel


def test_outputs_are_those_of_the_network_on_normalised_samples() -> None:
    digits = load_dataset("digits")
    network = make("mnist_cnn", (1, 28, 28), 10, 0)
    larger = digits.resized(28)
    model = TrainedModel(network, larger.sample_format)
    index = torch.arange(20)
    with torch.inference_mode():
        expected = network.eval()(larger.prepare(index))
    assert torch.allclose(model.outputs(digits.inputs[:20]), expected, atol=1e-6)  # it resizes, too


def test_a_class_has_its_name_and_its_probability() -> None:
    network = nn.Linear(2, 2)
    with torch.no_grad():
        network.weight.copy_(torch.eye(2))
        network.bias.zero_()
    form = SampleFormat((2,), "float32", (0.0, 0.0), (1.0, 1.0), 2, ("ill", "well"))
    model = TrainedModel(network, form)
    assert model.predict([[3.0, 0.0], [0.0, 3.0]]).tolist() == ["ill", "well"]
    likely = 1 / (1 + np.exp(-3.0))
    assert model.predict_proba([[3.0, 0.0]])[0].tolist() == pytest.approx([likely, 1 - likely])
    assert model.predict(np.zeros((0, 2))).tolist() == []


@pytest.mark.parametrize(
    ("answer", "outputs", "predicted"),
    [
        ("numbers", [[0.5, -2.0]], [[0.5, -2.0]]),
        ("labels", [[0.5, -2.0]], [[1, 0]]),
        ("classes", [[[0.5, -2.0], [-1.0, 3.0]]], [[0, 1]]),
    ],
)
def test_what_a_network_says_is_read_as_what_it_learned(
    answer: Answer, outputs: list[list[float]], predicted: list[list[float]]
) -> None:
    class Fixed(nn.Module):
        def forward(self, samples: torch.Tensor) -> torch.Tensor:
            return torch.tensor(outputs)

    shape = tuple(torch.tensor(outputs).shape[1:])
    form = SampleFormat((2,), "float32", (0.0, 0.0), (1.0, 1.0), shape[-1], outputs=shape, answer=answer)
    model = TrainedModel(Fixed(), form)
    assert model.predict([[1.0, 2.0]]).tolist() == predicted
    if answer == "numbers":
        with pytest.raises(DataError, match="found one of numbers; use predict"):
            model.predict_proba([[1.0, 2.0]])
    else:
        assert 0 < float(model.predict_proba([[1.0, 2.0]]).min()) < 0.5


def test_tokens_reach_the_network_as_they_are() -> None:
    form = SampleFormat((3,), "int64", (), (), 4)
    model = TrainedModel(nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 4)), form)
    assert model.predict(torch.tensor([[1, 8, 0], [2, 2, 2]])).shape == (2,)
