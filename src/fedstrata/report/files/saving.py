"""A file for every picture, drawn by matplotlib from the same description that plotly draws the page from."""

import io
from pathlib import Path
from typing import Any

from fedstrata.errors import InputError
from fedstrata.files import replace_file, subfolder
from fedstrata.folder_lock import folder_lock
from fedstrata.report.groups import Groups
from fedstrata.report.pictures import Plot, pictures
from fedstrata.report.read import read

KINDS = ("png", "svg", "pdf")
UNDATED: dict[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""What keeps the day out of a file: the same records give the same bytes."""
STYLE: Any = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8a94a0",
    "legend.frameon": False,
    "pdf.fonttype": 42,  # text that stays text
    "savefig.dpi": 300,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedstrata",
    "text.parse_math": False,  # a name with dollars is a name
}


def save(folder: Path, kind: str) -> list[Path]:
    """Write every picture of a run into the folder ``figures`` inside it.

    Args:
        folder: of the run.
        kind: ``"png"``, ``"svg"`` or ``"pdf"``.

    Returns:
        The files, in the order of the page.

    Raises:
        InputError: when the kind is another, or matplotlib is not installed.
        RecordError: when the folder is not that of a run, or its rounds are damaged before the last line.
    """
    if kind not in KINDS:
        raise InputError(f"--figures = {kind!r}: expected one of {', '.join(KINDS)}")
    try:
        import matplotlib
    except ImportError:
        raise InputError('--figures: expected matplotlib, found none; pip install "fedstrata[figures]"') from None
    records = read(folder)
    found = pictures(Groups(records)) if records.rounds else {}
    out = subfolder(folder, "figures")
    with folder_lock(folder), matplotlib.rc_context(STYLE):
        return [_save(plot, out / f"{plot.name}.{kind}", kind) for some in found.values() for plot in some]


def _save(plot: Plot, path: Path, kind: str) -> Path:
    from fedstrata.report.files.canvas import paint

    content = io.BytesIO()
    paint(plot.figure).savefig(content, format=kind, metadata=UNDATED[kind], bbox_inches="tight")
    replace_file(path, content.getvalue())
    return path
