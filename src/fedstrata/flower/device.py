"""What a client's device does with a message: the loop engine with a cohort of one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor

from fedstrata.core import Layout
from fedstrata.engine import Loop, Store
from fedstrata.errors import FedstrataError, InputError
from fedstrata.files import replace_file
from fedstrata.flower.alone import alone
from fedstrata.flower.answers import Answer, write_answer
from fedstrata.flower.letter import Letter, one
from fedstrata.flower.messages import read_letter, reply
from fedstrata.flower.orders import Order, needed, read_order
from fedstrata.flower.samples import holdings_of
from fedstrata.flower.terms import read_terms
from fedstrata.flower.text import one_line, without_paths
from fedstrata.models import layout_of

if TYPE_CHECKING:
    from flwr.app import Message

log = logging.getLogger(__name__)

RUNS = 8
"""Runs of which a device keeps tensors: one that was stopped may be resumed."""


@dataclass(frozen=True)
class Device:
    """What one node has.

    Attributes:
        key: what its client is called, for as long as the federation lives.
        data: its client's data, a ``.npz`` file or a folder of Parquet.
        state: folder of what its client keeps to itself.
    """

    key: str
    data: Path
    state: Path

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Device:
        """Read a node's configuration.

        Raises:
            InputError: when a key is missing or no text.
        """
        for name in ("client-key", "data", "state-dir"):
            if not isinstance(config.get(name), str) or not config[name]:
                raise InputError(
                    f"node configuration: expected {name} to be a text, found {config.get(name)!r}; "
                    'start the SuperNode with --node-config \'client-key="..." data="..." state-dir="..."\''
                )
        return cls(config["client-key"], Path(config["data"]), Path(config["state-dir"]))


def answer(message: Message, device: Device) -> Message:
    """Do what a message asks."""

    def work() -> Letter:
        letter = read_letter(message.content)
        # A late process of the same node may still be at work.
        with alone(device.state):
            return _work(letter, device)

    return _told(message, device, work)


def whoami(message: Message, device: Device) -> Message:
    """Say which client this is, and how many samples it has."""

    def say() -> Letter:
        terms = read_terms(read_letter(message.content))
        # Which id the key will get is not known yet, and how many samples are held out does not depend on it.
        holdings = holdings_of(device.data, 0, terms)
        counts = {"train": len(holdings.train(0)), "test": len(holdings.test(0))}
        return Letter({"client": {"key": device.key, **counts}})

    return _told(message, device, say)


def asked(does: Callable[[Message, Device], Message], message: Message, config: Mapping[str, Any]) -> Message:
    """What a node does with a message, by its configuration."""
    try:
        device = Device.of(config)
    except InputError as error:
        return _failed(message, str(error))
    return does(message, device)


def _told(message: Message, device: Device, does: Callable[[], Letter]) -> Message:
    """The reply; what cannot be done is said in one line, without a path of this machine."""
    try:
        return reply(message, does())
    except FedstrataError as error:
        return _failed(message, without_paths(str(error), (device.data, device.state, device.state.parent)))
    except Exception as error:
        # Its text may tell of this machine and its data, so that it stays here.
        log.exception("the client %s could not do what it was asked", device.key)
        return _failed(message, f"unexpected {type(error).__name__}; the log of its node says more")


def _failed(message: Message, reason: str) -> Message:
    return reply(message, Letter({"failed": {"reason": one_line(reason)}}))


def _work(letter: Letter, device: Device) -> Letter:
    """Score and train; what is to stay here is on the disk before the answer leaves."""
    terms, key = read_terms(letter), one(letter.record("client"), "key", str)
    if key != device.key:
        raise InputError(f"expected a message to the client {device.key}, found one to {key}")
    network = terms.network(0)
    layout = layout_of(network)
    order, shelf = read_order(letter, layout), device.state / f"{terms.run}.safetensors"
    kept = _kept(shelf, order)
    store = Store()
    store.restore(kept)
    lacking = _lacking(order, layout, store)
    if lacking:
        return Letter({"lacking": {"tensors": lacking}})
    holdings = holdings_of(device.data, order.client, terms)
    report = Loop(network, layout, holdings, store, terms.precision).run(order.plan)
    end = f"/{order.plan.round}"
    left = {name: values for name, values in store.tensors().items() if name.endswith(end)}
    if left:
        # More than the engine keeps: the server may go back to its second-newest checkpoint.
        replace_file(shelf, to_bytes({**kept, **store.tensors()}), private=True)
        _forget(device.state)
    spoilt = any(not bool(values.isfinite().all()) for values in left.values())
    stored = tuple(sorted(int(name.split("/")[1]) for name in left))
    return write_answer(Answer(report, stored, spoilt), order, layout, terms.run)


def _lacking(order: Order, layout: Layout, store: Store) -> list[str]:
    """Tensors that the server thinks are here and are not, as after the loss of a disk."""
    own = store.read(order.client, before=order.plan.round)
    wanted = needed(order.plan, layout, own)
    return [
        slot.name
        for tensor, slot in enumerate(layout.tensors)
        if any(mask[tensor] and not order.sent[model][tensor] for model, mask in wanted.items())
    ]


def _kept(shelf: Path, order: Order) -> dict[str, Tensor]:
    """What the device keeps and the server counts on, by name as in `Store`.

    Later rounds than the order's stay too, unread: the order may be an old one that was held up.
    """
    if not shelf.exists():
        return {}
    try:
        found = from_bytes(shelf.read_bytes())
    except SafetensorError as error:
        raise InputError(f"{shelf}: expected the client's own layers, found {error}; remove the file") from None
    rounds = {name: int(name.split("/")[2]) for name in found}
    return {name: found[name] for name, round in rounds.items() if round in order.counted or round > order.plan.round}


def _forget(state: Path) -> None:
    """Remove the tensors of all but the newest runs."""
    for old in sorted(state.glob("*.safetensors"), key=lambda path: path.stat().st_mtime)[:-RUNS]:
        old.unlink()
