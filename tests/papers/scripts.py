"""Random scripts of updates, and what an algorithm makes of them round by round.

Only the half of each test that drives the library uses this module; the other half is numpy in the test itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from builders import with_tree_events
from fedstrata.core import Algorithm, Diagnostics, Problem, State
from fedstrata.testing import Scripted

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]
Partition = set[frozenset[int]]

FEW_AND_MANY = pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 60), marks=pytest.mark.slow)])
"""Each test plays 20 random scripts always, and 40 more where slow tests run."""

FEW_AND_SOME = pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 40), marks=pytest.mark.slow)])
"""The same for scripts that take long, of which 20 more are played."""


def partition(labels: Sequence[int]) -> Partition:
    """The clusters as sets of client ids, whatever their numbers are. Pending clients are in none."""
    found: dict[int, set[int]] = {}
    for client, label in enumerate(labels):
        if label >= 0:
            found.setdefault(label, set()).add(client)
    return set(map(frozenset, found.values()))


def rounds(
    algorithm: Algorithm[Any], problem: Problem, updates: Floats, sizes: Ids
) -> Iterator[tuple[State, Diagnostics]]:
    """Play a script (rounds, n, p) with all clients present; the state and the notes after every round."""
    clients = Scripted(list(torch.tensor(updates, dtype=torch.float32)), torch.tensor(sizes))
    everyone = torch.arange(problem.clients)
    state = algorithm.init(problem)
    for _ in range(len(updates)):
        plan = algorithm.plan(problem, state, everyone)
        report = replace(clients.run(plan), cohort=everyone)
        state, note = with_tree_events(state, *algorithm.update(problem, state, report))
        yield state, note


Split = tuple[int, frozenset[int]]
"""The round of a split, and its first part: the members of the first child."""

Thresholds = tuple[float, float, float]
"""eps1, eps2 and gamma of CFL and LayerCFL."""


def clusters_and_splits(
    algorithm: Algorithm[Any], problem: Problem, updates: Floats, sizes: Ids
) -> tuple[list[Partition], dict[Split, dict[str, float]]]:
    """What the library makes of a script: the clusters after every round, and the values of every split."""
    history = list(rounds(algorithm, problem, updates, sizes))
    clusters = [partition(state.labels.tolist()) for state, _ in history]
    return clusters, splits([note for _, note in history], history[-1][0])


def assert_same_values(
    found: dict[Split, dict[str, float]], expected: dict[Split, dict[str, float]], seed: int
) -> None:
    """The same splits were made for the same values."""
    assert found.keys() == expected.keys(), f"seed {seed}"
    for split, values in expected.items():
        assert {name: found[split][name] for name in values} == pytest.approx(values, abs=1e-6), f"seed {seed}"


def random_bipartitions(rng: np.random.Generator, p: int) -> tuple[Floats, Ids]:
    """Nested updates and sample counts for CFL and LayerCFL."""
    sizes = rng.integers(1, 50, size=rng.integers(2, 10))
    return nested_updates(rng, sizes, p, phases=3), sizes


def random_thresholds(rng: np.random.Generator) -> Thresholds:
    return rng.uniform(0.1, 1.5), rng.uniform(0.0, 2.0), rng.choice([0.0, 0.3, 0.5, 0.7])


def splits(notes: Sequence[Diagnostics], state: State) -> dict[Split, dict[str, float]]:
    """The values behind every split."""
    found = {}
    for round, note in enumerate(notes, start=1):
        for event in note.events:
            if event["kind"] == "split":
                parts = [frozenset(members_at_birth(state, child)) for child in event["into"]]
                found[round, min(parts, key=min)] = dict(event["values"])
    return found


def members_at_birth(state: State, node: int) -> set[int]:
    """All clients below a node of the tree, which nobody has joined since."""
    below = {child.id for child in state.tree if child.parent == node}
    return set[int]().union(*(members_at_birth(state, child) for child in below)) or set(state.tree[node].members)


def as_sent(updates: Floats) -> Floats:
    """The updates in the precision in which clients send them."""
    return updates.astype(np.float32).astype(np.float64)


def nested_updates(rng: np.random.Generator, sizes: Ids, p: int, phases: int) -> Floats:
    """Updates (rounds, n, p) of groups inside groups.

    In each phase the members of every group pull to two sides, so that the weighted sum of their pulls is zero. What
    they have in common fades from round to round. The sides are the groups of the next phase.
    """
    n = len(sizes)
    groups = [np.arange(n)]
    script = list[Floats]()
    noise = rng.choice([0.01, 0.05, 0.3])
    for _ in range(phases):
        pull = np.zeros((n, p))
        children = list[Ids]()
        for group in groups:
            side = np.where(rng.permutation(len(group)) < rng.integers(1, len(group) + 1), 1.0, -1.0)
            centred = side - np.average(side, weights=sizes[group])
            pull[group] = centred[:, None] * rng.normal(size=p)
            children += [group[side > 0], group[side < 0]]
        common = rng.normal(size=p) * rng.uniform(0.5, 3.0)
        fade = rng.uniform(0.1, 0.6)
        for step in range(rng.integers(2, 5)):
            script.append(fade**step * common + pull + noise * rng.normal(size=(n, p)))
        groups = [child for child in children if len(child)]
    return as_sent(np.stack(script))
