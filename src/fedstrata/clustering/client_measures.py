"""What clients are compared by: rows of numbers, the subspaces of their samples, and how even their classes are.

The keys of algorithms, the layer gap and the pages take their measures of rows from `CLIENT_MEASURES`. A new one is a
function of rows, such as those in `similarity`, and an entry in `_MEASURES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from fedstrata.base.lazy_torch import torch
from fedstrata.clustering.arrays import Array, Numbers, require_finite, tensor
from fedstrata.clustering.similarity import cosine, euclidean, manhattan

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ClientMeasure:
    """How alike, or how far apart, each two clients are.

    Attributes:
        compare: The function from one row of each client, (m, p), to the values of all pairs, (m, m). With the sums of
            `in_views` as its second argument, the values are (v, m, m).
        about: The words that the page says what a value means by.
        larger_is_closer: Whether it is a similarity. Otherwise it is a distance, at least 0.
        fixed_scale: Whether a value means the same in every round, so that matrices share one colour scale.
        of_updates: Whether the rows are updates. Otherwise they are models.
    """

    compare: Callable[..., torch.Tensor]
    about: str
    larger_is_closer: bool = False
    fixed_scale: bool = False
    of_updates: bool = False

    def distances(self, values: torch.Tensor) -> torch.Tensor:
        """Values (m, m) as distances: those of a similarity are subtracted from 1."""
        return 1 - values if self.larger_is_closer else values


_MEASURES = {
    "cos": ClientMeasure(
        cosine, "Cosine similarity of the {}, from -1 to 1 (same direction)", larger_is_closer=True, fixed_scale=True
    ),
    "l2": ClientMeasure(euclidean, "Euclidean distance of the {0}; 0 means equal {0}"),
    "l1": ClientMeasure(manhattan, "Manhattan (l1) distance of the {0}; 0 means equal {0}"),
}
"""Each measure of rows, whatever the rows are; ``{}`` stands for what they are."""

CLIENT_MEASURES: Mapping[str, ClientMeasure] = {
    f"{prefix}{name}": replace(measure, about=measure.about.format(rows), of_updates=rows == "updates")
    for name, measure in _MEASURES.items()
    for prefix, rows in (("", "models"), ("d", "updates"))
}
"""The measures by the names that keys and records have: "cos" compares models, "dcos" updates."""

if TYPE_CHECKING:
    ClientMeasureName: TypeAlias = str
else:
    ClientMeasureName = Literal[tuple(CLIENT_MEASURES)]
"""The type of a key that names a measure. A type checker cannot read the names of a table."""


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


def entropy(counts: Numbers) -> float:
    """Entropy of one client's labels: 0 for one class (or no sample), log2(c) for c equal ones (AdaCFL Eq. 4).

    Args:
        counts: The number of samples of each class, (c,), at least 0.

    Returns:
        The entropy in bits.

    Raises:
        ValueError: When a count is negative or not finite.
    """
    samples = tensor(counts).double()
    if samples.ndim != 1 or (samples < 0).any():
        raise ValueError(f"expected counts (c,) of at least 0, found {samples.tolist()}")
    held = require_finite(samples[samples > 0], "counts")
    shares = held / held.sum()
    return max(0.0, -float((shares * shares.log2()).sum()))
