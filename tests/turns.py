"""A small real federation, played turn by turn: what the tests of every algorithm look at."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, cached_property
from typing import Any

import torch

from fedstrata.build.build import build_run
from fedstrata.build.run_setup import RunSetup
from fedstrata.config import load_experiment
from fedstrata.core import Diagnostics, Plan, Report, Rows, State, descends

CLIENTS = 12
NEWCOMERS, LEAVER, CHANGED = (10, 11), 0, 1
EVENTS = {
    "join": [{"round": 4, "clients": list(NEWCOMERS)}],
    "leave": [{"round": 5, "clients": [LEAVER]}],
    "change": [{"round": 6, "client": CHANGED, "takes_data_of": 9}],
    "misplace": [{"round": 7, "share": 0.25}],
}


@dataclass(frozen=True)
class Turn:
    """One round.

    Attributes:
        before: The state, with joins and other events.
        cohort: The clients that are selected.
        plan: The plan for the whole cohort.
        absent: The clients of the cohort that never answer.
        devices: The tensors on the devices before the round, by ``"client/tensor/round"``.
        report: The report of the clients that answered.
        after: The new state.
        diagnostics: The notes of the algorithm.
    """

    before: State
    cohort: torch.Tensor
    plan: Plan
    absent: torch.Tensor
    devices: dict[str, torch.Tensor]
    report: Report
    after: State
    diagnostics: Diagnostics


@dataclass(frozen=True)
class Case:
    """A registered algorithm with some keys."""

    name: str
    keys: dict[str, Any]

    @cached_property
    def plain(self) -> RunSetup:
        """The federation as it is, all clients there from the beginning."""
        return _as_decided_by(_federation(eventful=False), self.setting())

    @cached_property
    def busy(self) -> RunSetup:
        """The federation in which something happens to the clients."""
        return _as_decided_by(_federation(eventful=True), self.plain)

    def setting(self, eventful: bool = False) -> RunSetup:
        """A new one."""
        events = {"events": EVENTS} if eventful else {}
        tables = {
            "data": {"name": "digits", "clients": CLIENTS, "samples": 64, "test": 0.2, "public": 64},
            "partition": {"scheme": "label_groups", "labels": [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]},
            "model": {"name": "mlp", "hidden": [16]},
            "local": {"lr": 0.5, "batch": 0, "epochs": 2},
            "algorithm": {"name": self.name, **self.keys},
        }
        return build_run(load_experiment({**tables, **events}))

    @cached_property
    def scarce(self) -> list[Turn]:
        """Half of the clients are asked and a fifth of those never answers; at last everyone does."""
        turns = play(self.plain, 8, fraction=0.5, dropout=0.2)
        return turns + play(self.plain, 2, start=turns[-1].after)

    @cached_property
    def eventful(self) -> list[Turn]:
        """Clients join, leave, change and are misplaced; everyone who is there answers."""
        return play(self.busy, 9)


def first_plan_of(setup: RunSetup, cohort: torch.Tensor | None = None) -> Plan:
    """The first plan of a run, for some clients or for all."""
    algorithm = setup.server.algorithm
    problem = setup.server.problem
    return algorithm.plan(problem, algorithm.init(problem), setup.everyone if cohort is None else cohort)


def _as_decided_by(setup: RunSetup, own: RunSetup) -> RunSetup:
    """A federation with the algorithm of a setting, and with the checks of updates that this algorithm has."""
    problem = replace(setup.server.problem, checks=own.server.problem.checks)
    return replace(setup, server=replace(setup.server, algorithm=own.server.algorithm, problem=problem))


@cache
def _federation(eventful: bool) -> RunSetup:
    """Data, network and engine are the same for every algorithm."""
    return Case("fedavg", {}).setting(eventful)


def play(
    setup: RunSetup,
    rounds: int,
    fraction: float = 1.0,
    dropout: float = 0.0,
    start: State | None = None,
    *,
    scored: bool = False,
    between: Callable[[], object] = lambda: None,
) -> list[Turn]:
    """The turns of some rounds, from the beginning or from a state whose devices the setting has.

    Args:
        setup: The federation.
        rounds: The number of rounds.
        fraction: The share of clients that are asked in a round.
        dropout: The share of those that do not answer.
        start: The state before the first of them.
        scored: Whether everyone scores the models of each round.
        between: What is done after every round.
    """
    problem, algorithm = setup.server.problem, setup.server.algorithm
    participation = replace(setup.server.participation, fraction=fraction, dropout=dropout)
    if start is None:
        setup.clients.store.restore({})
    state, turns = algorithm.init(problem) if start is None else start, list[Turn]()
    for _ in range(rounds):
        round = state.round + 1
        state, _events = participation.apply_events(state, round)
        cohort, absent = participation.sample(round)
        plan, devices = algorithm.plan(problem, state, cohort), setup.clients.store.tensors()
        evaluations = algorithm.evaluations(problem, state, setup.everyone) if scored else {}
        asked = replace(plan.only(~torch.isin(plan.cohort, absent)), evaluations=evaluations)
        report = replace(setup.clients.run(asked), cohort=plan.cohort)
        after, diagnostics = algorithm.update(problem, state, report)
        turns.append(Turn(state, cohort, plan, absent, devices, report, after, diagnostics))
        state = after
        between()
    return turns


def same(one: Any, other: Any) -> bool:
    """Whether two states or reports are equal in every bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one.nan_to_num(7e7), other.nan_to_num(7e7))
    if is_dataclass(one):
        return all(same(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    # A number that is not finite may be nan in both.
    return bool(one == other) or (one != one and other != other)


def places(state: State) -> list[int]:
    """The tree node of every client: its cluster, or where it waits."""
    return [int(node) for node in torch.where(state.labels >= 0, state.nodes[state.labels], state.waiting)]


def check(setup: RunSetup, state: State) -> None:
    """What holds after every round: finite models, labels that partition the clients, a tree that says the same."""
    tree, pending = state.tree, state.labels < 0
    assert state.models.shape[1] == setup.server.problem.layout.p and bool(state.models.isfinite().all())
    assert torch.equal(pending, state.waiting >= 0), "a client is neither in a cluster nor pending, or both"
    assert [node.id for node in tree] == list(range(len(tree)))
    leaves = [node for node in tree if node.split is None]
    assert sorted(node.id for node in leaves) == sorted(state.nodes.tolist()), "clusters are not the leaves"
    for cluster, node in enumerate(state.nodes.tolist()):
        members = (state.labels == cluster).nonzero().flatten().tolist()
        assert list(tree[node].members) == members, f"the tree puts others into node {node} than the labels do"
    for node in tree[1:]:
        assert node.parent is not None and node.parent < node.id
        split = tree[node.parent].split
        assert split is not None and split <= node.born <= state.round, "a child is older than the split of its parent"
    for client in pending.nonzero().flatten().tolist():
        waits = int(state.waiting[client])
        assert any(descends(tree, leaf.id, waits) for leaf in leaves), f"client {client} waits where no leaf is left"
    clients = setup.server.participation.active(state.round)
    evaluations = setup.server.algorithm.evaluations(setup.server.problem, state, clients)
    assert evaluations and all(torch.equal(evaluation.clients, clients) for evaluation in evaluations.values())
    assert all(bool((evaluation.candidates >= 0).any(dim=1).all()) for evaluation in evaluations.values()), (
        "a client would use no model"
    )


def check_growth(before: State, after: State, wanders: bool) -> None:
    """What holds between a round's begin and its end: history stays, and nobody drops out of a split."""
    for old, new in zip(before.tree, after.tree, strict=False):
        if old.split is not None:
            assert (old.id, old.parent, old.members, old.born, old.split) == (
                new.id,
                new.parent,
                new.members,
                new.born,
                new.split,
            ), f"node {old.id} is history and changed"
    if wanders:
        return
    for client, (was, now) in enumerate(zip(places(before), places(after), strict=True)):
        assert descends(after.tree, now, was), f"client {client} was at node {was} and is now outside, at {now}"
    for old in before.tree:
        if after.tree[old.id].split == after.round:
            stayed = {client for client, node in enumerate(places(after)) if descends(after.tree, node, old.id)}
            assert set(old.members) <= stayed, f"the split of node {old.id} lost {sorted(set(old.members) - stayed)}"


def only(report: Report, rows: torch.Tensor) -> Report:
    """The report of some clients, in their order."""
    results = {name: result.only(_places(result.updates.clients, rows)) for name, result in report.results.items()}
    facts = {
        name: Rows(told.clients[at], told.values[at])
        for name, told in report.client_stats.items()
        for at in [_places(told.clients, rows)]
    }
    return replace(report, results=results, client_stats=facts)


def _places(clients: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Where some clients are, in their order; those that are not there are left out."""
    ids = clients.tolist()
    return torch.tensor([ids.index(client) for client in wanted.tolist() if client in ids], dtype=torch.int64)


def received(turn: Turn, row: int, has: set[int]) -> dict[int, set[int]]:
    """What a client of the cohort has to be sent: model -> its tensors.

    Args:
        turn: The round with the plan.
        row: The row of the client in the plan.
        has: The tensors on its device.
    """
    needed: dict[int, set[int]] = {}
    for task in turn.plan.tasks.values():
        for model in set(task.candidates[row].tolist()) - {-1}:
            own = {tensor for tensor, kept in enumerate(task.load_local) if kept and tensor in has}
            needed.setdefault(model, set()).update(set(range(len(task.load_local))) - own)
    return needed
