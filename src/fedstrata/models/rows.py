"""A network as one row: its layout, and the way there and back."""

from __future__ import annotations

from fedstrata.core.layout import Kind, Layout, TensorSpec
from fedstrata.errors import ModelError
from fedstrata.lazy_torch import torch


def layout_of(module: torch.nn.Module) -> Layout:
    """Lay out the tensors of a network's state dict, in the order in which its modules were registered.

    Convolutions and linear layers (transposed and bilinear ones too) are what they are. Another module with
    parameters counts as linear when one of them is a matrix or more (Embedding, LSTM, attention), otherwise as
    norm (PReLU, a scale written by hand). A parameter held by the network itself is a layer of its own name.
    Tied parameters appear once, where they come first.

    Integer buffers, such as BatchNorm's count of batches, are left out: averaging them means nothing, and only
    a BatchNorm without momentum reads that count.

    Raises:
        ModelError: when there is nothing to train, a parameter is not of floating point, or a BatchNorm has no
            momentum.
    """
    slots: list[TensorSpec] = []
    seen: set[int] = set()
    for name, tensor in module.state_dict(keep_vars=True).items():
        path, _, own = name.rpartition(".")
        # What weight_norm and its like put inside a layer is that layer's.
        path = path.partition(".parametrizations.")[0]
        trained = isinstance(tensor, torch.nn.Parameter)
        if own == "num_batches_tracked" and getattr(module.get_submodule(path), "momentum", 0.1) is None:
            # A count that no row carries would pass from one client to the next inside the same module.
            raise ModelError(f"{path} is a BatchNorm with momentum=None, which is not supported; give it 0.1")
        if trained and not tensor.is_floating_point():
            raise ModelError(f"parameter {name} is {tensor.dtype}; expected floating point: make it a buffer")
        if not torch.is_tensor(tensor) or not tensor.is_floating_point() or id(tensor) in seen:
            continue
        seen.add(id(tensor))
        kind = _kind(module.get_submodule(path)) if trained else "buffer"
        slots.append(TensorSpec(name, path or own, kind, tuple(tensor.shape)))
    if all(slot.kind == "buffer" for slot in slots):
        raise ModelError(f"{type(module).__name__} has no parameters: there is nothing to train")
    return Layout(tuple(slots))


def _kind(owner: torch.nn.Module) -> Kind:
    nn = torch.nn
    convs = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    if isinstance(owner, convs):
        return "conv"
    # A LayerNorm over an image has matrices of scales.
    if isinstance(owner, nn.LayerNorm | nn.RMSNorm):
        return "norm"
    matrices = any(tensor.ndim > 1 for tensor in owner.parameters(recurse=False))
    return "linear" if matrices else "norm"


def flatten(module: torch.nn.Module, layout: Layout) -> torch.Tensor:
    """Copy a network into a new row.

    Args:
        module: the network, in any memory format.
        layout: of this network.

    Returns:
        (p,) float32, C-order inside a tensor, on the device of the network.
    """
    state = module.state_dict()
    return torch.cat([state[slot.name].reshape(-1).float() for slot in layout.tensors])


def load_row(module: torch.nn.Module, layout: Layout, row: torch.Tensor) -> None:
    """Copy a row into the parameters and buffers of a network, in place.

    Args:
        module: the network, in any memory format; optimisers and views of its tensors stay valid.
        layout: of this network.
        row: (p,) on any device.
    """
    state = module.state_dict()
    for slot, span in zip(layout.tensors, layout.spans, strict=True):
        state[slot.name].copy_(row[span].reshape(slot.shape))
