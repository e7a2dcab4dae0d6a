"""Draw what attacks find, from the first seed of ``leaks.py``, into ``docs/privacy``.

FEDSTRATA_DATA=DATA python -m experiments.trust.leak_pictures
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from experiments.trust import leaks
from experiments.trust.leakage import matching
from fedstrata.build.build import build_run
from fedstrata.config import load_experiment
from fedstrata.engine.device import one_thread

FOLDER = Path(__file__).parents[2] / "docs" / "methods" / "privacy"

SEED = 0

SCALE, GAP = 3, 2
"""How often a pixel is repeated, and the pixels between two images."""

SHOWN = ("4 images, gradient", "16 images, gradient", "16 images, epoch of 4 steps")
"""The exposures of which images are drawn."""


def main() -> None:
    """Draw both pictures."""
    FOLDER.mkdir(exist_ok=True)
    drawn(vector_rows()).save(FOLDER / "vectors.png")
    with one_thread():
        drawn(inversion_rows()).save(FOLDER / "inversion.png")


def vector_rows() -> list[Sequence[Tensor]]:
    """The mean image of each class of one client, and the first singular vector of the class."""
    keys = {**leaks.SMALL, "seed": SEED, "data": {"name": "mnist", "clients": 10, "samples": 200}}
    classes = leaks.by_class(build_run(load_experiment({**keys, "engine": {"name": "loop"}})).client_data, 0)
    means = [stretched(mean) for mean, _, _ in classes]
    # The sign of a singular vector means nothing.
    vectors = [stretched(first[0] * (first[0] @ mean).sign()) for mean, _, first in classes]
    return [means, vectors]


def inversion_rows() -> list[Sequence[Tensor]]:
    """Four images, and what is found of them where ever more is averaged."""
    images, labels, _, prepare = leaks.some_images(SEED)
    rows: list[Sequence[Tensor]] = [[*images[:4]]]
    for exposure in SHOWN:
        count, _, _ = leaks.EXPOSURES[exposure]
        found = leaks.inverted("mlp", exposure, images[:count], labels[:count], prepare, SEED)
        rows.append([found[place] for place in matching(found, images[:count])[:4]])
    return rows


def stretched(values: Tensor) -> Tensor:
    """An image of 28 x 28 from its smallest value, which becomes 0, to its largest, which becomes 1."""
    image = values.view(1, 28, 28)
    return (image - image.min()) / (image.max() - image.min()).clamp(min=1e-12)


def drawn(rows: Sequence[Sequence[Tensor]]) -> Image.Image:
    """Images (1, height, width) in [0, 1] in rows."""
    padded = [torch.cat([framed(image) for image in row], dim=1) for row in rows]
    grey = (torch.cat(padded) * 255).round().byte()
    return Image.fromarray(grey.numpy())


def framed(image: Tensor) -> Tensor:
    """An image with large pixels and white around it."""
    large = image[0].repeat_interleave(SCALE, dim=0).repeat_interleave(SCALE, dim=1)
    return torch.nn.functional.pad(large, (GAP, GAP, GAP, GAP), value=1.0)


if __name__ == "__main__":
    main()
