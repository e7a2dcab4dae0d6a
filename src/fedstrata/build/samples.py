"""The samples of a run: read, given targets, dealt to clients, and normalised."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from fedstrata import data
from fedstrata.base.errors import ExperimentError, PartitionError, PartitionKeyError
from fedstrata.base.quoting import listed, shown
from fedstrata.base.randomness import generator
from fedstrata.build.problem import objective_of
from fedstrata.config import Experiment
from fedstrata.config.tables import ALL_INDEPENDENT, OWN_TEST
from fedstrata.data.column_roles import CLIENT_COLUMN, ROW_COLUMN, SPLIT_COLUMN, TRIAL_COLUMN, Comparison
from fedstrata.data.preparation import fit, name_of
from fedstrata.data.sample_format import has_names
from fedstrata.models import side
from fedstrata.objective import Objective
from fedstrata.objective.metric_info import METRIC_INFOS, METRICS_OF_NUMBERS
from fedstrata.objective.metrics import is_binary
from fedstrata.objective.objective import NUMBER_LOSSES, balancing_weights
from fedstrata.partition import Partition, Scheme, keys_of, partition_samples, with_validation


def read_samples(experiment: Experiment) -> tuple[data.Dataset, int]:
    """The samples of the experiment, and how many of them, the last ones, are test samples of the data set's own."""
    wanted = experiment.data
    if wanted.test != OWN_TEST:
        dataset, tests = _load(experiment).copied(wanted.copies), 0
    elif wanted.copies == 1:
        both, tests = data.load_both(wanted.name, wanted.root, experiment.reading)
        dataset = for_network(experiment, both)
    else:
        raise ExperimentError(
            f"data.copies = {wanted.copies}: expected 1 with data.test = {OWN_TEST!r}; hold out a share of each "
            "client's samples instead, as data.test = 0.2"
        )
    if wanted.unit is not None:
        dataset = replace(dataset, unit=None if wanted.unit == ALL_INDEPENDENT else wanted.unit)
    return dataset, tests


def _load(experiment: Experiment, split: Literal["train", "test"] = "train") -> data.Dataset:
    """The samples of a split, as the network needs them."""
    dataset = data.load_dataset(experiment.data.name, experiment.data.root, split, experiment.reading)
    return for_network(experiment, dataset)


def for_network(experiment: Experiment, dataset: data.Dataset) -> data.Dataset:
    """The samples as tokens if the experiment says so, and images of the size that the network needs."""
    if experiment.data.tokens:
        dataset = dataset.as_tokens()
    wanted = side(experiment.model.name)
    return dataset if wanted is None or dataset.shape[1:] == (wanted, wanted) else dataset.resized(wanted)


def with_targets(experiment: Experiment, dataset: data.Dataset) -> data.Dataset:
    """The data with the targets that the loss needs.

    Raises:
        ExperimentError: When a function of the objective does not exist, or the loss does not fit the data.
    """
    objective = objective_of(experiment)
    objective.check()
    if objective.loss in NUMBER_LOSSES and dataset.targets is None and has_names(dataset.class_names):
        raise ExperimentError(
            f"local.loss = {objective.loss!r}: expected numbers to learn, found the texts "
            f"{', '.join(map(shown, dataset.class_names[:3]))} in {dataset.name}; correct them, or use 'cross_entropy'"
        )
    targets = objective.targets_for(dataset.labels, dataset.classes, dataset.targets, dataset.name)
    numbers = targets is not None and targets.is_floating_point() and not is_binary(targets)
    of_classes = objective.metric in METRIC_INFOS and objective.metric not in METRICS_OF_NUMBERS
    if numbers and of_classes:
        raise ExperimentError(
            f"local.metric = {objective.metric!r}: expected a metric of numbers, as {dataset.name} has numbers to "
            "learn, found one of classes; set local.metric, such as to 'r2'"
        )
    return replace(dataset, targets=targets, answer=objective.answer(targets))


def spreads_units(experiment: Experiment) -> bool:
    """Whether the units that are held out are spread over the classes, as `partition_samples` does it."""
    # The splits of known data sets are those of all published results.
    return experiment.data.name not in data.DATASETS


def partition_of(experiment: Experiment, dataset: data.Dataset, own_test: int) -> Partition:
    """Which samples each client trains on, is tested on, and holds out for choices.

    Args:
        experiment: The experiment.
        dataset: The samples, with their targets.
        own_test: The number of samples, the last ones, that are test samples of the data set's own.

    Raises:
        PartitionError: When the samples cannot be dealt as the experiment says.
    """
    _refuse_class_mixes(experiment.scheme, dataset)
    wanted = experiment.data
    labels, units, spread = dataset.labels.numpy(), dataset.units, spreads_units(experiment)
    try:
        partition = partition_samples(
            experiment.scheme,
            labels,
            clients=wanted.clients,
            samples=wanted.samples,
            test=wanted.held_out_share,
            seed=experiment.seed,
            classes=dataset.classes,
            columns=dataset.columns,
            unit=units,
            own_test=own_test,
            spread_units=spread,
            folds=wanted.folds,
        )
        if share := wanted.validation:
            partition = with_validation(partition, labels, share, experiment.seed, units, spread_units=spread)
    except PartitionKeyError:
        raise
    except PartitionError as error:
        # What was left out of the files may be why too little is there.
        notes = "".join(f". {note}" for note in dataset.notes)
        key = f"data.clients = {wanted.clients}, data.samples = {wanted.samples}"
        if wanted.folds:
            key += f", data.folds = {wanted.folds}"
        raise PartitionError(f"{key}: {error}{notes}") from None
    _refuse_turns(dataset, partition)
    _refuse_unseen_groups(dataset, partition)
    return partition


def _refuse_class_mixes(scheme: Scheme, dataset: data.Dataset) -> None:
    """Refuse mixes of classes for data without classes, of which all clients would have the same."""
    if dataset.targets is None or bool(dataset.labels.any()):
        return
    for each in (scheme, getattr(scheme, "inside", None)):
        if each is not None and each.mixes_classes:
            raise PartitionKeyError(
                f"partition.scheme = {keys_of(each)['scheme']!r}: expected samples of several classes, found numbers "
                f"or several labels to learn in {dataset.name}; use 'quantity' or 'iid'"
            )


def _refuse_turns(dataset: data.Dataset, partition: Partition) -> None:
    """Refuse quarter turns of what is no image, or an image that has another shape when it is turned."""
    if not partition.turns.any():
        return
    shape = tuple(dataset.shape)
    halves = not (partition.turns % 2).any()
    if len(shape) != 3 or not (shape[1] == shape[2] or halves):
        raise PartitionKeyError(
            f"partition.scheme = 'rotation': expected images (channels, height, width) as high as wide, found samples "
            f"of shape {shape} in {dataset.name}; use another scheme, or for images with a longer side two groups, "
            "which differ by half a turn"
        )


def _refuse_unseen_groups(dataset: data.Dataset, partition: Partition) -> None:
    """Refuse groups that differ in what they call the classes, where the loss does not look at classes."""
    if dataset.targets is not None and bool((partition.relabel != partition.relabel[:1]).any()):
        raise PartitionKeyError(
            "partition.scheme = 'concept': expected a loss of classes, as its groups differ in the classes alone; "
            "use local.loss = 'cross_entropy', or another scheme"
        )


def prepared(experiment: Experiment, dataset: data.Dataset, partition: Partition) -> data.Dataset:
    """Data of a user's own with the statistics of the samples that clients train on, and of no others.

    Only training samples of clients that take part are used. Known data sets have constants.
    """
    wanted = experiment.data
    if wanted.name in data.DATASETS or dataset.holds_tokens:
        return dataset
    trained = [torch.from_numpy(rows) for rows in partition.train]
    if dataset.holds_rows:
        fitted = fit(dataset.inputs, trained, dataset.feature_names, dataset.texts, wanted.preparation)
        return replace(dataset, preparation=fitted)
    if not wanted.scale:
        return dataset
    mean, std = data.channel_statistics(dataset.inputs, torch.cat(trained).sort().values)
    return replace(dataset, mean=mean, std=std)


def weighted_objective(dataset: data.Dataset, partition: Partition, objective: Objective) -> Objective:
    """What networks learn, with the weights of the classes, by the training samples that clients have at first.

    Raises:
        ExperimentError: When there are other classes than weights.
    """
    if not (objective.balanced or objective.class_weights):
        return objective
    if dataset.targets is not None or len(objective.class_weights) not in (0, dataset.classes):
        found = "no class for each sample" if dataset.targets is not None else f"{dataset.classes} classes"
        raise ExperimentError(f"local.class_weights: expected a weight for each class, found {found} in {dataset.name}")
    if not objective.balanced:
        return objective
    labels = dataset.labels.numpy()
    seen = np.concatenate([own[labels[rows]] for own, rows in zip(partition.relabel, partition.train, strict=True)])
    weights = balancing_weights(np.bincount(seen, minlength=dataset.classes).tolist())
    return replace(objective, class_weights=weights)


def public_samples(experiment: Experiment, dataset: data.Dataset, partition: Partition) -> torch.Tensor | None:
    """Unlabelled samples for the server, not normalised: of the test file, or else of what no client holds."""
    count = experiment.data.public
    if not count:
        return None
    if experiment.data.statistics == "own":
        raise ExperimentError(
            "data.statistics = 'own': expected no samples on the server, which has no statistics of its own, found "
            f"data.public = {count}; leave one of them out"
        )
    has_test = data.has_own_test(data.find(experiment.data.name, experiment.data.root))
    if has_test and experiment.data.test != OWN_TEST:
        dataset = _load(experiment, "test")
        free = torch.arange(len(dataset))
    else:
        held = np.concatenate([*partition.train, *partition.test, *partition.validation])
        free = torch.from_numpy(np.setdiff1d(np.arange(len(dataset)), held))
    if count > len(free):
        raise ExperimentError(f"data.public = {count}: expected at most the {len(free)} samples that no client holds")
    order = torch.randperm(len(free), generator=generator(experiment.seed, "public"))
    return dataset.gather(free[order[:count]])


def inputs_line(dataset: data.Dataset) -> str:
    """What the networks read of a table or of recordings, in one line; empty for other data."""
    if dataset.feature_names:
        # The library makes these two itself where files or arguments say the same.
        made = (CLIENT_COLUMN, SPLIT_COLUMN)
        others = [name if name.strip() else "a column without a name" for name in dataset.columns if name not in made]
        parts = [", ".join(dataset.feature_names), *_preparation_lines(dataset)]
        return "; ".join(parts + ([f"no inputs: {', '.join(others)}"] if others else []))
    if {TRIAL_COLUMN, ROW_COLUMN} <= dataset.columns.keys() and dataset.inputs.ndim == 3:
        channels, readings = dataset.shape
        recordings = len(np.unique(dataset.columns[ROW_COLUMN]))
        windows = f"{len(dataset):,} windows of {readings} readings in {channels} channels"
        return f"{windows}, of {recordings:,} recordings"
    return ""


def _preparation_lines(dataset: data.Dataset) -> list[str]:
    """How the rows of a table are prepared, where more is done than to scale them."""
    prepared = dataset.preparation
    if prepared is None or not (prepared.gaps or any(prepared.texts)):
        return []
    names = [name_of(prepared.features, column) for column in range(len(prepared.texts))]
    texts = [column for column, known in enumerate(prepared.texts) if known]
    filled = [names[at] for at in prepared.gaps if prepared.fill[0][at] >= 0 or at in prepared.numbers]
    unknown = [
        f"{names[column]} = {shown(text)}"
        for column in texts
        for text in prepared.texts[column]
        if text not in prepared.codes(column)
    ]
    statistic = prepared.options.impute.replace("_", " ")
    are = f"{len(prepared.categories)} inputs of 0 or 1" if prepared.categories else "numbers in alphabetical order"
    lines = {
        f"gaps in {listed(filled)} are filled with the {statistic} of the training rows": filled,
        f"the texts of {listed([names[column] for column in texts])} are {are}": texts,
        f"no training row has {listed(unknown)}, which count as gaps": unknown,
    }
    return [*(line for line, concerned in lines.items() if concerned), f"{prepared.width} inputs"]


def classes_line(experiment: Experiment, dataset: data.Dataset, objective: Objective) -> str:
    """Which classes were made of a column, or how they are weighed, in one line; empty where neither is done."""
    made = experiment.reading.classes or Comparison.of(experiment.data.label)
    if not (made or objective.class_weights):
        return ""
    counts = np.bincount(dataset.labels.numpy(), minlength=dataset.classes)
    names = dataset.class_names or range(dataset.classes)
    found = [f"{name} ({count:,} samples)" for name, count in zip(names, counts, strict=True)]
    weights = [f"{weight:.4g}" for weight in objective.class_weights]
    of_column = f"{experiment.data.label or 'label'}: " if made else ""
    return of_column + ", ".join(found) + (f"; weights {', '.join(weights)}" if weights else "")
