"""What a round has recorded: metrics and decisions, looked up by name."""

from typing import Any

from fedstrata.core import Decision, Diagnostics


def metric(note: Diagnostics, name: str, node: int | None = None, layer: str | None = None) -> float | None:
    """The value of a metric; None when the round has none of this name."""
    found = [each.value for each in note.metrics if (each.name, each.node, each.layer) == (name, node, layer)]
    assert len(found) <= 1, f"{name} is recorded more than once"
    return found[0] if found else None


def decision_of(state: Any, node: int = 0) -> Decision:
    """The latest decision about a tree node."""
    decision = state.tree[node].decision
    assert isinstance(decision, Decision)
    return decision
