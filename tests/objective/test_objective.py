import sys
from pathlib import Path

import pytest
import torch

from fedstrata.base.errors import ExperimentError, UserCodeError
from fedstrata.cli import main
from fedstrata.objective import Objective, check_objective_names
from fedstrata.objective.training import counted_share

LABELS = torch.tensor([0, 1, 1])
NUMBERS = torch.tensor([[0.5], [2.0], [0.0]])
TOKENS = torch.tensor([[3, 1], [0, 2], [1, 1]])


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module of the user's own."""
    (tmp_path / "our_objective.py").write_text(
        "def loss(outputs, targets):\n"
        "    return (outputs - targets).abs().mean()\n"
        "def broken(outputs, targets):\n"
        "    return {}['weight']\n"
        "def row(outputs, targets):\n"
        "    return outputs.mean(1)\n"
        "def shorter(inputs):\n"
        "    return inputs[:1]\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("our_objective", None)
    return "our_objective"


def test_classes_are_compared_as_they_are_and_numbers_need_a_loss_of_numbers() -> None:
    assert Objective().targets_for(LABELS, 2, None, "data") is None
    assert torch.equal(Objective().targets_for(LABELS, 4, TOKENS, "data"), TOKENS)  # type: ignore[arg-type]
    with pytest.raises(
        ExperimentError, match=r"'cross_entropy': expected classes, found floats in data; store classes"
    ):
        Objective().targets_for(LABELS, 1, NUMBERS, "data")


def test_a_loss_of_numbers_takes_classes_and_integers_for_numbers() -> None:
    found = Objective(loss="mse").targets_for(LABELS, 2, None, "data")
    assert found is not None and found.tolist() == [[0.0], [1.0], [1.0]]
    found = Objective(loss="mse").targets_for(LABELS, 4, TOKENS, "data")
    assert found is not None and found.dtype == torch.float32 and found.tolist() == TOKENS.tolist()


def test_labels_of_zero_and_one_are_needed_for_binary_losses() -> None:
    found = Objective(loss="bce").targets_for(LABELS, 2, None, "data")
    assert found is not None and found.tolist() == [[0.0], [1.0], [1.0]]
    with pytest.raises(ExperimentError, match="expected two classes, or a column of 0 and 1 for each label, found 3"):
        Objective(loss="bce").targets_for(LABELS, 3, None, "data")
    with pytest.raises(ExperimentError, match="expected labels of 0 to 1"):
        Objective(loss="bce").targets_for(LABELS, 1, NUMBERS, "data")


def test_the_loss_of_tokens_leaves_out_padding() -> None:
    outputs = torch.tensor([[[2.0, 0.0], [0.0, 0.0]]])
    found = float(Objective().loss_of(outputs, torch.tensor([[0, -100]])))
    assert found == pytest.approx(float(torch.tensor([-2.0]).exp().log1p()))


def test_the_loss_of_several_batches_counts_every_token_that_is_no_padding_once() -> None:
    """Three of four tokens count: (0.1 + 0.1 + 0.7) / 3, and not (0.1 + 0.7) / 2."""
    sure, torn = [2.0, 0.0], [0.0, 0.0]
    outputs = torch.tensor([[sure, sure], [torn, torn]])
    targets = torch.tensor([[0, 0], [1, -100]])
    parts = [(outputs[row : row + 1], targets[row : row + 1]) for row in range(2)]
    weight = sum(float(counted_share(each).sum()) for _, each in parts)
    loss = sum(Objective().loss_sum(*part) for part in parts) / weight
    assert loss == pytest.approx((2 * float(torch.tensor([-2.0]).exp().log1p()) + float(torch.tensor(2.0).log())) / 3)


def test_a_name_that_stands_for_nothing_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ExperimentError, match=r"local.loss = 'msee': unknown loss; .*did you mean mse\?"):
        check_objective_names(loss="msee")
    with pytest.raises(ExperimentError, match=r"local.metric = 'f1': unknown metric"):
        check_objective_names(metric="f1")
    check_objective_names(loss="my.module:loss", metric="accuracy", transform="flip")


def test_functions_of_ones_own_are_imported_and_checked(ours: str) -> None:
    objective = Objective(loss=f"{ours}:loss")
    objective.check()
    assert float(objective.loss_of(torch.tensor([[1.0]]), torch.tensor([[3.0]]))) == 2.0
    with pytest.raises(ExperimentError, match="names no function: ModuleNotFoundError"):
        Objective(loss="no_such_module:loss").check()
    with pytest.raises(ExperimentError, match="expected a function, found int"):
        Objective(metric=f"{ours}:number").check()
    with pytest.raises(ExperimentError, match=r"expected the mean loss of a batch, .* found \(2,\)"):
        Objective(loss=f"{ours}:row").loss_of(torch.zeros(2, 3), torch.zeros(2, 3))
    with pytest.raises(ExperimentError, match=r"expected inputs of the same shape \(4, 2\), found \(1, 2\)"):
        Objective(transform=f"{ours}:shorter").transformed(torch.zeros(4, 2))


def test_an_error_in_ones_own_function_shows_its_line(ours: str) -> None:
    with pytest.raises(UserCodeError, match="our_objective:broken' failed: KeyError: 'weight'") as failure:
        Objective(loss=f"{ours}:broken").loss_of(torch.zeros(1, 1), torch.zeros(1, 1))
    assert "return {}['weight']" in failure.value.trace and "fedstrata" not in failure.value.trace


@pytest.mark.parametrize("broken", ["at once", "on some samples"])
def test_an_error_in_ones_own_network_shows_its_line(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "our_network.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, shape, classes):\n"
        "        super().__init__()\n"
        "        self.head = nn.Linear(64, classes)\n"
        "    def forward(self, images):\n"
        f"        if {'True' if broken == 'at once' else 'len(images) > 2'}:\n"
        "            raise ValueError('too bright')\n"
        "        return self.head(images.flatten(1))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("our_network", None)
    sets = ["model.name=our_network:Net", "data.clients=4", "rounds=1", "engine.name=loop"]
    with pytest.raises(SystemExit):
        main(["run", *(word for each in sets for word in ("--set", each)), "--quiet"])
    first, *rest = capsys.readouterr().err.splitlines()
    assert first.startswith("fedstrata: ") and "ValueError: too bright" in first
    assert "    raise ValueError('too bright')" in rest


def test_algorithms_that_compare_class_probabilities_need_classes() -> None:
    for objective, outputs in ((Objective("mse"), torch.zeros(1, 2, 1)), (Objective(), torch.zeros(1, 2, 5, 3))):
        with pytest.raises(ExperimentError, match="expected a network that gives each sample one class"):
            objective.probabilities(outputs)
