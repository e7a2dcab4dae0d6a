import os

# Workers of pytest, and the processes that tests start, share the cores; each of them computes in one thread. The
# libraries read this when they are imported.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import pytest  # noqa: E402
import torch  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """The bits of a sum depend on how many threads share it."""
    torch.set_num_threads(1)
