"""The data sets that can be named in an experiment. None of their files is read, and nothing heavy is imported here.

A new data set in Parquet files is one more table in ``datasets.toml``. A data set that needs code of its own is a file
beside this one, with a function that returns a `Dataset`, and a table that names the function as its `reader`.
"""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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


def _listed() -> Iterator[DatasetInfo]:
    """Yield the data sets of ``datasets.toml``."""
    content = Path(__file__).with_name("datasets.toml").read_text("utf-8")
    for name, table in tomllib.loads(content).items():
        lists = {key: tuple(value) for key, value in table.items() if isinstance(value, list)}
        yield DatasetInfo(name, **{**table, **lists})


DATASETS: Registry[DatasetInfo] = Registry({info.name: info for info in _listed()}, group="fedstrata.datasets")
"""The data sets that are known by name. Any other name is a folder, a .npz file or an id on the Hugging Face hub. An
installed package adds one by an entry point that leads to a `DatasetInfo`."""
