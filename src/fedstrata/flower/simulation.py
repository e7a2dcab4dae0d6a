"""A federation in Flower's own simulation: its nodes are virtual SuperNodes, in a few workers of Ray on one machine.

The server's part, the messages and what a device does with them are those of real SuperNodes, so the results are as
well. There are no connections, keys or certificates, and no limits for replies, as nothing comes from anybody else.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedstrata.config import Experiment, choose
from fedstrata.config.reading import Source
from fedstrata.errors import EngineError, FedstrataError, InputError
from fedstrata.flower.deploy import FEDERATION_FILE, federation_home, refuse_unknown_modules
from fedstrata.flower.federation import Federation, read_federation
from fedstrata.flower.grid import FlowerNode
from fedstrata.flower.payload import ReplyLimit
from fedstrata.flower.server import drive, public_samples


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
    experiment, folder = choose(source, [*sets, "engine.name=loop", "engine.device=cpu"], out)
    home = federation_home(federation)
    refuse_unknown_modules(experiment, home)
    known = read_federation(home / FEDERATION_FILE)
    _simulate(experiment, home, known, folder, workers or os.cpu_count() or 1)
    return folder


def _simulate(experiment: Experiment, home: Path, federation: Federation, out: Path, workers: int) -> None:
    """Run Flower's simulation with a virtual SuperNode for each client."""
    # Neither Flower nor Ray reports that it is used.
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray  # noqa: F401  # Flower would end the process without it
        from flwr.serverapp import ServerApp
        from flwr.simulation import run_simulation
    except ImportError as error:
        raise InputError(
            f"expected Flower's simulation with Ray, found {error}; install it by: pip install 'fedstrata[flower,ray]'"
        ) from None
    server_app = ServerApp()
    failures = list[Exception]()

    @server_app.main()
    def main(grid: Any, context: Any) -> None:
        try:
            public = public_samples(home, federation)
            drive(_SimulatedGrid(grid), experiment, federation, out, public=public)
        except Exception as error:
            failures.append(error)

    backend: dict[str, dict[str, Any]] = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": workers, "num_gpus": 0, "include_dashboard": False, "address": "local"},
    }
    # It recommends another command, which has no way to say which node holds which data.
    logging.getLogger("flwr").setLevel(logging.ERROR)
    run_simulation(server_app, _client_app(home, federation.clients), len(federation.clients), backend_config=backend)
    for failure in failures:
        if isinstance(failure, FedstrataError):
            raise failure
        raise EngineError(f"Flower's simulation ended with {type(failure).__name__}: {failure}") from failure


def _client_app(home: Path, clients: Sequence[str]) -> Any:
    """The ClientApp of all virtual SuperNodes: that of a real one, with the folder of the node that it stands for."""
    from flwr.clientapp import ClientApp

    app = ClientApp()

    def of_node(name: str) -> Callable[[Any, Any], Any]:
        def answer(message: Any, context: Any) -> Any:
            # Imported here: this runs in a worker of Ray.
            import torch

            from fedstrata.flower import client_work

            torch.set_num_threads(1)
            key = clients[int(context.node_config["partition-id"])]
            node = home / "nodes" / key
            state = node / "state"
            state.mkdir(exist_ok=True)
            device = client_work.Device(key, node / "data.npz", state)
            return getattr(client_work, name)(message, device)

        return answer

    app.train()(of_node("work"))
    app.query("sum")(of_node("add_up"))
    app.query("register")(of_node("register"))
    return app


@dataclass(frozen=True)
class _SimulatedGrid:
    """The `Grid` of Flower's simulation."""

    grid: Any

    def push_messages(self, messages: list[Any]) -> list[str | None]:
        """Send messages and return their ids."""
        return list(self.grid.push_messages(messages))

    def get_nodes(self) -> list[FlowerNode]:
        """Return the nodes that are there now."""
        return list(self.grid.get_nodes())

    def pull_messages(self, message_ids: list[str], limit: ReplyLimit) -> Iterable[Any]:
        """Return the replies that have come to some messages."""
        found: Iterable[Any] = self.grid.pull_messages(message_ids)
        return found
