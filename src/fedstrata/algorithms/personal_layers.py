"""Personal layers: tensors that stay on the client, on top of or below those that are shared."""

from __future__ import annotations

from dataclasses import replace

from fedstrata import core
from fedstrata.algorithms.keys import selector_tuple
from fedstrata.base.lazy_torch import torch

Personal = str | list[str]
"""Selectors of the layers that stay on the client. An empty list is none."""


def personal_mask(layout: core.Layout, selectors: Personal) -> core.Mask:
    """The personal tensors, with the norm and buffer tensors of their layers, (l,).

    Raises:
        LayoutError: When a selector matches nothing.
    """
    return layout.whole(layout.select(*selector_tuple(selectors)))


def outside(mask: core.Mask) -> core.Mask:
    """The tensors outside a mask, (l,)."""
    return tuple(not inside for inside in mask)


def personal_plan(problem: core.Problem, state: core.State, cohort: torch.Tensor, personal: core.Mask) -> core.Plan:
    """Everyone trains everything; the personal tensors come from the client's store, stay there and are not sent.

    A client without any starts them from the received model, where they are as they were in the first round.
    """
    plan = core.fedavg_plan(problem, state, cohort)
    task = replace(plan.tasks[core.TRAIN], load_local=personal, save_local=personal, upload=outside(personal))
    return replace(plan, tasks={core.TRAIN: task})


def personal_evaluation(
    problem: core.Problem, state: core.State, clients: torch.Tensor, personal: core.Mask
) -> dict[str, core.Evaluation]:
    """Everyone uses its own personal tensors in the model of its cluster."""
    evaluation = core.cluster_evaluation(problem, state, clients)[core.CLIENT]
    return {core.CLIENT: replace(evaluation, load_local=personal)}
