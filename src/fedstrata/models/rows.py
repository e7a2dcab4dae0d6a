"""A network as one row of a matrix: its layout, the conversions in both directions, and what the layout may get wrong.

Selectors such as "head" go by the layout, which has the layers in the order of definition and tied weights once.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.base.content_digest import content_digest
from fedstrata.base.errors import ModelError
from fedstrata.base.lazy_torch import torch
from fedstrata.base.randomness import global_generators, seed_global_generators
from fedstrata.core.layout import Kind, Layout, TensorSpec


def layout_of(module: torch.nn.Module) -> Layout:
    """Lay out the tensors of a network's state dict, in the order in which its modules were registered.

    Convolutions (transposed ones too) are "conv". Another module with parameters is "linear" when one of them has at
    least two dimensions (Linear, Embedding, LSTM, attention), otherwise "norm" (PReLU, a scale of one's own). A
    parameter of the network itself is a layer of its own name. Tied parameters appear once, at their first place.

    Frozen tensors are left out, and known by their digest: parameters without a gradient, and what layers all of whose
    parameters are frozen have in buffers. Running statistics are no such buffers: training moves them all the same.

    Integer buffers, such as BatchNorm's count of batches, are left out. To average them makes no sense, and only a
    BatchNorm without momentum reads that count. So are buffers that hold a number that is not finite, such as the mask
    of causal attention: the difference of two infinities is no number, and no update could have them.

    Raises:
        ModelError: When there is nothing to train, a parameter is not of floating point, or a BatchNorm has no
            momentum.
    """
    batch_norm = torch.nn.modules.batchnorm._BatchNorm
    specs: list[TensorSpec] = []
    frozen = dict[str, torch.Tensor]()
    seen: set[int] = set()
    for name, tensor in module.state_dict(keep_vars=True).items():
        path, _, own = name.rpartition(".")
        # The tensors that weight_norm and the like put inside a layer belong to that layer.
        path = path.partition(".parametrizations.")[0]
        trained = isinstance(tensor, torch.nn.Parameter)
        if own == "num_batches_tracked" and getattr(module.get_submodule(path), "momentum", 0.1) is None:
            # The count is in no row, so it would pass from one client to the next inside the same module.
            raise ModelError(f"{path} is a BatchNorm with momentum=None, which is not supported; give it 0.1")
        if torch.is_tensor(tensor) and _is_frozen(tensor, module.get_submodule(path)):
            frozen[name] = tensor
            continue
        if trained and not tensor.is_floating_point():
            raise ModelError(f"parameter {name} is {tensor.dtype}; expected floating point: make it a buffer")
        if not torch.is_tensor(tensor) or not tensor.is_floating_point() or id(tensor) in seen:
            continue
        if not trained and not bool(tensor.isfinite().all()):
            continue
        seen.add(id(tensor))
        owner = module.get_submodule(path)
        kind = _kind(owner) if trained else "buffer"
        specs.append(TensorSpec(name, path or own, kind, tuple(tensor.shape), isinstance(owner, batch_norm)))
    if all(spec.kind == "buffer" for spec in specs):
        which = "parameter that is trained: all are frozen; leave some free" if frozen else "parameters to train"
        raise ModelError(f"{type(module).__name__} has no {which}")
    return Layout(tuple(specs), content_digest(frozen) if frozen else "")


def _is_frozen(tensor: torch.Tensor, owner: torch.nn.Module) -> bool:
    """Whether training leaves a tensor of a layer as it is."""
    if isinstance(tensor, torch.nn.Parameter):
        return not tensor.requires_grad
    own = list(owner.parameters())
    return bool(own) and not any(each.requires_grad for each in own) and not hasattr(owner, "running_var")


def light_copy(module: torch.nn.Module) -> torch.nn.Module:
    """Copy a network, but for the memory of its frozen parameters: nothing writes there, so a process holds it once."""
    # The parameter itself is another one: it may come to another device, and the first one stays where it is.
    return copy.deepcopy(module, {id(each): copy.copy(each) for each in module.parameters() if not each.requires_grad})


def _kind(owner: torch.nn.Module) -> Kind:
    nn = torch.nn
    convs = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    if isinstance(owner, convs):
        return "conv"
    # A LayerNorm over an image has matrices of scales.
    if isinstance(owner, nn.LayerNorm | nn.RMSNorm):
        return "norm"
    own = list(owner.parameters(recurse=False))
    if nn.utils.parametrize.is_parametrized(owner):
        own += owner.get_submodule("parametrizations").parameters()
    return "linear" if any(tensor.ndim > 1 for tensor in own) else "norm"


def layout_of_arrays(arrays: Mapping[str, Any]) -> Layout:
    """Lay out the arrays of a model of any framework, by their names and shapes.

    What comes before the last dot of a name is the layer. A layer is a convolution where one of its arrays has more
    than two dimensions, "linear" where one has two, and otherwise "norm"; where that leaves no layer to compare, all
    are "linear". Arrays of integers are left out, and running statistics of torch's names are buffers.

    Args:
        arrays: The arrays by name, in the order in which the model has them; anything with ``dtype`` and ``shape``.

    Raises:
        ModelError: When none of them is of floating point.
    """
    moving = {name: values for name, values in arrays.items() if np.issubdtype(values.dtype, np.floating)}
    layers = {name: name.rpartition(".")[0] or name for name in moving}
    buffers = {name for name in moving if name.rpartition(".")[2] in ("running_mean", "running_var")}
    dimensions = {
        layer: max(len(moving[name].shape) for name, of in layers.items() if of == layer) for layer in layers.values()
    }
    kinds: dict[str, Kind] = {
        layer: "conv" if most > 2 else "linear" if most == 2 else "norm" for layer, most in dimensions.items()
    }
    if "conv" not in kinds.values() and "linear" not in kinds.values():
        kinds = dict.fromkeys(kinds, "linear")
    specs = [
        TensorSpec(
            name,
            layers[name],
            "buffer" if name in buffers else kinds[layers[name]],
            tuple(values.shape),
            batch_norm=f"{layers[name]}.running_var" in buffers,
        )
        for name, values in moving.items()
    ]
    if all(spec.kind == "buffer" for spec in specs):
        raise ModelError(f"expected arrays of floating point, found {', '.join(arrays) or 'none'}: nothing to train")
    return Layout(tuple(specs))


def row_of(module: torch.nn.Module, layout: Layout) -> torch.Tensor:
    """Copy a network into a new row.

    Args:
        module: The network, in any memory format.
        layout: The layout of this network.

    Returns:
        The row, (p,) float32, C-order inside a tensor, on the device of the network.
    """
    state = module.state_dict()
    return torch.cat([state[spec.name].reshape(-1).float() for spec in layout.tensors])


def load_row(module: torch.nn.Module, layout: Layout, row: torch.Tensor) -> None:
    """Copy a row into the parameters and buffers of a network, in place.

    Args:
        module: The network, in any memory format. Optimisers and views of its tensors stay valid.
        layout: The layout of this network.
        row: The row, (p,) on any device.
    """
    state = module.state_dict()
    for spec, span in zip(layout.tensors, layout.spans, strict=True):
        state[spec.name].copy_(row[span].reshape(spec.shape))


def row_of_arrays(arrays: Mapping[str, NDArray[Any]], layout: Layout) -> torch.Tensor:
    """Copy the arrays of a model of any framework into a new row.

    Args:
        arrays: The arrays by name. Those that are no tensors of the layout are left out.
        layout: The layout of the model.

    Returns:
        The row, (p,) float32.

    Raises:
        ModelError: When one is missing or has another shape.
    """
    for spec in layout.tensors:
        if (found := arrays[spec.name].shape if spec.name in arrays else None) != spec.shape:
            raise ModelError(f"expected {spec.name} {spec.shape}, found {'none' if found is None else found}")
    parts = [np.asarray(arrays[spec.name], np.float32).reshape(-1) for spec in layout.tensors]
    return torch.from_numpy(np.concatenate(parts))


def arrays_of_row(row: torch.Tensor, layout: Layout) -> dict[str, NDArray[np.float32]]:
    """The arrays of a model, by name, which share the memory of its row, (p,) on the CPU."""
    parts = zip(layout.tensors, layout.spans, strict=True)
    return {spec.name: row[span].reshape(spec.shape).numpy() for spec, span in parts}


_SHOWN_OUTPUTS = 16
"""The numbers of a sample's outputs by which a network is known again, at most."""


def known_outputs(network: torch.nn.Module, shape: Sequence[int], seed: int, *, tokens: bool) -> list[float]:
    """What a network says about four samples, by which it is known again when its source may have changed.

    Its weights and the samples are a function of the seed, so that its own weights do not matter. It keeps the others.

    Args:
        network: The network, which is put into evaluation mode.
        shape: The shape of a sample as it reads it.
        seed: The seed.
        tokens: Whether samples are tokens.
    """
    layout = layout_of(network)
    with global_generators(), torch.no_grad():
        seed_global_generators(seed)
        # Outputs have the size of ordinary ones, however deep the network is. Variances are above 0.
        weights = [
            torch.randn(prod(slot.shape)) / prod(slot.shape[1:]) ** 0.5
            if len(slot.shape) > 1
            else 0.5 + torch.rand(prod(slot.shape))
            for slot in layout.tensors
        ]
        load_row(network, layout, torch.cat(weights))
        samples = torch.randint(0, 2, (4, *shape)) if tokens else torch.randn(4, *shape)
        outputs = network.eval()(samples).flatten(1)[:, :_SHOWN_OUTPUTS]
    found: list[float] = outputs.flatten().nan_to_num().tolist()
    return found


def head_warning(network: torch.nn.Module, layout: Layout, inputs: torch.Tensor) -> str | None:
    """Say so if the selector "head" does not stand for the linear layer that computes last.

    Selectors go by the layout, which has layers in the order of definition, and tied parameters once, at their first
    place: such as the embedding whose weight the output layer of a language model reads.

    Args:
        network: The network. It is left in evaluation mode, with hooks.
        layout: Its layout.
        inputs: Samples that it takes, (b, ...).

    Returns:
        A line; None where "head" is the layer that computes last, or that layer does not compute by being called.
    """
    called = list[str]()
    for name, module in network.named_modules():
        if _kind(module) == "linear" and any(each.requires_grad for each in module.parameters()):
            module.register_forward_hook(lambda module, given, found, name=name: called.append(name))
    with torch.no_grad():
        network.eval()(inputs)
    if not called or layout.linear_layers[-1] not in called:
        return None
    last = called[-1]
    needed = {f"{last}.{name}" for name, _ in network.get_submodule(last).named_parameters()}
    selected = [slot.name for slot, chosen in zip(layout.tensors, layout.select("head"), strict=True) if chosen]
    if needed <= set(selected):
        return None
    return (
        f"the network {type(network).__name__} computes {last!r} last, and the selector 'head' stands for "
        f"{', '.join(map(repr, selected))}. Define layers in the order in which they compute, or select them by their "
        "names"
    )
