"""Forty clients, all that a plan can ask of them, and networks that end their process."""

import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from small import dataset, fit_of, network, partition_of, plan_of
from torch import Tensor, nn

from fedstrata.core import Evaluation, Layout, LocalTraining, Plan
from fedstrata.engine import Loop, Parallel, SimulationSpec
from fedstrata.models import layout_of, row_of
from turns import same

CLIENTS = 40
SIZES = [1 + client % 7 for client in range(CLIENTS)]
EVERYONE = list(range(CLIENTS))


def site_of(make: Callable[[], nn.Module] = network) -> SimulationSpec:
    """Forty clients, of whom some have a single sample, of which one half is nothing."""
    turns = [client % 4 for client in range(CLIENTS)]
    return SimulationSpec(
        make, dataset(sum(SIZES) + 4 * CLIENTS).channels_last(), partition_of(SIZES, turns=turns), 0, {3: (2, 30)}
    )


SITE = site_of()
LAYOUT: Layout = layout_of(network())
START = row_of(network(), LAYOUT)
MODELS = START + 0.05 * torch.randn(3, LAYOUT.p, generator=torch.Generator().manual_seed(0))


def offers(*rows: list[int], of: int) -> list[list[int]]:
    return [rows[row % len(rows)] for row in range(of)]


def rich(round: int = 1, cohort: list[int] = EVERYONE) -> Plan:
    """All that a plan can ask: choices, parts, personal tensors, facts, and scores in another order."""
    m, head = len(cohort), LAYOUT.select("fc")
    choice = fit_of(LAYOUT, offers([0, 1, 2], [2, -1, 1], [-1, -1, -1], of=m), save_local=head)
    half = fit_of(LAYOUT, offers([1], of=m), fold="A", selection_fold="all", upload=head, stream="other")
    few = replace(half, fold="all", max_samples=torch.tensor([1 + client % 3 for client in cohort]))
    own = fit_of(
        LAYOUT,
        offers([0], of=m),
        load_local=head,
        save_local=head,
        prox_weight=0.1,
        upload_values=head,
        training=LocalTraining(momentum=0.9),
    )
    ids = torch.tensor(EVERYONE).roll(5)
    evaluations = {
        "client": Evaluation(ids, torch.tensor(offers([0], [0], of=CLIENTS)), LAYOUT.nothing),
        "own": Evaluation(ids[:9], torch.tensor(offers([0, 2], of=9)), head),
    }
    ask = {
        "entropy": torch.tensor([client % 3 == 0 for client in cohort], dtype=torch.bool),
        "classes": torch.tensor([client < 2 for client in cohort], dtype=torch.bool),
        "subspaces": torch.zeros(m, dtype=torch.bool),
    }
    return replace(
        plan_of(MODELS, choice, half, few, own, round=round, cohort=cohort), evaluations=evaluations, client_stats=ask
    )


def plain(models: Tensor = MODELS) -> Plan:
    return plan_of(models, fit_of(LAYOUT, offers([0], of=CLIENTS)))


def nobody() -> Plan:
    plan = rich()
    return plan.only(torch.zeros(CLIENTS, dtype=torch.bool))


def continued() -> Plan:
    """Two epochs in two tasks, and models between the received one and the end, of which the best one is kept."""
    first = fit_of(LAYOUT, offers([0], [1], of=CLIENTS), fold="A")
    second = replace(first, continues="train", stream="second")
    grid = replace(
        fit_of(LAYOUT, offers([0, 1, 0], of=CLIENTS), trainable=LAYOUT.nothing, save_local=LAYOUT.everything),
        continues="second",
        shares=torch.tensor([[0.0, 0.25, 1.0]]).expand(CLIENTS, -1),
        selection_fold="B",
    )
    return plan_of(MODELS, first, second, grid)


PLANS: dict[str, list[Plan]] = {
    "all that can be asked": [rich(), rich(2, [0, 1, 2, 15, 16, 17, 33]), rich(3, [39, 4, 20])],
    "all data": [rich(4, [CLIENTS])],
    "nobody": [nobody(), replace(nobody(), evaluations={})],
    "continued tasks": [continued()],
}
"""What engines are compared by: the plans of some rounds."""


def check(engine: Parallel, plans: Sequence[Plan]) -> None:
    """An engine is the loop in every bit, of what it reports and of what it leaves on the devices."""
    loop = Loop.at(SITE)
    for plan in plans:
        expected, found = loop.run(plan), engine.run(plan)
        assert same(expected, found) and list(expected.client_stats) == list(found.client_stats)
        assert same(loop.store.tensors(), engine.store.tensors())
    inputs = SITE.dataset.prepare(torch.arange(5))
    assert torch.equal(loop.outputs(MODELS, inputs), engine.outputs(MODELS, inputs))


class Deadly(nn.Module):
    """A network that does something to its process when it is first used for training there.

    Args:
        deed: what.
        once: a file that says it was done; without it, it is done every time.
    """

    def __init__(self, deed: Callable[[], None], once: Path | None) -> None:
        super().__init__()
        self.network, self._deed, self._once = network(), deed, once

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training and not (self._once and self._once.exists()):
            if self._once:
                self._once.touch()
            self._deed()
        logits: Tensor = self.network(inputs)
        return logits


def deadly_site(deed: Callable[[], None], once: Path | None = None) -> SimulationSpec:
    return site_of(partial(Deadly, deed, once))


def suicide() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail(error: Exception) -> None:
    raise error


@contextmanager
def line() -> Iterator[tuple[Connection, Connection]]:
    one, other = (Connection(end.detach()) for end in socket.socketpair())
    with one, other:
        yield one, other
