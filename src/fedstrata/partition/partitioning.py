"""The samples that each client trains and tests on, and the true groups of clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from fedstrata.base.errors import PartitionError, PartitionKeyError, check_rules
from fedstrata.base.limits import LABEL_CELLS
from fedstrata.partition.scheme import Allocation, IntArray, Pool, Scheme, total_samples

_ROUNDING = 1e-9
"""By how much a product of floats may miss a whole number."""


@dataclass(frozen=True, eq=False)
class Partition:
    """The samples of each of n clients, as positions in the data set.

    Attributes:
        train: The positions of each client's training samples, ascending int64, (n,).
        test: The positions of each client's test samples, ascending int64, (n,). No sample occurs twice.
        truth: The true group of each client, 0.. without gaps, (n,); None where the scheme has no groups.
        turns: The quarter turns, counter-clockwise, of all images of a client, 0 to 3, (n,).
        relabel: The label that client i gives to class y, at [i, y], (n, classes). Each row is a permutation.
        names: The name of each client, (n,); empty where the scheme gives none.
        validation: The positions of each client's samples for validation, ascending int64, (n,); empty for none.

    Raises:
        PartitionError: When one of these rules does not hold.
    """

    train: tuple[IntArray, ...]
    test: tuple[IntArray, ...]
    truth: IntArray | None
    turns: IntArray
    relabel: IntArray
    names: tuple[str, ...] = ()
    validation: tuple[IntArray, ...] = ()

    @classmethod
    def of_one(cls, clients: int, classes: int, client: int = 0, splits: Sequence[IntArray] = ()) -> Partition:
        """The samples of one of several clients, of whom the others, or all, have none here.

        Args:
            clients: The number of clients n.
            classes: The number of classes.
            client: The id of the one that has samples.
            splits: The positions of its training and test samples; none where they are not here either.
        """
        none = np.arange(0)
        train, test = splits or (none, none)
        return cls(
            train=tuple(train if each == client else none for each in range(clients)),
            test=tuple(test if each == client else none for each in range(clients)),
            truth=None,
            turns=np.zeros(clients, dtype=np.int64),
            relabel=np.tile(np.arange(classes), (clients, 1)),
        )

    def __post_init__(self) -> None:
        """Check what a scheme of a user's own could get wrong without anybody noticing."""
        n = len(self.train)
        splits = (*self.train, *self.test, *self.validation)
        positions = np.sort(np.concatenate(splits)) if splits else np.empty(0, dtype=np.int64)
        groups = np.zeros(n, dtype=np.int64) if self.truth is None else self.truth
        distinct = np.unique(groups)
        classes = np.arange(self.relabel.shape[-1])
        rules = {
            "every client has a test split": len(self.test) == n,
            "every client has a validation split, or none has": len(self.validation) in (0, n),
            # On a device, all other clients have none.
            "who trains is tested, and no one else": [bool(len(each)) for each in self.train]
            == [bool(len(each)) for each in self.test],
            "no validation split is empty": all(len(split) for split in self.validation),
            # Sorting is several times as fast as np.unique.
            "no sample occurs twice": bool((np.diff(positions) > 0).all()),
            "truth has one group per client, from 0 without gaps": groups.shape == (n,)
            and np.array_equal(distinct, np.arange(len(distinct))),
            "turns are 0 to 3 per client": self.turns.shape == (n,) and bool(np.isin(self.turns, range(4)).all()),
            "relabel has a permutation of the classes per client": self.relabel.shape == (n, len(classes))
            and bool((np.sort(self.relabel, axis=1) == classes).all()),
        }
        check_rules("partition", rules, "one that breaks this rule", PartitionError)


def partition_samples(
    scheme: Scheme,
    labels: IntArray,
    *,
    clients: int,
    samples: int,
    test: float,
    seed: int,
    classes: int,
    columns: Mapping[str, NDArray[Any]] | None = None,
    unit: NDArray[Any] | None = None,
    own_test: int = 0,
    spread_units: bool = False,
    folds: int | None = None,
) -> Partition:
    """Allocate the samples of a data set to clients, and hold out a test split of each client's own samples.

    The test split is a random part of the client's samples, with the client's own mix of classes, rotation and
    labels. Randomness depends on `seed` alone; the split of a client does not depend on the samples of others.

    With `folds` it is repeated cross-validation: `seed` is fold ``seed % folds`` of repeat ``seed // folds``. All seeds
    of a repeat allocate the same samples to each client, and together they test each of them once.

    Args:
        scheme: The scheme of partition.
        labels: The class of each sample, 0..classes-1, (samples,).
        clients: The number of clients n.
        samples: The training samples per client, the mean where sizes differ; 0 takes all there are.
        test: The share of each client's samples that is held out on top, in (0, 1): 500 samples at 0.2 draw 625.
        seed: The seed of the experiment, >= 0.
        classes: The number of classes.
        columns: Further columns of the data, (samples,) each, for the scheme `natural`.
        unit: The independent unit of each sample, (samples,), such as the trial of a recording. The samples of a unit
            are never divided between training and test of a client.
        own_test: The number of samples, the last ones of the data set, that are test samples of its own. With any, no
            training samples are held out, and `test` does not matter.
        spread_units: Whether the units that are held out are spread over the classes. Folds always are.
        folds: The number of folds of each client's samples, >= 2; None holds out the share `test`. With folds, `test`
            is ``1 / folds``.

    Raises:
        ExperimentError: When a key does not fit the numbers of clients and classes.
        PartitionError: When the data cannot be partitioned as asked.
    """
    scheme.check(clients, classes)
    # Before anything is allocated whose size grows with the clients.
    total_samples(len(labels), clients, 1)
    if clients * classes > LABEL_CELLS:
        raise PartitionError(
            f"{clients} clients of {classes} classes; expected at most {LABEL_CELLS:,} clients times classes"
        )
    if own_test:
        return _with_own_test(scheme, Pool(labels, classes, clients, samples, seed, columns or {}), own_test)
    # What the folds of a repeat have in common is drawn with the number of the repeat.
    repeat, fold = divmod(seed, folds) if folds else (seed, 0)
    pool = Pool(labels, classes, clients, samples_to_draw(samples, test), repeat, columns or {})
    allocation = scheme.allocate(pool)

    def hold(client: int, own: IntArray, units: NDArray[Any] | None) -> NDArray[np.bool_]:
        rng = holdout_rng(repeat, client)
        if not folds:
            return hold_out(own, test, rng, units, spread=spread_units)
        held: NDArray[np.bool_] = deal_folds(own, folds, rng, units) == fold
        return held

    train, held_out = _split_all(labels, allocation.samples, hold, unit, allocation.names)
    return _partition(allocation, train, held_out)


def _with_own_test(scheme: Scheme, pool: Pool, own_test: int) -> Partition:
    """Partition a data set whose last samples are test samples of its own."""
    count = len(pool.labels) - own_test
    train = pool.part("partition", slice(0, count), pool.clients)
    test = pool.part("partition test", slice(count, None), pool.clients)
    allocation = scheme.allocate(train)
    held_out = scheme.allocate_test(train, allocation, test)
    for kind, parts in (("training", allocation.samples), ("test", held_out)):
        for client, part in enumerate(parts):
            if not len(part):
                raise PartitionError(
                    f"client {_name(allocation.names, client)} has no {kind} samples of its own; add some, leave the "
                    "client out, or set data.test to the share of its training samples that is held out instead of "
                    "'own'"
                )
    return _partition(allocation, allocation.samples, tuple(part + count for part in held_out))


def with_validation(
    partition: Partition,
    labels: IntArray,
    share: float,
    seed: int,
    unit: NDArray[Any] | None = None,
    *,
    spread_units: bool = False,
) -> Partition:
    """Take a share of each client's training samples for validation. The test split stays as it is.

    Args:
        partition: The partition.
        labels: The class of each sample, (samples,). Each class gives the same share.
        share: The share of the training samples, in (0, 1).
        seed: The seed of the experiment.
        unit: The independent unit of each sample, (samples,); none is divided.
        spread_units: Whether the units are spread over the classes.

    Raises:
        PartitionError: When a client has too few training samples.
    """

    def hold(client: int, own: IntArray, units: NDArray[Any] | None) -> NDArray[np.bool_]:
        return hold_out(own, share, holdout_rng(seed, client, "validation"), units, spread=spread_units)

    try:
        train, validation = _split_all(labels, partition.train, hold, unit, partition.names)
    except PartitionError as error:
        raise PartitionKeyError(f"data.validation = {share}: {error}") from None
    return replace(partition, train=train, validation=validation)


def _split_all(
    labels: IntArray,
    parts: Sequence[IntArray],
    hold: Callable[[int, IntArray, NDArray[Any] | None], NDArray[np.bool_]],
    unit: NDArray[Any] | None,
    names: tuple[str, ...],
) -> tuple[tuple[IntArray, ...], tuple[IntArray, ...]]:
    """Split the samples of each client into those that it keeps and those that are held out.

    Args:
        labels: The class of each sample of the data set.
        parts: The positions of each client's samples, (n,).
        hold: Returns which samples are held out of a client, from its id and their classes and units.
        unit: The independent unit of each sample of the data set; None where all are independent.
        names: The name of each client; empty where they have none.

    Raises:
        PartitionError: When a client has too few samples or units. The message names the client.
    """
    held = list[NDArray[np.bool_]]()
    for client, own in enumerate(parts):
        units = None if unit is None else unit[own]
        try:
            held.append(hold(client, labels[own], units))
        except PartitionError as error:
            raise PartitionError(f"client {_name(names, client)} cannot be split: {error}") from None
    kept = tuple(positions[~mask] for positions, mask in zip(parts, held, strict=True))
    return kept, tuple(positions[mask] for positions, mask in zip(parts, held, strict=True))


def _partition(allocation: Allocation, train: tuple[IntArray, ...], test: tuple[IntArray, ...]) -> Partition:
    """Return the partition with these splits."""
    return Partition(train, test, allocation.truth, allocation.turns, allocation.relabel, allocation.names)


def _name(names: tuple[str, ...], client: int) -> str:
    """Return the name of a client, or its number."""
    return names[client] if names else str(client)


def samples_to_draw(samples: int, test: float) -> int:
    """Return how many samples a client draws for `samples` to train on: 500 with a `test` of 0.2 draws 625.

    At least one sample is held out. 0 takes all samples there are, and returns 0.
    """
    return samples and samples + max(1, round(samples * test / (1 - test)))


def holdout_rng(seed: int, client: int, split: str = "test") -> np.random.Generator:
    """Return the random stream of one client's test split, or of another split."""
    return np.random.default_rng(np.random.SeedSequence([seed, crc32(f"{split} split".encode()), client]))


def hold_out(
    labels: IntArray,
    test: float,
    rng: np.random.Generator,
    units: NDArray[Any] | None = None,
    *,
    spread: bool = False,
) -> NDArray[np.bool_]:
    """Choose the test split of one client, at least one sample and not all.

    Each class gives the same share of its samples, to the nearest sample, so that both splits have the client's own mix
    of classes. Which samples of a class are held out is random.

    Where units are given, whole units are chosen, and their samples come as close to the share `test` as any choice
    can: windows of one recording resemble each other, and a test split with recordings of the training split flatters
    the model. With `spread` the units come from different classes as far as possible, where the plain choice of a few
    units often has two of one class and none of another.

    Args:
        labels: The class of each sample of the client, (samples,).
        test: The share of the samples to hold out, in (0, 1).
        rng: The generator that chooses.
        units: The independent unit of each sample, (samples,); None where all samples are independent.
        spread: Whether the units that are held out are spread over the classes.

    Returns:
        True for the samples that are held out, (samples,).

    Raises:
        PartitionError: When there are fewer than two samples or units.
    """
    if units is not None and spread:
        return _hold_out_units_by_class(labels, units, test, rng)
    if units is not None:
        return _hold_out_units(units, test, rng)
    return _hold_out_by_class(labels, test, rng)


def deal_folds(labels: IntArray, folds: int, rng: np.random.Generator, units: NDArray[Any] | None = None) -> IntArray:
    """Divide the samples of one client into folds of cross-validation, each with the client's own mix of classes.

    The samples are dealt to the folds in turn, one class after the other, in random order. So the samples of a class in
    two folds differ by one at most, and so do those of all classes together. Where units are given, whole units are
    dealt so; the class of a unit is the commonest of its samples.

    Args:
        labels: The class of each sample of the client, (samples,).
        folds: The number of folds, >= 2.
        rng: The generator that shuffles.
        units: The independent unit of each sample, (samples,); None where all samples are independent.

    Returns:
        The fold of each sample, 0..folds-1, (samples,). No fold is empty.

    Raises:
        PartitionError: When there are fewer samples or units than folds.
    """
    unit = np.arange(len(labels)) if units is None else np.unique(units, return_inverse=True)[1]
    kinds = labels if units is None else unit_counts(unit, labels).argmax(axis=1)
    if len(kinds) < folds:
        noun = "samples" if units is None else "independent units"
        raise PartitionError(
            f"it has {len(kinds)} {noun} and needs {folds}, one for each fold; lower data.folds, add some, leave the "
            "client out, or ask for fewer clients or more samples where the partition draws them"
        )
    order = rng.permutation(len(kinds))
    # The class comes first whose first unit does, so that nothing depends on the numbers that stand for the classes.
    _, first, label = np.unique(kinds[order], return_index=True, return_inverse=True)
    dealt = np.empty(len(kinds), dtype=np.int64)
    dealt[order[np.argsort(first[label], kind="stable")]] = np.arange(len(kinds)) % folds
    return dealt[unit]


def _hold_out_by_class(labels: IntArray, test: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Choose the same share of every class, (count,).

    The largest remainders get what is left over. Of equal remainders the one comes first whose class comes first in a
    random order of the samples. So nothing depends on the numbers that stand for the classes.
    """
    count = len(labels)
    if count < 2:
        raise PartitionError(
            f"it has {count} samples and needs 2, one to train and one to test; add some, leave the client out, or ask "
            "for fewer clients or more samples where the partition draws them"
        )
    total = min(max(round(count * test), 1), count - 1)
    order = rng.permutation(count)
    # The places in this order of the samples of each class, one class after the other.
    by_class = np.argsort(labels[order], kind="stable")
    sizes = np.bincount(labels)
    starts = np.cumsum(sizes) - sizes
    taken, remainders = np.divmod(total * sizes, count)
    taken[np.lexsort((by_class[starts], -remainders))[: total - taken.sum()]] += 1
    place_in_class = np.arange(count) - np.repeat(starts, sizes)
    held = np.zeros(count, dtype=np.bool_)
    held[order[by_class[place_in_class < np.repeat(taken, sizes)]]] = True
    return held


def _hold_out_units(units: NDArray[Any], test: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Choose whole units whose samples come as close to the share `test` as any choice can, (count,)."""
    unit, sizes = _numbered_units(units)
    order = rng.permutation(len(sizes))
    total = len(units)
    # Subset sum: last_unit[s] is the place in `order` of the unit that first made a sum of s samples possible, so the
    # rest of that sum was possible with earlier units alone.
    last_unit = np.full(total, -1)
    last_unit[0] = len(sizes)
    for place, size in enumerate(sizes[order]):
        last_unit[size:][(last_unit[size:] < 0) & (last_unit[:-size] >= 0)] = place
    sums = np.flatnonzero(last_unit >= 0)[1:]
    left = int(sums[np.argmin(np.abs(sums - total * test))])
    chosen = []
    while left:
        chosen.append(order[last_unit[left]])
        left -= int(sizes[chosen[-1]])
    return np.isin(unit, chosen)


def _hold_out_units_by_class(
    labels: IntArray, units: NDArray[Any], test: float, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Choose whole units near the share `test`, one after the other of the class that is farthest below it, (count,).

    The class of a unit is the commonest of its samples. Every class keeps a unit to train on. A class gives at least
    the whole units that are in its share: of five units at 0.2 it gives one, however long the units of others are.
    """
    unit, sizes = _numbered_units(units)
    counts = unit_counts(unit, labels)
    waiting: dict[int, list[int]] = {}
    for each in rng.permutation(len(sizes)):
        waiting.setdefault(int(counts[each].argmax()), []).append(int(each))
    missing = {label: test * float(sizes[own].sum()) for label, own in waiting.items()}
    # Whole units of each class; 0.7 of ten units is seven, though the product of the floats is a little less.
    owed = {label: int(test * len(own) + _ROUNDING) for label, own in waiting.items()}
    target = test * len(units)
    chosen: list[int] = []
    held = 0
    while able := [label for label, own in waiting.items() if len(own) > 1]:
        label = max(able, key=lambda each: (owed[each] > 0, missing[each]))
        size = int(sizes[waiting[label][-1]])
        if chosen and owed[label] <= 0 and abs(held + size - target) >= abs(held - target):
            break
        chosen.append(waiting[label].pop())
        owed[label] -= 1
        missing[label] -= size
        held += size
    # Where each class has one unit, some class must do without one to train on.
    return np.isin(unit, chosen or [next(iter(waiting.values()))[-1]])


def unit_counts(unit: IntArray, labels: IntArray) -> IntArray:
    """Return the samples of each unit and class, (units, classes)."""
    counts = np.zeros((unit.max() + 1, labels.max() + 1), dtype=np.int64)
    np.add.at(counts, (unit, labels), 1)
    return counts


def _numbered_units(units: NDArray[Any]) -> tuple[IntArray, IntArray]:
    """Return the number of each sample's unit, (count,), and the samples of each unit.

    Raises:
        PartitionError: When there are fewer than two units.
    """
    _, unit, sizes = np.unique(units, return_inverse=True, return_counts=True)
    if len(sizes) < 2:
        raise PartitionError(
            f"it has {len(sizes)} independent unit and needs 2, one to train and one to test; name a finer column in "
            "data.unit, supply test samples of your own, leave the client out, or ask for fewer clients or more "
            "samples where the partition draws them"
        )
    return unit, sizes
