"""How the figures of the matrix of faults, attacks and leaks are read from the results of experiments.

A reader says in words what was measured, and whether it is what is expected. It returns None for a result that does not
hold its part yet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import mean
from typing import Any


@dataclass(frozen=True)
class Found:
    """What a result says.

    Attributes:
        text: The figure in words.
        good: Whether it is what is expected.
        lacks: What it does not cover, in words; empty if it covers all.
    """

    text: str
    good: bool
    lacks: str = ""


@dataclass(frozen=True)
class Figure:
    """A figure of a result.

    Attributes:
        file: The name of the result, in ``experiments/results``.
        read: Reads the figure.
        script: The name of the experiment; empty while there is none.
    """

    file: str
    read: Callable[[Any], Found | None]
    script: str = ""


def kills_at_points(result: Any) -> Found | None:
    """Runs that were killed at a labelled point and resumed."""
    if "points" not in result:
        return None
    points = result["points"].values()
    kills, equal, one = (sum(point[key] for point in points) for key in ("kills", "equal", "one round"))
    text = (
        f"{equal} of {kills} kills at {len(points)} points resumed bit for bit, {one} of them with at most one round "
        "done again"
    )
    lacks = "" if kills >= 200 else "fewer than 200 kills"
    return Found(text, equal == kills == one and all(point["kills"] for point in points), lacks)


def kills_at_moments(result: Any) -> Found | None:
    """Runs that were killed at random moments until they were finished."""
    if "moments" not in result:
        return None
    runs = result["moments"]
    equal = [run for run in runs if run["equal"] and run["one round"]]
    kills = sum(run["kills"] for run in runs)
    text = f"{len(equal)} of {len(runs)} runs bit for bit after {kills} kills at random moments"
    return Found(text, len(equal) == len(runs))


def kills_of_workers(part: str, least: int, result: Any) -> Found | None:
    """Runs in which a worker was killed in each round."""
    if part not in result:
        return None
    runs = result[part]
    kills = sum(run["kills"] for run in runs)
    equal = sum(run["equal"] for run in runs)
    text = f"{kills} workers killed in {len(runs)} {'run' if len(runs) == 1 else 'runs'}, {equal} of them bit for bit"
    return Found(text, equal == len(runs), "" if kills >= least else f"fewer than {least} kills")


def mutated_messages(result: Any) -> Found:
    """Replies that were changed at random."""
    found = result["mutated"]
    text = (
        f"{found['cases']:,} changed replies: {found['wrong']} crashes or changed bits; {found['refused']:,} refused, "
        f"{found['taken']:,} sound in spite of the change, {found['without effect']:,} without effect"
    )
    return Found(text, found["wrong"] == 0, "" if found["cases"] >= 10_000 else "fewer than 10,000 cases")


def cut_messages(result: Any) -> Found:
    """Replies that end after every number of bytes."""
    found = result["cut"]
    text = f"{found['refused']:,} of {found['cases']:,} cut replies are as if the client had been absent, in every bit"
    return Found(text, found["refused"] == found["cases"])


def delivered_messages(result: Any) -> Found:
    """Replies that come twice, late, or from somebody else."""
    found = result["delivered"]
    text = (
        f"{found['delivered']:,} replies in {found['rounds']:,} rounds, of them {found['of others']:,} of another "
        f"round, client or run and {found['again']:,} repeated: {found['wrong']} rounds with a wrong one taken"
    )
    return Found(text, found["wrong"] == 0, "" if found["delivered"] >= 10_000 else "fewer than 10,000 replies")


def counted_cases(noun: str, least: int, result: Any) -> Found:
    """A result that counts cases and those that went wrong."""
    text = f"{result['cases']:,} {noun}: {result['wrong']} wrong"
    return Found(text, result["wrong"] == 0, "" if result["cases"] >= least else f"fewer than {least:,} cases")


HONEST_LOSS = 0.02
"""What a fifth of Byzantine clients may cost the honest ones, in accuracy."""

UPDATES = ("sign_flip", "scaling", "noise", "zero", "alie", "ipm", "min_max")


def attacks_on_updates(result: Any) -> Found | None:
    """The most that each rule loses by any attack on updates by 4 of 20 clients, of its accuracy without attack."""
    cases = {kind: result[f"{kind}, 4 of 20"] for kind in UPDATES if f"{kind}, 4 of 20" in result}
    if not cases or "nobody" not in result:
        return None

    def accuracy(case: Any, method: str) -> float:
        return float(mean(run[method]["acc_client"] for run in case["runs"]))

    rules = [method for method in result["nobody"]["methods"] if method not in ("fedavg", "mean")]
    worst = {
        rule: max(accuracy(result["nobody"], rule) - accuracy(each, rule) for each in cases.values()) for rule in rules
    }
    best = min(worst, key=worst.__getitem__)
    text = (
        f"with {best}, the best of {len(rules)} rules, the most that any of {len(cases)} attacks by 4 of 20 clients "
        f"costs the honest ones is {100 * worst[best]:.1f} points of accuracy"
    )
    return Found(text, worst[best] <= HONEST_LOSS, "" if len(cases) == len(UPDATES) else "not all attacks")


def unread(result: Any) -> None:
    """A result that nobody has said here how to read."""


FIGURES: dict[str, Figure] = {
    "kills at points": Figure("kills", kills_at_points, "kills"),
    "kills at moments": Figure("kills", kills_at_moments, "kills"),
    "kills of workers": Figure("kills", partial(kills_of_workers, "workers", 100), "kills"),
    "kills of Ray's workers": Figure("kills", partial(kills_of_workers, "ray", 50), "kills"),
    "mutated messages": Figure("fuzzed_messages", mutated_messages, "fuzzed_messages"),
    "cut messages": Figure("fuzzed_messages", cut_messages, "fuzzed_messages"),
    "delivered messages": Figure("fuzzed_messages", delivered_messages, "fuzzed_messages"),
    "degenerate updates": Figure(
        "degenerate_updates", partial(counted_cases, "rounds of degenerate updates", 10_000), "degenerate_updates"
    ),
    "damaged checkpoints": Figure(
        "damaged_checkpoints", partial(counted_cases, "damaged checkpoints", 1_000), "damaged_checkpoints"
    ),
    "attacks on updates": Figure("attacked_federations", attacks_on_updates, "attacked_federations"),
    "absent clients": Figure("absent_federations", unread),
    "network faults": Figure("network_faults", unread),
    "differential privacy": Figure("private_federations", unread),
    "leaks": Figure("leaks", unread),
}
"""The figures by name. Of those without a script the result is awaited; who adds it also adds its reader."""
