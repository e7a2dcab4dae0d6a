"""Decisions in words: one sentence for every kind of decision that an algorithm takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Words = Callable[[str | None, Mapping[str, float]], str]
"""Makes the sentence of a decision from its layer and its values."""

SENTENCES: dict[str, Words] = {}
"""The sentence of each kind."""


def sentence(kind: str, layer: str | None, values: Mapping[str, float]) -> str:
    """What was decided, in one sentence; of a kind without words its name."""
    words = SENTENCES.get(kind)
    return kind.replace("_", " ") if words is None else words(layer, values)
