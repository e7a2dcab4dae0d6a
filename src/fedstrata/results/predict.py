"""Predict the samples of files with the models of a finished run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fedstrata import data
from fedstrata.build.samples import for_network
from fedstrata.results.run import Run


def predict_file(run: Run, client: str | int, path: Path) -> tuple[list[str], Iterator[list[Any]]]:
    """Predict raw samples with the model that a client uses.

    Args:
        run: The finished run.
        client: The name of the client, or its id.
        path: The samples, in one of the forms that runs read. A table needs the features alone.

    Returns:
        What the columns are called, and the rows: the prediction, and the probability of each class or label where the
        run has some.

    Raises:
        InputError: When there is no such client, or the samples do not fit.
    """
    model = run.model(client)
    form = run.sample_format
    reading = run.experiment.reading
    samples: Any
    if form.feature_names:
        samples = data.raw_rows(path, form.feature_names, reading)
    else:
        dataset = for_network(run.experiment, data.load_dataset(str(path.resolve()), options=reading))
        samples = dataset.gather(torch.arange(len(dataset)))
    predicted = model.predict(samples).reshape(-1, 1 if form.answer == "classes" else form.output_shape[0])
    several = predicted.shape[1] > 1
    header = [f"prediction {column}" if several else "prediction" for column in range(predicted.shape[1])]
    if form.answer == "numbers":
        return header, iter(predicted.tolist())
    probabilities = model.predict_proba(samples)
    names = form.class_names or tuple(map(str, range(probabilities.shape[1])))
    return [*header, *(f"p({name})" for name in names)], (
        [*said, *shares] for said, shares in zip(predicted.tolist(), probabilities.tolist(), strict=True)
    )
