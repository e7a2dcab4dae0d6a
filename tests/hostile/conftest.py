from collections.abc import Iterator

import pytest

from hostile.runner import Runner


@pytest.fixture(scope="package")
def warm() -> Iterator[Runner]:
    """A process that has imported what a run needs."""
    with Runner() as made:
        yield made
