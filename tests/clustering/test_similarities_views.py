import pytest
import torch
from torch import Tensor, tensor

from fedstrata.clustering import cosine, euclidean, in_views, likeness, norms
from fedstrata.clustering.similarity import without_mean

ROWS = torch.randn(6, 9000, generator=torch.Generator().manual_seed(0))
VIEWS = {
    "conv": torch.arange(0, 300),
    "fc": torch.arange(310, 8900),
    "bias": tensor([8990, 302, 303]),
    "all": torch.cat([torch.arange(0, 300), tensor([302, 303]), torch.arange(310, 8900), tensor([8990])]),
    "none": torch.arange(0),
}


@pytest.mark.parametrize("measure", [cosine, euclidean, likeness, norms])
def test_every_view_gives_what_its_columns_give_alone(measure: object) -> None:
    assert callable(measure)
    together = measure(ROWS, in_views(VIEWS.values()))
    assert len(together) == len(VIEWS)
    for found, columns in zip(together, VIEWS.values(), strict=True):
        assert torch.allclose(found, measure(ROWS[:, columns]), rtol=1e-12, atol=1e-12)
    assert len(measure(ROWS, in_views([]))) == 0


def test_rows_are_compared_without_their_mean() -> None:
    sums = in_views(VIEWS.values())
    rows = ROWS.double()
    assert torch.equal(cosine(ROWS, without_mean(sums)), cosine(rows - rows.mean(dim=0), sums))


def test_columns_that_views_share_are_read_once_and_those_of_none_never() -> None:
    read: list[tuple[int, bool]] = []

    def width(block: Tensor, few: bool) -> Tensor:
        read.append((block.shape[1], few))
        return block.sum()

    found = in_views(VIEWS.values())(ROWS, width)[0]
    # Empty blocks tell the shape; conv and bias are of few columns, the 8590 of fc are not.
    assert sorted(each for each in read if each[0]) == [
        (1, True),
        (2, True),
        (300, True),
        (398, False),
        (4096, False),
        (4096, False),
    ]
    assert found.tolist() == pytest.approx([float(ROWS[:, view].double().sum()) for view in VIEWS.values()])


def test_a_view_with_a_broken_row_names_the_row() -> None:
    rows = ROWS.clone()
    rows[4, 8990] = torch.nan
    with pytest.raises(ValueError, match="expected finite norms, found nan or infinity in row 4"):
        cosine(rows, in_views(VIEWS.values()))
