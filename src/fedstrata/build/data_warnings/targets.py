"""What looks wrong with the classes or the numbers that networks learn of a user's own data."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fedstrata.base.quoting import shown
from fedstrata.build.data_warnings.names import missing_value_names, names_alike
from fedstrata.config import Experiment
from fedstrata.data import DATASETS, Dataset

_FAR = 10.0
"""The root mean square of the targets from which on a network that begins near 0 has far to go."""


def target_warnings(experiment: Experiment, dataset: Dataset) -> Iterator[str]:
    """Yield what looks wrong with the targets. Known data sets are what they are.

    Args:
        experiment: The experiment.
        dataset: The samples of all clients.
    """
    if experiment.data.name in DATASETS:
        return
    yield from _similar_classes(dataset)
    yield from missing_value_names("class", dataset.class_names)
    yield from _classes_without_samples(dataset)
    yield from _far_targets(experiment, dataset)


def _similar_classes(dataset: Dataset) -> Iterator[str]:
    """Names of classes that differ only in case or spaces: mostly one class, written in two ways."""
    for several in names_alike(dataset.class_names):
        yield f"the classes {several} differ only in case or spaces. If they are one class, write its name in one way"


def _classes_without_samples(dataset: Dataset) -> Iterator[str]:
    """One class alone, and whole numbers that leave some out: 1 and 2 are taken for two of the classes 0, 1 and 2."""
    if dataset.targets is not None:
        return
    counts = torch.bincount(dataset.labels, minlength=dataset.classes)
    present = torch.nonzero(counts).flatten().tolist()
    if len(present) == 1:
        name = dataset.class_names[present[0]] if dataset.class_names else str(present[0])
        yield (
            f"all samples are of one class, {shown(name)}: there is nothing to learn, and every accuracy is 100 %. "
            "Name the column of the classes in data.label"
        )
    elif not dataset.class_names and len(present) < dataset.classes:
        empty = dataset.classes - len(present)
        yield (
            f"{empty:,} of the {dataset.classes:,} classes have no sample, such as "
            f"{next(label for label in range(dataset.classes) if not counts[label])}: whole numbers are taken for "
            "classes from 0 on. Number them without gaps, or give them names"
        )


def _far_targets(experiment: Experiment, dataset: Dataset) -> Iterator[str]:
    """Numbers to learn in a unit that makes them large. Inputs are normalised, and targets are not."""
    targets = dataset.targets
    if targets is None or not targets.is_floating_point() or experiment.local.loss == "bce":
        return
    numbers = targets.double()
    if float(numbers.square().mean().sqrt()) > _FAR:
        spread, middle = torch.std_mean(numbers, correction=0)
        yield (
            f"the numbers to learn have the mean {float(middle):.4g} and the standard deviation {float(spread):.4g}. "
            "Unlike inputs they are not normalised: training diverges or takes very many rounds, and groups are not "
            "found. Subtract the mean from them and divide them by the standard deviation"
        )
