"""The ClientApp: what a client's device does with a message, which is the loop engine with a cohort of one.

Flower imports it in a process of its own for every message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from safetensors import SafetensorError
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor

from fedstrata.base.errors import FedstrataError, InputError
from fedstrata.base.files import folder_lock, replace_file
from fedstrata.base.quoting import one_line, without_paths
from fedstrata.core import CLIENT_STATS, Layout, Report
from fedstrata.engine import ClientStore, Loop
from fedstrata.flower.client_data import counts_depend_on_id, read_client_data
from fedstrata.flower.grid import reply_to
from fedstrata.flower.payload import Payload, decode
from fedstrata.flower.replies import ANY_CLIENT, CLIENT_INFO, ClientInfo, Reply, write_reply
from fedstrata.flower.requests import INFO_REQUEST, Request, RunConfig, missing_tensors, read_request, read_run_config
from fedstrata.models import layout_of
from fedstrata.uploads.compression import Packed
from fedstrata.uploads.noise import LocalNoise, NoiseSeed, secret_seed

log = logging.getLogger(__name__)

KEPT_RUNS = 8
"""The number of runs whose tensors a device keeps: one that was stopped may be resumed."""

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


def _answers(make: Callable[[Payload, Device], Payload]) -> Callable[[Message, Device | NodeConfig], Message]:
    """Let a function that makes a payload of another one answer messages, also by a node's configuration.

    What cannot be done is said in one line, without a path of this machine.
    """

    @wraps(make)
    def answer(message: Message, node: Device | NodeConfig) -> Message:
        own: tuple[Path, ...] = ()
        try:
            device = node if isinstance(node, Device) else Device.of(node)
            own = (device.data, device.state, device.state.parent)
            return reply_to(message, make(decode(message.content), device))
        except FedstrataError as error:
            reason = without_paths(str(error), own)
        except Exception as error:
            # Its text may tell of this machine and its data, so that it stays here.
            log.exception("the client could not do what it was asked")
            reason = f"unexpected {type(error).__name__}; the log of its node says more"
        return reply_to(message, Payload({"failed": {"reason": one_line(reason)}}))

    return answer


@_answers
def register(payload: Payload, device: Device) -> Payload:
    """Say which client this is, and how many samples it has."""
    config = read_run_config(payload)
    client = INFO_REQUEST.read(payload.record("client")).client or 0
    data = read_client_data(device.data, client, config)
    info = ClientInfo(
        key=device.key,
        train=len(data.train(client)),
        test=len(data.test(client)),
        # The server asks again where the numbers are those of another id than the client gets.
        client=client if counts_depend_on_id(device.data, config) else ANY_CLIENT,
    )
    return Payload({"client": CLIENT_INFO.write(info)})


@_answers
def work(payload: Payload, device: Device) -> Payload:
    """Do what a request asks."""
    # A late process of the same node may still be at work.
    with folder_lock(device.state, wait=lambda: None):
        return _score_and_train(payload, device)


def _score_and_train(payload: Payload, device: Device) -> Payload:
    """Score and train; what is to stay here is on the disk before the reply leaves."""
    config = read_run_config(payload)
    key = payload.record("client").get("key")
    if key != device.key:
        raise InputError(f"expected a message to the client {device.key}, found one to {key}")
    network = config.network()
    layout = layout_of(network)
    request = read_request(payload, layout)
    _refuse_unknown_stats(request, device)
    file = device.state / f"{config.run}.safetensors"
    kept = _kept_tensors(file, request)
    store = ClientStore()
    store.restore(kept)
    missing = missing_tensors(request, layout, store)
    if missing:
        return Payload({"missing": {"tensors": missing}})
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
    saved = store.saved_in(request.plan.round)
    if saved:
        # More than the engine keeps: the server may go back to its second-newest checkpoint.
        replace_file(file, to_bytes({**kept, **store.tensors()}), private=True)
        for old in sorted(device.state.glob("*.safetensors"), key=lambda path: path.stat().st_mtime)[:-KEPT_RUNS]:
            old.unlink()
    return write_reply(Reply.of(report, saved), request, layout, config.run, compression, packed)


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


def _kept_tensors(file: Path, request: Request) -> dict[str, Tensor]:
    """Read what the device keeps and the server expects, by name as in `ClientStore`.

    Later rounds than the request's stay too, unread: the request may be an old one that was held up.
    """
    if not file.exists():
        return {}
    try:
        found = from_bytes(file.read_bytes())
    except SafetensorError as error:
        raise InputError(f"{file}: expected the client's own layers, found {error}; remove the file") from None
    return request.of_use(found)


client_app = ClientApp()
# The bits of a sum depend on how many threads share it.
torch.set_num_threads(1)


@client_app.train()
def _train(message: Message, context: Context) -> Message:
    """Score and train."""
    return work(message, context.node_config)


@client_app.query("register")
def _register(message: Message, context: Context) -> Message:
    """Say which client this is."""
    return register(message, context.node_config)
