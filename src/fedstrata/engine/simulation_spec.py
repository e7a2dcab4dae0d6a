"""What an engine is made of, wherever it is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from torch import nn

from fedstrata.data import Dataset
from fedstrata.engine.client_data import ClientData
from fedstrata.engine.client_store import ClientStore
from fedstrata.engine.loop import Loop
from fedstrata.models import layout_of
from fedstrata.partition import Partition


@dataclass(frozen=True)
class SimulationSpec:
    """A network and the clients' data, in parts that can be sent to other processes.

    Attributes:
        network: makes the network, the same every time.
        dataset: in memory.
        partition: which samples are whose, and how each client sees them.
        seed: of the run.
        handovers: as `ClientData` takes them.
        precision: of training, as `Loop` takes it.
    """

    network: Callable[[], nn.Module]
    dataset: Dataset
    partition: Partition
    seed: int
    handovers: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    precision: str = "float32"

    @cached_property
    def client_data(self) -> ClientData:
        """The clients' data."""
        return ClientData(self.dataset, self.partition, self.seed, self.handovers)

    def loop(self, store: ClientStore | None = None) -> Loop:
        """An engine of its own on the one copy of the data that is here."""
        module = self.network()
        return Loop(module, layout_of(module), self.client_data, store, self.precision)
