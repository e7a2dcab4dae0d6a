"""How far apart the subspaces are that clients' data span: principal angles (Jordan, 1875; Bjorck and Golub, 1973)."""

from __future__ import annotations

import math
from typing import Literal

from fedstrata.base.lazy_torch import torch
from fedstrata.clustering.arrays import Array, require_finite, tensor

Angle = Literal["smallest", "mean"]

_MIN_SPANNED_SHARE = 1e-6
"""A direction that holds less than this share of the longest one is rounding of float32, and spans nothing."""


_MEETING_DEGREES = 1e-3
"""The angle in degrees that float32 vectors cannot tell from 0."""


def principal_angles(vectors: Array, which: Angle = "smallest") -> torch.Tensor:
    """Angle between the subspaces of every pair of clients, in degrees.

    The cosines of the principal angles are the singular values of the product of two orthonormal bases. The angle
    itself is taken from the sum and the difference of the two principal vectors, because the arc cosine loses half
    of its digits where the subspaces meet. Vectors need neither be orthogonal nor of length 1.

    Args:
        vectors: The vectors of each client, (m, v, features), which span its subspace. Vectors of zeros span nothing.
        which: The angle that is taken. ``"smallest"`` is 0 as soon as two subspaces share a line. ``"mean"`` is the
            mean of all angles. There are as many angles as the smaller subspace has dimensions.

    Returns:
        (m, m) float64 in [0, 90], exactly symmetric, the diagonal 0. A client that spans nothing is at 90 degrees to
        everybody else.

    Raises:
        ValueError: When there are not three axes, a number is not finite, or ``which`` is another.
    """
    if which not in ("smallest", "mean"):
        raise ValueError(f"expected which 'smallest' or 'mean', found {which!r}")
    spans = tensor(vectors).double()
    if spans.ndim != 3:
        raise ValueError(f"expected vectors of shape (m, v, features), found {tuple(spans.shape)}")
    meeting = _MEETING_DEGREES if tensor(vectors).dtype == torch.float32 else 0.0
    bases = [_basis(own) for own in require_finite(spans, "vectors")]
    angles = torch.zeros(len(bases), len(bases), dtype=torch.float64)
    for row, one in enumerate(bases):
        for column in range(row + 1, len(bases)):
            angles[row, column] = angles[column, row] = _angle(one, bases[column], which)
    return angles.where(angles > meeting, 0.0)


def _basis(vectors: torch.Tensor) -> torch.Tensor:
    """Orthonormal columns (features, r) with the same span as the rows (v, features)."""
    left, lengths, _ = torch.linalg.svd(vectors.T, full_matrices=False)
    basis: torch.Tensor = left[:, lengths > _MIN_SPANNED_SHARE * lengths.amax()] if lengths.numel() else left
    return basis


def _angle(one: torch.Tensor, other: torch.Tensor, which: Angle) -> float:
    if not one.shape[1] or not other.shape[1]:
        return 90.0
    left, _, right = torch.linalg.svd(one.T @ other, full_matrices=False)
    if which == "smallest":
        left = left[:, :1]
        right = right[:1]
    ours = one @ left
    theirs = other @ right.T
    angles = 2 * torch.atan2((ours - theirs).norm(dim=0), (ours + theirs).norm(dim=0))
    return math.degrees(float(angles.mean()))
