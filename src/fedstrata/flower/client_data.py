"""The data of one client, as its device has them; and a simulated federation exported as one file for each device."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from fedstrata import data
from fedstrata.base.errors import DataError
from fedstrata.data import Dataset
from fedstrata.data.dataset import numbers_as_names
from fedstrata.data.location import ending_of
from fedstrata.data.preparation import refitted
from fedstrata.data.sample_format import has_names
from fedstrata.engine import ClientData
from fedstrata.flower.federation import Samples
from fedstrata.flower.requests import RunConfig
from fedstrata.models import side
from fedstrata.partition import Partition, hold_out, holdout_rng

if TYPE_CHECKING:
    from fedstrata.build.run_setup import RunSetup

_logger = logging.getLogger(__name__)

_Positions = NDArray[np.int64]


def read_client_data(path: Path, client: int, config: RunConfig) -> ClientData:
    """Read the data of one client.

    Args:
        path: A ``.npz``, CSV or Parquet file, or a folder, as `fedstrata.data.find` knows them. Without a test split a
            share of it is held out.
        client: The id of the client in the run.
        config: The config of the run.

    Raises:
        DataError: When the data are not there or do not fit.
    """
    location = data.find(str(path.resolve()))
    options = _options(location, config)
    if data.has_own_test(location):
        found, tests = data.load_both(location.name, options=options)
        held = np.arange(len(found)) >= len(found) - tests
        dataset = _fitting(found, path, config, location)
    else:
        dataset = _fitting(data.load_dataset(location.name, options=options), path, config, location)
        # It is drawn as that of a simulated client.
        draw = holdout_rng(config.seed, client)
        held = hold_out(dataset.labels.numpy(), config.samples.test, draw, dataset.units, spread=config.spread_units)
    return _client_data(dataset, (np.flatnonzero(~held), np.flatnonzero(held)), client, config)


def _options(location: data.Location, config: RunConfig) -> data.ReadOptions:
    """Return how samples are made of a client's own files: as the experiment says, with the federation's features."""
    prepared = config.samples.prepared
    gaps = prepared is not None and prepared.options.impute != "none"
    if ending_of(location.train[0]) == ".npz":
        # Its arrays are samples already: nothing of it is chosen, cut or resized.
        return data.ReadOptions(memory=config.reading.memory, gaps=gaps)
    features = config.samples.features or config.reading.inputs
    texts = prepared.texts if prepared is not None and prepared.features else ()
    # Each client has the mean and spread of the federation.
    return replace(config.reading, inputs=features, texts=texts, scale=True, gaps=gaps, categories=any(texts))


def no_client_data(config: RunConfig) -> ClientData:
    """Make the data that the server has of the clients: none."""
    samples = config.samples
    targets = None if _learns_classes(config) else torch.zeros(1, config.outputs[0], dtype=_target_dtype(config))
    dataset = Dataset(
        "nothing",
        torch.zeros(1, *samples.shape, dtype=getattr(torch, samples.dtype)),
        torch.zeros(1, dtype=torch.int64),
        samples.classes,
        columns={samples.unit: np.zeros(1)} if samples.unit else {},
        unit=samples.unit or None,
        class_names=samples.names,
        feature_names=samples.features,
        targets=targets,
        answer=config.objective.answer(targets),
        **samples.normalisation,
    )
    return ClientData(dataset, Partition.of_one(config.clients, samples.classes), config.seed)


def _learns_classes(config: RunConfig) -> bool:
    """Whether networks learn the class of each sample, and nothing in its place."""
    classes = config.samples.classes
    # A single class is none: networks say one number.
    return config.outputs == (classes,) and classes > 1 and not config.objective.needs_numbers


def _target_dtype(config: RunConfig) -> torch.dtype:
    """The type of what networks learn in place of classes: of tokens their classes, and else numbers or labels."""
    return torch.int64 if len(config.outputs) > 1 else torch.float32


def _client_data(dataset: Dataset, splits: tuple[_Positions, _Positions], client: int, config: RunConfig) -> ClientData:
    """The data of a client whose training and test samples have these positions."""
    if (prepared := dataset.preparation) is not None and prepared.options.own:
        dataset = replace(dataset, preparation=refitted(prepared, dataset.inputs, torch.from_numpy(splits[0])))
    return ClientData(dataset, Partition.of_one(config.clients, config.samples.classes, client, splits), config.seed)


def _fitting(dataset: Dataset, path: Path, config: RunConfig, location: data.Location) -> Dataset:
    """Give a data set of some files what all clients have in common, if it fits."""
    samples = config.samples
    if samples.dtype == "int64":
        dataset = dataset.as_tokens()
    wanted = side(config.model)
    if wanted is not None and dataset.inputs.dtype == torch.uint8:
        dataset = dataset.resized(wanted)
    found = str(dataset.inputs.dtype).removeprefix("torch.")
    if dataset.holds_rows and samples.prepared is not None:
        found = samples.dtype  # whose precision may be another one
    if (dataset.shape, found) != (samples.shape, samples.dtype):
        raise DataError(f"{path}: expected samples of {samples.dtype} {samples.shape}, found {found} {dataset.shape}")
    if dataset.targets is None and samples.classes == 1:
        # Numbers that all are whole were read as classes.
        numbers = dataset.labels.float()[:, None]
        dataset = replace(dataset, targets=numbers, labels=torch.zeros_like(dataset.labels))
    labels = _numbered(dataset, path, samples, ending_of(location.train[0]))
    targets = config.objective.targets_for(labels, samples.classes, dataset.targets, str(path))
    _refuse_other_targets(targets, path, config)
    unit = samples.unit or None
    if unit is not None and unit not in dataset.columns:
        raise DataError(f"{path}: expected the column {unit}, found {', '.join(dataset.columns) or 'none'}")
    return replace(
        dataset,
        labels=labels,
        targets=targets,
        classes=samples.classes,
        columns={} if unit is None else {unit: dataset.columns[unit]},
        unit=unit,
        class_names=(),
        **samples.normalisation,
    )


def _refuse_other_targets(targets: torch.Tensor | None, path: Path, config: RunConfig) -> None:
    """Refuse targets that do not fit the outputs of the networks. A loss of torch would fit them by itself."""
    expected = "classes" if _learns_classes(config) else f"{_target_dtype(config)} {config.outputs[:1]}"
    found = "classes" if targets is None else f"{targets.dtype} {tuple(targets.shape[1:])}"
    if found != expected:
        raise DataError(f"{path}: expected targets of {expected} for each sample, found {found}")
    if targets is not None and targets.dtype == torch.int64 and int(targets.max()) >= config.samples.classes:
        raise DataError(f"{path}: expected classes 0 to {config.samples.classes - 1}, found {int(targets.max())}")


def _numbered(dataset: Dataset, path: Path, samples: Samples, ending: str) -> torch.Tensor:
    """Number the classes as the federation does, whatever classes this client's files happen to hold.

    Files number texts by themselves: a client without the first class would call the second one 0. The numbers of a
    table are codes of its own where the other clients have texts, and those of ``.npz`` files are the federation's.
    """
    found, labels = dataset.class_names, dataset.labels
    if ending.startswith(".csv") and not found and dataset.targets is None and any(map(str.isdecimal, samples.names)):
        # A CSV file does not say that its numbers are texts.
        found, labels = numbers_as_names(labels)
    if not found:
        are_texts = has_names(samples.names) and list(samples.names) == sorted(samples.names)
        if are_texts and ending != ".npz" and dataset.targets is None:
            raise DataError(f"{path}: expected classes of {', '.join(samples.names)}, found numbers; write their names")
        if int(labels.max()) >= samples.classes:
            raise DataError(f"{path}: expected classes 0 to {samples.classes - 1}, found {int(labels.max())}")
        return labels
    known = samples.names or tuple(map(str, range(samples.classes)))
    if strange := [name for name in found if name not in known]:
        # The server names the column, so that it could read any column of texts out of a refusal.
        _logger.warning("%s: classes that the federation does not have: %s", path, ", ".join(strange))
        advice = "" if samples.names else "; give the names of all classes in samples.names of the federation's file"
        raise DataError(
            f"{path}: expected classes of {', '.join(known)}; found {len(strange)} others, which the log of the node "
            f"names{advice}"
        )
    return torch.tensor([known.index(name) for name in found])[labels]


def export_client_data(setup: RunSetup, test: float, paths: Sequence[Path]) -> Samples:
    """Write what each client holds, as it sees it: turned and relabelled, and not normalised.

    Args:
        setup: What is built from the experiment that is simulated.
        test: The share that a client without test samples would hold out.
        paths: The ``.npz`` file of each client.

    Returns:
        What all these samples have in common.
    """
    client_data = setup.client_data
    dataset = client_data.dataset
    unit = dataset.unit
    for client, path in enumerate(paths):
        parts = {"": client_data.train(client), "_test": client_data.test(client)}
        arrays: dict[str, np.ndarray] = {}
        for split, index in parts.items():
            inputs, targets = client_data.raw_samples(index)
            arrays[f"x{split}"] = inputs.contiguous().numpy()
            arrays[f"y{split}"] = targets.numpy()
            if unit is not None:
                arrays[f"{unit}{split}"] = client_data.unit_values(index)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Whoever else uses this machine may not read the samples.
        with open(path, "wb", opener=partial(os.open, mode=0o600)) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]  # numpy's stub takes the names for its own options
    return Samples(
        tuple(client_data.raw_samples(torch.tensor([0]))[0].shape[1:]),
        dataset.classes,
        dataset.mean,
        dataset.std,
        str(dataset.inputs.dtype).removeprefix("torch."),
        unit=unit or "",
        test=test,
        outputs=() if dataset.targets is None else dataset.outputs,
        features=dataset.feature_names,
        names=dataset.class_names,
        preparation=None if dataset.preparation is None else dataset.preparation.of(0),
    )


def export_public_data(setup: RunSetup, path: Path) -> str:
    """Write the unlabelled samples of the server, not normalised; return the file's name, or "" when there are none."""
    if setup.public is None:
        return ""
    with path.open("wb") as file:
        np.savez(file, x=setup.public.contiguous().numpy())
    return path.name
