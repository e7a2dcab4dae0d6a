"""Layers that normalise over a batch. A batch of a single sample has no variance that they could normalise by."""

from __future__ import annotations

from torch import Tensor, nn

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
"""The layers of torch that normalise over a batch."""

INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
"""The layers of torch that normalise over each sample, and may have a running variance too."""


def is_norm(layer: nn.Module) -> bool:
    """Whether a layer may call torch's batch norm: one of torch's, or one of the user's own with a running variance."""
    return isinstance(layer, (*BATCH_NORMS, *INSTANCE_NORMS)) or isinstance(getattr(layer, "running_var", None), Tensor)


def normalises_over_batch(module: nn.Module) -> bool:
    """Whether a network needs batches of two samples: it has a BatchNorm, or one of its own with a running variance."""
    return any(is_norm(layer) and not isinstance(layer, INSTANCE_NORMS) for layer in module.modules())
