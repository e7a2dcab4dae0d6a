"""The data sets that fedstrata knows by name, as facts: nothing is read and nothing heavy is imported here."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Source:
    """What is known about a data set before any file of it is opened.

    Attributes:
        name: as in ``data.name`` of an experiment.
        about: what the samples are, in one line.
        origin: where the data come from and under which licence, in one line.
        classes: number of classes.
        shape: of one sample, (channels, height, width) or (channels, time).
        model: the network that fits unless the experiment names another.
        values: column that holds the images or signals.
        label: column that holds the classes.
        mean: of each channel, for normalisation; images in [0, 1]. Empty: computed when the data are read.
        std: standard deviation of each channel, likewise.
        hub: repository on the Hugging Face hub; None where there is none to download from.
        samples: how many there are, of a set that the library carries; 0 where the files say it.
        folder: folder inside that repository, where it holds more than one configuration.
    """

    name: str
    about: str
    origin: str
    classes: int
    shape: tuple[int, ...]
    model: str
    values: str = "image"
    label: str = "label"
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    hub: str | None = None
    samples: int = 0
    folder: str | None = None


_ALL = (
    Source(
        name="digits",
        about="1,797 handwritten digits, 8x8 grey, carried by scikit-learn",
        origin="UCI ML hand-written digits (Alpaydin and Kaynak, 1998), CC BY 4.0",
        classes=10,
        shape=(1, 8, 8),
        model="mlp",
        samples=1797,
    ),
    Source(
        name="mnist",
        about="60,000 + 10,000 handwritten digits, 28x28 grey",
        origin="LeCun et al., 1998; hub ylecun/mnist, MIT",
        classes=10,
        shape=(1, 28, 28),
        model="mnist_cnn",
        mean=(0.1307,),
        std=(0.3081,),
        hub="ylecun/mnist",
    ),
    Source(
        name="fashion_mnist",
        about="60,000 + 10,000 pieces of clothing, 28x28 grey",
        origin="Xiao et al. (Zalando), 2017; hub zalando-datasets/fashion_mnist, MIT",
        classes=10,
        shape=(1, 28, 28),
        model="fmnist_cnn",
        mean=(0.2860,),
        std=(0.3530,),
        hub="zalando-datasets/fashion_mnist",
    ),
    Source(
        name="emnist_letters",
        about="124,800 + 20,800 handwritten letters, both cases merged, 28x28 grey",
        origin="Cohen et al. (NIST), 2017; hub tanganke/emnist_letters, no licence stated",
        classes=26,
        shape=(1, 28, 28),
        model="mnist_cnn",
        mean=(0.1722,),
        std=(0.3309,),
        hub="tanganke/emnist_letters",
    ),
    Source(
        name="cifar10",
        about="50,000 + 10,000 photographs of 10 kinds of things, 32x32 colour",
        origin="Krizhevsky, 2009; hub uoft-cs/cifar10, no licence stated",
        classes=10,
        shape=(3, 32, 32),
        model="cifar_cnn",
        values="img",
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        hub="uoft-cs/cifar10",
    ),
    Source(
        name="cifar100",
        about="50,000 + 10,000 photographs of 100 kinds of things, 32x32 colour",
        origin="Krizhevsky, 2009; hub uoft-cs/cifar100, no licence stated",
        classes=100,
        shape=(3, 32, 32),
        model="cifar_cnn",
        values="img",
        label="fine_label",
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        hub="uoft-cs/cifar100",
    ),
    Source(
        name="svhn",
        about="73,257 + 26,032 house-number digits, 32x32 colour",
        origin="Netzer et al., 2011; hub ufldl-stanford/svhn, for non-commercial use",
        classes=10,
        shape=(3, 32, 32),
        model="cifar_cnn",
        mean=(0.4377, 0.4438, 0.4728),
        std=(0.1980, 0.2010, 0.1970),
        hub="ufldl-stanford/svhn",
        folder="cropped_digits",
    ),
    Source(
        name="usc_had",
        about="840 motion recordings of 14 people, 12 activities, in windows of 1.28 s at 100 Hz",
        origin="Zhang and Sawchuk, 'USC-HAD', 2012; no licence stated",
        classes=12,
        shape=(6, 128),
        model="har_cnn",
        values="signal",
        label="activity",
    ),
)

SOURCES: Mapping[str, Source] = MappingProxyType({source.name: source for source in _ALL})
"""Name -> facts. Any other name is a folder, a .npz file or an id on the Hugging Face hub."""
