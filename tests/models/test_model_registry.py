import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedstrata.base.errors import ModelError
from fedstrata.models import MODELS, NetworkMaker, NetworkShape, layout_of, make, row_of, side

OURS = """
import torch
from torch import nn

def net(shape, classes, *rest, hidden=3, **others):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(hidden), nn.BatchNorm1d(hidden), nn.Linear(hidden, classes))

net.side = 24

class Net(nn.Linear):
    def __init__(self, shape, classes, scale: "Unknown" = 1.0):
        super().__init__(shape[0], classes)

def text(shape, classes):
    return "a network"

def pair(shape, classes):
    class Pair(nn.Linear):
        def forward(self, inputs):
            return inputs, inputs
    return Pair(shape[0], classes)

def wide(shape, classes):
    return nn.Linear(shape[0], classes + 1)

def still(shape, classes):
    return nn.Flatten()

def needy(shape, classes, *, depth):
    return nn.Linear(shape[0], classes)

def broken(shape, classes):
    raise ValueError("two\\nlines")

number = 3
"""


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user in the current directory."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "our_nets.py").write_text(OURS)
    (tmp_path / "our_broken.py").write_text("import not_there\n")
    monkeypatch.delitem(sys.modules, "our_nets", raising=False)
    return "our_nets"


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, fedstrata.models as m; list(m.MODELS); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def row(name: str, seed: int) -> torch.Tensor:
    module = make(name, (3, 32, 32), 10, seed, **({"width": 1 / 64} if name == "vgg11" else {}))
    return row_of(module, layout_of(module))


@pytest.mark.parametrize("name", ["cifar_cnn", "vgg11"])
def test_weights_are_a_function_of_the_seed(name: str) -> None:
    torch.manual_seed(5)
    first = row(name, 0)
    torch.manual_seed(6)
    assert torch.equal(first, row(name, 0))
    assert not torch.equal(first, row(name, 1))


def test_making_a_network_leaves_the_global_generator_alone() -> None:
    before = torch.random.get_rng_state()
    make("mlp", (4,), 2, seed=0)
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_new_network_is_in_training_mode_with_untouched_statistics() -> None:
    module = make("resnet18", (3, 8, 8), 2, seed=0, width=1 / 64)
    assert all(part.training for part in module.modules())
    assert torch.equal(module.state_dict()["norm1.running_mean"], torch.zeros(1))
    assert int(module.state_dict()["norm1.num_batches_tracked"]) == 0


def test_networks_say_which_side_they_need(ours: str) -> None:
    assert [name for name in MODELS if side(name) == 32] == ["vgg11", "vgg16"]
    assert side("mlp") is None
    assert side(f"{ours}:net") == 24
    assert side(f"{ours}:wide") is None
    with pytest.raises(ModelError, match="unknown"):
        side("vgg19")


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("vgg16", {"widht": 0.5}, r"^model.widht: unknown key; did you mean width\?$"),
        ("vgg16", {"width": 0}, "^model.width = 0: expected a number greater than 0$"),
        ("tsdp_cnn", {"pool": "never"}, "^model.pool = 'never': expected 'once' or 'each'$"),
        ("mlp", {"hidden": [8, 0]}, r"^model.hidden\[1\] = 0: expected a number greater than or equal to 1$"),
        ("mlp", {"hidden": "wide"}, "^model.hidden = 'wide': expected a valid list$"),
        ("har_cnn", {"width": 2}, "^model.width: unknown key; there are no others$"),
        ("cifar_cnn", {"hidden": -1}, "^model.hidden = -1: expected a number greater than or equal to 0$"),
    ],
)
def test_options_that_do_not_fit_are_named(name: str, given: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        make(name, (3, 32, 32), 10, 0, **given)


def test_a_user_gives_a_factory_by_import_path(ours: str) -> None:
    first = make(f"{ours}:net", (2, 3), 4, seed=0, hidden=5, more=1)
    again = make(f"{ours}:net", (2, 3), 4, seed=0, hidden=5)
    layout = layout_of(first)
    assert len(layout.columns(layout.select("1"))) == 6 * 5 + 5
    assert torch.equal(row_of(first, layout), row_of(again, layout))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vgg", r"^model.name = 'vgg' is unknown; expected one of mnist_cnn, .*, or 'package.module:factory'$"),
        ("our_nets:", "is unknown"),
        (":net", "is unknown"),
        ("our_notes:net", "names no factory.*ModuleNotFoundError: No module named 'our_notes'$"),
        ("our_broken:net", "names no factory.*ModuleNotFoundError: No module named 'not_there'$"),
        ("our_nets:nett", "names no factory.*AttributeError: .*nett"),
        ("our_nets:number", "names no factory.*TypeError: 3 is not a callable"),
        ("our_nets:text", "returned str; expected a torch.nn.Module$"),
        ("our_nets:pair", r"maps two samples to tuple; expected \(2, 2\)"),
        ("our_nets:wide", r"maps two samples to \(2, 3\); expected \(2, 2\)"),
        ("our_nets:still", "has no parameters"),
        ("our_nets:needy", "^model.depth: expected a value, found none$"),
        ("our_nets:broken", "fails on samples of shape .2,.: ValueError: two$"),
        ("torch.nn:Linear", "fails on samples of shape .2,.: TypeError: "),
    ],
)
def test_what_is_wrong_with_a_users_network_is_one_line(ours: str, name: str, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        make(name, (2,), 2, seed=0)
    assert "\n" not in str(caught.value)


class Skip(torch.nn.Module):
    """A convolution of stride 2 with a 1 x 1 convolution beside it, as in a residual network."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(shape[0], 4, 3, stride=2, padding=1)
        self.skip = torch.nn.Conv2d(shape[0], 4, 1, stride=2)
        self.head = torch.nn.Linear(64, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head((self.conv(images) + self.skip(images)).relu().flatten(1))
        return found


@pytest.mark.parametrize("channels", [1, 3, 16])
def test_strided_convolutions_of_single_pixels_get_few_channels_one_after_the_other(channels: int) -> None:
    """OneDNN writes past its memory where fewer than 16 channels are last in memory."""
    network = make(f"{__name__}:Skip", (channels, 8, 8), 3, 0)
    strides = {}
    for name in ("conv", "skip"):
        layer = network.get_submodule(name)
        layer.register_forward_pre_hook(lambda layer, given, name=name: strides.update({name: given[0].stride()}))
    images = torch.rand(5, 8, 8, channels).permute(0, 3, 1, 2)
    assert images.stride() == (64 * channels, 1, 8 * channels, channels)
    network(images).sum().backward()
    assert strides["conv"] == images.stride()
    assert strides["skip"] == (images.stride() if channels == 16 else (64 * channels, 64, 8, 1))


def frozen_net(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    """A random base that is frozen, and a head; each call counts."""
    CALLS.append(shape)
    return torch.nn.Sequential(torch.nn.Linear(4, 3).requires_grad_(False), torch.nn.Linear(3, classes))


CALLS: list[tuple[int, ...]] = []


def test_a_frozen_base_is_made_and_held_once() -> None:
    CALLS.clear()
    maker = NetworkMaker(f"{__name__}:frozen_net", NetworkShape((4,), (2,)), 3, {})
    one, other = ([*maker().parameters()] for _ in range(2))
    assert len(CALLS) == 1 and one[0].data_ptr() == other[0].data_ptr()
    one[2].data.zero_()
    third = maker()
    assert torch.equal(third.get_parameter("1.weight"), other[2]) and other[2].any()
    assert layout_of(third) == layout_of(replace(maker, seed=3)())  # in another process it is the same
    assert layout_of(third) != layout_of(replace(maker, seed=4)())


def words(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    return torch.nn.Embedding(9, 9)


def test_a_language_model_may_know_more_tokens_than_the_data_have() -> None:
    maker = NetworkMaker(f"{__name__}:words", NetworkShape((5,), (5, 7), tokens=True), 0, {})
    assert isinstance(maker(), torch.nn.Embedding)
    with pytest.raises(ModelError, match=r"maps two samples to \(2, 5, 9\); expected \(2, 5, 10\)"):
        replace(maker, kind=NetworkShape((5,), (5, 10), tokens=True))()
