"""A trained network together with what lies between a raw sample and its outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedstrata.base.errors import DataError
from fedstrata.data.mapped import resize
from fedstrata.data.sample_format import SampleFormat, has_names

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BATCH = 1024
"""Samples that are predicted at a time: as many as when the run scored the model."""


class TrainedModel(nn.Module):
    """A network that reads raw samples: it resizes images, normalises, and then applies the network.

    Samples are prepared as in the run, so that outputs are those of the run but for rounding. It is in evaluation mode.

    Args:
        network: The network. It is put into evaluation mode.
        sample_format: What raw samples look like.

    Attributes:
        network: The network.
        sample_format: What raw samples look like.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, network: nn.Module, sample_format: SampleFormat) -> None:
        """Keep the scale and shift of each channel as buffers, so that they go wherever the module goes."""
        super().__init__()
        self.network = network
        self.sample_format = sample_format
        broadcast = (-1,) + (1,) * (len(sample_format.shape) - 1)
        scale, shift = sample_format.affine
        self.register_buffer("scale", scale.view(broadcast), persistent=False)
        self.register_buffer("shift", shift.view(broadcast), persistent=False)
        if sample_format.preparation is not None:
            # Now: made while a program is recorded, they would have no values.
            _ = sample_format.preparation.tensors
        self.eval()

    def forward(self, inputs: Tensor) -> Tensor:
        """Map raw samples (batch, *shape) to the outputs of the network, such as (batch, classes) logits."""
        if self.sample_format.dtype == "int64":
            # A copy: the network may change its input in place.
            said: Tensor = self.network(inputs.clone())
            return said
        if (prepare := self.sample_format.preparation) is not None:
            inputs = prepare(inputs.double())
        else:
            side = self.sample_format.side
            inputs = inputs.float() if side is None else resize(inputs, side)
            inputs = inputs * self.scale + self.shift
        if inputs.ndim == 4:
            # As in the run: convolutions add up in the order in memory.
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        outputs: Tensor = self.network(inputs)
        return outputs

    def outputs(self, samples: Any) -> Tensor:
        """Return the outputs for raw samples in any form that `SampleFormat.tensor_of` takes, without gradients.

        Raises:
            DataError: When the samples do not fit.
        """
        raw = self.sample_format.tensor_of(samples)
        device = self.scale.device
        try:
            with torch.inference_mode():
                parts = [self(part.to(device)).cpu() for part in raw.split(_BATCH)]
        except IndexError as error:
            # What an embedding raises about a token that it does not have.
            if self.sample_format.dtype != "int64":
                raise
            found = f"tokens from {int(raw.min())} to {int(raw.max())}"
            raise DataError(f"expected tokens that the embedding of the network has, found {found}: {error}") from None
        return torch.cat(parts) if parts else torch.empty(0, *self.sample_format.output_shape)

    def predict(self, samples: Any) -> NDArray[Any]:
        """Return the class of each raw sample, (samples,): its name where the classes have names, else its number.

        A network of tokens gives each token its class, (samples, length). One that learned labels gives 0 or 1 for each
        of them, and one that learned numbers these, (samples, outputs).

        Raises:
            DataError: When the samples do not fit.
        """
        import numpy as np

        outputs = self.outputs(samples)
        if self.sample_format.answer == "numbers":
            return outputs.numpy()
        if self.sample_format.answer == "labels":
            return (outputs > 0).long().numpy()
        numbers = outputs.argmax(-1).numpy()
        names = self.sample_format.class_names
        return np.array(names)[numbers] if has_names(names) else numbers

    def predict_proba(self, samples: Any) -> NDArray[Any]:
        """Return the probability of each class, or of each label, for each raw sample: (samples, classes).

        Raises:
            DataError: When the samples do not fit, or the network says numbers, which have no probabilities.
        """
        if self.sample_format.answer == "numbers":
            raise DataError("predict_proba: expected a model of classes or labels, found one of numbers; use predict")
        outputs = self.outputs(samples)
        return (outputs.sigmoid() if self.sample_format.answer == "labels" else outputs.softmax(-1)).numpy()
