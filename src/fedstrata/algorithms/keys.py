"""Types of hyper-parameters, and how strictly they are read."""

from typing import Annotated, Literal

from annotated_types import Ge, Interval, MinLen
from pydantic import ConfigDict

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
"""The configuration of every algorithm: an unknown key or a wrong type is an error, never a silent conversion."""

Auto = Literal["auto"]
NonNegative = Annotated[float, Ge(0)]
Degrees = Annotated[float, Interval(ge=0, le=90)]
PositiveInteger = Annotated[int, Ge(1)]
AtLeastTwo = Annotated[int, Ge(2)]
NonNegativeInteger = Annotated[int, Ge(0)]
Gamma = Annotated[float, Interval(ge=0, lt=1)]
Window = Annotated[int, Ge(3)]
"""The number of uploads that model stability looks at. One value of it needs three."""

Selectors = str | Annotated[list[str], MinLen(1)]


def selector_tuple(selectors: Selectors) -> tuple[str, ...]:
    """One or several selectors of layers, as a tuple."""
    return (selectors,) if isinstance(selectors, str) else tuple(selectors)
