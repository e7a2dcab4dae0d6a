"""The numbers of a run for TensorBoard or Weights & Biases, written into its folder; nothing is sent anywhere.

They are made from the records alone. A resumed run writes those of its earlier rounds again, so that no round is
there twice, whatever stopped the run.
"""

from __future__ import annotations

import os
import re
import shutil
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from time import time
from typing import Any

from fedstrata.base.errors import ExperimentError
from fedstrata.base.files import subfolder

Log = Callable[[Mapping[str, Any]], None]
"""Takes the record of a round."""

Write = Callable[[int, Mapping[str, float]], None]
"""Takes the number of a round, and its values by name."""


_PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb"}
"""The package of each tracker, by the value of ``records.track``."""


def require(name: str) -> None:
    """Make sure that the package of a tracker is installed.

    Args:
        name: The name of a tracker, or "none".

    Raises:
        ExperimentError: When the package is not installed.
    """
    if name in _PACKAGES and find_spec(_PACKAGES[name]) is None:
        raise ExperimentError(
            f'records.track = "{name}": expected the package {_PACKAGES[name]}, found none; '
            'pip install "fedstrata[track]", or use "none"'
        )


@contextmanager
def track(name: str, folder: Path, experiment: str, before: Iterable[Mapping[str, Any]]) -> Iterator[Log]:
    """Write the numbers of a run until it ends or stops.

    Args:
        name: The name of a tracker, or "none".
        folder: The folder for the tracker alone. What an earlier part of the run left there is replaced.
        experiment: The text of the experiment file.
        before: The records of the rounds that are finished.

    Returns:
        The function that takes the records of later rounds.

    Raises:
        ExperimentError: When the tracker is not installed.
    """
    require(name)
    if name not in _PACKAGES:
        yield lambda record: None
        return
    start = _tensorboard if name == "tensorboard" else _wandb
    with start(subfolder(folder.parent, folder.name), experiment) as write:

        def log(record: Mapping[str, Any]) -> None:
            write(record["round"], _numbers(record))

        for record in before:
            log(record)
        yield log


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """Return all finite numbers in a record and among its metrics."""
    metrics = {metric_name(metric): metric["value"] for metric in record["metrics"]}
    values = {key: value for key, value in {**record, **metrics}.items() if key != "round"}
    return {key: value for key, value in values.items() if isinstance(value, int | float) and isfinite(value)}


def metric_name(metric: Mapping[str, Any]) -> str:
    """Return the name of a metric in a tracker, such as ``metrics/p/node 3``."""
    parts = ["metrics", metric["name"]]
    if metric.get("node") is not None:
        parts.append(f"node {metric['node']}")
    if metric.get("layer") is not None:
        parts.append(metric["layer"])
    return "/".join(parts)


@contextmanager
def _tensorboard(folder: Path, experiment: str) -> Iterator[Write]:
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.summary import scalar, text

    _empty(folder)
    # SummaryWriter would write in a thread: a full disk ends that thread, and the run waits for it forever.
    writer = EventsWriter(str(folder / "events"))

    def write(round: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            writer.write_event(Event(wall_time=time(), step=round, summary=scalar(name, value)))
        writer.flush()

    try:
        writer.write_event(Event(wall_time=time(), summary=text("experiment", f"```toml\n{experiment}```")))
        yield write
    finally:
        writer.close()


@contextmanager
def _wandb(folder: Path, experiment: str) -> Iterator[Write]:
    # "offline" holds for runs only: without this, the service would still send its own errors. It is read at the start.
    os.environ["WANDB_ERROR_REPORTING"] = "false"
    import wandb

    # The same id as before, so that a run that is uploaded again replaces its earlier upload.
    names = [re.fullmatch(r"offline-run-.*-([a-z0-9]{1,32})", path.name) for path in folder.glob("wandb/offline-run-*")]
    known = [name[1] for name in names if name]
    _empty(folder)
    with wandb.init(
        mode="offline",
        dir=folder,
        project="fedstrata",
        name=folder.absolute().parent.name,
        id=known[0] if known else None,
        config=tomllib.loads(experiment),
        notes=experiment,
        reinit="create_new",  # the runs of a comparison are open at the same time
        settings=wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            save_code=False,
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        ),
    ) as run:
        yield lambda round, numbers: run.log(dict(numbers), step=round)


def _empty(folder: Path) -> None:
    shutil.rmtree(folder)  # which follows no link
    folder.mkdir()
