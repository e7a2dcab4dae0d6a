"""The tables of the experiment file, and what each of their keys may be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from annotated_types import Interval, Len, MinLen
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, ValidationError

from fedstrata.algorithms import ALGORITHMS
from fedstrata.core import Algorithm
from fedstrata.errors import ExperimentError
from fedstrata.key_errors import explain, unknown
from fedstrata.limits import (
    ALGORITHM_KEYS,
    CLIENTS,
    COUNT,
    ENTRIES,
    EPOCHS,
    INTEGER,
    OPTION,
    RATE,
    ROUNDS,
    SAMPLES,
    TIMEOUT,
    WORKERS,
)
from fedstrata.partition import Scheme, scheme_from
from fedstrata.quoting import dotted, shown

Amount = Annotated[int, Interval(ge=0, le=SAMPLES)]
Round = Annotated[int, Interval(ge=1, le=ROUNDS)]
Client = Annotated[int, Interval(ge=0, le=CLIENTS - 1)]
Name = Annotated[str, MinLen(1)]
Measure = Literal["cos", "l2", "dcos", "dl2"]


def _once(values: tuple[Measure, ...]) -> tuple[Measure, ...]:
    """Refuse a measure that is named twice: it would be taken twice."""
    if len(set(values)) < len(values):
        raise ValueError("a list of which each is named once")
    return values


class Table(BaseModel):
    """A table with fixed keys, read without silent conversions."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Choice(Table):
    """A table whose first key names a thing, and whose other keys are that thing's options."""

    model_config = ConfigDict(extra="allow")

    @property
    def options(self) -> dict[str, Any]:
        """All keys but the first."""
        return dict(self.model_extra or {})


class Data(Table):
    """Which data, and how many clients share it.

    Attributes:
        name: a known data set, a hub id, or a folder with the same Parquet layout.
        root: where named sets are looked for first.
        clients: number of clients.
        samples: training samples per client, on average; 0 is all there are.
        test: share of each client's own data that is held out.
        public: unlabelled samples on the server, which no client holds.
        unit: column whose equal values are not independent samples; by default the data set's own.
    """

    name: Name = "digits"
    root: Name | None = None
    clients: Annotated[int, Interval(ge=1, le=CLIENTS)] = 20
    samples: Amount = 500
    test: Annotated[float, Interval(gt=0, lt=1)] = 0.2
    public: Amount = 0
    unit: Name | None = None


class Model(Choice):
    """The network.

    Attributes:
        name: of the library, or "package.module:factory"; by default the data set's own.
    """

    name: Name = ""


class Local(Table):
    """How a client trains.

    Attributes:
        epochs: passes over the client's data in a round.
        batch: samples per step; 0 is all the data at once.
        optimizer: of the client, its state made anew every round.
        lr: step size of round 1.
        momentum: of SGD.
        lr_decay: factor on the step size after every round.
    """

    epochs: Annotated[int, Interval(ge=1, le=EPOCHS)] = 1
    batch: Amount = 50
    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: Annotated[float, Interval(gt=0, le=RATE)] = 0.01
    momentum: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    lr_decay: Annotated[float, Interval(gt=0, le=1)] = 1.0


class Cohort(Table):
    """Who takes part in a round.

    Attributes:
        fraction: share of the clients that is asked.
        dropout: share of the cohort that never answers.
    """

    fraction: Annotated[float, Interval(gt=0, le=1)] = 1.0
    dropout: Annotated[float, Interval(ge=0, lt=1)] = 0.0


class Method(Choice):
    """The algorithm.

    Attributes:
        name: of a registered algorithm; the other keys are its hyper-parameters.
    """

    name: str = "strata"


class Engine(Table):
    """What computes.

    Attributes:
        name: of the engine; processes and ray are as loop, bit for bit, on many cores or machines; batched is, but for
            rounding, all clients as one program.
        device: where it computes; only batched can on CUDA.
        precision: in which training multiplies; bfloat16 pays where the processor has it. All else is float32.
        workers: processes, or tasks of Ray in a round; 0 is as many as cores. No result depends on it.
        timeout: seconds without progress after which a worker is replaced by another one, which does the same work
            again; 0 waits without end. No result depends on it.
    """

    name: Literal["auto", "loop", "batched", "processes", "ray"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["float32", "bfloat16"] = "float32"
    workers: Annotated[int, Interval(ge=0, le=WORKERS)] = 0
    timeout: Annotated[int, Interval(ge=0, le=TIMEOUT)] = 600


class Probe(Table):
    """What is measured every round without touching training.

    Attributes:
        gap: measures by which every layer is compared with the hidden truth.
    """

    # Files have lists where a frozen table wants a tuple.
    gap: Annotated[tuple[Measure, ...], Strict(False), AfterValidator(_once)] = ()


class Records(Table):
    """Where else a run is recorded.

    Attributes:
        track: who else gets the numbers of every round, into ``tracking`` in the run folder: TensorBoard, or Weights &
            Biases in its offline mode. Needs the extra ``track``; nothing is sent anywhere.
    """

    track: Literal["none", "tensorboard", "wandb"] = "none"


class Group(Table):
    """Clients that join or leave before a round.

    Attributes:
        round: counted from 1.
        clients: their ids, of ``data.clients`` in all.
    """

    round: Round
    clients: Annotated[tuple[Client, ...], Strict(False), Len(1, CLIENTS)]


class Handover(Table):
    """A client that gets other data before a round.

    Attributes:
        round: counted from 1.
        client: its id.
        holds: the client whose data it has from then on, and which takes no part itself.
    """

    round: Round
    client: Client
    holds: Client


class Misplacement(Table):
    """Clients that are put into another cluster by force before a round (HiCFL, Fig. 11).

    Attributes:
        round: counted from 1.
        share: of the clients.
    """

    round: Round
    share: Annotated[float, Interval(gt=0, le=1)]


class Events(Table):
    """What happens to the clients during the run.

    Attributes:
        join: clients that take part from a round on.
        leave: clients that take part no more from a round on.
        change: clients whose data change.
        misplace: clients that are put into the wrong cluster.
    """

    join: Annotated[tuple[Group, ...], Strict(False)] = ()
    leave: Annotated[tuple[Group, ...], Strict(False)] = ()
    change: Annotated[tuple[Handover, ...], Strict(False)] = ()
    misplace: Annotated[tuple[Misplacement, ...], Strict(False)] = ()


class Experiment(Table):
    """One experiment, every default written out.

    Attributes:
        seed: of every random choice.
        rounds: of communication.
        data: which data, and how many clients share it.
        partition: how the samples are dealt: the name of a scheme, and its keys.
        model: the network.
        local: how a client trains.
        cohort: who takes part in a round.
        algorithm: the one that is run.
        algorithms: hyper-parameters of others, for comparisons.
        engine: what computes.
        events: what happens to the clients during the run.
        probe: what else is measured.
        records: where else a run is recorded.
    """

    seed: Annotated[int, Interval(ge=0, le=INTEGER)] = 0
    rounds: Round = 50
    data: Data = Data()
    partition: dict[str, Any] = Field(default_factory=lambda: {"scheme": "iid"})
    model: Model = Model()
    local: Local = Local()
    cohort: Cohort = Cohort()
    algorithm: Method = Method()
    algorithms: dict[str, dict[str, Any]] = Field(default_factory=dict)
    engine: Engine = Engine()
    events: Events = Events()
    probe: Probe = Probe()
    records: Records = Records()

    @property
    def scheme(self) -> Scheme:
        """The partition, ready to deal.

        Raises:
            ExperimentError: when its keys do not fit.
        """
        return scheme_from(self.partition)

    def algorithm_of(self, name: str | None = None) -> Algorithm[Any]:
        """An algorithm with its hyper-parameters.

        Args:
            name: None is the one that is run; another has the keys of ``[algorithms.<name>]``.

        Raises:
            ExperimentError: when there is no such algorithm, or its keys do not fit.
        """
        if name is None or name == self.algorithm.name:
            return algorithm_from(self.algorithm.name, self.algorithm.options)
        return algorithm_from(name, self.algorithms.get(name, {}), f"algorithms.{name}")


def algorithm_from(name: str, keys: dict[str, Any], place: str = "algorithm") -> Algorithm[Any]:
    """Make an algorithm of its hyper-parameters.

    Args:
        name: of a registered algorithm.
        keys: its hyper-parameters.
        place: of these keys in the experiment, for the message.

    Raises:
        ExperimentError: when there is no such algorithm, or its keys do not fit.
    """
    if name not in ALGORITHMS:
        key = "algorithm.name" if place == "algorithm" else place
        raise ExperimentError(unknown(key, name, "algorithm", ALGORITHMS))
    kind: Callable[..., Algorithm[Any]] = ALGORITHMS[name]
    for key, value in keys.items():
        whole = isinstance(value, int)
        if problem := too_large(value, ALGORITHM_KEYS.get(key, COUNT) if whole else OPTION):
            raise ExperimentError(f"{place}.{dotted([key])} = {shown(value)}: {problem}")
    try:
        return kind(**keys)
    except ValidationError as failure:
        raise ExperimentError(explain(failure, keys, kind, place)) from None


def too_large(value: object, most: float) -> str:
    """Say why a number, or a list of numbers or texts, is too large for an option; empty when it is not.

    Args:
        value: of a key whose meaning is not known here.
        most: the largest number.
    """
    items = value if isinstance(value, list | tuple) else [value]
    if len(items) > ENTRIES:
        return f"expected a list of at most {ENTRIES:,} entries, found {len(items):,}"
    numbers = [item for item in items if isinstance(item, int | float)]
    if any(not -most <= number <= most for number in numbers):
        return f"expected a finite number of at most {most:,.15g}"
    return ""
