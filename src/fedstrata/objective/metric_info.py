"""What the metric of a run is called, which of its values are better, and how they are shown.

The keys ``acc_client``, ``acc_worst`` and so on of all records hold the run's metric. ``metric.json`` in the run folder
is a `MetricInfo`. Importing this imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from math import floor, inf, isfinite, log10
from pathlib import Path
from typing import Annotated, Any, TypeVar

from annotated_types import Len
from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass

from fedstrata.base.errors import RecordError
from fedstrata.base.files import read_file
from fedstrata.base.limits import MAX_LABEL_CHARACTERS, TEXT_CHARACTERS

METRIC_FILE = "metric.json"
"""The file of a run folder that says what its metric is."""

SMALLEST_DIFFERENCE = 0.0005
"""A smaller share of the usual range of values cannot be seen where they are shown, so it makes no winner."""

_MAX_BYTES = 2**20
"""A larger ``metric.json`` is not read."""

_SIGNIFICANT = 4
"""Digits of a number whose usual range depends on the data."""

_DECIMALS = 3
"""Decimals of other numbers."""

_UNKNOWN = "\N{EN DASH}"

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, config=ConfigDict(strict=True, allow_inf_nan=False))
class MetricInfo:
    """A metric in words.

    Attributes:
        name: What people call it, as inside a sentence, such as "mean squared error".
        meaning: What it is, with its unit, as the rest of a sentence that begins with its name.
        larger_is_better: Whether larger values are better.
        percent: Whether it is a share that is shown in per cent; otherwise it is shown as a number.
        least: The smallest value that it can have; None where there is none.
        most: The largest value that it can have; None where there is none.
        share_of_samples: Whether it is the mean over a client's test samples of a number from 0 to 1. How far it is
            from its expected value by chance is then known from its value alone.
        known_from: The number of a client's test samples from which on it is a number whatever they are; None where it
            may be nan of any number of them, as a metric of the user's own. No file has it.
    """

    name: Annotated[str, Len(1, MAX_LABEL_CHARACTERS)]
    meaning: Annotated[str, Len(0, TEXT_CHARACTERS)] = ""
    larger_is_better: bool = True
    percent: bool = False
    least: float | None = None
    most: float | None = None
    share_of_samples: bool = False
    known_from: Annotated[int | None, Field(exclude=True)] = None

    def __post_init__(self) -> None:
        """Refuse bounds between which there is nothing."""
        if self.least is not None and self.most is not None and self.least >= self.most:
            raise ValueError(f"expected a largest value above the smallest one, {self.least:g}, found {self.most:g}")

    @property
    def better(self) -> str:
        """The word for a value that is better than another one."""
        return "higher" if self.larger_is_better else "lower"

    @property
    def best(self) -> str:
        """The word for the best of some values."""
        return "highest" if self.larger_is_better else "lowest"

    @property
    def worst(self) -> str:
        """The word for the worst of some values."""
        return "lowest" if self.larger_is_better else "highest"

    @property
    def worse(self) -> str:
        """The word for a value that is worse than another one."""
        return "lower" if self.larger_is_better else "higher"

    @property
    def scale(self) -> str:
        """The values that it can have and which of them are better, as in "from 0 to 1, higher is better"."""
        unit = " %" if self.percent else ""
        least, most = (None if bound is None else f"{bound * self._factor:g}" for bound in (self.least, self.most))
        where = ""
        if least is not None and most is not None:
            where = f"from {least} to {most}{unit}, "
        elif least is not None:
            where = f"at least {least}{unit}, "
        elif most is not None:
            where = f"at most {most}{unit}, "
        return f"{where}{self.better} is better"

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest value that it can have."""
        return -inf if self.least is None else self.least, inf if self.most is None else self.most

    def quality(self, value: float | None) -> float:
        """A number that is larger for better values, to sort and to choose by; the smallest for an unknown value."""
        if value is None or not isfinite(value):
            return -inf
        return value if self.larger_is_better else -value

    def gain(self, one: float, other: float) -> float:
        """By how much one value is better than another one; negative where it is worse."""
        return one - other if self.larger_is_better else other - one

    def smallest_gain(self, *values: float) -> float:
        """The smallest difference between some values that can be seen where they are shown."""
        return SMALLEST_DIFFERENCE * (self._span or max(map(abs, values), default=0.0))

    def text(self, value: float | None, spread: float | None = None) -> str:
        """A value as people read it, with its standard deviation if there is one; a dash for an unknown value."""
        if value is None or not isfinite(value):
            return _UNKNOWN
        return self._with_spread(value, spread, " %" if self.percent else "")

    def gain_text(self, gain: float, spread: float | None = None) -> str:
        """A difference of two values as people read it, with its standard deviation if there is one."""
        return self._with_spread(gain, spread, " points" if self.percent else "")

    def interval_text(self, low: float, high: float) -> str:
        """An interval of differences as people read it, such as "-0.9 to 1.5 points"."""
        return f"{self._with_spread(low, None, '')} to {self.gain_text(high)}"

    def _with_spread(self, value: float, spread: float | None, unit: str) -> str:
        scaled = value * self._factor
        decimals = self._decimals(max(abs(scaled), (spread or 0.0) * self._factor))
        if spread is None:
            return f"{_number(scaled, decimals)}{unit}"
        return f"{_number(scaled, decimals)} ± {_number(spread * self._factor, decimals)}{unit}"

    def _decimals(self, value: float) -> int | None:
        """The decimals of a value; None where it is too large or too small to be written without an exponent."""
        if self.percent:
            return 1
        if self._span is not None and abs(value) < 10 * self._span:
            return _DECIMALS
        if not value:
            return _SIGNIFICANT - 1
        exponent = floor(log10(abs(value)))
        return max(0, _SIGNIFICANT - 1 - exponent) if -_SIGNIFICANT <= exponent < 2 * _SIGNIFICANT else None

    @property
    def _span(self) -> float | None:
        """The usual range of values, by which a difference is large or small; None where it depends on the data."""
        return self.most - (self.least or 0.0) if self.most else None

    @property
    def _factor(self) -> int:
        return 100 if self.percent else 1

    @property
    def tick_format(self) -> str:
        """The format of the numbers along an axis, as Plotly has it."""
        return ".0~%" if self.percent else ".3~g"

    @property
    def hover_format(self) -> str:
        """The format of a number at the pointer, as Plotly has it."""
        if self.percent:
            return ".1%"
        return f".{_SIGNIFICANT}~g" if self._span is None else f".{_DECIMALS}f"


def _number(value: float, decimals: int | None) -> str:
    if decimals is None:
        return f"{value:.{_SIGNIFICANT}g}"
    return f"{value:z,.{decimals}f}"  # z: rounding leaves no minus before nothing


_F1 = "the harmonic mean of precision and recall"
_SQUARED_UNIT = "in the unit of the targets, squared"
_UNIT = "in the unit of the targets"

METRICS_OF_NUMBERS = ("r2", "mse", "rmse", "mae")
"""The metrics of numbers; the library's others are of classes or labels."""

_share = partial(MetricInfo, least=0.0, most=1.0, known_from=1)
_error = partial(MetricInfo, larger_is_better=False, least=0.0, known_from=1)

METRIC_INFOS: Mapping[str, MetricInfo] = {
    "accuracy": _share(
        "accuracy",
        "the share of the test samples that are right; of samples with several tokens or labels, the share of these",
        percent=True,
        share_of_samples=True,
    ),
    "balanced_accuracy": _share(
        "balanced accuracy",
        "the mean over classes of the share of the class's test samples that are right",
        percent=True,
    ),
    "f1_macro": _share("macro F1", f"the mean over classes or labels of the F1 score, {_F1}"),
    "f1_micro": _share("micro F1", f"the F1 score of all decisions together, {_F1}"),
    "f1_weighted": _share(
        "weighted F1", f"the mean over classes or labels, weighted by their samples, of the F1 score, {_F1}"
    ),
    "roc_auc": _share(
        "area under the ROC curve",
        "the probability that a sample with the label scores higher than one without it; 0.5 is chance",
    ),
    "r2": MetricInfo(
        "R²",
        "the share of the variance of the targets that is explained: 1 is perfect, 0 is as good as their mean, and it "
        "may be negative",
        most=1.0,
        known_from=2,
    ),
    "mse": _error(
        "mean squared error",
        f"the mean of the squared differences between prediction and target, {_SQUARED_UNIT}",
    ),
    "rmse": _error(
        "root mean squared error",
        f"the root of the mean of the squared differences between prediction and target, {_UNIT}",
    ),
    "mae": _error(
        "mean absolute error", f"the mean of the absolute differences between prediction and target, {_UNIT}"
    ),
}
"""The metrics that the library names, by the values of ``local.metric``."""

ACCURACY = METRIC_INFOS["accuracy"]

_ATTRIBUTE = "metric_info"
"""The attribute of a function of the user's own that holds its `MetricInfo`."""


def describe_metric(
    name: str,
    meaning: str = "",
    *,
    larger_is_better: bool = True,
    percent: bool = False,
    least: float | None = None,
    most: float | None = None,
) -> Callable[[_Function], _Function]:
    """Return a decorator that says what a metric of your own is, for ``local.metric = "package.module:function"``.

    Args:
        name: What people call it, as inside a sentence.
        meaning: What it is, with its unit, as the rest of a sentence that begins with its name.
        larger_is_better: Whether larger values are better.
        percent: Whether it is a share that is shown in per cent.
        least: The smallest value that it can have.
        most: The largest value that it can have.
    """
    info = MetricInfo(name, meaning, larger_is_better, percent, least, most)

    def describe(function: _Function) -> _Function:
        setattr(function, _ATTRIBUTE, info)
        return function

    return describe


def info_of(function: object, path: str) -> MetricInfo:
    """Return what a function of the user's own says of itself, or else its name as a metric of which more is better.

    Args:
        function: The function.
        path: Its path, ``"package.module:function"``.
    """
    found = getattr(function, _ATTRIBUTE, None)
    return found if isinstance(found, MetricInfo) else info_named(path)


def info_named(key: object) -> MetricInfo:
    """Return what is known of a metric by the value of ``local.metric`` alone; None stands for accuracy."""
    if key is None:
        return ACCURACY
    name = str(key)
    return METRIC_INFOS.get(name) or MetricInfo(name.rpartition(":")[2].replace("_", " "))


def metric_of_settings(settings: Mapping[str, Any]) -> MetricInfo:
    """Return what is known of the metric of a run by its experiment alone."""
    local = settings.get("local")
    return info_named(local.get("metric") if isinstance(local, Mapping) else None)


def dump_metric(info: MetricInfo) -> bytes:
    """Return the content of ``metric.json``."""
    return (json.dumps(TypeAdapter(MetricInfo).dump_python(info), indent=1, allow_nan=False) + "\n").encode()


def read_metric(folder: Path) -> MetricInfo:
    """Return the metric of a run.

    Args:
        folder: The run folder.

    Raises:
        RecordError: When the file is damaged, or not there.
    """
    path = folder / METRIC_FILE
    try:
        return TypeAdapter(MetricInfo).validate_json(read_file(path, _MAX_BYTES))
    except (OSError, ValueError) as error:  # a ValidationError is a ValueError
        reason = str(error).splitlines()[0]
        raise RecordError(f"{path}: expected what the run's metric is, found: {reason}; resume the run") from None
