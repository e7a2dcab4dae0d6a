"""The file of a federation: what its server must know besides the experiment. Neither torch nor Flower is needed."""

from __future__ import annotations

import os
import sys
import tomllib
from dataclasses import asdict, field
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from annotated_types import Ge, Gt, Le
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from fedstrata.base.errors import ExperimentError, check_rules
from fedstrata.base.key_errors import explain
from fedstrata.data.preparation import Preparation, of_numbers

FEDERATION_FILE = "federation.toml"
"""The name of a federation's own file, in its folder."""

NETWORK = "network"
"""The folder in a run folder with the run's name on the devices, the clients' nodes and every round's traffic."""

QUIET_FLOWER = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""The variables by which Flower does not report that it is used, nor ask for a newer version."""

_KEYS = ConfigDict(extra="forbid")


@dataclass(frozen=True, config=_KEYS)
class Samples:
    """What the samples of all clients have in common.

    Attributes:
        shape: The shape of one raw sample, (channels, ...); of a row of a table (columns,), of tokens (length,).
        classes: The number of classes. A client need not have all of them.
        mean: The mean of each channel, (channels,); for uint8 samples on the scale where 255 is 1. All clients
            normalise by the same mean: the model would see another scale at each of them otherwise.
        std: The standard deviation of each channel, (channels,), likewise.
        dtype: The type of the samples in the files, "uint8" or "float32"; "int64" for tokens.
        names: The names of the classes, (classes,), where the files of the clients have texts; else empty.
        unit: The column whose equal values are not independent samples; empty where there is none.
        test: The share of its samples that a client without a test split holds out.
        outputs: The shape of what a network says about one sample; empty is (classes,).
        features: The columns of a table that are the features of a sample, in their order. Empty for those that the
            experiment names or the files of a client leave no doubt about.
        preparation: How the rows of a table are prepared, in place of mean and std; None for a table of numbers without
            gaps, and for other samples. Where its statistics are each client's own, a device takes those of its rows.
    """

    shape: tuple[int, ...]
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    dtype: str = "uint8"
    names: tuple[str, ...] = ()
    unit: str = ""
    test: float = 0.2
    outputs: tuple[int, ...] = ()
    features: tuple[str, ...] = ()
    preparation: Preparation | None = None

    @property
    def prepared(self) -> Preparation | None:
        """How the rows of a table are prepared: by `mean` and `std` where the file has no more; None of others."""
        if self.preparation is None and self.dtype == "float32" and len(self.shape) == 1:
            return of_numbers(self.features, self.mean, self.std)
        return self.preparation

    @property
    def normalisation(self) -> dict[str, Any]:
        """The fields of a `Dataset` that say how its samples are normalised, or prepared."""
        if self.prepared is not None:
            return {"mean": (), "std": (), "preparation": self.prepared}
        return {"mean": self.mean, "std": self.std}

    @property
    def network_shape(self) -> tuple[int, ...]:
        """The shape of one sample as the network reads it."""
        return self.shape if self.preparation is None else (self.preparation.width,)

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        prepared = self.preparation is not None
        channels = self.shape[0] if self.shape and self.dtype in ("uint8", "float32") and not prepared else 0
        rules = {
            "shape names features, or channels and further axes, each above 0": min(self.shape, default=0) > 0,
            "classes is at least 2": self.classes >= 2 or bool(self.outputs),
            "mean and std have a value for each channel": len(self.mean) == len(self.std) == channels,
            "std is above 0": min(self.std, default=1) > 0,
            'dtype is "uint8", "float32" or "int64"': self.dtype in ("uint8", "float32", "int64") or prepared,
            "names are none or one for each class": len(self.names) in (0, self.classes),
            "test is above 0 and below 1": 0 < self.test < 1,
            "features has one for each number of a row, or none": len(self.features) in (0, *self.shape[:1]),
        }
        check_rules("samples", rules, self)


@dataclass(frozen=True, config=_KEYS)
class RoundRules:
    """When a round is over.

    Attributes:
        deadline: The seconds from its messages on after which a client that has not replied is absent.
        min_reply_fraction: The share of the clients whose sound replies end the round at once, in (0, 1]: so many of
            the selected ones, which train, and so many of all that are asked, with those that only score. Below 1, the
            work of the others is lost.
        min_replies: The number of sound replies without which the round is repeated.
        max_attempts: How often a round is sent at most.
    """

    deadline: Annotated[float, Gt(0)] = 600.0
    min_reply_fraction: Annotated[float, Gt(0), Le(1)] = 1.0
    min_replies: Annotated[int, Ge(1)] = 1
    max_attempts: Annotated[int, Ge(1)] = 3


@dataclass(frozen=True, config=_KEYS)
class Federation:
    """Who is in a federation, what its samples look like, and when a round is over.

    Attributes:
        clients: The keys of the clients in the order of their ids. One that is not listed gets the next free id.
        samples: What the samples of all clients have in common.
        rounds: When a round is over.
        min_clients: How many clients must be there before the first round; 0 is all that are listed.
        wait_seconds: How many seconds the server waits for them.
        max_samples: The number of samples that a client may claim, of either kind. 0 is any number up to a billion,
            of which every run warns.
        truth: The true group of each client, (n,), where it is known. It serves for measures alone.
        public: The ``.npz`` file of unlabelled samples ``x`` on the server, relative to this file; empty for none.
        names: The name of each of these clients for people, as on the page; empty where the keys are the names.
    """

    clients: tuple[str, ...]
    samples: Samples
    rounds: RoundRules = field(default_factory=RoundRules)
    min_clients: int = 0
    wait_seconds: float = 300.0
    max_samples: Annotated[int, Ge(0)] = 0
    truth: tuple[int, ...] = ()
    public: str = ""
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        rules = {"names has one for each of clients, or none": len(self.names) in (0, len(self.clients))}
        check_rules("federation", rules, self)


def read_federation(path: Path) -> Federation:
    """Read the file of a federation.

    Raises:
        InputError: In one line, with the key, its value and what is allowed.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ExperimentError(f"{path}: expected the file of a federation: {error}") from None
    try:
        return TypeAdapter(Federation).validate_python(table)
    except ValidationError as failure:
        raise ExperimentError(f"{path}: {explain(failure, table, Federation)}") from None


def write_federation(path: Path, federation: Federation) -> None:
    """Write the file of a federation."""
    found = asdict(federation)
    if federation.samples.preparation is None:
        del found["samples"]["preparation"]
    path.write_text(tomli_w.dumps(found), encoding="utf-8")


def node_data(home: Path, client: str) -> Path:
    """The file with the data of a client of a test federation, in the folder of its node."""
    return home / "nodes" / client / "data.npz"


def flower_environment(home: Path) -> dict[str, str]:
    """Return the variables for the program ``flwr`` of this environment, which keeps its files in a folder."""
    beside = Path(sys.executable).parent
    path = f"{beside}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, **QUIET_FLOWER, "FLWR_HOME": str(home), "PATH": path}
