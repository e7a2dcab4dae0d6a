"""Which model each client uses at the end of a run: ``models/clients.json``, and the tensors of clients' own.

The models of the clusters are in ``models/cluster-<node>.safetensors``. A client whose own tensors replace some of its
cluster's has them in ``models/personal.safetensors``, which only the user may read. On real devices they stay there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, TypeAdapter
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from fedstrata.base.errors import RecordError
from fedstrata.base.files import (
    json_text,
    open_file,
    refuse_links,
    remove_file,
    replace_file,
    subfolder,
)
from fedstrata.records.schema import RUN_FOLDER_ENTRIES, Id, Record, read_record

_FOLDER = "models"
_CLIENTS = "clients.json"
_PERSONAL = "personal.safetensors"

_REMEDY = "go on with the finished run to write it again: fedstrata run --resume --out"


class UsedModel(Record):
    """The model that a client uses.

    Attributes:
        client: The id of the client.
        node: The tree node of the cluster whose model it is; None where that is not known, because a client that waits
            for a cluster did not answer.
        personal: The tensors that are the client's own, by name.
        on_device: Whether these are on the client's device and not in the run folder.
    """

    client: Id
    node: Id | None
    personal: list[str] = Field(default_factory=list)
    on_device: bool = False


class ClientModelsRecord(Record):
    """``models/clients.json``.

    Attributes:
        sample_format: What raw samples look like, with the fields of `fedstrata.data.SampleFormat`.
        clients: The clients that took part at the end, in the order of their ids.
    """

    sample_format: dict[str, Any]
    clients: list[UsedModel]


def write_client_models(folder: Path, record: ClientModelsRecord, personal: Mapping[int, Mapping[str, Tensor]]) -> None:
    """Write which model each client uses.

    Args:
        folder: The run folder.
        record: What is known of all clients.
        personal: The tensors of each client that has some in this place, by client and name.
    """
    models = subfolder(folder, _FOLDER)
    tensors = {f"{client}/{name}": values for client, own in personal.items() for name, values in own.items()}
    if tensors:
        replace_file(models / _PERSONAL, save(tensors), private=True)
    else:
        remove_file(models / _PERSONAL)
    replace_file(models / _CLIENTS, (json_text(record.model_dump(), indent=1) + "\n").encode())


@dataclass(frozen=True)
class ClientModels:
    """The models in a run folder.

    Attributes:
        folder: The run folder.
        record: Which model each client uses.
    """

    folder: Path
    record: ClientModelsRecord

    @classmethod
    def read(cls, folder: Path) -> ClientModels:
        """Read which model each client uses.

        Raises:
            RecordError: When the run is not finished, or the file is damaged or missing, as in older run folders.
        """
        refuse_links(folder, RUN_FOLDER_ENTRIES)
        with _opened(folder, _CLIENTS, "a file that says which model each client uses") as path:
            return cls(folder, read_record(path, ClientModelsRecord))

    def sample_format(self, kind: type[Any]) -> Any:
        """Return what raw samples look like, as an object of `fedstrata.data.SampleFormat`.

        Raises:
            RecordError: When the record of it is damaged.
        """
        with _opened(self.folder, _CLIENTS, "the format of samples"):
            return TypeAdapter(kind).validate_python(self.record.sample_format)

    def cluster_tensors(self, node: int) -> dict[str, Tensor]:
        """Return the model of a cluster, by the names of its tensors.

        Raises:
            RecordError: When the file is missing or damaged.
        """
        # Opening refuses what is no regular file.
        name = f"cluster-{node}.safetensors"
        with _opened(self.folder, name, "the model of a cluster") as path, open_file(path, limit=None):
            return load_file(path)

    def personal_tensors(self, used: UsedModel, name: str) -> dict[str, Tensor]:
        """Return the tensors of a client's own, by their names.

        Args:
            used: The model of the client.
            name: The name of the client, for the message.

        Raises:
            RecordError: When they are on its device, or the file is missing or damaged.
        """
        if used.on_device:
            raise RecordError(
                f"client {name} keeps {', '.join(used.personal)} on its own device; ask there for its model, "
                "or take the model of its cluster"
            )
        if not used.personal:
            return {}
        # Opening refuses what is no regular file; the tensors of one client are then read alone.
        with (
            _opened(self.folder, _PERSONAL, "the tensors of clients") as path,
            open_file(path, limit=None),
            safe_open(path, framework="pt") as file,
        ):
            return {tensor: file.get_tensor(f"{used.client}/{tensor}") for tensor in used.personal}


@contextmanager
def _opened(folder: Path, name: str, what: str) -> Iterator[Path]:
    """Give the path of a file of the models, and say in one line what is wrong with it."""
    path = folder / _FOLDER / name
    try:
        yield path
    except (FileNotFoundError, SafetensorError, ValueError) as error:
        found = "none" if isinstance(error, FileNotFoundError) else " ".join(str(error).split())[:200]
        raise RecordError(f"{path}: expected {what}, found {found}; {_REMEDY} {folder}") from None
