"""The objective of a run, by the names of its functions, so that it can be sent to other processes and devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from fedstrata.base.errors import ExperimentError, FedstrataError, UserCodeError, first_line, users_trace
from fedstrata.base.key_errors import unknown
from fedstrata.base.lazy_torch import torch
from fedstrata.base.quoting import shown
from fedstrata.base.registry import Registry, users_function
from fedstrata.base.resources import resource_error
from fedstrata.objective.metric_info import METRIC_INFOS, MetricInfo, info_of

if TYPE_CHECKING:
    from torch import Tensor

_T = TypeVar("_T")

LOSSES: Registry[Callable[..., Any]] = Registry(
    {name: f"fedstrata.objective.training:{name}" for name in ("cross_entropy", "mse", "mae", "huber", "bce")}
)
"""The function of each loss: outputs and targets to the mean loss of a batch, a scalar."""

METRICS: Registry[Callable[..., Any]] = Registry({name: f"fedstrata.objective.metrics:{name}" for name in METRIC_INFOS})
"""The function of each metric: outputs and targets of one client to a number. `METRIC_INFOS` describes them."""

TRANSFORMS: Registry[Callable[..., Any]] = Registry(
    {name: f"fedstrata.objective.training:{name}" for name in ("none", "flip", "crop", "crop_flip", "noise")}
)
"""The function of each transform: the inputs of a batch to the inputs that are trained on, of the same shape."""

KINDS: Mapping[str, Registry[Callable[..., Any]]] = {"loss": LOSSES, "metric": METRICS, "transform": TRANSFORMS}
"""The functions of an objective, by the key that names them."""


def check_objective_names(**names: str) -> None:
    """Refuse a name that stands for nothing. A user's module is not imported here.

    Args:
        names: By key (``loss``, ``metric``, ``transform``), a registered name or ``"package.module:function"``.

    Raises:
        ExperimentError: For the first such name.
    """
    for key, name in names.items():
        module, _, attribute = name.partition(":")
        if name not in KINDS[key] and not (module and attribute):
            raise ExperimentError(unknown(f"local.{key}", name, key, [*KINDS[key], "'package.module:function'"]))


def function_of(key: str, name: str) -> Callable[..., Any]:
    """Import the function that a key names.

    Raises:
        ExperimentError: When there is none.
    """
    known = KINDS[key]
    return known[name] if name in known else users_function(f"local.{key} = {shown(name)}", name)


def call(key: str, name: str, *given: Any) -> Any:
    """Call the function that a key names.

    Raises:
        UserCodeError: When a function of the user's own fails, with the part of the traceback that is the user's.
    """
    function = function_of(key, name)
    if name in KINDS[key]:
        return function(*given)
    return in_user_code(f"local.{key} = {shown(name)}", function, *given)


def in_user_code(place: str, function: Callable[..., _T], *given: Any) -> _T:
    """Call a function of the user's own.

    Args:
        place: The key and the value that name it, for the message.
        function: The function.
        given: Its arguments.

    Raises:
        UserCodeError: When it fails, with the part of the traceback that is the user's.
    """
    try:
        return function(*given)
    except FedstrataError:
        raise
    except Exception as error:
        # Too little memory is no fault of the user's code; it is told as everywhere else.
        if resource_error(error) is not None:
            raise
        raise UserCodeError(f"{place} failed: {first_line(error)}", users_trace(error)) from error


NUMBER_LOSSES = ("mse", "mae", "huber")
"""The losses of numbers."""


@dataclass(frozen=True)
class Objective:
    """What networks learn.

    Attributes:
        loss: The name of a loss, or ``"package.module:function"``.
        metric: The name of a metric, or ``"package.module:function"``.
        transform: The name of a transform, or ``"package.module:function"``.
        class_weights: The weight of each class in the cross-entropy, (classes,); empty where all count alike.
        balanced: Whether the weights are those that balance the training samples of all clients (`balancing_weights`).
    """

    loss: str = "cross_entropy"
    metric: str = "accuracy"
    transform: str = "none"
    class_weights: tuple[float, ...] = ()
    balanced: bool = False

    def check(self) -> None:
        """Import all functions.

        Raises:
            ExperimentError: When a name stands for no function.
        """
        for key in ("loss", "metric", "transform"):
            function_of(key, getattr(self, key))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all functions."""
        return self.loss, self.metric, self.transform

    @property
    def users_functions(self) -> dict[str, Callable[..., Any]]:
        """The functions that are not the library's own, by key."""
        names = {key: getattr(self, key) for key in KINDS}
        return {key: function_of(key, name) for key, name in names.items() if name not in KINDS[key].built_in}

    @property
    def averages(self) -> bool:
        """Whether the loss of several batches is the mean of theirs. Only of the library's own losses it is known."""
        return self.loss in LOSSES.built_in and not self.class_weights

    @property
    def classifies(self) -> bool:
        """Whether the loss is the library's own for classes, so that outputs are logits."""
        return self.loss == "cross_entropy"

    @property
    def metric_info(self) -> MetricInfo:
        """What the metric is called, and which of its values are better.

        Raises:
            ExperimentError: When a metric of the user's own cannot be imported; only its function says it.
        """
        if self.metric in METRIC_INFOS:
            return METRIC_INFOS[self.metric]
        return info_of(function_of("metric", self.metric), self.metric)

    @property
    def needs_numbers(self) -> bool:
        """Whether the loss is one of the library's own for numbers, or for labels of 0 and 1."""
        return self.loss in (*NUMBER_LOSSES, "bce")

    @property
    def least_loss(self) -> float:
        """The least value of the loss. That of a loss of the user's own, such as a log-likelihood, is not known."""
        return 0.0 if self.loss in LOSSES else -inf

    def may_be_unknown(self, samples: int) -> bool:
        """Whether the metric of so many samples need not be a number, as R² of one, and any of the user's own."""
        known_from = self.metric_info.known_from
        return known_from is None or samples < known_from

    def answer(self, targets: Tensor | None) -> Literal["classes", "labels", "numbers"]:
        """What networks say about samples with such targets; None stands for classes."""
        if targets is None or not targets.is_floating_point():
            return "classes"
        return "labels" if self.loss == "bce" else "numbers"

    def loss_of(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of a batch, a scalar; with weights of classes the weighted mean.

        Raises:
            UserCodeError: When a function of the user's own fails.
            ExperimentError: When it returns something else.
        """
        if self.class_weights:
            weights = torch.tensor(self.class_weights, device=outputs.device)
            return torch.nn.functional.cross_entropy(outputs, targets, weights)
        found: Tensor = call("loss", self.loss, outputs, targets)
        if not isinstance(found, torch.Tensor) or found.ndim:
            kind = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
            raise ExperimentError(
                f"local.loss = {self.loss!r}: expected the mean loss of a batch, a tensor without axes, found {kind}"
            )
        return found

    def loss_sum(self, outputs: Tensor, targets: Tensor) -> float:
        """The mean loss of a batch times its samples, of which each counts by `counted_share`."""
        if self.classifies and targets.ndim == 1 and not self.class_weights:
            return float(torch.nn.functional.cross_entropy(outputs, targets, reduction="sum"))
        from fedstrata.objective.training import counted_share

        return float(self.loss_of(outputs, targets)) * float(counted_share(targets).sum())

    def mistakes(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """How wrong each sample is, (b,) in [0, 1]; as `fedstrata.objective.metrics.mistakes`."""
        from fedstrata.objective.metrics import mistakes

        # What a loss of the user's own takes targets for is only seen in them.
        labels = self.loss == "bce" if self.loss in LOSSES else None
        return mistakes(outputs, targets, labels=labels)

    def metric_of(self, outputs: Tensor, targets: Tensor) -> float:
        """The metric of the samples of one client.

        Raises:
            UserCodeError: When a function of the user's own fails.
            ExperimentError: When it returns no number.
        """
        if self.metric == "accuracy":
            from fedstrata.objective.training import counted_share

            wrong = self.mistakes(outputs, targets)[counted_share(targets) > 0]
            return 1 - float(wrong.double().mean())
        found = call("metric", self.metric, outputs, targets)
        try:
            return float(found)
        # What tensors of several numbers, and other things than numbers, raise.
        except (TypeError, ValueError, RuntimeError):
            raise ExperimentError(
                f"local.metric = {self.metric!r}: expected a number, found {type(found).__name__}"
            ) from None

    def transformed(self, inputs: Tensor) -> Tensor:
        """The inputs of a batch as training sees them.

        Raises:
            UserCodeError: When a function of the user's own fails.
            ExperimentError: When it returns something else.
        """
        if self.transform == "none":
            return inputs
        found: Tensor = call("transform", self.transform, inputs)
        if not isinstance(found, torch.Tensor) or found.shape != inputs.shape:
            kind = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
            raise ExperimentError(
                f"local.transform = {self.transform!r}: expected inputs of the same shape {tuple(inputs.shape)}, "
                f"found {kind}"
            )
        return found

    def predictor(self, outputs: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
        """The function from models (r, p) and inputs (b, ...) to class probabilities (r, b, classes).

        Args:
            outputs: The function to the outputs of the networks, (r, b, ...).
        """
        return lambda models, inputs: self.probabilities(outputs(models, inputs))

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Class probabilities (r, b, classes) from the outputs of r networks for b samples.

        Raises:
            ExperimentError: When the outputs are no classes.
        """
        if not self.classifies or outputs.ndim != 3:
            raise ExperimentError(
                f"local.loss = {self.loss!r}: expected a network that gives each sample one class, as this algorithm "
                "compares class probabilities; use another algorithm"
            )
        return outputs.softmax(2)

    def targets_for(self, labels: Tensor, classes: int, targets: Tensor | None, place: str) -> Tensor | None:
        """What the outputs of a network are compared with.

        Args:
            labels: The class of each sample, (samples,).
            classes: The number of classes.
            targets: What the data give in place of classes: numbers, (samples, outputs) float32, or integers,
                (samples, length) int64. None where they give classes.
            place: The name of the data set, for the message.

        Returns:
            The targets, (samples, ...); None for the classes themselves.

        Raises:
            ExperimentError: When the loss does not fit them.
        """
        if self.classifies and targets is not None and one_hot(targets):
            raise ExperimentError(
                f"local.loss = 'cross_entropy': expected one class for each sample, found {targets.shape[1]} columns "
                f"with a single 1 in {place}; give its place instead, as y.argmax(1) does"
            )
        if self.classifies and targets is not None and targets.is_floating_point():
            # Perhaps 1.0, which pandas makes of 1 beside a missing value.
            raise ExperimentError(
                f"local.loss = 'cross_entropy': expected classes, found floats in {place}; store classes as integers, "
                "and use 'mse' for numbers or 'bce' for labels of 0 and 1"
            )
        if self.loss in NUMBER_LOSSES and targets is None:
            return labels.float()[:, None]
        if self.needs_numbers and targets is not None:
            targets = targets.float()
        if self.loss != "bce":
            return targets
        if targets is None and classes != 2:
            raise ExperimentError(
                f"local.loss = 'bce': expected two classes, or a column of 0 and 1 for each label, found {classes} "
                f"classes in {place}; use 'cross_entropy'"
            )
        binary = labels.float()[:, None] if targets is None else targets
        if self.metric == "balanced_accuracy" and binary.shape[1:] != (1,):
            raise ExperimentError(
                f"local.metric = 'balanced_accuracy': expected classes or one label, found {prod(binary.shape[1:])} "
                f"labels in {place}; use 'f1_macro' or 'accuracy'"
            )
        if bool(((binary < 0) | (binary > 1)).any()):
            raise ExperimentError(f"local.loss = 'bce': expected labels of 0 to 1, found others in {place}; use 'mse'")
        return binary

    def outputs_of_classes(self, classes: int) -> tuple[int, ...]:
        """The shape of the outputs for one sample of data that give classes alone."""
        return (1,) if self.needs_numbers else (classes,)


def balancing_weights(counts: Sequence[int]) -> tuple[float, ...]:
    """The weight of each class by which all classes have the same part in a loss: n / (c * n_y).

    Here n is the number of samples, n_y that of class y, and c the number of classes that have any. A class without
    samples has the weight 1. They are those of scikit-learn's ``compute_class_weight``.

    Args:
        counts: The samples of each class, (classes,), at least one in all.
    """
    present = sum(count > 0 for count in counts)
    return tuple(sum(counts) / (present * count) if count else 1.0 for count in counts)


def one_hot(targets: Tensor) -> bool:
    """Whether targets (samples, columns) have a single 1 in every row, and 0 beside it."""
    if targets.ndim != 2 or targets.shape[1] < 2 or not len(targets):
        return False
    values = (targets == 0) | (targets == 1)
    return bool(values.all()) and bool((targets.sum(dim=1) == 1).all())
