"""The networks by name, and the way from a name, or a factory of a user's own, to a network."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, ValidationError, create_model

from fedstrata.base.errors import ModelError, first_line, users_trace
from fedstrata.base.key_errors import explain
from fedstrata.base.lazy_torch import torch
from fedstrata.base.limits import PARAMETERS
from fedstrata.base.quoting import shown
from fedstrata.base.randomness import global_generators, seed_global_generators
from fedstrata.base.registry import OBJECT, ONLY_HERE, PortableObject, Registry, is_lost_object, load_users_object
from fedstrata.models.rows import layout_of, light_copy

if TYPE_CHECKING:
    Factory = Callable[..., torch.nn.Module]
    """A function or class that takes (shape, classes), or nothing, and options."""


_FOR_IMAGES = ("mnist_cnn", "fmnist_cnn", "cifar_cnn", "tsdp_cnn", "vgg11", "vgg16", "resnet18")

MODELS: Registry[Callable[..., torch.nn.Module]] = Registry(
    {name: f"fedstrata.models.networks:{name}" for name in (*_FOR_IMAGES, "har_cnn", "mlp", "logistic")},
    group="fedstrata.models",
)
"""The factory of each network, ``factory(shape, classes, **options)``. Its keyword-only arguments are the options."""


def portable(name: str) -> str | PortableObject:
    """Return what `make` takes for a network, in a form that reaches other processes.

    Args:
        name: The name of the network, as in an experiment.

    Raises:
        ModelError: When there is no such network.
    """
    # What a program has registered is not registered in other processes.
    only_here = name.startswith((ONLY_HERE, OBJECT)) or (":" not in name and name not in MODELS.built_in)
    return PortableObject(_find(name), name) if only_here else name


def side(name: str) -> int | None:
    """Return the height and width, in pixels, of the only images that a network takes; None when several fit.

    A factory says so by its attribute ``side``, a whole number.

    Raises:
        ModelError: When there is no such network.
    """
    found = getattr(_find(name), "side", None)
    return found if isinstance(found, int) else None


@dataclass(frozen=True)
class NetworkShape:
    """What a network maps to what.

    Attributes:
        inputs: The shape of one sample.
        outputs: The shape of what the network says about it: (classes,), (numbers,) or (length, classes).
        tokens: Whether samples are rows of tokens, int64; else they are float32.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    tokens: bool = False


@dataclass(frozen=True, eq=False)
class NetworkMaker:
    """What makes a network, the same every time, also in another process, with the arguments of `make_network`.

    One with frozen tensors is made once, and then copied but for these: a process holds them once.
    """

    name: str | PortableObject
    kind: NetworkShape
    seed: int
    options: Mapping[str, Any]

    def __call__(self) -> torch.nn.Module:
        """Make the network."""
        return self._make() if self._first is None else light_copy(self._first)

    @cached_property
    def _first(self) -> torch.nn.Module | None:
        made = self._make()
        return None if all(each.requires_grad for each in made.parameters()) else made

    def _make(self) -> torch.nn.Module:
        return make_network(self.name, self.kind, self.seed, self.options)


def make(name: str | PortableObject, shape: tuple[int, ...], classes: int, seed: int, **given: Any) -> torch.nn.Module:
    """Make a network that gives each sample one class, as `make_network` does.

    Args:
        name: As there.
        shape: The shape of one sample.
        classes: The number of classes.
        seed: As there.
        given: The options of the network.
    """
    return make_network(name, NetworkShape(shape, (classes,)), seed, given)


def make_network(
    name: str | PortableObject, kind: NetworkShape, seed: int, given: Mapping[str, Any]
) -> torch.nn.Module:
    """Make a network on the CPU. Its initial weights depend on the seed and nothing else.

    Args:
        name: A name of `MODELS`, or ``"package.module:factory"``, which is searched in the current directory too; or
            what `portable` returned for one.
        kind: What it maps to what. Its factory is called with the shape of one sample and the last axis of the outputs:
            ``factory(shape, classes, **options)``.
        seed: The seed of the initial weights. The global generator is left as it was.
        given: The options of the network.

    Returns:
        The network in training mode. It maps (batch, *inputs) to (batch, *outputs).

    Raises:
        ModelError: When there is no such network, an option does not fit it, it does not take these samples, or
            its outputs have another shape.
    """
    maker, name = (name.thing, name.name) if isinstance(name, PortableObject) else (_find(name), name)
    factory: Factory = (lambda: light_copy(maker)) if isinstance(maker, torch.nn.Module) else maker
    shape = kind.inputs
    classes = kind.outputs[-1]
    expected = (2, *kind.outputs)
    with_shape = name in MODELS.built_in or takes_shape(factory, name)
    settings = _settings(name, factory, with_shape, given)
    if name in MODELS.built_in:
        _limit_parameters(name, shape, classes, tuple(sorted(settings.items())))
    # torch.manual_seed would seed the accelerators as well, and fork_rng would start them to save their state.
    with global_generators():
        seed_global_generators(seed)
        try:
            module = factory(shape, classes, **settings) if with_shape else factory(**settings)
            if not isinstance(module, torch.nn.Module):
                raise ModelError(f"model {name!r} returned {type(module).__name__}; expected a torch.nn.Module")
            # Lazy modules draw their weights here; evaluation mode leaves running statistics as they are.
            with torch.no_grad():
                outputs = module.eval()(torch.zeros(2, *shape, dtype=torch.int64 if kind.tokens else torch.float32))
        except ModelError:
            raise
        except Exception as error:
            failure = ModelError(f"model {name!r} fails on samples of shape {shape}: {first_line(error)}")
            failure.trace = "" if name in MODELS.built_in else users_trace(error)
            raise failure from error
    found = tuple(outputs.shape) if torch.is_tensor(outputs) else type(outputs).__name__
    if not fits_outputs(found, expected):
        each = "a row of logits each" if len(expected) == 2 else "a row of logits for each token"
        raise ModelError(f"model {name!r} maps two samples to {found}; expected {expected}, {each}")
    layout_of(module)
    for layer in module.modules():
        if isinstance(layer, torch.nn.Conv2d) and _needs_rows_of_pixels(layer):
            layer.register_forward_pre_hook(_with_rows_of_pixels)
    return module.train()


def fits_outputs(found: object, expected: tuple[int, ...]) -> bool:
    """Whether outputs have the shape that is expected. A language model may know more tokens than the data have."""
    if len(expected) == 3 and isinstance(found, tuple) and found[:2] == expected[:2]:
        return len(found) == 3 and found[2] >= expected[2]
    return found == expected


def _needs_rows_of_pixels(layer: torch.nn.Conv2d) -> bool:
    """Whether oneDNN would write past its memory in training, if the channels of images are last in memory.

    So it is for 1 x 1 convolutions with a stride whose channels are fewer than a vector of the processor holds, of at
    most 512 bits (https://github.com/uxlfoundation/oneDNN/issues/6035).
    """
    return max(layer.kernel_size) == 1 < max(layer.stride) and layer.in_channels // layer.groups < 16


def _with_rows_of_pixels(_: torch.nn.Module, given: tuple[torch.Tensor]) -> torch.Tensor:
    """The images of a layer with one channel after the other in memory; `contiguous` leaves a single one as it is."""
    return given[0].clone(memory_format=torch.contiguous_format)


def takes_shape(factory: Factory, name: str) -> bool:
    """Return whether a factory takes (shape, classes); if not, it takes nothing but options.

    Raises:
        ModelError: When it takes something else.
    """
    parameters = inspect.signature(factory).parameters.values()
    first = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:2]
    needed = [p.name for p in first if p.default is p.empty]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters) or len(needed) == 2:
        return True
    if needed:
        raise ModelError(
            f"model {name!r} needs {needed[0]!r} alone; expected a factory of (shape, classes), or one that needs "
            "nothing"
        )
    return False


def _settings(name: str, factory: Factory, with_shape: bool, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a network with their defaults: one for each argument, after shape and classes if it has."""
    parameters = inspect.signature(factory, eval_str=name in MODELS.built_in).parameters.values()
    takes_any_option = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    named = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    fields: dict[str, Any] = {}
    for parameter in named[2:] if with_shape else named:
        # The annotations of a user's factory may be anything; only the names of its arguments are checked.
        kind = parameter.annotation if name in MODELS.built_in else Any
        fields[parameter.name] = (kind, ... if parameter.default is parameter.empty else parameter.default)
    config = ConfigDict(extra="allow" if takes_any_option else "forbid", protected_namespaces=())
    known = create_model(name, __config__=config, **fields)
    try:
        return dict(known(**given))
    except ValidationError as failure:
        raise ModelError(explain(failure, given, known, "model", chosen_by="name")) from failure


@cache
def _limit_parameters(name: str, shape: tuple[int, ...], classes: int, settings: tuple[tuple[str, Any], ...]) -> None:
    """Refuse a network of the library with too many parameters before memory is allocated for them."""
    try:
        # Tensors of this device have shapes and no values.
        with torch.device("meta"):
            count = sum(parameter.numel() for parameter in MODELS[name](shape, classes, **dict(settings)).parameters())
    except ModelError:
        raise
    # More elements than a tensor can have. Whatever else is wrong is found when the network is made.
    except (RuntimeError, OverflowError):
        count = PARAMETERS + 1
    if count > PARAMETERS:
        cause = ", ".join(f"model.{key} = {shown(value)}" for key, value in settings) or "the size of the samples"
        raise ModelError(
            f"{cause}: model {name!r} has more than {PARAMETERS:,} parameters on samples of shape {shape} and "
            f"{classes} classes; use a smaller one"
        )


def _find(name: str) -> Factory | torch.nn.Module:
    """Return what makes a network."""
    if name in MODELS:
        return MODELS[name]
    if is_lost_object(name):
        raise ModelError(
            f"model.name = {shown(name)}: this network was given as an object, which no file holds; give it again, as "
            "in fs.run(..., model=...) or fs.load(..., network=...)"
        )
    path, _, attribute = name.partition(":")
    if not path or not attribute:
        raise ModelError(
            f"model.name = {shown(name)} is unknown; expected one of {', '.join(MODELS)}, or 'package.module:factory'"
        )
    try:
        factory: Factory | torch.nn.Module = load_users_object(name)
        if not isinstance(factory, torch.nn.Module):
            inspect.signature(factory)
            _refuse_functions_of_the_library(factory)
    except (TypeError, ValueError) as error:
        reason = str(error) if error.__cause__ else first_line(error)
        raise ModelError(f"model.name = {shown(name)} names no factory(shape, classes): {reason}") from error
    return factory


def _refuse_functions_of_the_library(factory: Factory) -> None:
    """Refuse what makes no network, such as ``fedstrata:run``: it needs no argument either, and would be called."""
    package, *rest = str(getattr(factory, "__module__", "")).split(".")
    if package == "fedstrata" and rest[:1] != ["models"]:
        raise ValueError("it is a part of fedstrata, and makes no network")
