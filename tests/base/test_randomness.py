import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from fedstrata.base.randomness import global_generators


@pytest.fixture
def hurried_threads() -> Iterator[None]:
    """Threads give way to each other after nearly every step."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def drawn(seed: int) -> list[float]:
    """Numbers of the global generator after it was seeded, one by one."""
    with global_generators():
        torch.default_generator.manual_seed(seed)
        return [float(torch.rand(())) for _ in range(500)]


def test_threads_that_seed_the_global_generator_take_turns(hurried_threads: None) -> None:
    torch.default_generator.manual_seed(11)
    alone = [drawn(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(drawn, range(4))) == alone
    assert torch.default_generator.initial_seed() == 11
