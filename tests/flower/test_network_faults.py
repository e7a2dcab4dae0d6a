"""Real SuperNodes behind a bad network, as `trust/network_faults.py` measures it: rows are lost, never bits."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from experiments.trust import network_faults
from experiments.trust.network_faults import CLIENTS, EXPERIMENT, VICTIM, Network, measured

pytestmark = pytest.mark.deploy

Case = Callable[[Network, Path], dict[str, Any]]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with network_faults.network(tmp_path_factory.mktemp("faults") / "federation") as up:
        yield up


@pytest.mark.parametrize("case", [network_faults.latency, network_faults.resets])
def test_a_slow_or_leaky_network_changes_no_bit(case: Case, up: Network, tmp_path: Path) -> None:
    found = measured(up, case, tmp_path / "run")
    assert found["rounds"] == EXPERIMENT["rounds"] and found["same_bits"] and not found["rejected"]
    # Where a connection is reset is drawn; one that carries less than that ends by itself.
    assert case is network_faults.resets or not found["connections_cut"]


@pytest.mark.parametrize("case", [network_faults.half_open, network_faults.stopped])
def test_a_client_that_is_silent_is_absent_and_comes_back(case: Case, up: Network, tmp_path: Path) -> None:
    """Nobody is told that the connection is dead, or that the processes are stopped; the deadline tells."""
    found = measured(up, case, tmp_path / "run")
    victim = CLIENTS.index(VICTIM)
    assert found["rounds"] == EXPERIMENT["rounds"] and found["same_bits"] and not found["rejected"]
    assert found["absent"]["2"] == [victim] and set(map(tuple, found["absent"].values())) == {(victim,)}
