"""The page: records in, one HTML file out that needs nothing else."""

from pathlib import Path

from fedstrata.folder_lock import folder_lock
from fedstrata.report.groups import Groups
from fedstrata.report.pictures import pictures
from fedstrata.report.pictures.explorer import explorer
from fedstrata.report.read import experiment_of, read
from fedstrata.report.records import Records
from fedstrata.report.sheet import drawn, replace
from fedstrata.report.summary import assumption, described, sentence, tiles, title
from fedstrata.report.table import clients, means
from fedstrata.report.words import capital, warnings

NOT_SHOWN = "kept"
"""Pictures that the slider has too."""


def build(folder: Path) -> Path:
    """Write ``report.html`` into a run folder, from the records there alone.

    The same records give the same bytes. The page is replaced in one step, so a reader never sees half of one.

    Returns:
        The path of the page.

    Raises:
        RecordError: when the folder is not that of a run, its rounds are damaged before the last line, or another
            process works in it: its page would not be the last one. `fedstrata watch` shows a run that goes on.
    """
    experiment_of(folder)  # no lock is made in a folder of something else
    with folder_lock(folder):
        return replace(folder / "report.html", render(read(folder)))


def render(records: Records) -> str:
    """The page as text."""
    groups = Groups(records)
    plots = pictures(groups) if records.rounds else {}
    shown = {name: some for name, some in plots.items() if name != NOT_SHOWN}
    frames = explorer(groups) if groups.sought else None
    return drawn(
        "page.html",
        [plot for some in shown.values() for plot in some],
        frames,
        records=records,
        groups=groups,
        last=records.last,
        title=title(records),
        sentence=sentence(groups),
        assumption=assumption(records),
        described=described(records),
        notes=(*records.notes, *map(capital, warnings(records.summary or {}))),
        tiles=tiles(groups),
        plots=shown,
        explorer=frames,
        means=means(groups),
        clients=clients(groups),
    )
