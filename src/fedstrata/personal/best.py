"""Every client chooses by cross-validation on its training data how much of a tuned model it keeps.

Each half of a client's training data judges what the other half tuned. Independent units are in one half. Between a
model and the tuned one lie models that keep a share of the tuning: Wortsman et al., "Robust fine-tuning of zero-shot
models", CVPR 2022. A client has few samples, so its losses are combined with those of the other clients: Efron and
Morris, "Data analysis using Stein's estimator and its generalizations", Journal of the American Statistical
Association 1975. The less the clients differ beyond the noise of their samples, the more all choose alike.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic.dataclasses import dataclass

from fedstrata.algorithms.keys import STRICT, PositiveInteger, Selectors, selector_tuple
from fedstrata.algorithms.tuning import MAX_EXCESS_LOSS, SHARES
from fedstrata.base.lazy_torch import torch
from fedstrata.core import Algorithm, LocalTask, Mask, Problem, Report
from fedstrata.personal.finetune import ALL, check_layers, tuned_mask
from fedstrata.personal.stage import LastModels, PersonalChoice, PersonalMethod, PersonalPlans, tuning_tasks

_FOLDS = {"A": "B", "B": "A"}
"""The halves of a client's training data, and which one judges what was tuned on it."""


@dataclass(frozen=True, config=STRICT)
class Best(PersonalMethod):
    """Best: each client keeps as much of a tuned model as cross-validation on its own training data advises.

    When the rounds are over, every client tunes its model on each half of its training data, for half of the epochs.
    On the other half it scores the model, the tuned one, and models between them. Then it tunes its model on all of its
    training data, and keeps the share with the lowest loss; somewhat more, as twice the samples tune better. Test data
    have no part in it. The server learns losses and the sizes of the halves, and chooses. The learning rate of a tuning
    falls linearly from `local.lr` to 0.

    Attributes:
        epochs: The local epochs of the tuning on all training data. Cross-validation tunes for half as many, rounded
            up.
        layers: The layers that are tuned. The others stay those of the cluster.
        prior: Whether the losses of a client are combined with those of the others ("cohort") or stand alone ("none").
    """

    source: ClassVar[str] = "fedstrata, docs/methods/personal.md"
    sends: ClassVar[str] = "the losses by which clients choose how much of a tuned model they keep"

    epochs: PositiveInteger = 4
    layers: Selectors = ALL
    prior: Literal["cohort", "none"] = "cohort"

    @property
    def no_central_noise(self) -> str:
        """Why it does not fit central noise: with the prior of a cohort, clients learn of the losses of others."""
        if self.prior == "none":
            return ""
        return (
            "prior = 'cohort': expected 'none' with privacy.kind = 'central', as how much a client keeps of a tuned "
            "model would depend on the losses of all others, without noise"
        )

    def check(self, problem: Problem, algorithm: Algorithm[Any]) -> None:
        """Refuse selectors that match no layer."""
        check_layers(problem.layout, self.layers)

    def after(self, problem: Problem, last: LastModels) -> PersonalPlans:
        """Two plans: cross-validation on halves, then tuning on everything with what was chosen."""
        tuning = _Tuning(
            # Random numbers of a tuning go by its name.
            name=f"tuning-{'-'.join(selector_tuple(self.layers))}-{self.epochs}",
            epochs=self.epochs,
            trainable=tuned_mask(problem.layout, self.layers),
            problem=problem,
            last=last,
        )
        report = yield last.plan(problem, tuning.validation_tasks(), last.round)
        losses, sizes = held_out_losses(report, tuning.name, last.clients)
        gains = gains_over_untuned(losses, in_nats=problem.classifies)
        weight = cohort_weight(gains, sizes) if self.prior == "cohort" else torch.zeros(sizes.shape[1])
        shares = [with_all_samples(SHARES[number]) for number in choose(gains, sizes, weight).tolist()]
        report = yield last.plan(problem, tuning.final_tasks(torch.tensor(shares)), last.round + 1)
        keeps = keeps_tuning(report, tuning.kept)
        nodes = last.nodes[last.candidates[:, 0]].tolist()
        return tuple(
            PersonalChoice(client, node, float(self.epochs), share)
            if keeps.get(client, False)
            else PersonalChoice(client, node, epochs=0.0, share=0.0)
            for client, node, share in zip(last.clients.tolist(), nodes, shares, strict=True)
        )


@dataclasses.dataclass(frozen=True, eq=False)
class _Tuning:
    """The tuning of all clients.

    Attributes:
        name: Its name.
        epochs: The local epochs on all training data.
        trainable: The tensors that are tuned, (l,).
        problem: What is fixed for the run.
        last: What the clients start from.
    """

    name: str
    epochs: int
    trainable: Mask
    problem: Problem
    last: LastModels

    @property
    def kept(self) -> str:
        """The name of the task that saves a share of the tuned model."""
        return f"{self.name}-kept"

    def tasks(self, fold: str) -> dict[str, LocalTask]:
        """The tasks on all training data, or on a half of them in cross-validation."""
        epochs = -(-self.epochs // 2) if fold in _FOLDS else self.epochs
        return tuning_tasks(self.problem, self.last, self.name, epochs, self.trainable, fold)

    def between(self, fold: str, shares: torch.Tensor) -> LocalTask:
        """A task after `tasks` that trains nothing: its candidates go so far from the start to the tuned model.

        Args:
            fold: The fold.
            shares: How far each candidate goes, (m, c).
        """
        *_, (end, task) = self.tasks(fold).items()
        candidates = self.last.candidates.expand(shares.shape)
        nothing = self.problem.layout.nothing
        return replace(task, trainable=nothing, continues=end, candidates=candidates, shares=shares)

    def validation_tasks(self) -> dict[str, LocalTask]:
        """Every client tunes on each half of its data, and the other half judges shares of what came out."""
        tasks = dict[str, LocalTask]()
        shares = torch.tensor(SHARES).expand(len(self.last.clients), -1)
        for fold, other in _FOLDS.items():
            tasks |= self.tasks(fold)
            tasks[_scored(self.name, fold)] = replace(self.between(fold, shares), selection_fold=other)
        return tasks

    def final_tasks(self, shares: torch.Tensor) -> dict[str, LocalTask]:
        """Every client tunes on all of its data, and keeps its share of the tuned model, (m,).

        A client that keeps nothing of it does not train, and goes on using the model that it has. So does one whose
        tuning has failed: one with which its training data have a higher loss than without.
        """
        shares = shares[:, None]
        if not bool(shares.any()):
            return {}
        with_and_without = torch.cat([torch.zeros_like(shares), shares], dim=1)
        keep = replace(self.between("all", with_and_without), save_local=self.problem.layout.everything)
        tasks = {**self.tasks("all"), self.kept: keep}
        return {
            name: replace(task, candidates=torch.where(shares > 0, task.candidates, -1)) for name, task in tasks.items()
        }


def keeps_tuning(report: Report, task: str) -> dict[int, bool]:
    """Of each client that did a task of `_Tuning.final_tasks`, whether it keeps something of the tuned model."""
    if task not in report.results:
        return {}
    result = report.results[task]
    without, kept = result.losses.nan_to_num(nan=torch.inf).unbind(dim=1)
    return dict(zip(result.updates.clients.tolist(), (kept < without).tolist(), strict=True))


def _scored(tuning: str, fold: str) -> str:
    """The name of the task that scores what was tuned on a fold."""
    return f"{tuning}-{fold}-scores"


def held_out_losses(report: Report, tuning: str, clients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What cross-validation found by the tuning of a name.

    Returns:
        The loss of each share on each half, (2, m, c), and the samples of that half, (2, m). A client that did not
        answer, or has a single sample, has no samples, and losses of 0.
    """
    losses = torch.zeros(len(_FOLDS), len(clients), len(SHARES), dtype=torch.float64)
    sizes = torch.zeros(len(_FOLDS), len(clients), dtype=torch.float64)
    for place, (fold, other) in enumerate(_FOLDS.items()):
        result = report.results[_scored(tuning, fold)]
        losses[place, torch.searchsorted(clients, result.updates.clients)] = result.losses.double()
        judged = report.results[_scored(tuning, other)]
        sizes[place, torch.searchsorted(clients, judged.updates.clients)] = judged.sizes.double()
    both = (sizes > 0).all(dim=0)
    return torch.where(both[:, None], losses, 0.0), torch.where(both, sizes, 0.0)


def gains_over_untuned(losses: torch.Tensor, *, in_nats: bool) -> torch.Tensor:
    """How much lower than that of the untuned model the loss of each option is, (2, m, c).

    A network that diverged in tuning must not hide what the others show. So no loss counts as more than
    `MAX_EXCESS_LOSS` higher than that of the untuned model; or, where the unit of the loss is any, as more than twice
    as high. One that is not finite counts as so much higher.

    Args:
        losses: The loss of each option on each half, (2, m, c). The first option is the untuned model.
        in_nats: Whether the loss is a cross-entropy. Others, such as squared errors, have a unit of their own.
    """
    untuned = losses[..., :1]
    most = torch.full_like(untuned, MAX_EXCESS_LOSS)
    if not in_nats:
        most = torch.where(untuned.isfinite(), untuned.abs(), most)
    gains = untuned - losses
    gains = torch.where(gains.isnan(), -most, gains).maximum(-most)
    return torch.where(gains.isposinf(), most, gains)


def cohort_weight(gains: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """How much the other clients count in the choice of each client, (m,) in [0, 1].

    What a client gains by an option is a mean over its samples. Its variance over the two halves tells the noise of a
    client; what the gains of clients vary beyond it is how much the clients differ. The weight is the share of the
    noise in both, as in the estimator of James and Stein.

    Args:
        gains: The gain of each option on each half, (2, m, c).
        sizes: The samples of each half, (2, m).
    """
    n = sizes.sum(dim=0)
    judged = n > 0
    if int(judged.sum()) < 3:
        return torch.zeros(len(n), dtype=torch.float64)
    gains = gains[:, judged]
    deviations = gains - gains.mean(dim=1, keepdim=True)
    # The variance of a client's mean over both halves, were its samples as many as n: v / n.
    difference = (deviations[0] - deviations[1]) / 2
    noise = float((n[judged, None] * difference.square()).mean())
    total = deviations.mean(dim=0).square().mean(dim=1)
    differ = max(float((total - noise / n[judged]).mean()), 0.0)
    weight = noise / (noise + differ * n) if noise > 0 else torch.zeros_like(n)
    return torch.where(judged, weight, 1.0)


def choose(gains: torch.Tensor, sizes: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The option of each client, (m,): the one with the largest gain, the first on a tie.

    Args:
        gains: The gain of each option on each half, (2, m, c).
        sizes: The samples of each half, (2, m).
        weight: How much the mean gain of all clients counts for each client, (m,).
    """
    n = sizes.sum(dim=0)
    judged = n > 0
    own = (gains * sizes[..., None]).sum(dim=0) / n.clamp(min=1)[:, None]
    cohort = own[judged].mean(dim=0) if bool(judged.any()) else torch.zeros(gains.shape[2], dtype=own.dtype)
    return torch.lerp(own, cohort.expand_as(own), weight[:, None].to(own.dtype)).argmax(dim=1)


def with_all_samples(share: float) -> float:
    """How much to keep of a model that was tuned on all samples, where so much was best of one tuned on half of them.

    Let tuning find what is a client's own, with a variance of s over the parameters, and noise of variance v / n with n
    samples. The best share is s / (s + v / n). With half the samples it is s / (s + 2 v / n).
    """
    return 2 * share / (1 + share)
