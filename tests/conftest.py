import gc
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

import unsynced  # noqa: F401 (which writes nothing itself)

# Workers of pytest, and the processes that tests start, share the cores: each of them computes in one thread. Libraries
# read this when they are imported, so that nothing that computes is imported above.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"

# Hypothesis fails a case that takes 0.2 seconds, which any does on a busy machine. Each run draws new examples.
settings.register_profile("untimed", deadline=None, max_examples=40)
settings.load_profile("untimed")


TESTS = Path(__file__).parent

QUICK = (
    *("algorithms", "base", "clustering", "config", "core", "data", "models", "objective", "partition", "records"),
    *("report", "uploads", "test_architecture.py", "test_check_algorithm.py", "test_init.py"),
    "test_wrong_experiments.py",
)
"""Where the tests of `make check` are. All others build or play whole runs, or show something to the whole library."""

LONGEST = (
    "test_every_algorithm.py",
    "engine/test_processes.py",
    "algorithms/strata/test_algorithm.py",
    "hostile/test_hostile_input.py",
    "base/test_resources.py",
    "hostile/test_run_folders.py",
    "test_parity.py",
    "flower/test_server.py",
    "comparison/test_comparison_run.py",
    "test_own_objects.py",
    "engine/test_simulated_gpu.py",
    "flower/test_compressed_federation.py",
    "flower/test_stragglers.py",
    "docs/test_training.py",
    "play/test_runs_on_disk.py",
    "play/test_interrupt.py",
)
"""The files that take longest."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow tests, and put long files first: what starts last would leave all but one worker idle."""
    tests = Counter(item.path for item in items)
    for item in items:
        if item.path.relative_to(TESTS).parts[0] not in QUICK or "forked_workers" in getattr(item, "fixturenames", ()):
            item.add_marker("slow")
    ranks = {TESTS / name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (ranks.get(item.path, len(ranks)), -tests[item.path]))


def pytest_collection_finish() -> None:
    """What has been imported and collected stays: the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """The bits of a sum depend on how many threads share it."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def made_once() -> None:
    """Compiled templates and the digits are made once for all tests."""
    import made_once  # noqa: F401 (which computes, and needs the lines above)


@pytest.fixture
def forked_workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes are forked from one that has imported torch, where a test is not about how they start."""
    from fedstrata.engine.parallel import processes
    from forked import forking

    if request.node.get_closest_marker("real_workers") is None:
        monkeypatch.setattr(processes, "subprocess", forking())
