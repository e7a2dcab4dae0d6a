"""What server and clients say to each other: every message, its fields and what an honest one keeps to.

The fields of a dataclass are written and read by its schema. So a new field of a task or of its training travels by
itself.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from math import inf, isfinite, isnan, prod
from types import MappingProxyType

import torch
from torch import Tensor, nn

from fedstrata.compression import Compression, CompressionKind, Packed
from fedstrata.core import (
    CLIENT_STATS,
    SINGULAR_VECTORS,
    Evaluation,
    Layout,
    LocalTask,
    Mask,
    Plan,
    Report,
    Result,
    Rows,
    Score,
)
from fedstrata.data.options import DEFAULT_OPTIONS, ReadOptions
from fedstrata.engine import RESIDUAL
from fedstrata.engine.client_stats import own_stat
from fedstrata.engine.loop import empty_result
from fedstrata.errors import ContractError, InputError, check_rules
from fedstrata.flower.payload import (
    ID_ROW,
    MASK,
    ONE_DOUBLE,
    ONE_FLOAT,
    ONE_INT,
    OPTIONAL_FLOAT_ROW,
    OPTIONAL_IDS,
    TEXTS,
    ArrayForm,
    ExpectedReply,
    Payload,
    Schema,
    ValueRecord,
    row_of_tensors,
    tensors_of_row,
)
from fedstrata.models import NetworkShape, layout_of, make_network
from fedstrata.objective import Objective
from fedstrata.privacy.secure_sum import SumTerms, without_update

WORK = "train"
REGISTER = "query.register"
"""The types of messages: score and train; say which client you are. `client_app` has a function for each."""


@dataclass(frozen=True)
class Samples:
    """What the samples of all clients have in common.

    Attributes:
        shape: The shape of one sample, (channels, ...); of a row of a table (columns,), of tokens (length,).
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

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        tokens = self.dtype == "int64"
        channels = self.shape[0] if self.shape and not tokens else 0
        rules = {
            "shape names features, or channels and further axes, each above 0": min(self.shape, default=0) > 0,
            "classes is at least 2": self.classes >= 2 or bool(self.outputs),
            "mean and std have a value for each channel": len(self.mean) == len(self.std) == channels,
            "std is above 0": min(self.std, default=1) > 0,
            'dtype is "uint8", "float32" or "int64"': self.dtype in ("uint8", "float32", "int64"),
            "names are none or one for each class": len(self.names) in (0, self.classes),
            "test is above 0 and below 1": 0 < self.test < 1,
            "features has one for each number of a row, or none": len(self.features) in (0, *self.shape[:1]),
        }
        check_rules("samples", rules, self)


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
        sums: The terms of the sums that the server sees in place of updates, if it sees sums alone.
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
    sums: SumTerms = field(default_factory=SumTerms)
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

    def network(self) -> nn.Module:
        """Make the network; its initial weights do not matter, as every request brings those that it needs."""
        kind = NetworkShape(self.samples.shape, self.outputs, self.samples.dtype == "int64")
        return make_network(self.model, kind, 0, json.loads(self.options))

    def compressor(self, layout: Layout) -> Compression | None:
        """How clients compress their updates; None where they do not."""
        if self.compression == "none":
            return None
        return Compression(layout, self.compression, self.compression_share, self.seed)

    @property
    def stat_sizes(self) -> dict[str, int]:
        """The number of numbers that each statistic of ``CLIENT_STATS`` consists of, by its name."""
        subspaces = self.samples.classes * SINGULAR_VECTORS * prod(self.samples.shape)
        return {"classes": 1, "entropy": 1, "subspaces": subspaces, "units": 1}

    def stat_size(self, name: str) -> int:
        """Return the number of numbers of a statistic. A function of the user's own says it about a sample of zeros."""
        if name in CLIENT_STATS:
            return self.stat_sizes[name]
        sample = torch.zeros(1, *self.samples.shape)
        return len(own_stat(name, sample, torch.zeros(1, dtype=torch.int64), self.samples.classes))


_RUN_CONFIG = Schema(RunConfig)


def write_run_config(config: RunConfig, layout: Layout) -> Payload:
    """Write a run config with the tensors of the network, so that a device can tell whether it has the same."""
    return Payload({"config": _RUN_CONFIG.write(config), "network": {"tensors": _tensor_names(layout)}})


def read_run_config(payload: Payload) -> RunConfig:
    """Read the run config in a payload.

    Raises:
        InputError: When it is not there, or the network is another one here than at the sender.
    """
    config = _RUN_CONFIG.read(payload.record("config"))
    here = _tensor_names(layout_of(config.network()))
    there = list(TEXTS.read("tensors", payload.record("network").get("tensors")))
    if here != there:
        raise InputError(f"expected a network with the tensors {', '.join(there)}, found {', '.join(here)}")
    return config


def _tensor_names(layout: Layout) -> list[str]:
    return [f"{spec.name} {spec.shape}" for spec in layout.tensors]


@dataclass(frozen=True)
class InfoRequest:
    """What a node that registers is asked, beside the config of the run.

    Attributes:
        client: The id that its client will have; None as long as the server does not know whose node it is.
    """

    client: int | None = None


ANY_CLIENT = -1
"""Instead of a client's id: numbers of samples that hold under every id."""


@dataclass(frozen=True)
class ClientInfo:
    """What a node says of itself when it registers.

    Attributes:
        key: The key of its client.
        train: The number of training samples.
        test: The number of test samples.
        client: The id under which it has so many of each; `ANY_CLIENT` where that does not depend on the id.
    """

    key: str
    train: int
    test: int
    client: int = ANY_CLIENT


INFO_REQUEST = Schema(InfoRequest)
CLIENT_INFO = Schema(ClientInfo)


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


def without_updates(request: Request) -> Request:
    """The request as its reply is read with secure aggregation: no update is sent in clear."""
    tasks = {name: without_update(task) for name, task in request.plan.tasks.items()}
    return replace(request, plan=replace(request.plan, tasks=tasks))


_TASK = Schema(LocalTask, candidates=ID_ROW, max_samples=OPTIONAL_IDS, shares=OPTIONAL_FLOAT_ROW)
_EVALUATION = Schema(Evaluation, clients=ONE_INT, candidates=ID_ROW)


@dataclass(frozen=True)
class _RequestHead:
    """The plain values of a request and its plan, with the names of its parts."""

    client: int
    round: int
    seed: int
    in_cohort: bool
    tasks: tuple[str, ...]
    evaluations: tuple[str, ...]
    client_stats: tuple[str, ...]
    models: tuple[int, ...]
    counted: tuple[int, ...]


_REQUEST_HEAD = Schema(_RequestHead)


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
        counted=request.counted,
    )
    records: dict[str, ValueRecord] = {"request": _REQUEST_HEAD.write(head)}
    records |= {f"task-{name}": _TASK.write(task) for name, task in plan.tasks.items()}
    records |= {f"evaluation-{name}": _EVALUATION.write(each) for name, each in plan.evaluations.items()}
    arrays = dict[str, Mapping[str, Tensor]]()
    for place, (row, sent) in enumerate(zip(plan.models, request.sent, strict=True)):
        records[f"model-{place}"] = {"sent": list(sent)}
        arrays[f"model-{place}"] = tensors_of_row(row, sent, layout)
    return Payload(records, arrays)


def read_request(payload: Payload, layout: Layout) -> Request:
    """Read the request in a payload.

    Raises:
        InputError: When it is none.
    """
    head = _REQUEST_HEAD.read(payload.record("request"))
    sent = list[Mask]()
    rows = torch.zeros(len(head.models), layout.p)
    for place in range(len(head.models)):
        sent.append(MASK.read("sent", payload.record(f"model-{place}").get("sent")))
        rows[place] = row_of_tensors(payload.arrays.get(f"model-{place}", {}), sent[place], layout)
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
    return Request(head.client, plan, head.models, tuple(sent), head.counted)


@dataclass(frozen=True)
class Reply:
    """What one client replies.

    Attributes:
        report: The report of it alone. Its chosen candidates are models of the plan for everyone.
        stored: The tensors that this round left on its device.
        spoilt: Whether these are not finite, so that the device has none at all.
    """

    report: Report
    stored: tuple[int, ...] = ()
    spoilt: bool = False


class NotFiniteError(InputError):
    """An update holds a number that is not finite: the training of this client diverged, or it is malicious."""


@dataclass(frozen=True)
class ReplyBounds:
    """What the replies of one client have to keep to.

    Attributes:
        run: The name of the run.
        train: The number of training samples that the client registered with.
        test: The number of test samples that it registered with.
        metric: The least and the largest value of the metric.
        unknown: Whether the metric need not be a number.
        least_loss: The least value of the loss.
    """

    run: str
    train: int
    test: int
    metric: tuple[float, float] = (0.0, 1.0)
    unknown: bool = False
    least_loss: float = 0.0


@dataclass(frozen=True)
class _ReplyHead:
    """The plain values of a reply. `stored` has the numbers of tensors."""

    run: str
    round: int
    client: int
    stored: tuple[int, ...]
    spoilt: bool


@dataclass(frozen=True)
class _ResultRecord:
    """A result beside its update: the chosen model of the request, the samples, and the loss of each candidate."""

    chosen: int
    size: int
    losses: tuple[float, ...]


NOTHING_PACKED: Mapping[str, Packed] = MappingProxyType({})
"""The compressed updates of a client that does not compress them."""

_REPLY_HEAD = Schema(_ReplyHead)
_RESULT = Schema(_ResultRecord)
_SCORE = Schema(Score, clients=ONE_INT, correct=ONE_DOUBLE, samples=ONE_INT, loss=ONE_FLOAT)


def write_reply(
    reply: Reply,
    request: Request,
    layout: Layout,
    run: str,
    compression: Compression | None = None,
    packed: Mapping[str, Packed] = NOTHING_PACKED,
) -> Payload:
    """Write a reply, whose chosen candidates are models of the request.

    Args:
        reply: The reply.
        request: The request.
        layout: The layout of the network.
        run: The name of the run.
        compression: How the client compresses its updates; None where it does not.
        packed: The compressed updates, by task.
    """
    head = _ReplyHead(run, request.plan.round, request.client, reply.stored, reply.spoilt)
    records: dict[str, ValueRecord] = {"reply": _REPLY_HEAD.write(head)}
    arrays = dict[str, Mapping[str, Tensor]]()
    for name, result in reply.report.results.items():
        upload = _sent_as_they_are(request.plan.tasks[name], compression)
        if len(result.sizes):
            losses = tuple(result.losses[0].tolist())
            records[f"result-{name}"] = _RESULT.write(_ResultRecord(int(result.chosen), int(result.sizes), losses))
            if any(upload):
                arrays[f"update-{name}"] = tensors_of_row(result.updates.values[0], upload, layout)
            if name in packed:
                arrays[f"compressed-{name}"] = packed[name]
    records |= {f"score-{name}": _SCORE.write(score) for name, score in reply.report.scores.items()}
    if reply.report.client_stats:
        arrays["client_stats"] = {name: rows.values[0] for name, rows in reply.report.client_stats.items()}
    return Payload(records, arrays)


def _sent_as_they_are(task: LocalTask, compression: Compression | None) -> Mask:
    """The tensors whose updates travel in their own shapes, (l,)."""
    return task.upload if compression is None else compression.plain(task)


def expected_reply(
    request: Request, layout: Layout, stat_sizes: Mapping[str, int], compression: Compression | None = None
) -> ExpectedReply:
    """Say what the reply to a request may hold, with the size of each statistic that it asks for."""
    plan = request.plan
    arrays: dict[str, dict[str, ArrayForm]] = {}
    for name, task in plan.tasks.items():
        sent = zip(layout.tensors, _sent_as_they_are(task, compression), strict=True)
        arrays[f"update-{name}"] = {spec.name: ArrayForm(spec.shape) for spec, inside in sent if inside}
        if compression is not None:
            forms = compression.forms(task).items()
            arrays[f"compressed-{name}"] = {part: ArrayForm(*form) for part, form in forms}
    arrays["client_stats"] = {name: ArrayForm((stat_sizes[name],)) for name in plan.client_stats}
    records = {"reply", "missing", "failed"}
    records |= {f"result-{name}" for name in plan.tasks}
    records |= {f"score-{name}" for name in plan.evaluations}
    # Beside its tensors, a device keeps what compression leaves out.
    kept = len(layout.tensors) + (compression is not None)
    longest = max(kept, *(task.candidates.shape[1] for task in plan.tasks.values()), 0)
    return ExpectedReply(frozenset(records), arrays, longest)


def read_reply(
    payload: Payload,
    request: Request,
    layout: Layout,
    bounds: ReplyBounds,
    compression: Compression | None = None,
) -> Reply:
    """Read the reply in a payload that was decoded as `expected_reply` says, in terms of the plan for everyone.

    Raises:
        InputError: When it does not answer this request, or holds anything that no honest reply would.
    """
    plan = request.plan
    head = _REPLY_HEAD.read(payload.record("reply"))
    for name, found, expected in (
        ("run", head.run, bounds.run),
        ("round", head.round, plan.round),
        ("client", head.client, request.client),
    ):
        if found != expected:
            raise InputError(f"expected a reply of {name} {expected}, found {name} {found}")
    count = len(layout.tensors)
    if not all(0 <= tensor < count or (compression and tensor == RESIDUAL) for tensor in head.stored):
        raise InputError(f"expected stored to name tensors 0 to {count - 1}, found {list(head.stored)}")
    results = {name: _read_result(payload, name, request, layout, bounds, compression) for name in plan.tasks}
    scores = {name: _read_score(payload, name, request, bounds) for name in plan.evaluations}
    return Reply(Report(results, scores, _read_client_stats(payload, request, bounds)), head.stored, head.spoilt)


def _read_result(
    payload: Payload,
    name: str,
    request: Request,
    layout: Layout,
    bounds: ReplyBounds,
    compression: Compression | None,
) -> Result:
    task = request.plan.tasks[name]
    if f"result-{name}" not in payload.records:
        # A client without a sample in the fold that it was to train on has nothing to say.
        return empty_result(task, layout.p)
    found = _RESULT.read(payload.record(f"result-{name}"))
    width = task.candidates.shape[1]
    if found.chosen < 0 or found.chosen not in task.candidates[0].tolist():
        raise InputError(f"expected result {name} to be trained from an offered model, found {found.chosen}")
    # A fold that seems larger than all others would keep their clients out of a test.
    largest = bounds.train if task.max_samples is None else min(bounds.train, int(task.max_samples[0]))
    if not 1 <= found.size <= largest:
        raise InputError(f"expected result {name} to be of 1 to {largest} samples, found {found.size}")
    least, most = (0.0, 1.0) if task.selection_metric == "errors" else (bounds.least_loss, inf)
    if len(found.losses) != width or any(not (isnan(loss) or least <= loss <= most) for loss in found.losses):
        raise InputError(
            f"expected result {name} to have {width} {task.selection_metric}, each of {least:g} to {most:g}, "
            f"found {list(found.losses)}"
        )
    row = row_of_tensors(payload.arrays.get(f"update-{name}", {}), _sent_as_they_are(task, compression), layout)
    if compression is not None and any(compression.mask(task)):
        row[layout.columns(compression.mask(task))] = _unpacked(payload, name, task, compression)
    for spec, span in zip(layout.tensors, layout.spans, strict=True):
        if not bool(row[span].isfinite().all()):
            raise NotFiniteError(f"expected finite numbers in {spec.name}, found others")
    return Result(
        updates=Rows(torch.tensor([request.client]), row[None]),
        chosen=torch.tensor([request.models[found.chosen]]),
        sizes=torch.tensor([found.size]),
        losses=torch.tensor([found.losses]),
    )


def _unpacked(payload: Payload, name: str, task: LocalTask, compression: Compression) -> Tensor:
    """The compressed part of an update as the server has it, in the columns that the task compresses, (d,)."""
    packed = payload.arrays.get(f"compressed-{name}", {})
    if missing := sorted(compression.forms(task).keys() - packed):
        raise InputError(f"expected the array {missing[0]}, found none of that name")
    compression.check(task, packed)
    return compression.unpack(task, packed)


def _read_score(payload: Payload, name: str, request: Request, bounds: ReplyBounds) -> Score:
    score = _SCORE.read(payload.record(f"score-{name}"))
    client = int(score.clients)
    correct = float(score.correct)
    samples = int(score.samples)
    if client != request.client:
        raise InputError(f"expected a score of client {request.client}, found one of client {client}")
    least, most = bounds.metric
    known = isfinite(correct) and least * samples <= correct <= most * samples
    if samples != bounds.test or not (known or (bounds.unknown and not isfinite(correct))):
        raise InputError(f"expected a score of {bounds.test} test samples, found {correct:g} right of {samples}")
    if float(score.loss) < bounds.least_loss:
        raise InputError(f"expected a loss of at least {bounds.least_loss:g}, found {float(score.loss):g}")
    return score


def _read_client_stats(payload: Payload, request: Request, bounds: ReplyBounds) -> dict[str, Rows]:
    asked = request.plan.client_stats
    found = payload.arrays.get("client_stats", {})
    if set(found) != set(asked):
        raise InputError(f"expected the client statistics {sorted(asked)}, found {sorted(found)}")
    for name, values in found.items():
        if not bool(values.isfinite().all()):
            raise InputError(f"expected finite numbers in the statistic {name}, found others")
        # A client that claims more samples than it has could make any two clients look different.
        if name == "units" and not 0 <= float(values) <= bounds.train:
            raise InputError(f"expected 0 to {bounds.train} independent samples, found {float(values):g}")
    return {name: Rows(torch.tensor([request.client]), found[name][None]) for name in asked}
