"""A simulated federation cut into files, one for each device, so that a test federation has the same data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from fedstrata import data
from fedstrata.config import Experiment
from fedstrata.flower.terms import Samples
from fedstrata.runner.build import Setting


def cut(experiment: Experiment, setting: Setting, paths: Sequence[Path]) -> Samples:
    """Write what each client holds, as it sees it: turned, relabelled and normalised.

    Args:
        experiment: whose federation it is.
        setting: made of it.
        paths: of the ``.npz`` files, one for each client.

    Returns:
        What all these samples have in common.
    """
    holdings = setting.holdings
    source = data.load(experiment.data.name, experiment.data.root)
    unit = experiment.data.unit or source.unit
    for client, path in enumerate(paths):
        parts = {"": holdings.train(client), "_test": holdings.test(client)}
        arrays: dict[str, np.ndarray] = {}
        for split, index in parts.items():
            inputs, labels = holdings.samples(index)
            arrays[f"x{split}"], arrays[f"y{split}"] = inputs.contiguous().numpy(), labels.numpy()
            if unit is not None:
                arrays[f"{unit}{split}"] = source.columns[unit][index.numpy()]
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]  # numpy's stub takes the names for its own options
    shape = tuple(holdings.samples(torch.tensor([0]))[0].shape[1:])
    # They are normalised already: these leave every bit of them as it is.
    mean, std = (0.0,) * shape[0], (1.0,) * shape[0]
    return Samples(shape, holdings.classes, mean, std, "float32", unit=unit or "", test=experiment.data.test)


def cut_public(setting: Setting, path: Path) -> str:
    """Write the unlabelled samples of the server, normalised; the file's name, or "" when there are none."""
    if setting.problem.public is None:
        return ""
    with path.open("wb") as file:
        np.savez(file, x=setting.problem.public.contiguous().numpy())
    return path.name
