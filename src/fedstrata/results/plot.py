"""Draw a chart of the page of a run or a comparison, in a notebook or a script."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fedstrata.base.errors import InputError
from fedstrata.report.figures import charts_of

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


class InFolder(Protocol):
    """What has a folder of records: a run or a comparison."""

    @property
    def folder(self) -> Path:
        """The folder."""


def plot(of: InFolder | Path | str, chart: str | None = None) -> Figure:
    """Draw one of the charts of the page of a run or a comparison.

    Args:
        of: The run or the comparison, or its folder.
        chart: The name of the chart, as in the page's files of figures; by default the first, that of the metric.

    Returns:
        A figure of Plotly. A notebook shows it when it is the last value of a cell.

    Raises:
        InputError: When there is no such chart, which names those that there are, or no such folder.
    """
    from plotly.graph_objects import Figure

    found = charts_of(Path(of) if isinstance(of, Path | str) else of.folder)
    name = next(iter(found), "") if chart is None else chart
    if name not in found:
        raise InputError(f"plot({name!r}): expected one of {', '.join(found)}")
    drawn = found[name].figure
    figure = Figure(data=drawn["data"], layout=drawn["layout"], skip_invalid=True)
    return figure.update_layout(title_text=found[name].title, margin_t=60)
