import pytest
import torch

from fedstrata.objective import TRANSFORMS
from fedstrata.objective.training import crop, flip, noise

IMAGES = torch.arange(2 * 1 * 2 * 3, dtype=torch.float32).view(2, 1, 2, 3)


def test_every_transform_keeps_the_shape_of_images() -> None:
    images = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    for name in TRANSFORMS:
        assert TRANSFORMS[name](images).shape == images.shape, name


def test_a_flip_mirrors_some_images_and_leaves_the_others() -> None:
    torch.manual_seed(0)
    images = IMAGES[:1].expand(200, 1, 2, 3)
    mirrored = (flip(images) == images.flip(3)).flatten(1).all(dim=1)
    kept = (flip(images) == images).flatten(1).all(dim=1)
    assert 60 < int(mirrored.sum()) < 140 and 60 < int(kept.sum()) < 140


def test_a_crop_moves_each_image_on_its_own_and_brings_zeros_in() -> None:
    torch.manual_seed(0)
    moved = crop(torch.ones(50, 1, 8, 8))
    assert moved.unique().tolist() == [0.0, 1.0]
    assert len(moved.flatten(1).unique(dim=0)) > 20 and int(moved.flatten(1).sum(1).min()) >= 16


def test_transforms_that_do_not_fit_the_samples_say_so() -> None:
    with pytest.raises(ValueError, match=r"'flip' needs images .*, found \(4, 3\)"):
        flip(torch.zeros(4, 3))
    with pytest.raises(ValueError, match="'noise' needs numbers, found tokens"):
        noise(torch.zeros(4, 3, dtype=torch.int64))
