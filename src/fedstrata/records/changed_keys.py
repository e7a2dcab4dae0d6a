"""Which keys of an experiment may change when a run is resumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_FREE_KEYS = (
    ("algorithms",),
    ("label",),
    ("records",),
    ("report",),
    ("data", "root"),
    ("data", "memory"),
    ("engine", "workers"),
    ("engine", "timeout"),
)
"""Keys and tables of ``experiment.toml`` that may differ when a run is resumed: no result depends on them."""


_EQUAL_ENGINES = ("loop", "processes", "ray")
"""Engines that give the same bits; a run may be resumed with another of them."""


def same_results(path: tuple[str, ...], before: object, now: object) -> bool:
    """Return whether a run has the same bits with two values of a key of its experiment."""
    engines = path == ("engine", "name") and before in _EQUAL_ENGINES and now in _EQUAL_ENGINES
    return before == now or engines or may_differ(path)


def flatten_keys(keys: Mapping[str, Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Return the keys of nested tables, each under the names on the way to it."""
    flat = dict[tuple[str, ...], Any]()
    for key, value in keys.items():
        place = (*path, key)
        flat |= flatten_keys(value, place) if isinstance(value, Mapping) else {place: value}
    return flat


def may_differ(path: tuple[str, ...]) -> bool:
    """Return whether a key of the experiment may differ when a run is resumed."""
    return any(path[: len(free)] == free for free in _FREE_KEYS)
