"""Types of hyper-parameters, and how strictly they are read."""

from typing import Annotated, Literal

from annotated_types import Interval, Len
from pydantic import ConfigDict

from fedstrata.base.limits import MAX_COUNT, MAX_LIST_ENTRIES, MAX_MODELS, MAX_NUMBER, MAX_WINDOW

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
"""The configuration of every algorithm: an unknown key or a wrong type is an error, never a silent conversion."""

Auto = Literal["auto"]
NonNegative = Annotated[float, Interval(ge=0, le=MAX_NUMBER)]
Degrees = Annotated[float, Interval(ge=0, le=90)]
PositiveInteger = Annotated[int, Interval(ge=1, le=MAX_COUNT)]
AtLeastTwo = Annotated[int, Interval(ge=2, le=MAX_COUNT)]
NonNegativeInteger = Annotated[int, Interval(ge=0, le=MAX_COUNT)]
ModelCount = Annotated[int, Interval(ge=1, le=MAX_MODELS)]
Gamma = Annotated[float, Interval(ge=0, lt=1)]
Window = Annotated[int, Interval(ge=3, le=MAX_WINDOW)]
"""The number of uploads that model stability looks at. One value of it needs three."""

Selectors = str | Annotated[list[str], Len(1, MAX_LIST_ENTRIES)]


def selector_tuple(selectors: Selectors) -> tuple[str, ...]:
    """One or several selectors of layers, as a tuple."""
    return (selectors,) if isinstance(selectors, str) else tuple(selectors)
