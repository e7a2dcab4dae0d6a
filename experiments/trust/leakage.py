"""What others can learn from what a client sends, or from the models that it helps to train: the attacks of leaks.py.

Membership: Yeom, Giacomelli, Fredrikson, Jha, "Privacy risk in machine learning", CSF 2018 (loss threshold); Carlini,
Chien, Nasr, Song, Terzis, Tramer, "Membership inference attacks from first principles", IEEE S&P 2022 (LiRA, offline).
Inversion: Zhu, Liu, Han, "Deep leakage from gradients", NeurIPS 2019; Zhao, Mopuri, Bilen, "iDLG", 2020; Geiping,
Bauermeister, Droege, Moeller, "Inverting gradients", NeurIPS 2020.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment
from scipy.stats import norm
from sklearn.linear_model import RidgeCV
from sklearn.metrics import r2_score, roc_auc_score, roc_curve
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.func import functional_call

LOW = 0.01
"""The rate of false positives at which true positives are counted."""

MINIMUM_DEVIATION = 1e-3
"""Shadow models that agree more closely than this say nothing about how much a target varies."""

PENALTIES = tuple(10.0**power for power in range(-2, 7))
"""The ridge penalties among which leave-one-out error chooses."""


@dataclass(frozen=True)
class Detection:
    """How well a score tells members from others.

    Attributes:
        auc: The probability that a member has a higher score than a sample that is none; 0.5 is chance.
        tpr: The share of the members that are found where 1 % of the others are taken for members; 0.01 is chance.
    """

    auc: float
    tpr: float


def detection(members: ArrayLike, others: ArrayLike) -> Detection:
    """How well scores, which are higher for members, tell members from others.

    Args:
        members: The scores of samples that were trained on, (a,).
        others: The scores of samples that were not, (b,).
    """
    scores = np.concatenate([np.asarray(members), np.asarray(others)])
    truth = np.concatenate([np.ones(len(np.asarray(members))), np.zeros(len(np.asarray(others)))])
    false, true, _ = roc_curve(truth, scores)
    return Detection(float(roc_auc_score(truth, scores)), float(true[false <= LOW].max()))


def scaled_confidence(logits: Tensor, labels: Tensor) -> NDArray[np.float64]:
    """The log odds of the right class, (s,): log(p / (1 - p)), without rounding where p is near 1 (LiRA, Eq. 6).

    Args:
        logits: The outputs of a network, (s, classes).
        labels: The right classes, (s,).
    """
    outputs = logits.double()
    right = outputs.gather(1, labels[:, None])[:, 0]
    others = outputs.scatter(1, labels[:, None], -math.inf).logsumexp(dim=1)
    odds: NDArray[np.float64] = (right - others).numpy()
    return odds


def likelihood_scores(target: NDArray[np.float64], shadows: NDArray[np.float64]) -> NDArray[np.float64]:
    """The offline score of LiRA: how far a confidence is above those of models without the sample, (s,) in [0, 1].

    The deviation is one for all samples, the choice of the paper where there are few shadow models.

    Args:
        target: The scaled confidences of the attacked model, (s,).
        shadows: Those of the shadow models, none of which was trained on the sample, (shadows, s).
    """
    deviation = max(float(shadows.std(axis=0, ddof=1).mean()), MINIMUM_DEVIATION)
    scores: NDArray[np.float64] = norm.cdf(target, loc=shadows.mean(axis=0), scale=deviation)
    return scores


def shares_from_bias(update: Tensor, steps: Tensor, lr: float) -> NDArray[np.float64]:
    """The class shares of each client, by the update of the last bias alone, (m, classes).

    A step of SGD on the cross-entropy moves the bias of class c by lr (share of c - mean probability of c). The shares
    follow, where the mean probability of each class is taken to be the same.

    Args:
        update: The updates of the bias, (m, classes).
        steps: The number of steps of each client, (m,).
        lr: The learning rate.
    """
    shares = (update.double() / (lr * steps.double()[:, None]) + 1 / update.shape[1]).clamp(min=0)
    estimate: NDArray[np.float64] = (shares / shares.sum(dim=1, keepdim=True).clamp(min=1e-12)).numpy()
    return estimate


def shares_by_regression(
    known: NDArray[np.float64], shares: NDArray[np.float64], seen: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The class shares of some clients by what is seen of them, (m, classes), learned from clients of known shares.

    Args:
        known: What is seen of clients of known shares, (a, q).
        shares: Their shares, (a, classes).
        seen: What is seen of the clients in question, (m, q).
    """
    model = make_pipeline(StandardScaler(), RidgeCV(PENALTIES))
    estimate: NDArray[np.float64] = model.fit(known, shares).predict(seen)
    return estimate


def agreement(estimate: NDArray[np.float64], truth: NDArray[np.float64]) -> dict[str, float]:
    """How well shares (m, classes) were estimated: correlation `r`, and share of the variance that is explained `r2`.

    An estimate that is the same for all has no correlation; its `r` is 0.
    """
    constant = np.ptp(estimate) < 1e-12
    r = 0.0 if constant else float(np.corrcoef(estimate.ravel(), truth.ravel())[0, 1])
    return {"r": r, "r2": float(r2_score(truth.ravel(), estimate.ravel()))}


def psnr(found: Tensor, truth: Tensor) -> float:
    """The peak signal-to-noise ratio of images in [0, 1] in decibels; infinity for the same image."""
    error = float((found.double() - truth.double()).square().mean())
    return math.inf if error == 0 else -10 * math.log10(error)


MOST_DECIBELS = 100.0
"""What is said of images that are alike up to rounding."""


def matching(found: Tensor, truth: Tensor) -> list[int]:
    """The found image that is taken for each true one, (b,), each found one once, so that the mean PSNR is largest.

    Args:
        found: Images that an attack has found, (b, ...), in any order.
        truth: The true images, (b, ...).
    """
    cost = np.array([[-min(psnr(image, own), MOST_DECIBELS) for image in found] for own in truth])
    return [int(place) for place in linear_sum_assignment(cost)[1]]


def matched_psnr(found: Tensor, truth: Tensor) -> list[float]:
    """The ratio in dB of each true image to the found one that is taken for it, (b,); arguments as of `matching`."""
    return [
        min(psnr(found[place], image), MOST_DECIBELS)
        for place, image in zip(matching(found, truth), truth, strict=True)
    ]


def inputs_of_linear_layer(weight: Tensor, bias: Tensor) -> Tensor:
    """Inputs of a fully connected layer, by the update of each unit, (units that moved, features).

    The gradient of a unit's weights is its gradient of the bias times the input. So their quotient is the input of the
    only sample that moves this unit, or a weighted mean of the inputs of several. No search is needed.

    Args:
        weight: The gradient or update of the weights, (units, features).
        bias: That of the bias, (units,).
    """
    # A quotient of two numbers that are only rounding says nothing.
    moved = bias.abs() > 1e-6 * bias.abs().max()
    return weight[moved] / bias[moved][:, None]


def best_candidates(candidates: Tensor, truth: Tensor) -> Tensor:
    """Of the images that a closed form gives (u, ...), the one nearest to each true image, (b, ...).

    It is an upper bound on what an attacker has: he sees all candidates, and must tell images from blends by eye.
    """
    flat = truth.flatten(1)
    nearest = torch.cdist(flat.double(), candidates.flatten(1).double()).argmin(dim=1)
    return candidates[nearest]


def gradient_match(
    network: nn.Module,
    observe: Callable[[Sequence[Tensor]], Tensor],
    seen: Tensor,
    labels: Tensor,
    shape: Sequence[int],
    prepare: Callable[[Tensor], Tensor],
    generator: torch.Generator,
    steps: int = 400,
    smoothness: float = 1e-2,
) -> Tensor:
    """Images whose gradient points where the gradient that was seen points (Geiping et al., 2020, Eq. 4).

    The attacker knows the labels, as iDLG does for one sample. He minimises 1 minus the cosine of the gradients plus
    the total variation of the images, by Adam on signs.

    Args:
        network: The network that the clients were sent.
        observe: What the attacker sees of the gradients of all its parameters, as one row.
        seen: What he saw, as such a row.
        labels: The labels of the samples, (b,).
        shape: The shape of an image, with values in [0, 1].
        prepare: How images are normalised before the network reads them.
        generator: Draws the images from which the search begins.
        steps: The number of steps.
        smoothness: The weight of the total variation.
    """
    parameters = {name: value.detach() for name, value in network.named_parameters()}
    images = torch.rand(len(labels), *shape, generator=generator).requires_grad_()
    optimiser = torch.optim.Adam([images], lr=0.1)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [steps * part // 8 for part in (3, 5, 7)], 0.1)
    target = seen / seen.norm().clamp(min=1e-12)
    for _ in range(steps):
        optimiser.zero_grad()
        own = {name: value.requires_grad_() for name, value in parameters.items()}
        loss = nn.functional.cross_entropy(functional_call(network, own, (prepare(images),)), labels)
        found = observe(torch.autograd.grad(loss, list(own.values()), create_graph=True))
        distance = 1 - (found @ target) / found.norm().clamp(min=1e-12) + smoothness * total_variation(images)
        images.grad = torch.autograd.grad(distance, images)[0].sign()
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            images.clamp_(0, 1)
    return images.detach()


def total_variation(images: Tensor) -> Tensor:
    """The mean difference of neighbouring pixels of images (..., height, width)."""
    down = (images[..., 1:, :] - images[..., :-1, :]).abs().mean()
    across = (images[..., 1:] - images[..., :-1]).abs().mean()
    return down + across
