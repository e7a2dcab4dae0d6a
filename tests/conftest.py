import os

# Workers of pytest, and the processes that tests start, share the cores; each of them computes in one thread. The
# libraries read this when they are imported.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"

from collections.abc import Iterator

import pytest
import torch

from fedstrata.engine.workers import processes
from forked import forking


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """The bits of a sum depend on how many threads share it."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def forked_workers() -> Iterator[None]:
    """Worker processes are forked from one that has imported torch, where a test is not about how they start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "subprocess", forking())
        yield
