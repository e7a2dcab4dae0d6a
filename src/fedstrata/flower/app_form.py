"""How models and questions become messages of an app, and what an app cannot do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray
from torch import Tensor

from fedstrata.base.errors import ExperimentError, InputError
from fedstrata.base.limits import MAX_SAMPLES
from fedstrata.base.quoting import shown
from fedstrata.core import Layout, Plan
from fedstrata.engine.work import TEST, Answer, Ask
from fedstrata.flower.app import ANCHOR, FOLD, MOST, PROX_WEIGHT
from fedstrata.flower.payload import flower, tensor_of
from fedstrata.models import arrays_of_row, row_of_arrays

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, MetricRecord, RecordDict

_WHOLE_SHARE = 0.9
"""A half of the samples that has more than this share of all is no half."""


def refuse_whole(ask: Ask, samples: int, known: int) -> None:
    """Refuse an app that trains on all data where a part was asked: its updates would say nothing of the parts.

    Args:
        ask: What was asked.
        samples: The samples that it trained on.
        known: All training samples of the client; 0 where they are not known.

    Raises:
        InputError: When it does.
    """
    if ask.kind == "train" and ask.fold != "all" and known and samples > max(1, _WHOLE_SHARE * known):
        raise InputError(
            f"expected part {ask.fold!r} of {known} training samples, found {samples}; the app trains on all data "
            "where a part is asked: write `data = fold(data, message)` of fedstrata.flower into its train function"
        )


_SERVE = "write `serve(app, train, evaluate)` of fedstrata.flower into the app, and serve=True into Clustered"


def refuse_needs(plan: Plan, algorithm: str, *, served: bool) -> None:
    """Refuse a plan that asks more than the app can do.

    Args:
        plan: The plan.
        algorithm: The name of the algorithm.
        served: Whether the app does with a message what `fedstrata.flower.serve` does.

    Raises:
        ExperimentError: When it asks more.
    """
    found = dict[str, str]()
    for task in plan.tasks.values():
        if any(task.load_local) or any(task.save_local) or any(task.upload_values):
            found["layers of a client's own"] = "" if served else _SERVE
        if any(task.trainable) and not all(task.trainable):
            found = {"training of some layers alone": "take another algorithm"}
            break
    for name in plan.client_stats:
        found[f"the statistic {name!r} of a client's data"] = "take another algorithm"
    for what, remedy in found.items():
        if remedy:
            raise ExperimentError(
                f"algorithm.name = {shown(algorithm)}: expected what an app can do by training and evaluating, found a "
                f"need for {what}; {remedy}, or run the experiment by fedstrata deploy"
            )


@dataclass(frozen=True)
class AppKeys:
    """How an app names what travels: the arguments of `Clustered` of the same meaning."""

    arrays: str
    config: str
    samples: str
    loss: str
    accuracy: str


@dataclass(frozen=True)
class AppForm:
    """How models and questions become messages of an app, and its replies answers.

    Attributes:
        layout: The tensors of the models.
        fixed: The arrays that are no part of the models, by name: they stay as they were at first.
        dtypes: The name of the type of each array of a record, by name, in their order.
        keys: How the app names what travels.
    """

    layout: Layout
    fixed: Mapping[str, NDArray[Any]]
    dtypes: Mapping[str, str]
    keys: AppKeys

    @classmethod
    def of(cls, layout: Layout, first: Mapping[str, NDArray[Any]], keys: AppKeys) -> AppForm:
        """The form of models like a first one, whose arrays are given by name."""
        moving = {spec.name for spec in layout.tensors}
        fixed = {name: values for name, values in first.items() if name not in moving}
        return cls(layout, fixed, {name: str(values.dtype) for name, values in first.items()}, keys)

    def record(self, row: Tensor) -> ArrayRecord:
        """The arrays of a model (p,), in the order, shapes and types of the first one."""
        own = flower()
        arrays = {**self.fixed, **arrays_of_row(row, self.layout)}
        record: ArrayRecord = own.ArrayRecord(
            {name: own.Array(arrays[name].astype(dtype)) for name, dtype in self.dtypes.items()}
        )
        return record

    def row(self, record: ArrayRecord) -> Tensor:
        """The model (p,) of arrays.

        Raises:
            InputError: When they are not those of the models.
        """
        if other := sorted({*self.dtypes} ^ {*record}):
            raise InputError(f"expected the arrays {', '.join(self.dtypes)}, found a difference in {other[0]!r}")
        arrays = dict[str, NDArray[Any]]()
        for spec in self.layout.tensors:
            values = tensor_of(spec.name, record[spec.name]).numpy()
            found, wanted = (values.shape, str(values.dtype)), (spec.shape, self.dtypes[spec.name])
            if found != wanted:
                raise InputError(f"expected {spec.name} to be {wanted}, found {found}")
            arrays[spec.name] = values
        return row_of_arrays(arrays, self.layout)

    def content(self, ask: Ask, config: Mapping[str, Any]) -> RecordDict:
        """The content of the message with a question, whose config has that of the user."""
        own = flower()
        told = {**config, FOLD: ask.fold, MOST: ask.most}
        if ask.training is not None:
            told["local-epochs"] = ask.training.epochs
            if "lr" in told:
                told["lr"] = ask.training.lr
        records = {self.keys.arrays: self.record(ask.model)}
        if ask.anchor is not None:
            told[PROX_WEIGHT] = ask.prox_weight
            records[ANCHOR] = self.record(ask.anchor)
        content: RecordDict = own.RecordDict({**records, self.keys.config: own.ConfigRecord(told)})
        return content

    def answer(self, content: RecordDict, ask: Ask) -> Answer:
        """The answer in the content of a reply, which somebody else has made.

        Raises:
            InputError: When it is none.
        """
        try:
            return self._answer(content, ask)
        except (ValueError, TypeError, KeyError, OverflowError, EOFError, MemoryError) as error:
            raise InputError(f"expected arrays and metrics of this app, found {type(error).__name__}") from None

    def _answer(self, content: RecordDict, ask: Ask) -> Answer:
        metrics = _only(list(content.metric_records.values()), "record of metrics")
        samples = self._number(metrics, self.keys.samples)
        # A client without test data has no score.
        least = 0 if ask.fold == TEST else 1
        if not least <= samples <= MAX_SAMPLES or samples % 1:
            raise InputError(f"expected {self.keys.samples} to be a whole number of {least} or more, found {samples:g}")
        if ask.kind == "train":
            return Answer(int(samples), self.row(_only(list(content.array_records.values()), "record of arrays")))
        if not samples:
            return Answer(0)
        accuracy = self._number(metrics, self.keys.accuracy) if self.keys.accuracy in metrics else float("nan")
        if not (isnan(accuracy) or 0 <= accuracy <= 1):
            raise InputError(f"expected {self.keys.accuracy} to be a share of 0 to 1, found {accuracy:g}")
        return Answer(int(samples), None, self._number(metrics, self.keys.loss), accuracy)

    def _number(self, metrics: MetricRecord, name: str) -> float:
        value = metrics.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            arguments = {self.keys.samples: "weighted_by_key", self.keys.loss: "loss", self.keys.accuracy: "accuracy"}
            names = ", ".join(metrics) or "none"
            raise InputError(
                f"expected the metric {name!r}, a number, found {names}; give Clustered the app's own name, as in "
                f"{arguments.get(name, name)}='...'"
            )
        return float(value)


def _only(records: Sequence[Any], what: str) -> Any:
    if len(records) != 1:
        raise InputError(f"expected one {what} in a reply, found {len(records)}")
    return records[0]
