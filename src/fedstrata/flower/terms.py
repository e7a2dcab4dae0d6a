"""What does not change during a run, told to the devices with every message: each is a process of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from math import prod

from torch import nn

from fedstrata.core import SINGULAR_VECTORS, Layout
from fedstrata.errors import InputError, check_rules
from fedstrata.flower.letter import Letter, Record, one, several
from fedstrata.models import layout_of, make


@dataclass(frozen=True)
class Samples:
    """What all clients' samples have in common.

    Attributes:
        shape: of one sample, (channels, ...).
        classes: number of classes, of which a client need not have all.
        mean: of each channel, (channels,); of uint8 samples on the scale where 255 is 1. The same for everyone: a
            client that normalised by its own would see another world than the model.
        std: standard deviation of each channel, likewise.
        dtype: of the samples as they are stored, "uint8" or "float32".
        names: of the classes, (classes,), where the clients' files have texts; else empty.
        unit: column whose equal values are not independent samples; empty where there is none.
        test: share of its samples that a client without a test split holds out.
    """

    shape: tuple[int, ...]
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    dtype: str = "uint8"
    names: tuple[str, ...] = ()
    unit: str = ""
    test: float = 0.2

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        channels = self.shape[0] if self.shape else 0
        rules = {
            "shape names channels and at least one more axis, each above 0": len(self.shape) > 1
            and min(self.shape) > 0,
            "classes is at least 2": self.classes >= 2,
            "mean and std have a value for each channel": len(self.mean) == len(self.std) == channels,
            "std is above 0": min(self.std, default=1) > 0,
            'dtype is "uint8" or "float32"': self.dtype in ("uint8", "float32"),
            "names are none or one for each class": len(self.names) in (0, self.classes),
            "test is above 0 and below 1": 0 < self.test < 1,
        }
        check_rules("samples", rules, self)


@dataclass(frozen=True)
class Terms:
    """What a device must know besides what it is asked.

    Attributes:
        run: which run of which federation; what a device keeps is kept for one run.
        clients: n.
        seed: of the run.
        model: name of the network.
        options: of the network, as JSON.
        precision: of training, as `Loop` takes it.
        samples: what all clients' samples have in common.
    """

    run: str
    clients: int
    seed: int
    model: str
    options: str
    precision: str
    samples: Samples

    def network(self, start: int) -> nn.Module:
        """The network with initial weights of a seed."""
        return make(self.model, self.samples.shape, self.samples.classes, start, **json.loads(self.options))

    @property
    def facts(self) -> dict[str, int]:
        """How many numbers each fact about a client's data consists of."""
        subspaces = self.samples.classes * SINGULAR_VECTORS * prod(self.samples.shape)
        return {"classes": 1, "entropy": 1, "subspaces": subspaces, "units": 1}


def write_terms(terms: Terms, layout: Layout) -> Letter:
    """The letter of the terms, with the tensors of the network: a device can tell whether it has the same."""
    samples = terms.samples
    record: Record = {
        "run": terms.run,
        "clients": terms.clients,
        "seed": terms.seed,
        "model": terms.model,
        "options": terms.options,
        "precision": terms.precision,
        "shape": list(samples.shape),
        "classes": samples.classes,
        "mean": list(samples.mean),
        "std": list(samples.std),
        "dtype": samples.dtype,
        "names": list(samples.names),
        "unit": samples.unit,
        "test": samples.test,
        "tensors": [f"{slot.name} {slot.shape}" for slot in layout.tensors],
    }
    return Letter({"terms": record})


def read_terms(letter: Letter) -> Terms:
    """The terms in a letter.

    Raises:
        InputError: when they are not there, or the network is another one here than at the sender.
    """
    record = letter.record("terms")
    text, whole = partial(one, record, kind=str), partial(one, record, kind=int)
    samples = Samples(
        tuple(several(record, "shape", int)),
        whole("classes"),
        tuple(several(record, "mean", float)),
        tuple(several(record, "std", float)),
        text("dtype"),
        tuple(several(record, "names", str)),
        text("unit"),
        one(record, "test", float),
    )
    numbers = whole("clients"), whole("seed")
    terms = Terms(text("run"), *numbers, text("model"), text("options"), text("precision"), samples)
    here = [f"{slot.name} {slot.shape}" for slot in layout_of(terms.network(0)).tensors]
    if here != (there := several(record, "tensors", str)):
        raise InputError(f"expected a network with the tensors {', '.join(there)}, found {', '.join(here)}")
    return terms
