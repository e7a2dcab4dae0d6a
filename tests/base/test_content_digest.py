"""Objects with the same content have the same digest, and others another one."""

import subprocess
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedstrata.base.content_digest import content_digest


def network(activation: nn.Module, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3), activation, nn.Linear(3, 2))


def scaled(factor: Any) -> Any:
    return lambda outputs, targets: factor * (outputs - targets).square().mean()


def frozen(module: nn.Module) -> nn.Module:
    next(module.parameters()).requires_grad_(False)
    return module


def hooked(module: nn.Module) -> nn.Module:
    module.register_forward_hook(lambda module, inputs, outputs: outputs * 2)
    return module


DIFFERENT = {
    "activations": (network(nn.ReLU()), network(nn.Tanh())),
    "weights": (network(nn.ReLU()), network(nn.ReLU(), seed=1)),
    "frozen weights": (network(nn.ReLU()), frozen(network(nn.ReLU()))),
    "hooks": (network(nn.ReLU()), hooked(network(nn.ReLU()))),
    "hooks that differ": (hooked(network(nn.ReLU())), hooked(network(nn.Tanh()))),
    "constants": (lambda x: x + 1, lambda x: x + 2),
    "operations": (lambda x: x + 1, lambda x: x - 1),
    "closures": (scaled(1.0), scaled(2.0)),
    "arrays": (scaled(np.ones(3)), scaled(np.zeros(3))),
    "numbers of numpy": (scaled(np.int64(1)), scaled(np.int64(2))),
    "defaults": (lambda x, by=1: x * by, lambda x, by=2: x * by),
    "functions in functions": (scaled(lambda: 1), scaled(lambda: 2)),
    "arguments": (partial(scaled(1.0), targets=1), partial(scaled(1.0), targets=2)),
    "imported functions": (lambda x: torch.relu(x), lambda x: torch.tanh(x)),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_what_differs_has_another_digest(what: str) -> None:
    one, other = DIFFERENT[what]
    assert content_digest(one) != content_digest(other)


def test_what_is_made_again_has_the_same_digest() -> None:
    for make in (
        lambda: network(nn.ReLU()),
        lambda: hooked(network(nn.ReLU())),
        lambda: network(nn.ReLU()).eval(),
        lambda: scaled(2.0),
        lambda: scaled({"a": [1, 2]}),
        lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(2)),
    ):
        assert content_digest(make()) == content_digest(make())
    assert content_digest(network(nn.ReLU()).eval()) == content_digest(network(nn.ReLU()))


SCRIPT = """
{lines}
from fedstrata.base.content_digest import content_digest
import torch
from torch import nn

def helper(x):
    return FACTOR * x if str(x) not in {{"a", "b", "c"}} else x

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(2, 2)

    def forward(self, x):
        return helper(self.linear(x))

for FACTOR in (2, 3):
    print(content_digest(Net()))
"""


@pytest.mark.slow
def test_the_digest_of_a_script_is_that_of_other_processes_and_depends_on_what_its_functions_use() -> None:
    found = []
    for lines in ("", "# some lines further down\n\n"):
        command = [sys.executable, "-c", SCRIPT.format(lines=lines)]
        found.append(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    assert found[0] == found[1] and found[0][0] != found[0][1]
