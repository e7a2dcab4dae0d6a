"""A few rounds of an algorithm on forty clients, by any engine."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from builders import federation
from fedstrata.build.run_setup import RunSetup
from personal_stage import with_stage
from turns import Turn
from turns import play as play_turns

ROUNDS = 3
KEYS: dict[str, Any] = {
    "rounds": ROUNDS,
    # Three blocks of client ids, the last one smaller.
    "data": {"name": "digits", "clients": 40, "samples": 16, "test": 0.2, "public": 32},
    "partition": {"scheme": "rotation", "groups": 2},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"lr": 0.1, "batch": 8},
    "cohort": {"fraction": 0.8, "dropout": 0.2},
}

Played = tuple[list[Turn], dict[str, torch.Tensor]]
"""Some rounds, and what is on the clients' devices at the end."""


def setting_of(engine: str, workers: int = 0) -> RunSetup:
    return federation(KEYS, engine={"name": engine, "workers": workers})


def play(setup: RunSetup, name: str, between: Callable[[], object] = lambda: None) -> Played:
    """A few rounds of an algorithm: some are not asked, some of those do not answer, everyone is scored."""
    turns = play_turns(with_stage(setup, name), ROUNDS, 0.8, 0.2, scored=True, between=between)
    return turns, setup.clients.store.tensors()


@cache
def by_loop(name: str) -> Played:
    return play(loop_setting(), name)


@cache
def loop_setting() -> RunSetup:
    return setting_of("loop")
