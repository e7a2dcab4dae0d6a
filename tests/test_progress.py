from io import StringIO
from typing import Any

from rich.console import Console

from fedstrata.progress import Line, Progress, Race


def record(round: int, **changes: Any) -> dict[str, Any]:
    known = {"clusters": 2, "acc_client": 0.5, "acc_worst": 0.25, "ari": 1.0, "rejected": [], "events": []}
    return {"round": round, **known, **changes}


def shown(terminal: bool, quiet: bool = False) -> tuple[Line, StringIO]:
    text = StringIO()
    return Line(quiet, Console(file=text, force_terminal=terminal, width=200)), text


def test_off_a_terminal_every_round_is_a_line() -> None:
    line, text = shown(terminal=False)
    with line:
        progress = Progress(10, line)
        progress.show(record(1, events=[{"kind": "split", "node": 0, "layer": None}]))
        progress.show(record(2, ari=None, rejected=[3, 4]))
    first, second, third = text.getvalue().splitlines()
    assert first == "round 1: split node 0"
    assert second.startswith("round  1/10  clusters 2  accuracy 0.500  worst 0.250  ari 1.00  ")
    assert third.startswith("round  2/10  clusters 2  accuracy 0.500  worst 0.250  rejected 2  ")


def test_on_a_terminal_the_line_is_replaced_and_what_happened_stays() -> None:
    line, text = shown(terminal=True)
    with line:
        progress = Progress(2, line)
        for round in (1, 2):
            progress.show(record(round, events=[{"kind": "join", "clients": [7]}]))
    assert text.getvalue().count("join clients [7]") >= 2 and "\x1b[" in text.getvalue()


def test_nothing_is_shown_when_it_is_to_be_quiet() -> None:
    for terminal in (False, True):
        line, text = shown(terminal, quiet=True)
        with line:
            Progress(1, line).show(record(1, events=[{"kind": "join"}]))
        assert text.getvalue() == ""


def test_a_comparison_has_one_line_for_all_algorithms() -> None:
    line, text = shown(terminal=False)
    race = Race(10, [3, 5], line)
    race.begin(3)
    race.note("cfl", record(9))
    race.begin(5)
    race.show(0, 0.4)
    race.note("fedavg", record(1, acc_client=0.25))
    race.note("cfl", record(1, events=[{"kind": "split", "node": 0}]))
    race.show(1, 0.314)
    first, second = text.getvalue().splitlines()
    assert first == "seed 5, cfl, round 1: split node 0"
    assert second.startswith("seed 5 (2/2)  round  1/10  fedavg 0.250  cfl 0.500  jobs 31 %  ")
