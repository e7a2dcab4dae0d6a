"""The charts of a folder, be it of a run, a comparison or a sweep, and as files for a paper (extra ``figures``).

Kaleido draws the files with a Chromium of this machine.
"""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from fedstrata.base.errors import InputError
from fedstrata.base.files import folder_lock, replace_file, subfolder
from fedstrata.report.charts import all_charts
from fedstrata.report.clusters import Clusters
from fedstrata.report.comparison.charts import comparison_charts
from fedstrata.report.comparison.folder import read_comparison
from fedstrata.report.drawing import Chart
from fedstrata.report.reader import read

_KINDS = ("png", "svg", "pdf")

_WIDTH = 500
_SIDE_OF_MATRIX = 400
_PIXELS_PER_PNG_PIXEL = 3


def charts_of(folder: Path) -> dict[str, Chart]:
    """Return the charts of a run, a comparison or a sweep by their names, in the order of the page.

    Raises:
        RecordError: When the folder is none of them, or its rounds are damaged before the last line.
    """
    if (folder / "comparison.json").is_file():
        drawn = comparison_charts(read_comparison(folder))
    else:
        drawn = [chart for section in all_charts(Clusters(read(folder))).values() for chart in section]
    return {chart.name: chart for chart in drawn}


def save_figures(folder: Path, kind: str) -> list[Path]:
    """Write every chart of a run, a comparison or a sweep into the folder ``figures`` inside its own.

    Args:
        folder: The folder.
        kind: The format is ``"png"``, ``"svg"`` or ``"pdf"``.

    Returns:
        The files, in the order of the page.

    Raises:
        InputError: When the kind is another one, or when Kaleido or a Chromium is not installed or does not start.
        RecordError: As by `charts_of`.
    """
    if kind not in _KINDS:
        raise InputError(f"--figures = {kind!r}: expected one of {', '.join(_KINDS)}")
    try:
        from kaleido import errors
    except ImportError:
        raise InputError('--figures: expected kaleido, found none; pip install "fedstrata[figures]"') from None
    charts = list(charts_of(folder).values())
    files = []
    with folder_lock(folder):
        # Its loggers write lines of their own about a browser that does not start.
        logging.getLogger("choreographer").setLevel(logging.CRITICAL + 1)
        try:
            images = asyncio.run(_draw(charts, kind))
        except (errors.ChromeNotFoundError, errors.BrowserFailedError, errors.BrowserClosedError):
            raise InputError(
                "--figures: expected Chromium or Chrome, which draws the charts, found none that starts; "
                "install one, or let `kaleido_get_chrome` install one"
            ) from None
        out = subfolder(folder, "figures")
        for chart, image in zip(charts, images, strict=True):
            files.append(out / f"{chart.name}.{kind}")
            replace_file(files[-1], image)
    return files


async def _draw(charts: Sequence[Chart], kind: str) -> list[bytes]:
    """Draw charts in one browser, one after the other."""
    from kaleido import Kaleido

    images = []
    # MathJax would be fetched from the network, and a name with dollars is a name.
    async with Kaleido(n=1, mathjax=False) as browser:
        for chart in charts:
            figure = {"data": chart.figure["data"], "layout": chart.figure["layout"]}
            size = {"width": _WIDTH, "height": figure["layout"]["height"]}
            if chart.figure.get("square"):
                size = {"width": _SIDE_OF_MATRIX + 60, "height": _SIDE_OF_MATRIX}
            images.append(await browser.calc_fig(figure, opts={"format": kind, "scale": _PIXELS_PER_PNG_PIXEL, **size}))
    return images
