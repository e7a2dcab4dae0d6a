import pytest

from fedstrata.uploads.shares import rounded_up


@pytest.mark.parametrize(
    ("share", "count", "expected"),
    [(0.07, 100, 7), (0.071, 100, 8), (1e-14, 100, 1), (1.0, 100, 100), (0.5, 0, 0), (0.0, 100, 0)],
)
def test_a_share_is_rounded_up_to_at_least_one(share: float, count: int, expected: int) -> None:
    assert rounded_up(share, count) == expected
