"""The config of a run, which devices get with every message: all that they have to know of an experiment."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from math import inf, prod

import torch
from torch import nn

from fedstrata.base.errors import InputError, check_rules
from fedstrata.base.randomness import model_seed
from fedstrata.core import CLIENT_STATS, SINGULAR_VECTORS, Layout
from fedstrata.data.column_roles import DEFAULT_OPTIONS, ReadOptions
from fedstrata.engine.client_data import own_stat
from fedstrata.flower.federation import Samples
from fedstrata.flower.payload import TEXTS, Payload, Schema
from fedstrata.models import NetworkShape, layout_of, make_network
from fedstrata.objective import Objective
from fedstrata.uploads.compression import Compression, CompressionKind


@dataclass(frozen=True)
class RunConfig:
    """What a device must know of a run besides its request. It comes with every message and never changes.

    Attributes:
        run: The name of the run. A device keeps a client's own layers by run.
        clients: The number of clients n.
        seed: The seed of the run.
        model: The name of the network.
        options: The options of the network, as JSON.
        precision: The precision of training, as `Loop` takes it.
        samples: What the samples of all clients have in common.
        objective: What the networks learn. The functions of the user's own must be on the device.
        reading: How samples are made of the files of a client.
        spread_units: Whether the units that a client holds out are spread over the classes, as `hold_out` does it.
        clip_norm: The largest norm of an update to which a client adds noise.
        noise_multiplier: The standard deviation of this noise, divided by `clip_norm`; 0 is no noise and no clipping.
        compression: How clients compress their updates.
        compression_share: The share of the numbers of an update that "top_k" sends.
    """

    run: str
    clients: int
    seed: int
    model: str
    options: str
    precision: str
    samples: Samples
    objective: Objective = field(default_factory=Objective)
    reading: ReadOptions = DEFAULT_OPTIONS
    spread_units: bool = False
    clip_norm: float = 1.0
    noise_multiplier: float = 0.0
    compression: CompressionKind = "none"
    compression_share: float = 1.0

    def __post_init__(self) -> None:
        """Refuse noise that is none."""
        rules = {
            "clip_norm is a number above 0": 0 < self.clip_norm < inf,
            "noise_multiplier is a number of at least 0": 0 <= self.noise_multiplier < inf,
        }
        check_rules("the config of a run", rules, (self.clip_norm, self.noise_multiplier))

    @property
    def outputs(self) -> tuple[int, ...]:
        """The shape of what a network says about one sample."""
        return self.samples.outputs or self.objective.outputs_of_classes(self.samples.classes)

    def network(self) -> nn.Module:
        """Make the network, with its fixed tensors. Every request brings the weights that it needs."""
        kind = NetworkShape(self.samples.shape, self.outputs, self.samples.dtype == "int64")
        return make_network(self.model, kind, model_seed(self.seed), json.loads(self.options))

    def compressor(self, layout: Layout) -> Compression | None:
        """How clients compress their updates; None where they do not."""
        if self.compression == "none":
            return None
        return Compression(layout, self.compression, self.compression_share, self.seed)

    @property
    def stat_sizes(self) -> dict[str, int]:
        """The number of numbers that each statistic of ``CLIENT_STATS`` consists of, by its name."""
        subspaces = self.samples.classes * SINGULAR_VECTORS * prod(self.samples.shape)
        return {"classes": 1, "entropy": 1, "subspaces": subspaces, "units": 1}

    def stat_size(self, name: str) -> int:
        """Return the number of numbers of a statistic. A function of the user's own says it about a sample of zeros."""
        if name in CLIENT_STATS:
            return self.stat_sizes[name]
        sample = torch.zeros(1, *self.samples.shape)
        return len(own_stat(name, sample, torch.zeros(1, dtype=torch.int64), self.samples.classes))


_RUN_CONFIG = Schema(RunConfig)


def write_run_config(config: RunConfig, layout: Layout) -> Payload:
    """Write a run config with the tensors of the network, so that a device can tell whether it has the same."""
    return Payload({"config": _RUN_CONFIG.write(config), "network": {"tensors": _tensor_names(layout)}})


def read_run_config(payload: Payload) -> RunConfig:
    """Read the run config in a payload.

    Raises:
        InputError: When it is not there, or the network is another one here than at the sender.
    """
    config = _RUN_CONFIG.read(payload.record("config"))
    here = _tensor_names(layout_of(config.network()))
    there = list(TEXTS.read("tensors", payload.record("network").get("tensors")))
    if here != there:
        raise InputError(f"expected a network with the tensors {', '.join(there)}, found {', '.join(here)}")
    return config


def _tensor_names(layout: Layout) -> list[str]:
    return [f"{spec.name} {spec.shape}" for spec in layout.tensors]
