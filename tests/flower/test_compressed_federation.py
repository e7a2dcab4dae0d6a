"""Compressed updates on real devices: the bits of the simulation, and nothing else in their place."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import in_process
import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message
from in_process import Deployed, at, lines, lost

from fedstrata.results.run import Run

KEYS: dict[str, Any] = {**in_process.KEYS, "seed": 7, "algorithm": {"name": "strata"}}
NETWORKS: dict[str, dict[str, Any]] = {
    "bfloat16": {"compression": "bfloat16"},
    "int8": {"compression": "int8"},
    "top_k": {"compression": "top_k", "share": 0.1},
}
SLOW = 2
"""The client whose reply is lost in some rounds."""


def bytes_up(run: Run) -> list[int]:
    return [record["bytes_up"] for record in run.rounds]


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_federation_has_the_bits_and_bytes_of_the_simulation(kind: str, here: Deployed, tmp_path: Path) -> None:
    real = here.run(tmp_path / "real", network=NETWORKS[kind], rounds=3)
    wanted = here.simulated(tmp_path / "simulated", {}, network=NETWORKS[kind], rounds=3)
    assert torch.equal(real.state.models, wanted.state.models)
    assert torch.equal(real.state.labels, wanted.state.labels)
    assert bytes_up(real) == bytes_up(wanted)


def test_what_a_client_has_left_out_of_a_lost_reply_does_not_count(here: Deployed, tmp_path: Path) -> None:
    """The device has saved it, but the server took no such reply: the client goes on from the one before."""
    here.grid.twist = lost(SLOW, 2, 3)
    real = here.run(tmp_path / "real", network=NETWORKS["top_k"])
    wanted = here.simulated(tmp_path / "simulated", {2: [SLOW], 3: [SLOW]}, network=NETWORKS["top_k"])
    assert [record["absent"] for record in real.rounds] == [[], [SLOW], [SLOW], []]
    assert torch.equal(real.state.models, wanted.state.models)


def test_a_resumed_federation_goes_on_with_what_was_left_out(here: Deployed, tmp_path: Path) -> None:
    here.run(tmp_path / "real", network=NETWORKS["top_k"], rounds=2)
    resumed = here.run(tmp_path / "real", network=NETWORKS["top_k"], resume=True)
    wanted = here.simulated(tmp_path / "simulated", {}, network=NETWORKS["top_k"])
    assert torch.equal(resumed.state.models, wanted.state.models)


def test_the_messages_are_as_small_as_the_records_say(here: Deployed, tmp_path: Path) -> None:
    """What comes beside the numbers is the same with and without compression."""
    sizes = list[tuple[int, int]]()
    for name in ("none", *NETWORKS):
        network = NETWORKS.get(name, {})
        run = here.run(tmp_path / name, rounds=1, network=network, algorithm={"name": "fedavg"})
        sizes.append((lines(tmp_path / name / "network/rounds.jsonl")[0]["bytes_up"], bytes_up(run)[0]))
    # An mlp of 64 x 8 + 8 + 8 x 10 + 10 numbers; six clients.
    assert [counted for _, counted in sizes] == [6 * 4 * 610, 6 * 2 * 610, 6 * (610 + 4 * 4), 6 * 8 * 61]
    assert max(wire - counted for wire, counted in sizes) < 6 * 1500


Spoil = Callable[[ArrayRecord], Any]


def put(name: str, values: Any, dtype: str) -> Spoil:
    return lambda arrays: arrays.__setitem__(name, Array(np.array(values, dtype)))


SPOILT: dict[str, tuple[str, Spoil, str]] = {
    "an index beyond the update": (
        "top_k",
        put("indices", [*range(60), 610], "int32"),
        "expected ascending indices of 0 to 609, found others",
    ),
    "an index twice": ("top_k", put("indices", [0, *range(60)], "int32"), "expected ascending indices"),
    "more numbers": (
        "top_k",
        put("values", [0.0] * 62, "float32"),
        r"expected compressed-train\.values to be torch\.float32 \(61,\)",
    ),
    "another type": (
        "top_k",
        put("indices", range(61), "int64"),
        r"expected compressed-train\.indices to be torch\.int32 \(61,\)",
    ),
    "no indices": (
        "top_k",
        lambda arrays: arrays.pop("indices"),
        "expected the array compressed-train.indices, found none",
    ),
    "a negative scale": ("int8", put("scales", [-1.0] * 4, "float32"), "expected scales of at least 0"),
    "an array of its own": (
        "int8",
        put("more", [0], "int8"),
        r"expected no array compressed-train\.more: it was not asked for",
    ),
}


def spoilt(kind: str, spoil: Spoil, here: Deployed, out: Path) -> dict[str, Any]:
    """What a round says of a client that has something else in the place of its compressed update."""

    def twist(message: Message, reply: Message) -> None:
        spoil(reply.content.array_records["compressed-train.arrays"])

    here.grid.twist = at(SLOW, 1, twist)
    run = here.run(out, network=NETWORKS[kind], rounds=1)
    assert run.rounds[0]["rejected"] == [SLOW]
    event: dict[str, Any]
    (event,) = [each for each in run.rounds[0]["events"] if each["kind"] == "rejected"]
    assert event["clients"] == [SLOW]
    return event


@pytest.mark.parametrize(
    "kind, spoil",
    [
        ("top_k", put("values", [np.nan] * 61, "float32")),
        ("int8", put("scales", [np.inf] * 4, "float32")),
        ("bfloat16", put("halves", [0x7F80] * 610, "int16")),
    ],
)
def test_a_compressed_update_that_is_not_finite_is_rejected(
    kind: str, spoil: Spoil, here: Deployed, tmp_path: Path
) -> None:
    assert spoilt(kind, spoil, here, tmp_path / "real")["reason"] == "not finite"


@pytest.mark.parametrize("kind, spoil, reason", SPOILT.values(), ids=SPOILT)
def test_what_is_not_a_compressed_update_is_rejected(
    kind: str, spoil: Spoil, reason: str, here: Deployed, tmp_path: Path
) -> None:
    assert re.search(reason, spoilt(kind, spoil, here, tmp_path / "real")["why"])
