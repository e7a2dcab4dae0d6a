import errno
import os
import re
import sys
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from fedstrata.play.progress import ComparisonProgress, Progress, StatusLine, event_lines

SPLIT = {"kind": "split", "node": 0, "into": [1, 2], "layer": "conv1", "why": "the groups replicate"}
TOO_LARGE = {
    "kind": "rejected",
    "reason": "norm",
    "clients": [3],
    "task": "train",
    "part": "weights",
    "norm": 4.9e11,
    "median": 1.5,
    "limit": 15.0,
}


def record(round: int, **changes: Any) -> dict[str, Any]:
    known = {"clusters": 2, "acc_client": 0.5, "acc_worst": 0.25, "ari": 1.0}
    nothing = {"cohort": list(range(8)), "absent": [], "rejected": [], "events": []}
    return {"round": round, **known, **nothing, **changes}


def shown(terminal: bool, quiet: bool = False, width: int = 200) -> tuple[StatusLine, StringIO]:
    text = StringIO()
    return StatusLine(quiet, Console(file=text, force_terminal=terminal, width=width)), text


def test_off_a_terminal_every_round_is_a_line_and_what_happened_stands_above_it() -> None:
    line, text = shown(terminal=False)
    with line:
        progress = Progress(10, line)
        progress.show(record(1, events=[SPLIT, {"kind": "restart", "chosen": [5, 3]}]))
        progress.show(record(2, ari=None, rejected=[3], events=[TOO_LARGE]))
    first, second, third, fourth, fifth = text.getvalue().splitlines()
    assert first == "round 1: split: node 0 split into 1 and 2 on conv1; the groups replicate"
    assert second == "round 1: restart: chosen 5, 3"
    assert third.startswith("round  1/10  clusters 2  accuracy 50.0 %  worst 25.0 %  ari 1.00  ")
    assert fourth.startswith("round 2: rejected: clients 3: ") and "4.9e+11" in fourth
    assert fifth.startswith("round  2/10  clusters 2  accuracy 50.0 %  worst 25.0 %  ") and "ari" not in fifth


def test_on_a_terminal_what_happened_stays_above_the_line() -> None:
    line, text = shown(terminal=True)
    with line:
        progress = Progress(12, line)
        progress.show(record(1, events=[SPLIT]))
        progress.show(record(12))
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.getvalue())
    rows = [row.strip() for row in plain.splitlines() if row.strip()]
    assert rows[0] == "round 1: split: node 0 split into 1 and 2 on conv1; the groups replicate"
    assert rows[-1].startswith("round 12/12  clusters 2  accuracy 50.0 %")


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"kind": "join", "clients": [1, 2, 3, 8]}, "join: clients 1\N{EN DASH}3, 8"),
        ({"kind": "dissolve", "node": 4, "into": [2]}, "dissolve: node 4; into 2"),
        ({"kind": "place", "client": 6, "node": 2, "distance": 0.123456}, "place: client 6; node 2; distance 0.1235"),
        ({"kind": "collapse", "nodes": [1, 2], "rounds": 3, "layer": None}, "collapse: nodes 1, 2; rounds 3"),
        ({"kind": "scout", "layer": "fc", "why": "a_skew"}, "scout: a skew"),
        ({"kind": "reassign", "client": 7, "to": 2, "why": "less [bold]"}, "reassign: client 7; to 2; why less [bold]"),
    ],
)
def test_an_event_says_what_happened_to_whom_where_and_why(event: dict[str, Any], said: str) -> None:
    assert event_lines(record(1, events=[event])) == [said]


@pytest.mark.parametrize(("absent", "told"), [(0, 0), (3, 0), (4, 1), (8, 1)])
def test_that_clients_did_not_answer_is_told_when_they_are_half_of_the_cohort(absent: int, told: int) -> None:
    found = event_lines(record(1, absent=list(range(absent))))
    assert [line.rpartition("; ")[2] for line in found] == [f"{absent} of 8 did not answer"] * told
    assert event_lines(record(1, cohort=[])) == []


def test_nothing_is_shown_when_it_is_to_be_quiet() -> None:
    for terminal in (False, True):
        line, text = shown(terminal, quiet=True)
        with line:
            Progress(1, line).show(record(1, events=[SPLIT]))
        assert text.getvalue() == ""


def test_a_comparison_has_one_line_for_all_algorithms() -> None:
    line, text = shown(terminal=False)
    progress = ComparisonProgress(10, line, seed=5, place=2, federations=2)
    progress.show(0, 0.4)
    progress.note("fedavg", record(1, acc_client=0.25))
    progress.note("cfl", record(1, events=[{"kind": "split", "node": 0, "into": [1, 2]}]))
    progress.show(1, 0.314)
    first, second = text.getvalue().splitlines()
    assert first == "run cfl-5, round 1: split: node 0 split into 1 and 2"
    assert second.startswith("seed 5 (2/2)  round  1/10  accuracy:  fedavg 25.0 %  cfl 50.0 %  jobs 31 %  ")


class Unwritable(StringIO):
    """Where nothing can be written any more."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.tried = number, 0

    def write(self, text: str) -> int:
        self.tried += 1
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize("number", [errno.EPIPE, errno.ENOSPC, errno.EIO])
def test_progress_that_nobody_can_read_ends_no_run(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = Unwritable(number)
    monkeypatch.setattr(sys, "stderr", text)
    with StatusLine() as line:
        progress = Progress(3, line)
        for round in (1, 2, 3):
            progress.show(record(round))
    assert text.tried == 1
