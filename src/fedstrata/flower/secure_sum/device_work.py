"""What a device does for a secure sum. What it knows of a sum is in a private file between two messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedstrata.base.errors import InputError, RecordError
from fedstrata.base.files import parse_json, read_file, replace_file
from fedstrata.core import TRAIN, Layout, Report
from fedstrata.flower.payload import Payload
from fedstrata.flower.requests import Request
from fedstrata.flower.run_config import RunConfig
from fedstrata.flower.secure_sum.client import SumClient
from fedstrata.flower.secure_sum.masking import SEALED_BYTES
from fedstrata.flower.secure_sum.messages import (
    SumRequest,
    by_client,
    public_array,
    public_of_array,
    read_array,
    read_sum_request,
    sealed_array,
    shares_arrays,
    words_of_tensor,
    words_tensor,
    write_arrays,
)
from fedstrata.flower.secure_sum.sums import NOT_FINITE

SUFFIX = ".sum.json"
"""The end of the name of the file about the sum of a run, in the state folder of a device."""

_CLOSED = "closed"
"""The key of the round whose shares a device has given."""


def sum_step(payload: Payload, config: RunConfig, state: Path) -> Payload:
    """Do a step of a sum that needs no training: send keys, or shares for others, or those that open the sum.

    Args:
        payload: The request.
        config: The config of the run.
        state: The state folder of the device.

    Raises:
        InputError: When the device must not do it.
    """
    request = read_sum_request(payload)
    _refuse_other_terms(config)
    path = state / f"{config.run}{SUFFIX}"
    if request.step == "keys":
        _refuse_closed_round(path, request)
        begun, own = SumClient.begun(
            name=request.name,
            round=request.round,
            client=request.client,
            members=request.clients,
            needed=config.sums.needed(len(request.clients)),
            word=request.word,
        )
        _keep(path, begun)
        return write_arrays(public=public_array([own])[0])
    known = _kept(path, request)
    if request.step == "shares":
        keys = public_of_array(read_array(payload, "public"))
        if len(keys) != len(request.clients):
            raise InputError(f"expected keys of {len(request.clients)} clients, found {len(keys)}")
        shared, sealed = known.shared(dict(zip(request.clients, keys, strict=True)))
        _keep(path, shared)
        return write_arrays(sealed=sealed_array(sealed))
    if request.step != "revealed":
        raise InputError(f"expected the step keys, shares or revealed, found {request.step!r}")
    seeds, parts = known.revealed(request.clients, request.gone)
    # Before the shares leave: they must never be given twice, nor another sum of this round be opened.
    replace_file(path, json.dumps({_CLOSED: request.round}).encode(), private=True)
    return write_arrays(**shares_arrays(seeds, parts))


class NotFiniteError(InputError):
    """The update is not finite, so that no sum can hold it."""


def masked_update(
    payload: Payload, config: RunConfig, state: Path, request: Request, layout: Layout, report: Report
) -> Payload:
    """Mask the update of a report, so that it can be sent.

    Args:
        payload: The request for work, with the shares of the other clients.
        config: The config of the run.
        state: The state folder of the device.
        request: What it asks for.
        layout: The tensors of the network.
        report: The report of the client.

    Raises:
        NotFiniteError: When the update is not finite.
        InputError: When the device must not send it.
    """
    asked = read_sum_request(payload)
    path = state / f"{config.run}{SUFFIX}"
    known = _kept(path, asked)
    result = report.results[TRAIN]
    update = result.updates.values[0, layout.columns(request.plan.tasks[TRAIN].upload)]
    if not bool(update.isfinite().all()):
        raise NotFiniteError(NOT_FINITE)
    samples = int(result.sizes)
    if config.sums.weight(samples) > asked.max_weight:
        raise InputError(f"expected a weight of at most {asked.max_weight} in the sum, found {samples} samples")
    vector = words_of_tensor(config.sums.encoded(update, samples), known.word)
    received = by_client(read_array(payload, "sealed"), asked.clients, SEALED_BYTES)
    masked, total = known.masked(vector, received)
    # Before the vector leaves: a second one with the same masks would show their difference.
    _keep(path, masked)
    return write_arrays(vector=words_tensor(total))


def _refuse_other_terms(config: RunConfig) -> None:
    if not config.sums.secure:
        raise InputError("expected a run with secure aggregation, found one without")


def _refuse_closed_round(path: Path, request: SumRequest) -> None:
    """Refuse a second sum of a round: without a client that was in the first, it would show this client's update."""
    closed = _read(path).get(_CLOSED, 0)
    if request.round <= closed:
        raise InputError(
            f"expected a round after {closed}, whose sum this device has helped to open, was asked for {request.round}"
        )


def _kept(path: Path, request: SumRequest) -> SumClient:
    """What the device knows of the sum that a step is about."""
    found = _read(path)
    if found.get("name") != request.name or (found["round"], found["client"]) != (request.round, request.client):
        raise InputError(f"expected a step of a sum that this device has begun, found one of {request.name!r:.40}")
    return SumClient.from_json(found)


def _keep(path: Path, client: SumClient) -> None:
    closed = _read(path).get(_CLOSED, 0)
    replace_file(path, json.dumps({**json.loads(client.to_json()), _CLOSED: closed}).encode(), private=True)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = parse_json(read_file(path))
    except FileNotFoundError:
        return {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise RecordError(f"{path}: expected what the device knows of a sum, found something else; remove the file")
    return found
