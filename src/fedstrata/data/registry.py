"""The data sets that can be named in an experiment. Nothing is read and nothing heavy is imported here.

A new data set in Parquet files is one more entry below. A data set that needs code of its own is a file beside this
one, with a function that returns a `Dataset`, and an entry that names the function as its `reader`.
"""

from dataclasses import dataclass

from fedstrata.base.registry import Registry


@dataclass(frozen=True)
class DatasetInfo:
    """What is known about a data set before any of its files is opened.

    Attributes:
        name: The name that ``data.name`` of an experiment gives.
        about: One line that says what the samples are.
        origin: One line that says where the data come from and under which licence.
        classes: The number of classes.
        shape: The shape of one sample, (channels, height, width) or (channels, time).
        model: The network that is used unless the experiment names another.
        input_column: The column that holds the images or signals.
        label_column: The column that holds the classes.
        mean: The mean of each channel for normalisation, with pixels in [0, 1]. Empty where it is computed from the
            data.
        std: The standard deviation of each channel, likewise.
        samples: The number of samples of a data set without files; 0 where the files tell it.
        hub_repository: The repository on the Hugging Face hub. None where there is none to download from.
        hub_folder: The folder of that repository that is used, where it holds more than one configuration.
        reader: The function that makes a data set without files, as ``"package.module:function"``. Empty where the
            data set is read from Parquet files.
    """

    name: str
    about: str
    origin: str
    classes: int
    shape: tuple[int, ...]
    model: str
    input_column: str = "image"
    label_column: str = "label"
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    samples: int = 0
    hub_repository: str | None = None
    hub_folder: str | None = None
    reader: str = ""


_ALL = (
    DatasetInfo(
        name="digits",
        about="1,797 handwritten digits, 8x8 grey, carried by scikit-learn",
        origin="UCI ML hand-written digits (Alpaydin and Kaynak, 1998), CC BY 4.0",
        classes=10,
        shape=(1, 8, 8),
        model="mlp",
        samples=1797,
        reader="fedstrata.data.libraries:read_digits",
    ),
    DatasetInfo(
        name="mnist",
        about="60,000 + 10,000 handwritten digits, 28x28 grey",
        origin="LeCun et al., 1998; hub ylecun/mnist, MIT",
        classes=10,
        shape=(1, 28, 28),
        model="mnist_cnn",
        mean=(0.1307,),
        std=(0.3081,),
        hub_repository="ylecun/mnist",
    ),
    DatasetInfo(
        name="fashion_mnist",
        about="60,000 + 10,000 pieces of clothing, 28x28 grey",
        origin="Xiao et al. (Zalando), 2017; hub zalando-datasets/fashion_mnist, MIT",
        classes=10,
        shape=(1, 28, 28),
        model="fmnist_cnn",
        mean=(0.2860,),
        std=(0.3530,),
        hub_repository="zalando-datasets/fashion_mnist",
    ),
    DatasetInfo(
        name="emnist_letters",
        about="124,800 + 20,800 handwritten letters, both cases merged, 28x28 grey",
        origin="Cohen et al. (NIST), 2017; hub tanganke/emnist_letters, no licence stated",
        classes=26,
        shape=(1, 28, 28),
        model="mnist_cnn",
        mean=(0.1722,),
        std=(0.3309,),
        hub_repository="tanganke/emnist_letters",
    ),
    DatasetInfo(
        name="cifar10",
        about="50,000 + 10,000 photographs of 10 kinds of things, 32x32 colour",
        origin="Krizhevsky, 2009; hub uoft-cs/cifar10, no licence stated",
        classes=10,
        shape=(3, 32, 32),
        model="cifar_cnn",
        input_column="img",
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        hub_repository="uoft-cs/cifar10",
    ),
    DatasetInfo(
        name="cifar100",
        about="50,000 + 10,000 photographs of 100 kinds of things, 32x32 colour",
        origin="Krizhevsky, 2009; hub uoft-cs/cifar100, no licence stated",
        classes=100,
        shape=(3, 32, 32),
        model="cifar_cnn",
        input_column="img",
        label_column="fine_label",
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        hub_repository="uoft-cs/cifar100",
    ),
    DatasetInfo(
        name="svhn",
        about="73,257 + 26,032 house-number digits, 32x32 colour",
        origin="Netzer et al., 2011; hub ufldl-stanford/svhn, for non-commercial use",
        classes=10,
        shape=(3, 32, 32),
        model="cifar_cnn",
        mean=(0.4377, 0.4438, 0.4728),
        std=(0.1980, 0.2010, 0.1970),
        hub_repository="ufldl-stanford/svhn",
        hub_folder="cropped_digits",
    ),
    DatasetInfo(
        name="usc_had",
        about="840 motion recordings of 14 people, 12 activities, in windows of 1.28 s at 100 Hz",
        origin="Zhang and Sawchuk, 'USC-HAD', 2012; no licence stated",
        classes=12,
        shape=(6, 128),
        model="har_cnn",
        input_column="signal",
        label_column="activity",
    ),
)

DATASETS: Registry[DatasetInfo] = Registry({info.name: info for info in _ALL}, group="fedstrata.datasets")
"""The data sets that are known by name. Any other name is a folder, a .npz file or an id on the Hugging Face hub. An
installed package adds one by an entry point that leads to a `DatasetInfo`."""
