from itertools import combinations

import pytest

from fedstrata.report.colours import GREY, PALETTE, between, blend, brightness, light, tint
from fedstrata.report.pictures.drawing import DEPTHS, shade

MANY = [tint(place) for place in range(30)]


def lab(colour: str) -> tuple[float, float, float]:
    """The colour in CIE Lab, in which distances are as people see them."""
    red, green, blue = light(colour)
    parts = (
        (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505,
        0.2126 * red + 0.7152 * green + 0.0722 * blue,
        (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089,
    )
    x, y, z = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in parts)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("colour", [*MANY, GREY, *DEPTHS])
def test_every_colour_stands_out_on_paper_and_in_the_dark(colour: str) -> None:
    assert 1.05 / (brightness(colour) + 0.05) >= 3
    assert (brightness(colour) + 0.05) / (brightness("#14181d") + 0.05) >= 3


def test_thirty_groups_have_colours_that_can_be_told_apart() -> None:
    apart = [sum((a - b) ** 2 for a, b in zip(lab(one), lab(two), strict=True)) for one, two in combinations(MANY, 2)]
    assert min(apart) ** 0.5 > 10
    assert MANY[: len(PALETTE)] == list(PALETTE)


def test_a_mixture_is_as_bright_as_its_parts() -> None:
    parts = [PALETTE[0], PALETTE[3]]
    assert brightness(blend(parts)) == pytest.approx(sum(map(brightness, parts)) / 2, abs=0.005)
    assert blend(["#010203"]) == "#010203"


def test_layers_are_coloured_from_input_to_output() -> None:
    assert shade(0, 5) == DEPTHS[0]
    assert shade(4, 5) == DEPTHS[-1]
    assert shade(0, 1) == DEPTHS[0]
    assert between(["#000000", "#ffffff"], 0.5) == blend(["#000000", "#ffffff"])
