"""The pictures of a run, as plotly figures in plain JSON form: the page draws them, and so does `files`."""

from fedstrata.report.pictures.drawing import Figure, Plot
from fedstrata.report.pictures.sections import pictures

__all__ = ["Figure", "Plot", "pictures"]
