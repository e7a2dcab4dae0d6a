"""The page of a comparison: records in, one HTML file out that needs nothing else."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import tomli_w

from fedstrata.folder_lock import folder_lock
from fedstrata.report.compared.curves import curves, stroke
from fedstrata.report.compared.read import read
from fedstrata.report.compared.records import Compared, Run
from fedstrata.report.compared.table import TITLES, cells, leaders, matrix, told
from fedstrata.report.sheet import drawn, replace
from fedstrata.report.words import plural

PAGE = "comparison.html"


def build(folder: Path) -> Path:
    """Write ``comparison.html`` into the folder of a comparison, from the records there and in its run folders alone.

    The same records give the same bytes.

    Returns:
        The path of the page.

    Raises:
        RecordError: when the folder is not that of a comparison, or another process works in it.
    """
    read(folder)  # no lock is made in a folder of something else
    with folder_lock(folder):
        return write(folder)


def write(folder: Path) -> Path:
    """As `build`, for who has the lock of the folder."""
    return replace(folder / PAGE, render(read(folder)))


def render(comparison: Compared) -> str:
    """The page as text."""
    rows = comparison.rows
    strokes = {row.algorithm: stroke(place) for place, row in enumerate(rows)}
    plots = curves(comparison.courses, strokes)
    return drawn(
        "comparison.html",
        plots,
        comparison=comparison,
        title=f"{plural(len(rows), 'algorithm')} on {_key(comparison.experiment, 'data', 'name')}",
        sentence=leaders(rows, comparison.differences),
        described=_described(comparison),
        notes=comparison.notes,
        plots=plots,
        strokes=strokes,
        titles=TITLES,
        table=[cells(row) for row in rows],
        names=[row.algorithm for row in rows],
        matrix=matrix(rows, comparison.differences),
        differences=[told(each) for each in comparison.differences],
        address=_address,
        command=_command(comparison),
        experiment=_experiment(comparison),
    )


def _key(experiment: Mapping[str, Any], table: str, key: str) -> str:
    keys = experiment.get(table)
    return str(keys.get(key, "")) if isinstance(keys, Mapping) else ""


def _described(comparison: Compared) -> list[tuple[str, str]]:
    """The experiment in a few names."""
    keys = {"clients": ("data", "clients"), "partition": ("partition", "scheme"), "model": ("model", "name")}
    shown = [(name, _key(comparison.experiment, *path)) for name, path in keys.items()]
    shown.append(("rounds", str(comparison.experiment.get("rounds", ""))))
    shown.append(("seeds", ", ".join(map(str, comparison.seeds))))
    return [(name, value) for name, value in shown if value]


def _address(run: Run) -> str:
    """Where the page of a run is, from this one."""
    return quote(f"{Path(run.folder).as_posix()}/report.html")


def _command(comparison: Compared) -> str:
    """How the comparison is made again."""
    if comparison.shared is None:
        given = [run.folder for run in comparison.runs]
    else:
        seeds = ",".join(map(str, comparison.seeds))
        names = ",".join(row.algorithm for row in comparison.rows)
        given = ["experiment.toml", "--algorithms", names, "--seeds", seeds]
    return shlex.join(["fedstrata", "compare", *given, "--out", "again"])


def _experiment(comparison: Compared) -> str:
    """The keys of all runs, and those of each algorithm, as an experiment file."""
    return tomli_w.dumps(
        {**comparison.experiment, "algorithms": {name: keys for name, keys in comparison.methods.items() if keys}}
    )
