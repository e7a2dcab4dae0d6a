"""Colours that can be told from each other, from a white page and from a dark one."""

from collections.abc import Sequence
from colorsys import hls_to_rgb

# Relative luminance between 0.13 and 0.30: at least 3 : 1 against the page on white and on dark (WCAG 1.4.11).
PALETTE = (
    "#3a7fc8",
    "#d1661c",
    "#1a9070",
    "#a45fc0",
    "#d24a63",
    "#8b8417",
    "#1f8fb0",
    "#b06a3c",
    "#6d76d6",
    "#bf5597",
)
GREY = "#7d8793"
TURN = 0.6180339887498949  # of the circle of hues, the golden angle: each next hue falls into the widest gap
SHADES = ((0.27, 0.9), (0.15, 0.7), (0.21, 0.35))  # luminance and saturation of neighbouring hues


def tint(place: int) -> str:
    """The colour of the n-th group: of the palette, and beyond it by the golden angle."""
    if place < len(PALETTE):
        return PALETTE[place]
    beyond = place - len(PALETTE)
    luminance, saturation = SHADES[beyond % len(SHADES)]
    low, high = 0.0, 1.0
    for _ in range(16):  # luminance grows with lightness
        middle = (low + high) / 2
        colour = _hex(hls_to_rgb(beyond * TURN % 1, middle, saturation))
        low, high = (middle, high) if brightness(colour) < luminance else (low, middle)
    return colour


def light(colour: str) -> tuple[float, float, float]:
    """A colour as linear light, so that mixtures keep the luminance of their parts."""
    parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return red, green, blue


def brightness(colour: str) -> float:
    """Relative luminance in [0, 1] (WCAG 2.2)."""
    red, green, blue = light(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def blend(colours: Sequence[str]) -> str:
    """The mixture of some colours in equal parts."""
    sums = [sum(parts) / len(colours) for parts in zip(*(light(colour) for colour in colours), strict=True)]
    return _hex([12.92 * part if part <= 0.0031308 else 1.055 * part ** (1 / 2.4) - 0.055 for part in sums])


def between(ends: Sequence[str], place: float) -> str:
    """The colour at a place in [0, 1] of the run through some colours."""
    along = place * (len(ends) - 1)
    low = min(int(along), len(ends) - 2)
    parts = round(8 * (along - low))
    return blend([ends[low]] * (8 - parts) + [ends[low + 1]] * parts)


def _hex(parts: Sequence[float]) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)
