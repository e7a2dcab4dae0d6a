from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from forty import CLIENTS, EVERYONE, MODELS, PLANS, SITE, check, line, rich
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstrata.core import Plan
from fedstrata.engine import Loop, Parallel
from fedstrata.engine.parallel.messages import ReceivedMessage, SharedMessage, pack, unpack
from fedstrata.engine.parallel.sharding import Shard, ShardReply, ShardRequest, perform, split_into_shards
from turns import same


class Here:
    """A transport without a journey: what is sent is taken apart and put together all the same."""

    def __init__(self, workers: int) -> None:
        self.workers, self._loops = workers, [Loop.at(SITE) for _ in range(workers)]

    def run(self, order: ShardRequest, split_into_shards: Sequence[Shard]) -> Sequence[ShardReply]:
        pairs = zip(self._loops, split_into_shards, strict=False)
        return [unpack(*pack(perform(loop, unpack(*pack(order)), shard))) for loop, shard in pairs]

    def close(self) -> None:
        """Nothing to end."""


@pytest.mark.parametrize("plans", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("workers", [1, 3])
def test_any_number_of_workers_is_the_loop_in_every_bit(workers: int, plans: list[Plan]) -> None:
    check(Parallel(SITE, Here(workers)), plans)


def test_clients_that_were_led_astray_are_known() -> None:
    """What they keep is as little finite as with the loop, and the next round starts them anew."""
    lost = replace(rich(), models=torch.full_like(MODELS, torch.nan), evaluations={})
    engine, loop = Parallel(SITE, Here(2)), Loop.at(SITE)
    for plan in (lost, rich(2)):
        assert same(engine.run(plan).results["fourth"].sizes, loop.run(plan).results["fourth"].sizes)
    assert engine.store.not_finite_clients(1) == loop.store.not_finite_clients(1) != ()
    assert same(engine.store.read(0, before=3), loop.store.read(0, before=3))


@given(st.sets(st.integers(0, CLIENTS - 1)), st.integers(1, 50))
def test_every_client_is_in_exactly_one_shard(cohort: set[int], workers: int) -> None:
    dealt = split_into_shards(rich(cohort=sorted(cohort)), SITE.client_data, workers)
    assert sorted(client for shard in dealt for client in shard) == EVERYONE  # everyone is scored
    assert len(dealt) == min(workers, CLIENTS)


LEAVES = st.sampled_from(
    [
        torch.arange(24).view(2, 3, 4),
        torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1),
        torch.arange(48, dtype=torch.uint8).view(2, 3, 2, 4).contiguous(memory_format=torch.channels_last),
        torch.zeros(0, 5),
        torch.tensor(True),
        torch.arange(20)[::3],
        torch.ones(1).expand(4),
        "text",
        7,
        None,
    ]
)
THINGS = st.recursive(
    LEAVES, lambda inner: st.dictionaries(st.integers(), inner) | st.lists(inner).map(tuple), max_leaves=5
)


@settings(deadline=None)
@given(THINGS)
def test_what_is_sent_arrives_as_it_was(thing: Any) -> None:
    with line() as (here, there):
        SharedMessage(thing).send(here, "note")
        found, note = ReceivedMessage(there).open()
    assert note == "note" and same(found, thing)


def test_images_arrive_as_they_lie_in_memory() -> None:
    """Otherwise every worker would turn them over once more, each for itself."""
    images = SITE.dataset.inputs
    with line() as (here, there):
        SharedMessage(SITE).send(here)
        found, _ = ReceivedMessage(there).open()
    assert found.dataset.inputs.stride() == images.stride() and torch.equal(found.dataset.inputs, images)
    assert found.dataset.channels_last().inputs.data_ptr() == found.dataset.inputs.data_ptr()


def test_memory_is_shared_by_all_that_a_segment_is_sent_to() -> None:
    segment = SharedMessage(torch.zeros(3))
    with line() as (here, there):
        segment.send(here)
        segment.send(here)
        one, other = (ReceivedMessage(there).open()[0] for _ in range(2))
    one[1] = 5
    assert other.tolist() == [0, 5, 0]
