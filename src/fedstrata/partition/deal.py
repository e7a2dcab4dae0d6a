"""The result of a partition: which samples each client trains and tests on, and which clients belong together."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedstrata.errors import ExperimentError, PartitionError
from fedstrata.limits import LABEL_CELLS
from fedstrata.partition.holdout import drawn, hold_out, hold_out_units
from fedstrata.partition.keys import scheme_from
from fedstrata.partition.scheme import Pool, Scheme
from fedstrata.partition.shares import Indices, enough


@dataclass(frozen=True, eq=False)
class Deal:
    """Which samples each of n clients has, as positions in the data set.

    Attributes:
        train: positions of each client's training samples, ascending int64 (n,).
        test: positions of each client's test samples, ascending int64 (n,); no sample is dealt twice.
        truth: the hidden group of each client, 0.. without gaps (n,); None where the scheme has no groups.
        turns: quarter turns counter-clockwise, 0 to 3, applied to all images of a client (n,).
        relabel: class y of client i is trained and tested as ``relabel[i, y]``; rows are permutations (n, classes).

    Raises:
        PartitionError: when one of these rules does not hold.
    """

    train: tuple[Indices, ...]
    test: tuple[Indices, ...]
    truth: Indices | None
    turns: Indices
    relabel: Indices

    def __post_init__(self) -> None:
        """Hold the rules."""
        n = len(self.train)
        arrays = (*self.train, *self.test)
        whole = [*arrays, self.turns, self.relabel, *([] if self.truth is None else [self.truth])]
        truth = np.unique([0] if self.truth is None else self.truth)
        rules = {
            "every client has a test split": len(self.test) == n,
            "all arrays are int64": all(array.dtype == np.int64 for array in whole),
            "no split is empty": all(len(array) > 0 for array in arrays),
            "positions ascend from 0": all((np.diff(array, prepend=-1) > 0).all() for array in arrays),
            "truth has one group per client": self.truth is None or self.truth.shape == (n,),
            "truth counts groups from 0 without gaps": np.array_equal(truth, np.arange(len(truth))),
            "turns are 0 to 3 per client": self.turns.shape == (n,) and bool(np.isin(self.turns, range(4)).all()),
            "relabel has a permutation of the classes per client": self.relabel.ndim == 2
            and len(self.relabel) == n
            and bool((np.sort(self.relabel, axis=1) == np.arange(self.relabel.shape[1])).all()),
        }
        for rule, holds in rules.items():
            if not holds:
                raise PartitionError(f"a deal in which {rule} was expected, but this one breaks that")
        every = np.concatenate(arrays)
        if len(np.unique(every)) < len(every):
            raise PartitionError("a deal in which no sample is dealt twice was expected, but this one breaks that")


def deal(
    scheme: Scheme | Mapping[str, object],
    labels: ArrayLike,
    *,
    clients: int,
    samples: int,
    test: float,
    seed: int,
    classes: int,
    columns: Mapping[str, NDArray[Any]] | None = None,
    unit: NDArray[Any] | None = None,
) -> Deal:
    """Deal the samples of a data set to clients, and hold out a test split of each client's own samples.

    The test split is a random part of what the client drew, so it has the client's own distribution, turn and
    labels. Randomness depends on `seed` alone; the split of a client depends on nothing that others drew.

    Args:
        scheme: a scheme, or its keys as in the experiment file.
        labels: class of each sample, 0..classes-1 (samples,).
        clients: number of clients n.
        samples: training samples per client, the mean where sizes differ; 0 deals all there are.
        test: share of each client's samples that is held out on top, in (0, 1): 500 samples at 0.2 draw 625.
        seed: of the experiment, >= 0.
        classes: number of classes.
        columns: further columns of the data (samples,) each; for the scheme `natural`.
        unit: the independent unit of each sample (samples,), such as the trial of a recording. The samples of a
            unit are never divided between training and test of a client; the test share is as close as units allow.

    Raises:
        ExperimentError: when a key does not fit the numbers of clients and classes.
        PartitionError: when the data cannot be dealt as asked.
    """
    scheme = scheme if isinstance(scheme, Scheme) else scheme_from(scheme)
    for key, value, right, allowed in (
        ("clients", clients, clients >= 1, "at least 1"),
        ("samples", samples, samples >= 0, "0 or more"),
        ("test", test, 0 < test < 1, "above 0 and below 1"),
    ):
        if not right:
            raise ExperimentError(f"data.{key} = {value}: must be {allowed}")
    scheme.check(clients, classes)
    known = _checked(labels, classes, {**(columns or {}), **({} if unit is None else {"unit": unit})})
    # Before anything of the size of the clients is made.
    if len(known):
        enough(len(known), clients, 1)
    if clients * classes > LABEL_CELLS:
        raise PartitionError(
            f"{clients} clients of {classes} classes; expected at most {LABEL_CELLS:,} clients times classes"
        )
    pool = Pool(known, classes, clients, drawn(samples, test), seed, columns or {})
    cut = scheme.cut(pool)
    train, held = [], []
    for client, share in enumerate(cut.shares):
        rng = np.random.default_rng(np.random.SeedSequence([seed, crc32(b"test split"), client]))
        try:
            out = hold_out(len(share), test, rng) if unit is None else hold_out_units(unit[share], test, rng)
        except PartitionError as error:
            raise PartitionError(f"client {client} cannot be split: {error}") from None
        train.append(share[~out])
        held.append(share[out])
    return Deal(tuple(train), tuple(held), cut.truth, cut.turns, cut.relabel)


def _checked(labels: ArrayLike, classes: int, columns: Mapping[str, NDArray[Any]]) -> Indices:
    """Return the labels as int64, or say what is wrong with them or with a column."""
    found = np.asarray(labels)
    if found.ndim != 1 or not (np.issubdtype(found.dtype, np.integer) or found.size == 0):
        raise PartitionError(f"labels are whole numbers (samples,), found {found.dtype} of shape {found.shape}")
    if found.size and not 0 <= found.min() <= found.max() < classes:
        raise PartitionError(f"labels are 0 to {classes - 1}, found {found.min()} to {found.max()}; check classes")
    for name, column in columns.items():
        if len(column) != len(found):
            raise PartitionError(f"column {name} has {len(column)} values for {len(found)} labels; they must agree")
    return found.astype(np.int64)
