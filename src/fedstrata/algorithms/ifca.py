"""k models, of which every client takes the one that fits its data best.

Ghosh, Chung, Yin, Ramchandran, "An efficient framework for clustered federated learning", NeurIPS 2020,
Algorithm 1 (IFCA), with both of its averages and the initialisations of the authors' code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedstrata import core
from fedstrata.algorithms.baselines import random_groups
from fedstrata.algorithms.keys import STRICT, Auto, ModelCount, PositiveInteger
from fedstrata.algorithms.personal_layers import outside, personal_mask
from fedstrata.base.errors import ExperimentError
from fedstrata.base.lazy_torch import torch
from fedstrata.base.limits import Share


@dataclasses.dataclass(frozen=True)
class IFCAState(core.State):
    """Adds how often the models were drawn, and which of them nobody chooses.

    Attributes:
        redraws: How often the k models were drawn anew.
        rounds_unchosen: The number of rounds in a row in which nobody chose each model, (k,).
    """

    redraws: int
    rounds_unchosen: torch.Tensor


@dataclass(frozen=True, config=STRICT)
class IFCA(core.Algorithm[IFCAState]):
    """IFCA: k models, and in every round each client trains the one of lowest loss on its training data.

    The number of models must be given. All k models are sent down, and one is sent up with its number. The clients
    decide, anew in every round. An absent client stays in its cluster; a newcomer chooses like everybody else. A model
    that nobody chose stays as it is; an event says so when that lasts.

    Attributes:
        k: The number of models.
        average: What is averaged. "model" is the model after local training, weighted by samples. "gradient" is the
            gradient of all local data at the chosen model, in one step of local.lr divided by the number of all
            participants (m).
        start: The key init (a name that the method has). "random" draws k models. "restart" draws them anew until each
            is chosen by enough clients. "warm" has one body and k heads, which random groups train in the first rounds.
        share_body: Whether all layers but the head are averaged over everybody.
        min_share: The share of the participants by which each model must be chosen with init = "restart". "auto" is
            0.35 for two models and 0.4 / k for others (the authors' 0.1 for four).
        max_restarts: How often the models are drawn anew at most. Each time costs a round.
        warm_rounds: The number of rounds of the random groups, which are of equal size. The run must have more rounds.
        patience: A model that nobody chose for so many rounds in a row is reported as collapsed.
    """

    source: ClassVar[str] = "Ghosh et al., NeurIPS 2020"

    k: ModelCount = 4
    average: Literal["model", "gradient"] = "model"
    start: Literal["random", "restart", "warm"] = Field(default="random", alias="init")
    share_body: bool = False
    min_share: Share | Auto = "auto"
    max_restarts: PositiveInteger = 10
    warm_rounds: PositiveInteger = 20
    patience: PositiveInteger = 3

    def init(self, problem: core.Problem) -> IFCAState:
        """K models that nobody has chosen yet.

        Raises:
            ExperimentError: When there are to be more models than clients, the run would end before anybody may choose,
                or the server's optimiser would have to move a body that all clusters share.
        """
        if self.k > problem.clients:
            raise ExperimentError(f"algorithm.k = {self.k}: expected at most the {problem.clients} clients")
        if self.start == "warm" and problem.rounds is not None and problem.rounds <= self.warm_rounds:
            why = f"expected fewer than rounds = {problem.rounds}: until they are over, the groups are random"
            raise ExperimentError(f"algorithm.warm_rounds = {self.warm_rounds}: {why}")
        if self.share_body and problem.server is not None:
            why = "expected false with server.optimizer or server.lr, as the body belongs to no cluster"
            raise ExperimentError(f"algorithm.share_body = true: {why}")
        nobody = torch.full((problem.clients,), -1)
        state = replace(core.fixed_clusters(problem, nobody, self.k, "k_given"), models=self._draw(problem, 0))
        return core.extend_state(state, IFCAState, redraws=0, rounds_unchosen=torch.zeros(self.k, dtype=torch.int64))

    def plan(self, problem: core.Problem, state: IFCAState, cohort: torch.Tensor) -> core.Plan:
        """Everyone chooses among all models; in warm rounds everyone has the one of its random group."""
        plan = core.fedavg_plan(problem, state, cohort)
        task = plan.tasks[core.TRAIN]
        candidates = torch.arange(self.k).repeat(len(cohort), 1)
        if self.start == "warm" and state.round < self.warm_rounds:
            candidates = random_groups(problem, self.k)[cohort, None]
        training = task.training
        if self.average == "gradient":
            # One full-batch step moves by -lr times the gradient.
            training = replace(training, epochs=1, steps=0, batch=0, optimizer="sgd", momentum=0.0)
        return replace(plan, tasks={core.TRAIN: replace(task, candidates=candidates, training=training)})

    def update(
        self, problem: core.Problem, state: IFCAState, report: core.Report
    ) -> tuple[IFCAState, core.Diagnostics]:
        """Average what the clients trained inside their own choice (Options I and II)."""
        result = report.results[core.TRAIN]
        choices = result.chosen.bincount(minlength=self.k)  # |S_j|
        if self._must_restart(state, choices):
            return self._restart(problem, state, choices)
        averaged = result
        if self.average == "gradient":
            result = replace(result, sizes=torch.ones_like(result.sizes))
            averaged = self._divided_by_all(problem, result, choices)
        labels = self.assign(problem, state, report)
        parents = torch.arange(self.k)
        moved, diagnostics = core.aggregate(
            problem, state, replace(report, results={core.TRAIN: averaged}), labels, parents
        )
        if self.share_body:
            moved = replace(moved, models=self._with_common_body(problem, state, moved, result))
        answered = len(result.chosen) > 0
        rounds_unchosen = torch.where(choices > 0, 0, state.rounds_unchosen + answered)
        collapse = self._collapse(state, rounds_unchosen)
        metrics = (*diagnostics.metrics, core.Metric("chosen", float((choices > 0).sum())))
        return replace(moved, rounds_unchosen=rounds_unchosen), core.Diagnostics(collapse, metrics)

    def assign(self, problem: core.Problem, state: core.State, report: core.Report) -> torch.Tensor:
        """Everyone that answered belongs to the model that it chose."""
        result = report.results[core.TRAIN]
        return state.labels.index_copy(0, result.updates.clients, result.chosen)

    def _draw(self, problem: core.Problem, redraws: int) -> torch.Tensor:
        """K independent models, (k, p); with one body where that is wanted."""
        models = torch.stack([problem.fresh(redraws * self.k + model) for model in range(self.k)])
        if self.share_body or self.start == "warm":
            body = self._body(problem)
            models[:, body] = models[0, body]
        return models

    def _body(self, problem: core.Problem) -> torch.Tensor:
        """The columns of all layers but the head."""
        return problem.layout.columns(outside(personal_mask(problem.layout, "head")))

    def _must_restart(self, state: IFCAState, choices: torch.Tensor) -> bool:
        """Whether some model was chosen by too few clients at the very start, by the choices of each model (k,)."""
        usual = 0.35 if self.k == 2 else 0.4 / self.k
        min_share = usual if isinstance(self.min_share, str) else self.min_share
        allowed = self.start == "restart" and state.redraws < self.max_restarts and bool((state.labels < 0).all())
        return allowed and bool((choices.double() / choices.sum() < min_share).any())

    def _restart(
        self, problem: core.Problem, state: IFCAState, choices: torch.Tensor
    ) -> tuple[IFCAState, core.Diagnostics]:
        """Draw the models anew; the round is over."""
        redraws = state.redraws + 1
        models = self._draw(problem, redraws)
        event = {"kind": "restart", "chosen": choices.tolist()}
        return replace(state, models=models, round=state.round + 1, redraws=redraws), core.Diagnostics((event,))

    def _divided_by_all(self, problem: core.Problem, result: core.Result, choices: torch.Tensor) -> core.Result:
        """Updates whose mean over the |S_j| clients of a model is their sum divided by all m participants."""
        updates = result.updates
        scaled = updates.values * (choices[result.chosen] / len(result.chosen))[:, None]
        buffers = problem.layout.columns(tuple(tensor.kind == "buffer" for tensor in problem.layout.tensors))
        scaled[:, buffers] = updates.values[:, buffers]  # statistics are no gradients
        return replace(result, updates=core.Rows(updates.clients, scaled))

    def _with_common_body(
        self, problem: core.Problem, before: core.State, after: core.State, result: core.Result
    ) -> torch.Tensor:
        """The models (k, p) whose body has moved by the mean of all clients."""
        labels = torch.zeros_like(result.chosen)
        everyone = torch.zeros(problem.clients, dtype=torch.int64)
        mean, enough = problem.aggregation.means(
            result.updates, result.sizes, labels, 1, everyone, purpose="body", round=after.round
        )
        if not bool(enough):
            return after.models
        body = self._body(problem)
        models = after.models.clone()
        models[:, body] = before.models[:, body] + mean[:, body]
        return models

    def _collapse(self, state: IFCAState, rounds_unchosen: torch.Tensor) -> tuple[Mapping[str, Any], ...]:
        """An event for the models that nobody has chosen for so many rounds (k,), in the round when they reach it."""
        reached = (rounds_unchosen == self.patience) & (state.rounds_unchosen < rounds_unchosen)
        nodes = state.nodes[reached].tolist()
        return ({"kind": "collapse", "nodes": nodes, "rounds": self.patience},) if nodes else ()
