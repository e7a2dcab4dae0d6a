"""The networks of the library. A new one is a function here, or in a file of its own, and one line in `registry.py`.

Each function takes the shape of one sample and the number of classes, which is the number of outputs. It raises a
`ModelError` when it cannot take such samples.

The small networks and VGG pool before their ReLU: the maximum commutes with a monotone function, so the network is the
same and the ReLU has a quarter of the work.

AdaCFL: Gong et al., "Adaptive clustered federated learning for heterogeneous data in edge computing", 2022.
HiCFL: Gong et al., "Towards hierarchical clustered federated learning with model stability on mobile devices".
FedTSDP: Zhu et al., "Federated two stage decoupling with adaptive personalization layers", 2023.
"""

from collections import OrderedDict
from math import prod
from typing import Annotated, Literal

from annotated_types import Ge, Gt
from torch import Tensor, nn

from fedstrata.base.errors import ModelError

_Hidden = Annotated[int, Ge(0)]


def mnist_cnn(shape: tuple[int, ...], classes: int, *, hidden: _Hidden = 0) -> nn.Sequential:
    """Two 5 x 5 convolutions of 20 and 50 channels, one linear layer; 33,500 weights on MNIST.

    AdaCFL, Table 1; HiCFL, Table I.

    Args:
        shape: The shape of one image, (channels, height, width), at least 16 x 16.
        classes: The number of outputs.
        hidden: The units of a linear layer before the output (AdaCFL, Table 5); 0 has none.
    """
    return _conv5("mnist_cnn", shape, classes, 20, 50, hidden)


def fmnist_cnn(shape: tuple[int, ...], classes: int, *, hidden: _Hidden = 0) -> nn.Sequential:
    """Two 5 x 5 convolutions of 16 and 32 channels, one linear layer; 18,320 weights on Fashion-MNIST.

    HiCFL, Table I. AdaCFL's Table 1 gives the linear layer 8,000 weights, which is MNIST's number.

    Args:
        shape: The shape of one image, (channels, height, width), at least 16 x 16.
        classes: The number of outputs.
        hidden: The units of a linear layer before the output (AdaCFL, Table 5); 0 has none.
    """
    return _conv5("fmnist_cnn", shape, classes, 16, 32, hidden)


def cifar_cnn(shape: tuple[int, ...], classes: int, *, hidden: _Hidden = 0) -> nn.Sequential:
    """Two 5 x 5 convolutions of 6 and 16 channels, one linear layer; 6,850 weights on CIFAR-10.

    AdaCFL, Table 1; HiCFL, Table I, whose 4,000 weights of the linear layer need 32 x 32 images, not 28 x 28.

    Args:
        shape: The shape of one image, (channels, height, width), at least 16 x 16.
        classes: The number of outputs.
        hidden: The units of a linear layer before the output (AdaCFL, Table 5); 0 has none.
    """
    return _conv5("cifar_cnn", shape, classes, 6, 16, hidden)


def _conv5(model: str, shape: tuple[int, ...], classes: int, first: int, second: int, hidden: int) -> nn.Sequential:
    channels, height, width = _image_shape(model, shape, smallest=16)
    pixels = prod(((side - 4) // 2 - 4) // 2 for side in (height, width))
    layers = OrderedDict[str, nn.Module](
        conv1=nn.Conv2d(channels, first, 5),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(first, second, 5),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
    )
    if hidden:
        layers["linear1"] = nn.Linear(second * pixels, hidden)
        layers["relu3"] = nn.ReLU()
        layers["linear2"] = nn.Linear(hidden, classes)
    else:
        layers["linear"] = nn.Linear(second * pixels, classes)
    return nn.Sequential(layers)


def tsdp_cnn(shape: tuple[int, ...], classes: int, *, pool: Literal["once", "each"] = "once") -> nn.Sequential:
    """FedTSDP's network: two 3 x 3 convolutions of 32 and 64 channels, two linear layers, dropout.

    The paper does not say where it pools: 6,447,562 parameters on CIFAR-10 with one pooling, 1,204,682 with two.

    Args:
        shape: The shape of one image, (channels, height, width), at least 6 x 6, or 10 x 10 with ``pool="each"``.
        classes: The number of outputs.
        pool: Where it pools: ``"once"``, after the second convolution, or after ``"each"``.
    """
    each = pool == "each"
    channels, height, width = _image_shape("tsdp_cnn", shape, smallest=10 if each else 6)
    after_conv1 = [(side - 2) // 2 if each else side - 2 for side in (height, width)]
    pixels = prod((side - 2) // 2 for side in after_conv1)
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            conv1=nn.Conv2d(channels, 32, 3),
            **({"pool1": nn.MaxPool2d(2)} if each else {}),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(32, 64, 3),
            pool2=nn.MaxPool2d(2),
            relu2=nn.ReLU(),
            drop1=nn.Dropout(0.25),
            flatten=nn.Flatten(),
            linear1=nn.Linear(64 * pixels, 512),
            relu3=nn.ReLU(),
            drop2=nn.Dropout(0.5),
            linear2=nn.Linear(512, classes),
        )
    )


def har_cnn(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Three convolutions along time and two linear layers, for windows of inertial readings.

    HiCFL names the layers of its USC-HAD network and no sizes. The sizes here are ours: 131,820 parameters for
    windows of (6, 128) and 12 activities. It takes windows of at least 36 readings.
    """
    if len(shape) != 2 or shape[1] < 36:
        raise ModelError(
            "har_cnn takes windows (channels, length) of at least 36 readings, "
            f"found samples of shape {shape}; choose another network: mlp takes any shape"
        )
    channels, length = shape
    for _ in range(3):
        length = (length - 4) // 2
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            conv1=nn.Conv1d(channels, 32, 5),
            pool1=nn.MaxPool1d(2),
            relu1=nn.ReLU(),
            conv2=nn.Conv1d(32, 64, 5),
            pool2=nn.MaxPool1d(2),
            relu2=nn.ReLU(),
            conv3=nn.Conv1d(64, 64, 5),
            pool3=nn.MaxPool1d(2),
            relu3=nn.ReLU(),
            flatten=nn.Flatten(),
            linear1=nn.Linear(64 * length, 128),
            relu4=nn.ReLU(),
            linear2=nn.Linear(128, classes),
        )
    )


def mlp(shape: tuple[int, ...], classes: int, *, hidden: tuple[Annotated[int, Ge(1)], ...] = (64,)) -> nn.Sequential:
    """Linear layers with ReLU between them, for samples of any shape.

    Args:
        shape: The shape of one sample, with at least one dimension.
        classes: The number of outputs.
        hidden: The units of each hidden layer; without any it is `logistic`.
    """
    if not shape:
        raise ModelError("mlp takes samples of one or more dimensions, found scalars; give them shape (1,)")
    layers = OrderedDict[str, nn.Module](flatten=nn.Flatten())
    units = (prod(shape), *hidden, classes)
    for depth in range(1, len(units)):
        layers[f"linear{depth}"] = nn.Linear(units[depth - 1], units[depth])
        if depth <= len(hidden):
            layers[f"relu{depth}"] = nn.ReLU()
    return nn.Sequential(layers)


def logistic(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """One linear layer: multinomial logistic regression with the loss cross_entropy, logistic with bce.

    Args:
        shape: The shape of one sample, with at least one dimension.
        classes: The number of outputs.
    """
    return mlp(shape, classes, hidden=())


def vgg11(
    shape: tuple[int, ...], classes: int, *, width: Annotated[float, Gt(0)] = 1.0, batch_norm: bool = False
) -> nn.Sequential:
    """Eight 3 x 3 convolutions in five blocks, three linear layers.

    Args:
        shape: The shape of one image, (channels, 32, 32).
        classes: The number of outputs.
        width: The factor on all layers' units.
        batch_norm: Whether to normalise after each convolution.
    """
    return _vgg("vgg11", shape, classes, (1, 1, 2, 2, 2), width, batch_norm)


def vgg16(
    shape: tuple[int, ...], classes: int, *, width: Annotated[float, Gt(0)] = 1.0, batch_norm: bool = False
) -> nn.Sequential:
    """Thirteen 3 x 3 convolutions in five blocks, three linear layers.

    Args:
        shape: The shape of one image, (channels, 32, 32).
        classes: The number of outputs.
        width: The factor on all layers' units.
        batch_norm: Whether to normalise after each convolution.
    """
    return _vgg("vgg16", shape, classes, (2, 2, 3, 3, 3), width, batch_norm)


vgg11.side = vgg16.side = 32  # type: ignore[attr-defined]
"""Data are resized to it. `side` of the registry reads this attribute, of a user's factory too."""


def _vgg(
    model: str, shape: tuple[int, ...], classes: int, blocks: tuple[int, ...], width: float, batch_norm: bool
) -> nn.Sequential:
    """Make VGG for images of 32 x 32 pixels.

    Simonyan and Zisserman, "Very deep convolutional networks for large-scale image recognition", ICLR 2015,
    configurations A and D. LayerCFL uses D and does not give its head for small images. Here it is
    512-512-512-classes (15,245,130 parameters on CIFAR-10), so that its first linear layer is layer 14 as in the paper.

    Initial weights are those of He et al., "Delving deep into rectifiers", ICCV 2015. PyTorch's own shrink the signal
    at each layer. Without batch normalisation the logits of two images then differ by 1e-7, and after 360 steps of
    Adam (a quarter of the width, 3,000 images of CIFAR-10, six seeds) the loss is 1.93 to 2.30 against 1.53 to 1.77.
    """
    units, _, _ = _image_shape(model, shape, side=32)
    layers = OrderedDict[str, nn.Module]()
    depth = 0
    for block, (convs, channels) in enumerate(zip(blocks, (64, 128, 256, 512, 512), strict=True), start=1):
        for conv in range(1, convs + 1):
            depth += 1
            wide = max(1, round(channels * width))
            layers[f"conv{depth}"] = nn.Conv2d(units, wide, 3, padding=1, bias=not batch_norm)
            if batch_norm:
                layers[f"norm{depth}"] = nn.BatchNorm2d(wide)
            if conv == convs:
                layers[f"pool{block}"] = nn.MaxPool2d(2)
            layers[f"relu{depth}"] = nn.ReLU()
            units = wide
    layers["flatten"] = nn.Flatten()
    for linear in (1, 2):
        layers[f"linear{linear}"] = nn.Linear(units, units)
        layers[f"relu{depth + linear}"] = nn.ReLU()
    layers["linear3"] = nn.Linear(units, classes)
    for layer in layers.values():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return nn.Sequential(layers)


class ResidualBlock(nn.Module):
    """A residual block: two 3 x 3 convolutions and a shortcut.

    Args:
        units: The channels of the input.
        wide: The channels of the output.
        stride: The stride of the first convolution.
    """

    def __init__(self, units: int, wide: int, stride: int) -> None:
        """Make the layers; the shortcut has a convolution only where the shape changes."""
        super().__init__()
        self.conv1 = nn.Conv2d(units, wide, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(wide)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(wide, wide, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(wide)
        self.shortcut = nn.Sequential()
        if stride != 1 or units != wide:
            self.shortcut.add_module("conv", nn.Conv2d(units, wide, 1, stride, bias=False))
            self.shortcut.add_module("norm", nn.BatchNorm2d(wide))
        self.relu2 = nn.ReLU()

    def forward(self, inputs: Tensor) -> Tensor:
        """Map (batch, units, height, width) to (batch, wide, height / stride, width / stride)."""
        hidden = self.relu1(self.norm1(self.conv1(inputs)))
        outputs: Tensor = self.relu2(self.norm2(self.conv2(hidden)) + self.shortcut(inputs))
        return outputs


def resnet18(shape: tuple[int, ...], classes: int, *, width: Annotated[float, Gt(0)] = 1.0) -> nn.Sequential:
    """A stem, eight residual blocks and one linear layer, with batch normalisation.

    He et al., "Deep residual learning for image recognition", CVPR 2016, with a 3 x 3 stem and no max-pooling: the
    usual form for images of 32 x 32 pixels (11,173,962 parameters on CIFAR-10).

    Args:
        shape: The shape of one image, (channels, height, width), of any size.
        classes: The number of outputs.
        width: The factor on all layers' units.
    """
    channels, _, _ = _image_shape("resnet18", shape)
    units = max(1, round(64 * width))
    layers = OrderedDict[str, nn.Module](
        conv1=nn.Conv2d(channels, units, 3, padding=1, bias=False),
        norm1=nn.BatchNorm2d(units),
        relu1=nn.ReLU(),
    )
    for block in range(8):
        wide = max(1, round(64 * 2 ** (block // 2) * width))
        halved = block in (2, 4, 6)
        layers[f"block{block + 1}"] = ResidualBlock(units, wide, stride=2 if halved else 1)
        units = wide
    layers["pool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["linear"] = nn.Linear(units, classes)
    return nn.Sequential(layers)


def _image_shape(
    model: str, shape: tuple[int, ...], smallest: int = 1, side: int | None = None
) -> tuple[int, int, int]:
    """Refuse samples that are no images of at least `smallest` pixels a side, or of exactly `side`."""
    fits = len(shape) == 3 and (min(shape[1:]) >= smallest if side is None else shape[1:] == (side, side))
    if not fits:
        pixels = f"at least {smallest} x {smallest}" if side is None else f"{side} x {side}"
        raise ModelError(
            f"{model} takes images (channels, height, width) of {pixels} pixels, found samples of shape {shape}; "
            "resize them or choose another network: mlp takes any shape"
        )
    return shape[0], shape[1], shape[2]
