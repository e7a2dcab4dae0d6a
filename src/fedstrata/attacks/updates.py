"""Attacks on updates. Their names are those of the libraries ByzFL and Blades.

Byzantine clients know the updates of all honest clients that have trained the same model. The arguments of every
function, and what it returns, are those of `fedstrata.attacks.registry.Attack`.
"""

from __future__ import annotations

from statistics import NormalDist

from fedstrata.lazy_torch import torch

_BISECTIONS = 40
"""The number of times that the interval of a factor is halved."""


def sign_flip(
    own: torch.Tensor, honest: torch.Tensor, strength: float | None, generator: torch.Generator
) -> torch.Tensor:
    """The trained update times minus `strength`, by default 1."""
    return own * -_or(strength, 1.0)


def scaling(
    own: torch.Tensor, honest: torch.Tensor, strength: float | None, generator: torch.Generator
) -> torch.Tensor:
    """The trained update times `strength`, by default 100."""
    return own * _or(strength, 100.0)


def zero(own: torch.Tensor, honest: torch.Tensor, strength: float | None, generator: torch.Generator) -> torch.Tensor:
    """Nothing: all zeros."""
    return torch.zeros_like(own)


def noise(own: torch.Tensor, honest: torch.Tensor, strength: float | None, generator: torch.Generator) -> torch.Tensor:
    """Normal noise, whose expected squared norm is that of the trained update times the square of `strength`.

    The strength is 10 by default.
    """
    scale: torch.Tensor = _or(strength, 10.0) * own.norm(dim=1, keepdim=True) / own.shape[1] ** 0.5
    return scale * torch.randn(own.shape, generator=generator)


def alie(own: torch.Tensor, honest: torch.Tensor, strength: float | None, generator: torch.Generator) -> torch.Tensor:
    """A little is enough: Baruch et al., NeurIPS 2019, Algorithm 3: the honest mean minus z standard deviations.

    With n clients of whom f are Byzantine, z is the quantile of the normal distribution at (n - f - s) / (n - f), where
    s = floor(n / 2 + 1) - f honest clients have to be won over. `strength` replaces z.
    """
    known = _known(own, honest)
    n = len(own) + len(honest)
    supporters = n // 2 + 1 - len(own)
    share = (n - len(own) - supporters) / max(n - len(own), 1)
    z = NormalDist().inv_cdf(min(max(share, 0.01), 0.99)) if strength is None else strength
    return (known.mean(dim=0) - z * _deviation(known)).expand_as(own).clone()


def ipm(own: torch.Tensor, honest: torch.Tensor, strength: float | None, generator: torch.Generator) -> torch.Tensor:
    """Inner product manipulation: Xie et al., UAI 2019: the honest mean times minus `strength`, by default 0.5."""
    return (-_or(strength, 0.5) * _known(own, honest).mean(dim=0)).expand_as(own).clone()


def min_max(
    own: torch.Tensor, honest: torch.Tensor, strength: float | None, generator: torch.Generator
) -> torch.Tensor:
    """Min-max: Shejwalkar and Houmansadr, NDSS 2021, Section IV: as far from the honest mean as two honest clients are.

    What is sent is the mean minus a multiple of the standard deviations. The multiple is the largest with which the
    distance from every honest update is at most the largest one between two of them. `strength` multiplies it, by
    default 1.
    """
    known = _known(own, honest).double()
    mean, direction = known.mean(dim=0), -_deviation(known)
    farthest = torch.cdist(known, known).max()
    low, high = 0.0, 1.0
    while high < 1e6 and _reach(known, mean + high * direction) <= farthest and bool(direction.any()):
        low, high = high, 2 * high
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if _reach(known, mean + middle * direction) <= farthest else (low, middle)
    return (mean + _or(strength, 1.0) * low * direction).to(own.dtype).expand_as(own).clone()


def _or(strength: float | None, usual: float) -> float:
    return usual if strength is None else strength


def _known(own: torch.Tensor, honest: torch.Tensor) -> torch.Tensor:
    """The updates whose mean and spread the attackers imitate: the honest ones, or their own where there are none."""
    return honest if len(honest) else own


def _deviation(updates: torch.Tensor) -> torch.Tensor:
    """The standard deviation of each column, (p,); 0 for a single update."""
    return updates.std(dim=0, correction=0)


def _reach(updates: torch.Tensor, sent: torch.Tensor) -> torch.Tensor:
    """The largest distance of a row from some updates."""
    distances: torch.Tensor = (updates - sent).norm(dim=1)
    return distances.max()
