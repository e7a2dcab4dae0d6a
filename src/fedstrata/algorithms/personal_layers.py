"""Personal layers: tensors that stay on the client, on top of or below those that are shared."""

from __future__ import annotations

from dataclasses import replace

from fedstrata.algorithms.keys import selector_tuple
from fedstrata.base.lazy_torch import torch
from fedstrata.core import (
    CLIENT,
    TRAIN,
    Evaluation,
    Layout,
    Mask,
    Plan,
    Problem,
    State,
    cluster_evaluation,
    fedavg_plan,
)

Personal = str | list[str]
"""Selectors of the layers that stay on the client. An empty list is none."""


def personal_mask(layout: Layout, selectors: Personal) -> Mask:
    """The personal tensors, with the norm and buffer tensors of their layers, (l,).

    Raises:
        LayoutError: When a selector matches nothing.
    """
    return layout.whole(layout.select(*selector_tuple(selectors)))


def outside(mask: Mask) -> Mask:
    """The tensors outside a mask, (l,)."""
    return tuple(not inside for inside in mask)


def personal_plan(problem: Problem, state: State, cohort: torch.Tensor, personal: Mask) -> Plan:
    """Everyone trains everything; the personal tensors come from the client's store, stay there and are not sent.

    A client without any starts them from the received model, where they are as they were in the first round.
    """
    plan = fedavg_plan(problem, state, cohort)
    task = replace(plan.tasks[TRAIN], load_local=personal, save_local=personal, upload=outside(personal))
    return replace(plan, tasks={TRAIN: task})


def personal_evaluation(problem: Problem, state: State, clients: torch.Tensor, personal: Mask) -> dict[str, Evaluation]:
    """Everyone uses its own personal tensors in the model of its cluster."""
    evaluation = cluster_evaluation(problem, state, clients)[CLIENT]
    return {CLIENT: replace(evaluation, load_local=personal)}
