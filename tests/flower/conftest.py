from pathlib import Path

import pytest
from in_process import Deployed, Federation, federation


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Federation:
    """The devices of the experiment `KEYS` of a file of tests."""
    return federation(request.module.KEYS, tmp_path_factory.mktemp("devices"))


@pytest.fixture
def here(made: Federation, tmp_path: Path) -> Deployed:
    """Their federation, in which no device keeps anything yet."""
    return made.deployed(tmp_path)
