"""The ClientApp of clients without an app of their own: the loop engine does the rounds, with a cohort of one.

Flower imports it in a process of its own for every message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import nn

from fedstrata.base.errors import InputError
from fedstrata.core import CLIENT_STATS, Layout, Report
from fedstrata.engine import ClientStore, Loop
from fedstrata.flower.client_data import read_client_data
from fedstrata.flower.node import RoundWork, WorkDone, answer_rounds
from fedstrata.flower.payload import RECORDS, Payload
from fedstrata.flower.requests import Request, RunConfig, read_run_config, refuse_other_network
from fedstrata.models import layout_of
from fedstrata.uploads.compression import Packed
from fedstrata.uploads.noise import LocalNoise, NoiseSeed, secret_seed

NodeConfig: TypeAlias = Mapping[str, Any]
"""The configuration with which a SuperNode was started."""

_NOISE_SEED = "noise_seed"
"""The file of a device with the seed of its noise. It never leaves the device."""


@dataclass(frozen=True)
class Device:
    """What one node has.

    Attributes:
        key: The key of its client, for as long as the federation lives.
        data: The data of its client, a ``.npz`` file or a folder of Parquet.
        state: The folder of what its client keeps to itself.
        client_stats: Functions for statistics of the data that the server may ask for, as
            ``"package.module:function"``. Without this list it could have any function of this machine called.
        least_noise: The least noise multiplier of a run to which this device sends updates. 0 is any run.
    """

    key: str
    data: Path
    state: Path
    client_stats: tuple[str, ...] = ()
    least_noise: float = 0.0

    @classmethod
    def of(cls, config: NodeConfig) -> Device:
        """Read a node's configuration.

        Raises:
            InputError: When a key is missing or has a wrong value.
        """
        for name in ("client-key", "data", "state-dir"):
            if not isinstance(config.get(name), str) or not config[name]:
                raise InputError(f"node configuration: expected {name} to be a text, found {config.get(name)!r}")
        stats = tuple(name.strip() for name in str(config.get("client-stats", "")).split(",") if name.strip())
        noise = config.get("least-noise", 0.0)
        if isinstance(noise, bool) or not isinstance(noise, int | float) or not 0 <= noise < inf:
            raise InputError(f"node configuration: expected least-noise to be a number of at least 0, found {noise!r}")
        return cls(
            key=config["client-key"],
            data=Path(config["data"]),
            state=Path(config["state-dir"]),
            client_stats=stats,
            least_noise=float(noise),
        )


def prepare(payload: Payload, message: Message, context: Context) -> tuple[str, Layout, RoundWork]:
    """Read what a device must know of a run, and see that the message is for its client."""
    device = Device.of(context.node_config)
    config = read_run_config(payload)
    network = config.network()
    layout = layout_of(network)
    refuse_other_network(payload, layout)
    key = payload.record("client")
    if key != device.key:
        raise InputError(f"expected a message to the client {device.key}, found one to {key}")
    return config.run, layout, partial(_work, config, device, network, layout)


def addressee(message: Message) -> str:
    """The key of the client that a message is for."""
    return str(message.content.config_records[RECORDS]["client"])


def _work(
    config: RunConfig, device: Device, network: nn.Module, layout: Layout, request: Request, store: ClientStore
) -> WorkDone:
    """Score and train."""
    _refuse_unknown_stats(request, device)
    _refuse_little_noise(config, request, device)
    data = read_client_data(device.data, request.client, config)
    report = Loop(network, layout, data, store, config.precision, config.objective).run(request.plan)
    report = _with_local_noise(config, layout, request, report, device)
    compression = config.compressor(layout)
    packed = dict[str, Packed]()
    if compression is not None:
        for name, result in report.results.items():
            # There is one client on a device. What is left of its update is stored for the next round.
            for update in compression.packed(request.plan, name, result, store):
                packed[name] = update
    return WorkDone(report, compression, packed)


def _with_local_noise(config: RunConfig, layout: Layout, request: Request, report: Report, device: Device) -> Report:
    """The report with the noise that clients add themselves, in a run with local differential privacy."""
    if not config.noise_multiplier:
        return report
    local = LocalNoise(
        layout=layout,
        clip_norm=config.clip_norm,
        noise_multiplier=config.noise_multiplier,
        noise_seed=NoiseSeed(secret_seed(device.state / _NOISE_SEED), config.run),
    )
    return local.of_report(request.plan, report)


def _refuse_little_noise(config: RunConfig, request: Request, device: Device) -> None:
    """Refuse to send an update with less noise than the operator of this node demands."""
    sent = any(any(task.upload) for task in request.plan.tasks.values())
    if sent and config.noise_multiplier < device.least_noise:
        least = device.least_noise
        raise InputError(f"expected noise_multiplier of at least {least:g} here, found {config.noise_multiplier:g}")


def _refuse_unknown_stats(request: Request, device: Device) -> None:
    """Refuse statistics by functions that the operator of this node has not named."""
    for name in request.plan.client_stats:
        if name not in CLIENT_STATS and name not in device.client_stats:
            raise InputError(f"expected a statistic that client-stats of this node's configuration names, found {name}")


client_app = ClientApp()
answer_rounds(client_app, prepare)
# The bits of a sum depend on how many threads share it.
torch.set_num_threads(1)
