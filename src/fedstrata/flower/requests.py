"""What one client is asked in a round, as a message, and the config of the run that comes with it.

The fields of a dataclass are written and read by its schema. So a new field of a task or of its training travels by
itself.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from math import inf, prod

import torch

from fedstrata.base.errors import ContractError, InputError, check_rules
from fedstrata.base.randomness import model_seed
from fedstrata.core import CLIENT_STATS, SINGULAR_VECTORS, Evaluation, Layout, LocalTask, Mask, Plan
from fedstrata.data.column_roles import DEFAULT_OPTIONS, ReadOptions
from fedstrata.engine import ClientStore
from fedstrata.engine.client_data import own_stat
from fedstrata.engine.client_store import parse_stored_name
from fedstrata.engine.input_features import INPUT_FEATURES
from fedstrata.flower.federation import Samples
from fedstrata.flower.payload import (
    INT_ROW,
    ONE_INT,
    OPTIONAL_FLOAT_ROW,
    OPTIONAL_INTS,
    Payload,
    Schema,
    row_of_values,
    values_of_row,
)
from fedstrata.models import NetworkMaker, NetworkShape
from fedstrata.objective import Objective
from fedstrata.uploads.compression import Compression, CompressionKind


@dataclass(frozen=True)
class RunConfig:
    """What a device must know of a run besides its request. It comes with every message and never changes.

    Attributes:
        run: The name of the run. A device keeps a client's own layers by run.
        clients: The number of clients n.
        seed: The seed of the run.
        model: The name of the network.
        options: The options of the network, as JSON.
        precision: The precision of training, as `Loop` takes it.
        samples: What the samples of all clients have in common.
        objective: What the networks learn. The functions of the user's own must be on the device.
        reading: How samples are made of the files of a client.
        spread_units: Whether the units that a client holds out are spread over the classes, as `hold_out` does it.
        clip_norm: The largest norm of an update to which a client adds noise.
        noise_multiplier: The standard deviation of this noise, divided by `clip_norm`; 0 is no noise and no clipping.
        compression: How clients compress their updates.
        compression_share: The share of the numbers of an update that "top_k" sends.
    """

    run: str
    clients: int
    seed: int
    model: str
    options: str
    precision: str
    samples: Samples
    objective: Objective = field(default_factory=Objective)
    reading: ReadOptions = DEFAULT_OPTIONS
    spread_units: bool = False
    clip_norm: float = 1.0
    noise_multiplier: float = 0.0
    compression: CompressionKind = "none"
    compression_share: float = 1.0

    def __post_init__(self) -> None:
        """Refuse noise that is none."""
        rules = {
            "clip_norm is a number above 0": 0 < self.clip_norm < inf,
            "noise_multiplier is a number of at least 0": 0 <= self.noise_multiplier < inf,
        }
        check_rules("the config of a run", rules, (self.clip_norm, self.noise_multiplier))

    @property
    def outputs(self) -> tuple[int, ...]:
        """The shape of what a network says about one sample."""
        return self.samples.outputs or self.objective.outputs_of_classes(self.samples.classes)

    @cached_property
    def network(self) -> NetworkMaker:
        """What makes the network, with its fixed tensors. Every request brings the weights that it needs."""
        kind = NetworkShape(self.samples.network_shape, self.outputs, self.samples.dtype == "int64")
        return NetworkMaker(self.model, kind, model_seed(self.seed), json.loads(self.options))

    def compressor(self, layout: Layout) -> Compression | None:
        """How clients compress their updates; None where they do not."""
        if self.compression == "none":
            return None
        return Compression(layout, self.compression, self.compression_share, self.seed)

    @property
    def stat_sizes(self) -> dict[str, int]:
        """The number of numbers that each statistic of ``CLIENT_STATS`` consists of, by its name."""
        subspaces = self.samples.classes * SINGULAR_VECTORS * prod(self.samples.network_shape)
        return {"classes": 1, "entropy": 1, "subspaces": subspaces, "inputs": INPUT_FEATURES}

    def stat_size(self, name: str) -> int:
        """Return the number of numbers of a statistic. A function of the user's own says it about a sample of zeros."""
        if name in CLIENT_STATS:
            return self.stat_sizes[name]
        sample = torch.zeros(1, *self.samples.network_shape)
        return len(own_stat(name, sample, torch.zeros(1, dtype=torch.int64), self.samples.classes))


@dataclass(frozen=True)
class _Network:
    """The names and shapes of the tensors of a network, and the digest of the frozen ones."""

    tensors: tuple[str, ...]
    frozen: str


_RUN_CONFIG = Schema(RunConfig)

_NETWORK = Schema(_Network)


def write_run_config(config: RunConfig, layout: Layout) -> Payload:
    """Write a run config with the tensors of the network, so that a device can tell whether it has the same."""
    return Payload({"config": _RUN_CONFIG.write(config), "network": _NETWORK.write(_network(layout))})


def read_run_config(payload: Payload) -> RunConfig:
    """Read the run config in a payload.

    Raises:
        InputError: When it is not there.
    """
    return _RUN_CONFIG.read(payload.record("config"))


def refuse_other_network(payload: Payload, layout: Layout) -> None:
    """Refuse a payload of a sender whose network has other tensors than are here, or other frozen ones.

    Raises:
        InputError: When it has.
    """
    here, there = _network(layout), _NETWORK.read(payload.record("network"))
    if here.tensors != there.tensors:
        raise InputError(
            f"expected a network with the tensors {', '.join(there.tensors)}, found {', '.join(here.tensors)}"
        )
    if here.frozen != there.frozen:
        raise InputError(
            f"expected a network whose frozen tensors have the digest {there.frozen or 'none'}, found "
            f"{here.frozen or 'none'}; put the base of the run on this device"
        )


def _network(layout: Layout) -> _Network:
    return _Network(tuple(f"{spec.name} {spec.shape}" for spec in layout.tensors), layout.frozen)


@dataclass(frozen=True)
class Request:
    """What one client is asked in a round.

    Attributes:
        client: Its id.
        plan: The plan for it alone. Its models are only those that it is offered, zero in the tensors that are not
            sent. Its evaluations are those that the client takes part in.
        models: The index in the plan for everyone of each model of `plan`, (k',) ascending.
        sent: The tensors of each model that the client does not have itself, (k', l).
        counted: The rounds whose tensors the server expects on the device, ascending. The device may have others, of
            a reply that came late. With these, the client would be another one than the server knows.
    """

    client: int
    plan: Plan
    models: tuple[int, ...]
    sent: tuple[Mask, ...]
    counted: tuple[int, ...] = ()

    def of_use(self, kept: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Those tensors that a device keeps, by name as in `ClientStore`, which the server expects there.

        Those of later rounds than the request's stay too, unread: it may be an old one that was held up.
        """
        rounds = {name: parse_stored_name(name)[2] for name in kept}
        return {name: kept[name] for name, round in rounds.items() if round in self.counted or round > self.plan.round}


def request_for(
    plan: Plan, client: int, layout: Layout, own: Collection[int], counted: Collection[int] = ()
) -> Request:
    """Cut what one client is asked out of the plan for everyone.

    Args:
        plan: The plan for everyone.
        client: The id of the client.
        layout: The layout of the network.
        own: The tensors that are on its device.
        counted: The rounds that these are of.
    """
    mine = plan.only(plan.cohort == client)
    evaluations = {name: each.only(each.clients == client) for name, each in plan.evaluations.items()}
    mine = replace(
        mine,
        tasks=mine.tasks if len(mine.cohort) else {},
        evaluations={name: each for name, each in evaluations.items() if len(each.clients)},
        client_stats={name: asked for name, asked in mine.client_stats.items() if bool(asked.any())},
    )
    wanted = needed_tensors(mine, layout, own)
    models = tuple(sorted(wanted))
    places = torch.full((len(plan.models) + 1,), -1)  # the last one is where a candidate of -1 looks
    places[list(models)] = torch.arange(len(models))
    rows = plan.models.new_zeros(len(models), layout.p)
    for row, model in zip(rows, models, strict=True):
        columns = layout.columns(wanted[model])
        row[columns] = plan.models[model, columns]
    tasks = {name: replace(task, candidates=places[task.candidates]) for name, task in mine.tasks.items()}
    evaluations = {name: replace(each, candidates=places[each.candidates]) for name, each in mine.evaluations.items()}
    mine = replace(mine, models=rows, tasks=tasks, evaluations=evaluations)
    return Request(client, mine, models, tuple(wanted[model] for model in models), tuple(sorted(counted)))


def needed_tensors(plan: Plan, layout: Layout, own: Collection[int]) -> dict[int, Mask]:
    """Find the tensors of each model that a client has to be sent: model -> mask (l,)."""
    wanted: dict[int, Mask] = {}
    pieces: tuple[LocalTask | Evaluation, ...] = (*plan.tasks.values(), *plan.evaluations.values())
    for piece in pieces:
        # The proximal term pulls towards the received values, so that they are needed beside a client's own.
        pulled = piece.trainable if isinstance(piece, LocalTask) and piece.prox_weight else layout.nothing
        mask = tuple(
            not (load and tensor in own) or pull
            for tensor, (load, pull) in enumerate(zip(piece.load_local, pulled, strict=True))
        )
        for model in set(piece.candidates.flatten().tolist()) - {-1}:
            before = wanted.get(model, layout.nothing)
            wanted[model] = tuple(a or b for a, b in zip(before, mask, strict=True))
    return wanted


def missing_tensors(request: Request, layout: Layout, store: ClientStore) -> list[str]:
    """Name the tensors that the server expects in a client's store and that are not, as after the loss of a disk."""
    own = store.read(request.client, before=request.plan.round)
    wanted = needed_tensors(request.plan, layout, own)
    return [
        spec.name
        for tensor, spec in enumerate(layout.tensors)
        if any(mask[tensor] and not request.sent[model][tensor] for model, mask in wanted.items())
    ]


def without_models(request: Request) -> Request:
    """The request as its reply is read: how many models were sent is needed, and not their values."""
    rows, columns = request.plan.models.shape
    return replace(request, plan=replace(request.plan, models=torch.zeros(1, 1).expand(rows, columns)))


_TASK = Schema(LocalTask, candidates=INT_ROW, max_samples=OPTIONAL_INTS, shares=OPTIONAL_FLOAT_ROW)

_EVALUATION = Schema(Evaluation, clients=ONE_INT, candidates=INT_ROW)


@dataclass(frozen=True)
class _RequestHead:
    """The plain values of a request and its plan, with the names of its parts.

    `sent` holds the masks of all models, one after the other, (k' l,).
    """

    client: int
    round: int
    seed: int
    in_cohort: bool
    tasks: tuple[str, ...]
    evaluations: tuple[str, ...]
    client_stats: tuple[str, ...]
    models: tuple[int, ...]
    sent: tuple[bool, ...]
    counted: tuple[int, ...]


_REQUEST_HEAD = Schema(_RequestHead)

_MODELS = "models"
"""The group of the models in a request, by their places in it."""


def write_request(request: Request, layout: Layout) -> Payload:
    """Write a request."""
    plan = request.plan
    head = _RequestHead(
        client=request.client,
        round=plan.round,
        seed=plan.seed,
        in_cohort=bool(len(plan.cohort)),
        tasks=tuple(plan.tasks),
        evaluations=tuple(plan.evaluations),
        client_stats=tuple(plan.client_stats),
        models=request.models,
        sent=tuple(chain.from_iterable(request.sent)),
        counted=request.counted,
    )
    records = {"request": _REQUEST_HEAD.write(head)}
    records |= {f"task-{name}": _TASK.write(task) for name, task in plan.tasks.items()}
    records |= {f"evaluation-{name}": _EVALUATION.write(each) for name, each in plan.evaluations.items()}
    parts = enumerate(zip(plan.models, request.sent, strict=True))
    models = {str(place): values_of_row(row, sent, layout) for place, (row, sent) in parts if any(sent)}
    return Payload(records, {_MODELS: models} if models else {})


def read_request(payload: Payload, layout: Layout) -> Request:
    """Read the request in a payload.

    Raises:
        InputError: When it is none.
    """
    head = _REQUEST_HEAD.read(payload.record("request"))
    count = len(layout.tensors)
    if len(head.sent) != count * len(head.models):
        raise InputError(f"expected sent to have {count} values for {len(head.models)} models, found {len(head.sent)}")
    sent = tuple(head.sent[count * place : count * (place + 1)] for place in range(len(head.models)))
    rows = torch.zeros(len(head.models), layout.p)
    for place, mask in enumerate(sent):
        rows[place] = row_of_values(_MODELS, str(place), payload, mask, layout)
    try:
        plan = Plan(
            round=head.round,
            seed=head.seed,
            cohort=torch.tensor([head.client] if head.in_cohort else [], dtype=torch.int64),
            models=rows,
            tasks={name: _TASK.read(payload.record(f"task-{name}")) for name in head.tasks},
            evaluations={name: _EVALUATION.read(payload.record(f"evaluation-{name}")) for name in head.evaluations},
            client_stats={name: torch.tensor([True]) for name in head.client_stats},
        )
    except ContractError as error:
        raise InputError(str(error)) from None
    return Request(head.client, plan, head.models, sent, head.counted)
