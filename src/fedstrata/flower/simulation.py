"""A federation in Flower's own simulation: its nodes are virtual SuperNodes, in a few workers of Ray on one machine.

The server's part, the messages and what a device does with them are those of real SuperNodes, so the results are as
well. There are no connections, keys or certificates.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from fedstrata.base.errors import EngineError, FedstrataError, InputError
from fedstrata.config.reading import Source
from fedstrata.flower.deploy import prepare
from fedstrata.flower.federation import FEDERATION_FILE, NETWORK, QUIET_FLOWER, node_data, read_federation
from fedstrata.flower.grid import FlowerNode
from fedstrata.flower.node import ACTION
from fedstrata.flower.server_app import drive, read_public_samples, refuse_unfit


def simulate_federation(
    source: Source,
    federation: Path | str,
    out: Path | str | None = None,
    sets: Sequence[str] = (),
    *,
    workers: int | None = None,
) -> Path:
    """Run an experiment in Flower's simulation of a federation. Nothing of the federation has to be up.

    Args:
        source: The experiment, as `load_experiment` takes it.
        federation: The folder of the federation, with the data of all nodes.
        out: The run folder; by default a new one in ``runs``.
        sets: Keys and values, as `load_experiment` takes them.
        workers: The number of Ray's workers; by default one for each processor.

    Returns:
        The run folder, as a simulated run leaves it.

    Raises:
        InputError: When something in the experiment is wrong, or Ray is not installed; nothing is started then.
        EngineError: When the run did not finish.
    """
    # Flower reads its variables when it is imported. Nor does Ray report that it is used.
    for name, value in {**QUIET_FLOWER, "RAY_USAGE_STATS_ENABLED": "0"}.items():
        os.environ.setdefault(name, value)
    experiment, folder, home = prepare(source, federation, out, sets)
    known = read_federation(home / FEDERATION_FILE)
    for client in known.clients:
        if not (path := node_data(home, client)).is_file():
            raise InputError(f"{path}: expected the data of the client {client}, as a simulation has all clients")
    public = read_public_samples(home, known)
    refuse_unfit(experiment, known, public)
    count = min(workers or os.cpu_count() or 1, len(known.clients))

    def serve(grid: Any) -> None:
        drive(grid, experiment, known, folder, public=public)

    client_app = _client_app(home, folder.resolve() / NETWORK / "devices")
    _simulate(serve, client_app, known.clients, count)
    if not (folder / "summary.json").is_file():
        raise EngineError(f"the run in {folder} did not finish; Flower's log above says why")
    return folder


def _simulate(serve: Callable[[Any], None], client_app: Any, clients: Sequence[str], workers: int) -> None:
    """Run Flower's simulation.

    Args:
        serve: The server's part, with the grid.
        client_app: The ClientApp of all virtual SuperNodes.
        clients: The keys of the clients.
        workers: The number of Ray's workers.
    """
    try:
        import ray  # noqa: F401  # Flower would end the process without it
        from flwr.serverapp import ServerApp
        from flwr.simulation import run_simulation
    except ImportError as error:
        raise InputError(f"expected Ray, found {error}; pip install 'fedstrata[flower,ray]'") from None
    server_app = ServerApp()
    over = Event()
    failures = list[Exception]()

    @server_app.main()
    def main(grid: Any, context: Any) -> None:
        try:
            serve(_SimulatedGrid(grid, clients, over))
        except Exception as error:
            failures.append(error)

    backend: dict[str, dict[str, Any]] = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": workers, "num_gpus": 0, "include_dashboard": False, "address": "local"},
    }
    log = logging.getLogger("flwr")
    level = log.level
    # It recommends another command, which has no way to say which node holds which data.
    log.setLevel(logging.ERROR)
    try:
        run_simulation(server_app, client_app, len(clients), backend_config=backend)
    except RuntimeError as error:
        failures.append(error)
    finally:
        # The thread of the server ends too.
        over.set()
        log.setLevel(level)
    for failure in failures:
        if isinstance(failure, FedstrataError):
            raise failure
        raise EngineError(f"Flower's simulation ended with {type(failure).__name__}: {failure}") from failure


def _client_app(home: Path, states: Path) -> Any:
    """The ClientApp of all virtual SuperNodes: that of a real one, with the data of the client that is asked.

    Args:
        home: The folder of the federation.
        states: The folder of what the clients keep to themselves. That of a real node is left alone.
    """
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train(ACTION)
    def answer(message: Any, context: Any) -> Any:
        # Imported here: this runs in a worker of Ray.
        import torch

        from fedstrata.flower import client_app

        torch.set_num_threads(1)
        key = client_app.addressee(message)
        config = {"client-key": key, "data": str(node_data(home, key)), "state-dir": str(states / key)}
        # Flower itself reads what else is there.
        context.node_config = {**context.node_config, **config}
        return client_app.client_app(message, context)

    return app


@dataclass
class _VirtualNode:
    """A virtual node, as Flower describes a real one."""

    node_id: int
    name: str
    public_key: bytes = b""


@dataclass(frozen=True)
class _SimulatedGrid:
    """The `Grid` of Flower's simulation, whose nodes have no names: each gets that of a client.

    Attributes:
        grid: Flower's own.
        clients: The keys of the clients.
        over: Set when the simulation has ended. Then no reply comes any more.
    """

    grid: Any
    clients: Sequence[str]
    over: Event

    def push_messages(self, messages: list[Any]) -> list[str | None]:
        """Send messages and return their ids."""
        return list(self.grid.push_messages(messages))

    def get_nodes(self) -> list[FlowerNode]:
        """Return the nodes that are there now."""
        nodes = sorted(self.grid.get_node_ids())
        return [_VirtualNode(id, name) for id, name in zip(nodes, self.clients, strict=False)]

    def pull_messages(self, message_ids: list[str]) -> Iterable[Any]:
        """Return the replies that have come to some messages."""
        if self.over.is_set():
            raise EngineError("Flower's simulation has ended before the run")
        found: Iterable[Any] = self.grid.pull_messages(message_ids)
        return found
