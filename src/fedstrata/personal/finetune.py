"""Every client tunes its cluster's model on its own data when the rounds are over.

Wang, Mathews, Kiddon, Eichner, Beaufays, Ramage, "Federated evaluation of on-device personalization",
arXiv 1910.10252, 2019.

It follows any algorithm. `fedstrata.algorithms.finetune` is FedAvg with such a tuning in every round.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from pydantic.dataclasses import dataclass

from fedstrata.algorithms.keys import STRICT, PositiveInteger, Selectors, selector_tuple
from fedstrata.base.errors import ExperimentError, LayoutError
from fedstrata.core import Algorithm, Layout, Mask, Problem
from fedstrata.personal.stage import LastModels, PersonalChoice, PersonalMethod, PersonalPlans, tuning_tasks

ALL = "all"
"""The selector of all layers. It stands for every tensor: those of normalisation layers too."""


@dataclass(frozen=True, config=STRICT)
class FineTuned(PersonalMethod):
    """Fine-tuning: some epochs on the client's own data, when the rounds are over.

    The learning rate falls linearly from `local.lr` to 0.

    Attributes:
        epochs: The local epochs.
        layers: The layers that are tuned. The others stay those of the cluster.
    """

    source: ClassVar[str] = "Wang et al., arXiv 1910.10252, 2019"
    sends: ClassVar[str] = ""

    epochs: PositiveInteger = 10
    layers: Selectors = ALL

    def check(self, problem: Problem, algorithm: Algorithm[Any]) -> None:
        """Refuse selectors that match no layer."""
        check_layers(problem.layout, self.layers)

    def after(self, problem: Problem, last: LastModels) -> PersonalPlans:
        """One plan, in which every client tunes and saves its model.

        A client whose tuning diverges goes on with the model that it has, and with the layers of its own in it.
        """
        tasks = tuning_tasks(problem, last, "tuning", self.epochs, tuned_mask(problem.layout, self.layers))
        *_, end = tasks
        tasks[end] = replace(tasks[end], save_local=problem.layout.everything, save_if_finite=True)
        report = yield last.plan(problem, tasks, last.round)
        result = report.results[end]
        starts = last.nodes[result.chosen].tolist()
        clients = result.updates.clients.tolist()
        return tuple(
            PersonalChoice(client, start, float(self.epochs), 1.0)
            for client, start in zip(clients, starts, strict=True)
        )


def tuned_mask(layout: Layout, selectors: Selectors) -> Mask:
    """The tensors of some layers, with the norm and buffer tensors that follow them, (l,)."""
    names = selector_tuple(selectors)
    return layout.everything if ALL in names else layout.whole(layout.select(*names))


def check_layers(layout: Layout, selectors: Selectors) -> None:
    """Refuse selectors that match no layer.

    Raises:
        ExperimentError: For the first of them.
    """
    try:
        tuned_mask(layout, selectors)
    except LayoutError as error:
        raise ExperimentError(f"personal.layers = {error}") from None
