"""Attacks on updates. Their names are those of the libraries ByzFL and Blades.

Byzantine clients know the updates of all honest clients that have trained the same model. The arguments of every
function, and what it returns, are those of `fedstrata.uploads.attacks.registry.Attack`.
"""

from __future__ import annotations

from fedstrata.base.lazy_torch import torch


def sign_flip(
    own: torch.Tensor, honest: torch.Tensor, strength: float | None, generator: torch.Generator
) -> torch.Tensor:
    """The trained update times minus `strength`, by default 1."""
    return own * -or_usual(strength, 1.0)


def scaling(
    own: torch.Tensor, honest: torch.Tensor, strength: float | None, generator: torch.Generator
) -> torch.Tensor:
    """The trained update times `strength`, by default 100."""
    return own * or_usual(strength, 100.0)


def zero(own: torch.Tensor, honest: torch.Tensor, strength: float | None, generator: torch.Generator) -> torch.Tensor:
    """Nothing: all zeros."""
    return torch.zeros_like(own)


def noise(own: torch.Tensor, honest: torch.Tensor, strength: float | None, generator: torch.Generator) -> torch.Tensor:
    """Normal noise, whose expected squared norm is that of the trained update times the square of `strength`.

    The strength is 10 by default.
    """
    scale: torch.Tensor = or_usual(strength, 10.0) * own.norm(dim=1, keepdim=True) / own.shape[1] ** 0.5
    return scale * torch.randn(own.shape, generator=generator)


def alie(own: torch.Tensor, honest: torch.Tensor, strength: float | None, generator: torch.Generator) -> torch.Tensor:
    """A little is enough: Baruch et al., NeurIPS 2019: the mean of honest updates minus z standard deviations.

    z is `strength`, by default 1.5. By the formula of the paper z is near 0 where few of the clients are Byzantine, and
    the attack then does nothing. In the paper, attackers estimate mean and deviation from their own honest updates.
    """
    known = _known(own, honest)
    return (known.mean(dim=0) - or_usual(strength, 1.5) * _deviation(known)).expand_as(own).clone()


def ipm(own: torch.Tensor, honest: torch.Tensor, strength: float | None, generator: torch.Generator) -> torch.Tensor:
    """Inner product manipulation: Xie et al., UAI 2019: the honest mean times minus `strength`, by default 0.5."""
    return (-or_usual(strength, 0.5) * _known(own, honest).mean(dim=0)).expand_as(own).clone()


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
    # The squared distance of an update x from the mean plus g times the direction d is |x - mean|^2 - 2 g (x - mean) d
    # + g^2 |d|^2. The largest g with which none is above the square of `farthest`:
    length = direction.square().sum().clamp(min=torch.finfo(torch.float64).tiny)
    along = (known - mean) @ direction
    room = (farthest.square() - (known - mean).square().sum(dim=1)).clamp(min=0)
    factor = ((along + (along.square() + length * room).sqrt()) / length).min()
    return (mean + or_usual(strength, 1.0) * factor * direction).to(own.dtype).expand_as(own).clone()


def sybil(own: torch.Tensor, honest: torch.Tensor, strength: float | None, generator: torch.Generator) -> torch.Tensor:
    """All send the same (Fung et al., RAID 2020): the honest mean backwards, with the mean norm of honest updates.

    `strength` multiplies it, by default 1.
    """
    mean = _known(own, honest).mean(dim=0)
    length = mean.norm().clamp(min=torch.finfo(mean.dtype).tiny)
    sent: torch.Tensor = -or_usual(strength, 1.0) * mean_norm(own, honest) * (mean / length)
    return sent.expand_as(own).clone()


def or_usual(strength: float | None, usual: float) -> float:
    """The strength of an attack, or its usual one."""
    return usual if strength is None else strength


def mean_norm(own: torch.Tensor, honest: torch.Tensor) -> torch.Tensor:
    """The mean norm of the honest updates, or of the attackers' own where there are none; a scalar."""
    norms: torch.Tensor = _known(own, honest).norm(dim=1)
    return norms.mean()


def _known(own: torch.Tensor, honest: torch.Tensor) -> torch.Tensor:
    """The updates whose mean and spread the attackers imitate: the honest ones, or their own where there are none."""
    return honest if len(honest) else own


def _deviation(updates: torch.Tensor) -> torch.Tensor:
    """The standard deviation of each column, (p,); 0 for a single update."""
    return updates.std(dim=0, correction=0)
