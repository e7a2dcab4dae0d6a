"""The numbers of a run for TensorBoard, written into its folder.

They are made from the records alone. A resumed run writes those of its earlier rounds again, so that no round is
there twice, whatever stopped the run.
"""

from __future__ import annotations

import shutil
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


def require(name: str) -> None:
    """Make sure that the package of a tracker is installed.

    Args:
        name: "tensorboard", or "none".

    Raises:
        ExperimentError: When the package is not installed.
    """
    if name == "tensorboard" and find_spec("tensorboardX") is None:
        raise ExperimentError(
            'records.track = "tensorboard": expected the package tensorboardX, found none; '
            'pip install "fedstrata[track]", or use "none"'
        )


@contextmanager
def track(name: str, folder: Path, experiment: str, before: Iterable[Mapping[str, Any]]) -> Iterator[Log]:
    """Write the numbers of a run until it ends or stops.

    Args:
        name: "tensorboard", or "none".
        folder: The folder for the tracker alone. What an earlier part of the run left there is replaced.
        experiment: The text of the experiment file.
        before: The records of the rounds that are finished.

    Returns:
        The function that takes the records of later rounds.
    """
    if name == "none":
        yield lambda record: None
        return
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.summary import scalar, text

    place = subfolder(folder.parent, folder.name)
    shutil.rmtree(place)  # which follows no link
    place.mkdir()
    # SummaryWriter would write in a thread: a full disk ends that thread, and the run waits for it forever.
    writer = EventsWriter(str(place / "events"))

    def log(record: Mapping[str, Any]) -> None:
        for key, value in _numbers(record).items():
            writer.write_event(Event(wall_time=time(), step=record["round"], summary=scalar(key, value)))
        writer.flush()

    try:
        writer.write_event(Event(wall_time=time(), summary=text("experiment", f"```toml\n{experiment}```")))
        for record in before:
            log(record)
        yield log
    finally:
        writer.close()


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
