"""What a ClientApp of the user's own needs of fedstrata: one line for algorithms that compare parts of its data.

Nothing of torch is imported here, so that apps of other frameworks do not need it for this.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedstrata.base.errors import InputError
from fedstrata.core import FOLDS

FOLD = "fold"
"""The key of a message's config that says which part of the client's data is meant, one of ``FOLDS`` or "test"."""

MOST = "max-samples"
"""The key that says how many samples of it are used at most; 0 is all."""

PROX_WEIGHT = "proximal-mu"
"""The key of the weight of the proximal term, as Flower's own FedProx has it; it is not there where there is none."""

ANCHOR = "anchor"
"""The record of the arrays that the proximal term pulls towards."""

_TEST = "test"
"""The part of the samples that nothing is trained on, as `fedstrata.engine.work.TEST`, which needs torch."""


def fold(data: Any, message: Any, *, test: Any = None, units: Any = None, config: str = "config") -> Any:
    """Return the part of a client's training data that a message of `Clustered` is about.

    Halves ("A", "B") and quarters ("A1" to "B2") are the same in every round, and share no sample.

    Args:
        data: The client's training data: a data set of torch, a ``DataLoader``, one of `datasets`, a table of pandas,
            an array, or a tuple of arrays of one length.
        message: The message.
        test: The client's test data, which are returned where the message asks for a score on them. By default
            `data` are returned whole.
        units: What is not to be divided, such as the patient of each sample, (samples,); by default each sample is one.
        config: The key of the message's config, as `Clustered` has it in ``configrecord_key``.

    Raises:
        InputError: When the data have no such part.
    """
    asked = dict(message.content.config_records.get(config, {}))
    part, most = str(asked.get(FOLD, "all")), int(asked.get(MOST, 0))
    if part == _TEST:
        return data if test is None else test
    if part == "all" and not most:
        return data
    if part not in FOLDS:
        raise InputError(f"expected a part of the training data, one of {', '.join(FOLDS)}, found {part!r}")
    count = _length(data)
    owners = np.arange(count) if units is None else np.unique(np.asarray(units), return_inverse=True)[1]
    if len(owners) != count:
        raise InputError(f"units: expected one for each of {count} samples, found {len(owners)}")
    index = np.arange(len(owners))
    for level, half in enumerate("" if part == "all" else part):
        distinct = np.unique(owners[index])
        shuffled = np.random.default_rng([len(owners), level]).permutation(distinct)
        index = index[np.isin(owners[index], shuffled[: len(distinct) // 2]) == (half in "A1")]
    if most:
        index = np.sort(np.random.default_rng(len(owners)).permutation(index)[:most])
    if not len(index):
        raise InputError(f"expected samples in part {part!r} of the training data, found none of {len(owners)}")
    return _rows(data, index)


def proximal(model: Any, message: Any, *, config: str = "config") -> Any:
    """Return the proximal term for the loss of a module of torch, which FedProx and Ditto add: 0 for other algorithms.

    It is mu / 2 times the squared distance of the weights from those that the message has in its record "anchor"
    (Li et al., "Federated optimization in heterogeneous networks", MLSys 2020).

    Args:
        model: The module that trains.
        message: The message.
        config: The key of the message's config, as in `fold`.
    """
    mu = float(dict(message.content.config_records.get(config, {})).get(PROX_WEIGHT, 0.0))
    if not mu:
        return 0.0
    anchor = message.content[ANCHOR].to_torch_state_dict()
    return mu / 2 * sum((each - anchor[name].to(each)).square().sum() for name, each in model.named_parameters())


def _length(data: Any) -> int:
    """The number of samples."""
    if isinstance(data, tuple):
        return _length(data[0])
    if isinstance(data, list | dict | set):
        raise InputError(f"expected a data set, a loader, a table, an array or a tuple of arrays, found {type(data)}")
    if hasattr(data, "batch_sampler"):
        return len(data.dataset)
    return int(data.shape[0]) if hasattr(data, "shape") else len(data)


def _rows(data: Any, index: np.ndarray[Any, Any]) -> Any:
    """Some samples, in the form of all of them."""
    if isinstance(data, tuple):
        return tuple(_rows(each, index) for each in data)
    if hasattr(data, "batch_sampler"):  # a DataLoader of torch
        return _loader(data, index)
    if hasattr(data, "select"):  # of `datasets`
        return data.select(index)
    if hasattr(data, "iloc"):  # of pandas
        return data.iloc[index]
    if hasattr(data, "__array__") or hasattr(data, "shape"):
        return data[index]
    from torch.utils.data import Subset

    return Subset(data, index.tolist())


def _loader(loader: Any, index: np.ndarray[Any, Any]) -> Any:
    """A DataLoader of some samples that is otherwise as another one."""
    from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

    if type(loader.sampler) not in (RandomSampler, SequentialSampler) or loader.batch_size is None:
        raise InputError(
            f"expected a DataLoader that is shuffled or not, found one with {type(loader.sampler).__name__}; take fold "
            "of its data set, and make the loader of that"
        )
    return DataLoader(
        _rows(loader.dataset, index),
        batch_size=loader.batch_size,
        shuffle=isinstance(loader.sampler, RandomSampler),
        collate_fn=loader.collate_fn,
        drop_last=loader.drop_last and len(index) >= loader.batch_size,
        num_workers=loader.num_workers,
    )
