import pytest
import torch
from small import fit_of, loop_of, plan_of

from fedstrata.core import rows


def test_updates_that_do_not_fit_into_memory_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for budget in (2**30, 0):
        monkeypatch.setattr(rows, "IN_MEMORY", budget)
        engine, layout, start = loop_of([5, 1, 8])
        # The half of a single sample is no sample: that client has room but no row.
        halves = fit_of(layout, [[0], [0], [0]], part="A")
        both = engine.run(plan_of(start[None], fit_of(layout, [[0], [-1], [0]]), halves))
        found.append([result.updates for result in both.results])
    assert [updates.clients.tolist() for updates in found[0]] == [[0, 2], [0, 2]]
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.clients, other.clients)
        assert torch.equal(one.values, other.values)
