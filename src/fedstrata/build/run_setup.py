"""What a run needs: its server, and its clients, who are simulated or devices."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedstrata.build.server_setup import ServerSetup
from fedstrata.config.tables import EngineTable
from fedstrata.engine import ClientData, Engine
from fedstrata.uploads.attacks.backdoor import Trigger
from fedstrata.uploads.attacks.byzantine_clients import ByzantineClients
from fedstrata.uploads.compression import CompressedUploads
from fedstrata.uploads.steps import UploadStep
from fedstrata.uploads.validation import ValidAnswers


@dataclass(frozen=True, kw_only=True)
class RunSetup:
    """What a run needs: its server, and the clients.

    Attributes:
        server: What the server needs.
        clients: The engine, or the devices, that hold the data.
        client_data: The data of all clients.
        engine: The engine of the experiment, with the choice that "auto" led to.
        why: The reason for this choice in one line; empty when the experiment names the engine.
        names: The name of each client, (n,). Clients without names have their numbers.
        data_warnings: What looks wrong with the data and the network, in a line each.
        attack_warnings: The same of the attack.
        public: The unlabelled samples of the server before they are normalised, (samples, ...); None for none.
        inputs: Which columns of a table the networks read, in one line; empty where the data are no table.
        byzantine: The clients that send something else than they have trained; None where all are honest.
        trigger: The trigger of their backdoor; None where they have none.
        uploads_are_decoded: Whether the reports of the clients are decompressed already, as those of real devices are.
    """

    server: ServerSetup
    clients: Engine
    client_data: ClientData
    engine: EngineTable
    why: str = ""
    names: tuple[str, ...] = ()
    data_warnings: tuple[str, ...] = ()
    attack_warnings: tuple[str, ...] = ()
    public: torch.Tensor | None = None
    inputs: str = ""
    byzantine: ByzantineClients | None = None
    trigger: Trigger | None = None
    uploads_are_decoded: bool = False

    @property
    def warnings(self) -> tuple[str, ...]:
        """All that looks wrong, in a line each."""
        return (*self.data_warnings, *self.attack_warnings)

    @property
    def everyone(self) -> torch.Tensor:
        """All client ids, (n,)."""
        return torch.arange(self.server.problem.clients)

    @property
    def choices(self) -> tuple[str, ...]:
        """What was chosen for the experiment where it does not say, in a line each."""
        lines = {"engine": self.why, "inputs": self.inputs}
        return tuple(f"{name}: {text}" for name, text in lines.items() if text)

    @property
    def steps(self) -> tuple[UploadStep, ...]:
        """What happens to a report between the clients and the algorithm, in this order."""
        server = self.server
        found: list[UploadStep | None] = [server.client_noise, self.byzantine]
        if server.compression is not None and not self.uploads_are_decoded:
            # Nothing else fits into what travels, whoever sends it.
            found.append(CompressedUploads(server.compression, self.clients.store))
        # With noisy sums, whether a client counts must not depend on others: the noise is for what one client changes.
        found.append(ValidAnswers(server.problem.layout, compared=server.problem.aggregation.exact))
        return tuple(step for step in found if step is not None)

    def truth(self, round: int) -> torch.Tensor | None:
        """The true group of each client in a round, (n,). It changes with the data of a client."""
        if self.server.problem.truth is None:
            return None
        truth = self.server.problem.truth.clone()
        for client, (since, other) in self.server.participation.handovers.items():
            truth[client] = truth[other if round >= since else client]
        return truth
