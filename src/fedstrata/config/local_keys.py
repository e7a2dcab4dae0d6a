"""The keys of ``[local]`` and ``[server]`` that depend on each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fedstrata.base.errors import ExperimentError
from fedstrata.base.quoting import shown
from fedstrata.config.tables import LocalTable, ServerTable
from fedstrata.objective.metric_info import METRICS_OF_NUMBERS

_METRICS = dict.fromkeys(("mse", "mae", "huber"), "r2")
"""The metric that follows from a loss, where it is not accuracy."""


class _Rule(NamedTuple):
    """What a key has to be beside the others.

    Attributes:
        key: The key.
        holds: Whether it is so.
        expected: What is expected, in words.
    """

    key: str
    holds: bool
    expected: str


def resolve_local(local: LocalTable, rounds: int) -> LocalTable:
    """Write out the metric and the schedule of the learning rate, and refuse keys that contradict each other.

    A key without effect is refused: whoever wrote it believes that it has one.

    Args:
        local: The table as it was read.
        rounds: The number of rounds of the run.

    Raises:
        ExperimentError: For the first key that does not fit the others.
    """
    schedule = local.schedule or ("exponential" if local.lr_decay < 1 else "constant")
    metric = local.metric or _METRICS.get(local.loss, "accuracy")
    local = local.model_copy(update={"schedule": schedule, "metric": metric})
    for rule in (*_training_rules(local), *_schedule_rules(local, rounds)):
        if not rule.holds:
            raise ExperimentError(f"local.{rule.key} = {shown(getattr(local, rule.key))}: expected {rule.expected}")
    if schedule == "cosine" and not local.schedule_rounds:
        local = local.model_copy(update={"schedule_rounds": rounds - local.warmup_rounds})
    return local


def resolve_server(server: ServerTable) -> ServerTable:
    """Write out the learning rate of the server, and refuse keys that its optimiser does not use.

    Raises:
        ExperimentError: For the first such key.
    """
    uses = {
        "momentum": server.optimizer != "none",
        "beta2": server.optimizer in ("yogi", "adam"),
        "tau": server.optimizer in ("adagrad", "yogi", "adam"),
    }
    for key, used in uses.items():
        default = ServerTable.model_fields[key].default
        if not used and getattr(server, key) != default:
            raise ExperimentError(
                f"server.{key} = {shown(getattr(server, key))}: expected {default} with server.optimizer = "
                f"{server.optimizer!r}, which does not use it"
            )
    usual = 1.0 if server.optimizer in ("none", "momentum") else 0.01
    return server.model_copy(update={"lr": usual if server.lr is None else server.lr})


def _training_rules(local: LocalTable) -> Iterator[_Rule]:
    optimizer = f"local.optimizer = {local.optimizer!r}"
    yield _Rule("momentum", not local.momentum or local.optimizer == "sgd", f"0 with {optimizer}; use 'sgd'")
    metric = local.metric or ""
    loss = f"with local.loss = {local.loss!r}"
    fits = metric not in METRICS_OF_NUMBERS or local.loss not in ("cross_entropy", "bce")
    yield _Rule("metric", fits, f"a metric of classes {loss}, such as 'accuracy'")
    fits = metric in METRICS_OF_NUMBERS or ":" in metric or local.loss not in _METRICS
    yield _Rule("metric", fits, f"a metric of numbers {loss}, such as 'r2'")
    yield _Rule("epochs", local.epochs == 1 or not local.steps, f"1, as local.steps = {local.steps} counts steps")


def _schedule_rules(local: LocalTable, rounds: int) -> Iterator[_Rule]:
    beside = f"with local.schedule = {local.schedule!r}"
    yield _Rule("warmup_rounds", local.warmup_rounds < rounds, f"fewer than rounds = {rounds}")
    if local.schedule in ("constant", "cosine"):
        yield _Rule("lr_decay", local.lr_decay == 1, f"1 {beside}; 'exponential' and 'step' use it")
    if local.schedule in ("constant", "exponential"):
        yield _Rule("schedule_rounds", not local.schedule_rounds, f"0 {beside}; 'step' and 'cosine' use it")
    if local.schedule == "step":
        yield _Rule("lr_decay", local.lr_decay < 1, f"a number below 1 {beside}")
        yield _Rule("schedule_rounds", local.schedule_rounds > 0, f"at least 1 {beside}")
    if local.schedule != "cosine":
        yield _Rule("lr_min", not local.lr_min, f"0 {beside}; 'cosine' uses it")
        return
    yield _Rule("lr_min", local.lr_min <= local.lr, f"at most local.lr = {local.lr:g}")
    end = local.warmup_rounds + (local.schedule_rounds or rounds)
    still = f"a number above 0: from round {end + 1} on of {rounds} nothing would be learned"
    yield _Rule("lr_min", local.lr_min > 0 or end >= rounds, still)
