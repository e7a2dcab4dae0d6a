"""k models, of which every client takes the one that fits its data best.

Ghosh, Chung, Yin, Ramchandran, "An efficient framework for clustered federated learning", NeurIPS 2020,
Algorithm 1 (IFCA), with both of its averages and the initialisations of the authors' code.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedstrata.algorithms.parts.keys import STRICT, Auto, Count, Share
from fedstrata.algorithms.parts.personal import others, personal_mask
from fedstrata.algorithms.random_groups import draw_groups
from fedstrata.core import (
    Diagnostics,
    Evaluation,
    Plan,
    Problem,
    Report,
    Rows,
    State,
    aggregate,
    cluster_evaluation,
    fedavg_plan,
    fixed_clusters,
)
from fedstrata.errors import ExperimentError
from fedstrata.lazy_torch import torch


@dataclasses.dataclass(frozen=True)
class Chosen(State):
    """Adds how the start went.

    Attributes:
        redraws: how often the k models were drawn anew.
        idle: rounds in a row in which nobody chose each model, (k,).
    """

    redraws: int
    idle: torch.Tensor


@dataclass(frozen=True, config=STRICT)
class IFCA:
    """IFCA: k models, and in every round each client trains the one of lowest loss on its training data.

    Needs to be told k; sends all k models down, and one up with its number; the clients decide, anew in every round.
    Whoever is absent stays where it was, whoever joins chooses like everybody else, and a model that nobody chose
    stays as it is: an event says so when that lasts (a collapsed start).

    Attributes:
        k: number of models.
        average: what is averaged: model, after local training, weighted by samples; or gradient, of all local data
            at the chosen model, in one step of local.lr divided by the number of all participants (m).
        start: the key init (a name that the method has): random draws k models; restart draws them anew until each
            is chosen by enough; warm has one body and k heads, which random groups train in the first rounds.
        share_body: whether all layers but the head are averaged over everybody.
        least: share of the participants by which init = restart wants each model chosen; auto is 0.35 for two
            models and 0.4 / k for others (the authors' 0.1 for four).
        restarts: most redraws; each one costs a round.
        warm_rounds: rounds of the random groups, which are of equal size; fewer than the run has.
        patience: rounds in a row without anybody after which a model is reported as collapsed.
    """

    source: ClassVar[str] = "Ghosh et al., NeurIPS 2020"

    k: Count = 4
    average: Literal["model", "gradient"] = "model"
    start: Literal["random", "restart", "warm"] = Field(default="random", alias="init")
    share_body: bool = False
    least: Share | Auto = "auto"
    restarts: Count = 10
    warm_rounds: Count = 20
    patience: Count = 3

    def init(self, problem: Problem) -> Chosen:
        """K models that nobody has chosen yet.

        Raises:
            ExperimentError: when the run would end before anybody may choose.
        """
        if self.start == "warm" and problem.rounds is not None and problem.rounds <= self.warm_rounds:
            why = f"expected fewer than rounds = {problem.rounds}: until they are over, the groups are random"
            raise ExperimentError(f"algorithm.warm_rounds = {self.warm_rounds}: {why}")
        unchosen = torch.full((problem.clients,), -1)
        state = replace(fixed_clusters(problem, unchosen, self.k, "k was given"), models=self._draw(problem, 0))
        return Chosen(**vars(state), redraws=0, idle=torch.zeros(self.k, dtype=torch.int64))

    def plan(self, problem: Problem, state: Chosen, cohort: torch.Tensor) -> Plan:
        """Everyone is offered all models; in warm rounds, the one of its random group."""
        plan = fedavg_plan(problem, state, cohort)
        (task,) = plan.tasks
        offers = torch.arange(self.k).repeat(len(cohort), 1)
        if self.start == "warm" and state.round < self.warm_rounds:
            offers = draw_groups(problem, self.k)[cohort, None]
        # One full-batch step moves by -lr times the gradient.
        step = replace(task.training, epochs=1, batch=0, optimizer="sgd", momentum=0.0)
        training = step if self.average == "gradient" else task.training
        return replace(plan, tasks=(replace(task, candidates=offers, training=training),))

    def update(self, problem: Problem, state: Chosen, report: Report) -> tuple[Chosen, Diagnostics]:
        """Average what the clients trained inside their own choice."""
        result, labels = report.results[0], self.place(problem, state, report)
        sizes, m = result.chosen.bincount(minlength=self.k), len(result.chosen)  # |S_j|
        if self._lopsided(state, sizes):
            again = state.redraws + 1
            models = self._draw(problem, again)
            restart = {"kind": "restart", "chosen": sizes.tolist()}
            return replace(state, models=models, round=state.round + 1, redraws=again), Diagnostics((restart,))
        together = result
        if self.average == "gradient":
            together = replace(result, sizes=torch.ones_like(result.sizes))
            scaled = result.updates.values * (sizes[result.chosen] / m)[:, None]  # the mean of |S_j| becomes a sum / m
            statistics = problem.layout.columns(tuple(slot.kind == "buffer" for slot in problem.layout.tensors))
            scaled[:, statistics] = result.updates.values[:, statistics]
            result = replace(together, updates=Rows(result.updates.clients, scaled))
        parents = torch.arange(self.k)
        moved, diagnostics = aggregate(problem, state, replace(report, results=(result,)), labels, parents)
        if self.share_body:
            everyone = problem.aggregation(together.updates, together.sizes, torch.zeros_like(result.chosen), 1)
            body, models = self._body(problem), moved.models.clone()
            models[:, body] = state.models[:, body] + everyone[:, body]
            moved = replace(moved, models=models)
        idle = torch.where(sizes > 0, 0, state.idle + (m > 0))
        left = ((idle == self.patience) & (state.idle < idle)).nonzero().flatten()
        collapse = {"kind": "collapse", "nodes": state.nodes[left].tolist(), "rounds": self.patience}
        figures = {**diagnostics.metrics, "chosen": float((sizes > 0).sum())}
        return replace(moved, idle=idle), Diagnostics((collapse,) * bool(len(left)), figures)

    def place(self, problem: Problem, state: State, report: Report) -> torch.Tensor:
        """Everyone that answered belongs to the model that it chose."""
        result = report.results[0]
        return state.labels.index_copy(0, result.updates.clients, result.chosen)

    def evaluations(self, problem: Problem, state: State, clients: torch.Tensor) -> tuple[Evaluation, ...]:
        """Everyone uses the model that it chose last."""
        return cluster_evaluation(problem, state, clients)

    def _draw(self, problem: Problem, redraws: int) -> torch.Tensor:
        """K independent models, (k, p); their bodies are one where that is asked."""
        models = torch.stack([problem.fresh(redraws * self.k + model) for model in range(self.k)])
        if self.share_body or self.start == "warm":
            body = self._body(problem)
            models[:, body] = models[0, body]
        return models

    def _body(self, problem: Problem) -> torch.Tensor:
        return problem.layout.columns(others(personal_mask(problem.layout, "head")))

    def _lopsided(self, state: Chosen, sizes: torch.Tensor) -> bool:
        """Whether some model was chosen by too few at the very start."""
        usual = 0.35 if self.k == 2 else 0.4 / self.k
        least = usual if isinstance(self.least, str) else self.least
        may = self.start == "restart" and state.redraws < self.restarts and bool((state.labels < 0).all())
        return may and bool((sizes < least * sizes.sum()).any())
