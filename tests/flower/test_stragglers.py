"""Slow clients: deadlines and over-selection, by a clock that goes on only when the server waits.

Twenty clients train for some seconds, drawn from a lognormal distribution; two of them take ten times as long. 13 of
the 20 are asked to train, and the first 10 answers are taken: over-selection by 1.3.
"""

import os
from dataclasses import replace
from math import log
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import in_process
import pytest
from flwr.app import Message
from in_process import Federation, Slow, Ticks, lines, models, records

from builders import keys
from fedstrata.flower.federation import RoundRules

KEYS = keys(
    in_process.KEYS,
    data={"clients": 20, "samples": 16, "test": 0.25},
    partition={"groups": 2},
    cohort={"fraction": 0.65},
    algorithm={"name": "fedper"},
)
SELECTED, TAKEN = 13, 10
OVER_SELECTED = RoundRules(deadline=60.0, min_reply_fraction=TAKEN / SELECTED)
SLOW_NODES = (103, 111)
POLL = 0.5
"""Seconds between two looks for replies."""


def seconds(message: Message) -> float:
    """How long a node takes: one that trains a median of 10 s, one that is only asked for a score a tenth of it."""
    node, round = message.metadata.dst_node_id, message.metadata.group_id
    took = Random(f"{node}/{round}").lognormvariate(log(10.0), 0.5)
    return took * (10.0 if node in SLOW_NODES else 1.0) * (1.0 if trains(message) else 0.1)


def trains(message: Message) -> bool:
    return any(name.startswith("task-") for name in message.content.config_records["records"])


class Finished(NamedTuple):
    """A run that is over, its grid, and who was absent from each plan."""

    out: Path
    grid: Slow

    @property
    def absent(self) -> dict[int, list[int]]:
        return {
            line["round"]: [int(client) for client in line["absent"]]
            for line in lines(self.out / "network/rounds.jsonl")
        }


def driven(made: Federation, folder: Path, rules: RoundRules, lost_in: int | None = None) -> Finished:
    """A run, whose server may be lost when it sends the messages of a round, and is started again."""

    class Lost(Exception):
        pass

    class Losing(Slow):
        def push_messages(self, messages: list[Message]) -> list[str | None]:
            ids = super().push_messages(messages)
            if any(message.metadata.group_id == str(lost_in) for message in messages):
                raise Lost
            return ids

    here, out = made.deployed(folder).where(rounds=rules), folder / "run"
    if lost_in is not None:
        ticks = Ticks()
        with pytest.raises(Lost):
            replace(here, grid=Losing(here.grid.devices, ticks, seconds), ticks=ticks).run(out)
    ticks = Ticks()
    grid = Slow(here.grid.devices, ticks, seconds)
    replace(here, grid=grid, ticks=ticks).run(out, resume=lost_in is not None)
    return Finished(out, grid)


@pytest.fixture(scope="module")
def over_selected(made: Federation, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return driven(made, tmp_path_factory.mktemp("over-selected"), OVER_SELECTED)


def trainers(grid: Slow, round: int) -> dict[int, float]:
    """The clients that were asked to train, and how long they took."""
    asked = [message for message in grid.asked if trains(message) and message.metadata.group_id == str(round)]
    return {message.metadata.dst_node_id - 100: seconds(message) for message in asked}


def scores(out: Path) -> list[Any]:
    """Accuracies by the clients' own layers."""
    return [line["acc_client"] for line in records(out)]


def test_the_first_ten_of_thirteen_that_train_end_a_round(over_selected: Finished) -> None:
    for round in range(1, KEYS["rounds"] + 1):
        asked = trainers(over_selected.grid, round)
        assert len(asked) == SELECTED
        kept = asked.keys() - set(over_selected.absent[round])
        # A few more have answered where the share of all that are asked is met later.
        last = sorted(asked.values())[TAKEN - 1]
        assert {client for client, took in asked.items() if took <= last} <= kept
        assert all(took <= last + POLL for client, took in asked.items() if client in kept)


def test_a_late_reply_reaches_no_later_round(over_selected: Finished) -> None:
    replies = over_selected.grid.fetched
    assert len(replies) > KEYS["rounds"] * TAKEN and all(of == during for of, during in replies)
    assert all(over_selected.absent.values()), "some reply is late in every round"


def test_a_simulation_of_who_answered_has_the_same_bits(
    over_selected: Finished, made: Federation, tmp_path: Path
) -> None:
    made.deployed(tmp_path).simulated(tmp_path / "run", over_selected.absent)
    assert models(over_selected.out) == models(tmp_path / "run") != {}
    assert scores(over_selected.out) == scores(tmp_path / "run")


def test_a_run_that_is_resumed_among_stragglers_has_the_same_bits(
    over_selected: Finished, made: Federation, tmp_path: Path
) -> None:
    """The clients have trained in the lost round, and train again from what the server knows of."""
    again = driven(made, tmp_path, OVER_SELECTED, lost_in=3)
    assert again.absent == over_selected.absent
    assert models(again.out) == models(over_selected.out) and scores(again.out) == scores(over_selected.out)


def test_a_deadline_is_kept_within_a_look_for_replies(made: Federation, tmp_path: Path) -> None:
    """Six rounds of 20 s at most, in each of which the slow ones are absent if they were asked."""
    finished = driven(made, tmp_path, RoundRules(deadline=20.0))
    assert finished.grid.ticks.time <= (KEYS["rounds"] + 1) * (20.0 + POLL)
    for round in range(1, KEYS["rounds"] + 1):
        for client, took in trainers(finished.grid, round).items():
            assert (client in finished.absent[round]) == (took > 20.0)


class SlowDisk(Slow):
    """A grid in front of a server whose disk takes a thousand seconds for each write, by the clock of the deadlines.

    Attributes:
        waited: How often the server has waited for its disk.
    """

    waited = 0
    _devices_work = False

    def push_messages(self, messages: list[Message]) -> list[str | None]:
        # The devices of this grid answer in here, and their disks are fast.
        self._devices_work = True
        try:
            return super().push_messages(messages)
        finally:
            self._devices_work = False

    def fsync(self, handle: int) -> None:
        if not self._devices_work:
            self.waited += 1
            self.ticks.time += 1000.0


def test_a_slow_disk_of_the_server_makes_no_client_late(
    made: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients have a minute and take a second; what the server waits for its own disk is none of their time."""
    here = made.deployed(tmp_path).where(rounds=RoundRules(deadline=60.0))
    ticks = Ticks()
    grid = SlowDisk(here.grid.devices, ticks, lambda message: 1.0)
    monkeypatch.setattr(os, "fsync", grid.fsync)
    replace(here, grid=grid, ticks=ticks).run(tmp_path / "run")
    assert grid.waited > 10 * KEYS["rounds"]
    absent = Finished(tmp_path / "run", grid).absent
    assert len(absent) == KEYS["rounds"] + 1 and not any(absent.values())
    here.simulated(tmp_path / "simulated", {})
    assert models(tmp_path / "run") == models(tmp_path / "simulated") != {}
    assert scores(tmp_path / "run") == scores(tmp_path / "simulated")
