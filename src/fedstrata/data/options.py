"""How the files of a data set are read: the keys of ``[data]`` that say so, and what else decides."""

from dataclasses import dataclass
from typing import Literal

from fedstrata.base.errors import DataError
from fedstrata.base.quoting import shown

Memory = Literal["auto", "ram", "disk"]
"""Where inputs are: in memory, in a file, or in a file if they take more memory than data may."""


@dataclass(frozen=True)
class ReadOptions:
    """How samples are made of files or tables. Each has a default that fits files which leave no doubt.

    Attributes:
        label: The column of the classes; None for the one column that has a usual name.
        inputs: The columns that are the features of a sample; empty for all columns of numbers that are left.
        kept_out: The columns that are never features, because they say who or what a sample belongs to.
        window: The readings in a window of a recording; None for the default.
        step: The readings from the begin of a window to that of the next; None for windows that share none.
        size: The height and width, in pixels, to which images of files are resized; None to leave them as they are.
        normalise: Whether numbers are centred and scaled by the training samples ("auto"), or left alone ("none").
        memory: Whether the samples are in memory ("ram"), are read from a file of converted samples when they are
            needed ("disk"), or the latter if they take more memory than data may ("auto").
    """

    label: str | None = None
    inputs: tuple[str, ...] = ()
    kept_out: tuple[str, ...] = ()
    window: int | None = None
    step: int | None = None
    size: int | None = None
    normalise: str = "auto"
    memory: Memory = "auto"

    def refuse_windows(self, place: str) -> None:
        """Refuse keys about recordings where there are none.

        Raises:
            DataError: When the window or its step is set.
        """
        if self.window is not None or self.step is not None:
            raise DataError(
                f"data.window and data.step are about recordings, but {place} has none: no columns trial and signal"
            )

    def refuse_columns(self, place: str) -> None:
        """Refuse keys that choose columns where there are none to choose from.

        Raises:
            DataError: When the label or inputs are set.
        """
        for key, value in (("label", self.label), ("inputs", self.inputs)):
            if value:
                raise DataError(
                    f"data.{key} = {shown(value)}: expected none, as {place} has no columns to choose from; leave it "
                    "out"
                )

    def refuse_other_inputs(self, read: str, place: str) -> None:
        """Refuse inputs that are not read, because one column has all numbers of a sample.

        Args:
            read: That column.
            place: Where the columns are.

        Raises:
            DataError: When others are listed.
        """
        others = [column for column in self.inputs if column != read]
        if others:
            raise DataError(
                f"data.inputs = {shown(self.inputs)}: expected {read!r} alone, which has all inputs of {place}; leave "
                f"{shown(others[0])} out, or put its values into {read!r}"
            )


DEFAULT_OPTIONS = ReadOptions()
"""The options of files that leave no doubt."""
