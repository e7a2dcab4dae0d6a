"""Clients without data: each is pulled towards a point of its own, so all hangs on who it is, and nothing on its id.

Four groups of three, two by two alike. Local training is gradient descent on half the squared distance to the point.
"""

from dataclasses import replace
from typing import Any

import torch

from fedstrata.core import (
    FOLDS,
    SINGULAR_VECTORS,
    Algorithm,
    Layout,
    LocalTask,
    LocalTraining,
    Mask,
    Plan,
    Problem,
    Report,
    Result,
    Rows,
    RuleAggregation,
    State,
    TensorSpec,
    make_pending,
)

GROUPS, SIZE, CLASSES, FEATURES = 4, 3, 4, 16
LAYOUT = Layout(
    (
        TensorSpec("conv.weight", "conv", "conv", (8,)),
        TensorSpec("conv.bias", "conv", "conv", (2,)),
        TensorSpec("fc.weight", "fc", "linear", (CLASSES, 6)),
        TensorSpec("fc.bias", "fc", "linear", (CLASSES,)),
    )
)
SHARES = {"all": 1, "A": 2, "B": 2, "A1": 4, "A2": 4, "B1": 4, "B2": 4}
"""How many parts of one kind a client's data make."""

AXES = torch.linalg.qr(torch.randn(LAYOUT.p, 2, generator=torch.Generator().manual_seed(0)))[0].T
"""Directions in which the groups differ, (2, p)."""


def pulled_problem(identities: torch.Tensor) -> Problem:
    """The problem whose client j is the one of identity ``identities[j]``."""
    return Problem(
        layout=LAYOUT,
        fresh=_fresh,
        clients=len(identities),
        aggregation=RuleAggregation(),
        training=LocalTraining(epochs=1, batch=0, lr=0.5),
        truth=identities // SIZE,
        features=FEATURES,
        public=torch.randn(64, 6, generator=torch.Generator().manual_seed(99)),
        predict=lambda models, inputs: torch.stack([_predict(model, inputs) for model in models]),
    )


class Pulled:
    """The clients of such a problem; the reserved id n is pulled towards the middle of all."""

    def __init__(self, identities: torch.Tensor) -> None:
        n, draw = GROUPS * SIZE, torch.Generator().manual_seed(5)
        group, own = torch.arange(n) // SIZE, 0.01 * torch.randn(3, n, LAYOUT.p, generator=draw)
        pattern = torch.stack([4.0 - 8 * (group // 2), 2.0 - 4 * (group % 2)], dim=1)
        points = pattern @ AXES + own[0]
        spans = torch.eye(FEATURES)[: GROUPS * SINGULAR_VECTORS].view(GROUPS, -1)[group]
        told = torch.zeros(n, CLASSES * spans.shape[1])  # of one class; nobody has the others
        told[:, : spans.shape[1]] = spans + 0.01 * torch.randn(spans.shape, generator=draw)
        facts = {"classes": torch.ones(n, 1), "entropy": (1.0 + group // 2)[:, None], "subspaces": told}
        self._facts = {name: rows[identities] for name, rows in facts.items()}
        self._sizes = torch.cat([128 * (1 + identities % SIZE), torch.tensor([256 * n])])
        quarters = 0.01 * torch.randn(4, n, LAYOUT.p, generator=draw)
        own = torch.cat([own, own[1:2] + quarters[:2], own[2:] + quarters[2:]])
        self._points = {
            part: torch.cat([rows[identities], rows.mean(dim=0)[None]])
            for part, rows in zip(FOLDS, [points, *(points + each for each in own[1:])], strict=True)
        }
        self._kept, self._has = torch.zeros(n + 1, LAYOUT.p), torch.zeros(n + 1, LAYOUT.p, dtype=torch.bool)

    def run(self, plan: Plan) -> Report:
        """Do the work; nothing is scored."""
        asked = {name: plan.cohort[who] for name, who in plan.client_stats.items() if bool(who.any())}
        facts = {name: Rows(clients, self._facts[name][clients]) for name, clients in asked.items()}
        results = {name: self._work(plan, task) for name, task in plan.tasks.items()}
        return Report(results, client_stats=facts)

    def _work(self, plan: Plan, task: LocalTask) -> Result:
        """What everyone that has something to do makes of one task."""
        busy = (task.candidates >= 0).any(dim=1)
        clients, offers = plan.cohort[busy], task.candidates[busy]
        keep, store, train, upload, values = map(
            _over, (task.load_local, task.save_local, task.trainable, task.upload, task.upload_values)
        )
        own = (keep & self._has[clients])[:, None]
        starts = torch.where(own, self._kept[clients][:, None], plan.models[offers.clamp(min=0)])  # (m, c, p)
        losses = (starts - self._points["all"][clients][:, None]).square().sum(dim=2) / 2
        chosen, rows = torch.where(offers >= 0, losses, torch.inf).argmin(dim=1), torch.arange(len(clients))
        start, given = starts[rows, chosen], offers[rows, chosen]
        end, received = start, plan.models[given]
        for _ in range(task.training.epochs):
            gradient = (end - self._points[task.fold][clients]) + task.prox_weight * (end - received)
            end = torch.where(train, end - task.training.lr * gradient, end)
        self._kept[clients] = torch.where(store, end, self._kept[clients])
        self._has[clients] |= store
        updates = torch.where(upload, end - torch.where(values, 0.0, start), 0.0)
        several = (offers >= 0).sum(dim=1, keepdim=True) > 1
        told = torch.where((offers >= 0) & several, losses, torch.nan)
        sizes = self._sizes[clients] // SHARES[task.fold]
        return Result(
            Rows(clients, updates),
            given,
            sizes if task.max_samples is None else sizes.minimum(task.max_samples[busy]),
            told,
        )


def _fresh(start: int) -> torch.Tensor:
    """The first model is in the middle between all groups; others are anywhere in the plane that the groups span."""
    place = 4 * torch.randn(2, generator=torch.Generator().manual_seed(start)) * (start > 0)
    model: torch.Tensor = place @ AXES
    return model


def _over(mask: Mask) -> torch.Tensor:
    """A mask over tensors as a mask over columns, (p,) bool; of no tensor if it is ()."""
    columns = torch.zeros(LAYOUT.p, dtype=torch.bool)
    columns[LAYOUT.columns(mask or LAYOUT.nothing)] = True
    return columns


def _predict(model: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    weight, bias = (model[span] for span in LAYOUT.spans[2:])
    probabilities: torch.Tensor = (inputs @ weight.view(CLASSES, 6).T + bias).softmax(dim=1)
    return probabilities


def pulled(algorithm: Algorithm[Any], identities: torch.Tensor) -> list[State]:
    """The states of thirteen rounds in which some clients are away and one joins, by identity, whatever its id."""
    problem, clients, everyone = pulled_problem(identities), Pulled(identities), torch.arange(len(identities))
    state: State = make_pending(algorithm.init(problem), everyone[identities == 5].tolist(), node=0)
    absences, states = {1: [7], 5: [2, 3, 10]}, list[State]()
    for round in range(1, 14):
        plan = algorithm.plan(problem, state, everyone[identities != 5] if round < 8 else everyone)
        away = everyone[torch.isin(identities, torch.tensor(absences.get(round, [])))]
        answer = clients.run(plan.only(~torch.isin(plan.cohort, away)))
        state, _ = algorithm.update(problem, state, replace(answer, cohort=plan.cohort))
        states.append(state)
    return states
