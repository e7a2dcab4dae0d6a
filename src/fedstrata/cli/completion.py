"""What the shell offers for the values of options. The names of commands and options it knows by itself."""

from __future__ import annotations

from collections.abc import Iterator


def complete_key(incomplete: str) -> list[str]:
    """Offer the keys of an experiment for `--set`, such as ``local.lr=``."""
    return [key for key in _keys() if key.startswith(incomplete)]


def complete_algorithms(incomplete: str) -> list[str]:
    """Offer names of algorithms between commas, those before the last comma as they are."""
    from fedstrata.algorithms import ALGORITHMS

    before, comma, begun = incomplete.rpartition(",")
    taken = before.split(",")
    return [f"{before}{comma}{name}" for name in ALGORITHMS if name.startswith(begun) and name not in taken]


def _keys() -> Iterator[str]:
    from fedstrata.config.tables import Experiment, Table

    for name, field in Experiment.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Table):
            yield from (f"{name}.{key}=" for key in kind.model_fields)
        else:
            yield f"{name}=" if kind is int else f"{name}."
