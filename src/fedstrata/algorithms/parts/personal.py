"""What the algorithms have in common whose clients keep some layers to themselves."""

from __future__ import annotations

from dataclasses import replace

from fedstrata.algorithms.parts.keys import names
from fedstrata.core import Evaluation, Layout, Mask, Plan, Problem, State, cluster_evaluation, fedavg_plan
from fedstrata.lazy_torch import torch

Personal = str | list[str]
"""Selectors of the layers that stay on the client; an empty list is none."""


def personal_mask(layout: Layout, selectors: Personal) -> Mask:
    """The personal tensors, with the norm and buffer tensors of their layers.

    Raises:
        LayoutError: when a selector matches nothing.
    """
    return layout.whole(layout.select(*names(selectors)))


def others(mask: Mask) -> Mask:
    """The tensors outside a mask."""
    return tuple(not inside for inside in mask)


def keep_local(problem: Problem, state: State, cohort: torch.Tensor, personal: Mask) -> Plan:
    """Everyone trains everything; the personal tensors come from the client's store, stay there and are not sent.

    A client without any starts them from the received model, where they are as they were in the first round.
    """
    plan = fedavg_plan(problem, state, cohort)
    task = replace(plan.tasks[0], load_local=personal, save_local=personal, upload=others(personal))
    return replace(plan, tasks=(task,))


def serve_personal(problem: Problem, state: State, clients: torch.Tensor, personal: Mask) -> tuple[Evaluation, ...]:
    """Everyone uses its own personal tensors on top of the model of its cluster."""
    return tuple(
        replace(evaluation, name="personal", load_local=personal)
        for evaluation in cluster_evaluation(problem, state, clients)
    )
