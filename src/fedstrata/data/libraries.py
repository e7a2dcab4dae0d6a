"""Data sets that other libraries read: scikit-learn's digits, and those of the hub that are no Parquet files."""

from __future__ import annotations

from functools import cache

import numpy as np

from fedstrata.base.errors import DataError
from fedstrata.base.lazy_torch import torch
from fedstrata.data.column_roles import SPLIT_COLUMN
from fedstrata.data.dataset import SPLITS, Dataset, channel_statistics
from fedstrata.data.tables import MemorySource, Table


@cache
def hub_tables(repository: str) -> list[Table]:
    """Return the splits of a data set, with the column ``split`` where there are test samples.

    Args:
        repository: The id of the data set on the hub, ``owner/set``.

    Raises:
        DataError: When the library is not installed, the data set cannot be read, or it has no split for training.
    """
    try:
        from datasets import load_dataset
    except ImportError:
        raise DataError(
            f"install fedstrata[datasets] to read {repository}, whose files are no train-*.parquet"
        ) from None
    try:
        loaded = load_dataset(repository)
        found = {split: loaded[split].with_format("arrow")[:] for split in SPLITS if split in loaded}
    # The library passes on the errors of whatever it reads the files with.
    except Exception as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise DataError(f"the hub's {repository} could not be read ({reason})") from error
    if "train" not in found:
        raise DataError(f"the hub's {repository} has the splits {', '.join(loaded)}; expected train")
    return [
        Table(MemorySource(f"{repository}, {split}", table), {SPLIT_COLUMN: split} if len(found) > 1 else {})
        for split, table in found.items()
    ]


def read_digits() -> Dataset:
    """Return 1,797 images of 8 x 8 pixels; the 17 shades of the source are spread over 0 to 255."""
    from sklearn.datasets import load_digits

    source = load_digits()
    shades = np.rint(source.images * (255 / 16)).astype(np.uint8)
    inputs = torch.from_numpy(shades[:, None])
    labels = torch.from_numpy(source.target.astype(np.int64))
    mean, std = channel_statistics(inputs)
    return Dataset("digits", inputs, labels, 10, mean, std, class_names=tuple("0123456789"))
