"""The tables of the experiment file, and what each of their keys may be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Annotated, Any, Literal, Self, TypeVar

from annotated_types import Interval, Len, MaxLen, MinLen
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, model_validator

from fedstrata.base.key_errors import wrong_key
from fedstrata.base.limits import (
    CLASSES,
    MAX_CLIENTS,
    MAX_EPOCHS,
    MAX_EPSILON,
    MAX_IMAGE_SIDE,
    MAX_LABEL_CHARACTERS,
    MAX_LIST_ENTRIES,
    MAX_NUMBER,
    MAX_READINGS,
    MAX_RUN_ROUNDS,
    MAX_RUNS,
    MAX_SAMPLES,
    MAX_SEED,
    MAX_STEP_SIZE,
    MAX_STEPS,
    MAX_TIMEOUT_SECONDS,
    MAX_WORKERS,
    MIN_NOISE,
)
from fedstrata.clustering import ClientMeasureName
from fedstrata.config.hyperparameters import algorithm_from, personal_from
from fedstrata.core import Algorithm, Schedule, ServerOptimizerName
from fedstrata.core.lr_schedule import USED_KEYS
from fedstrata.data.column_roles import Memory, ReadOptions
from fedstrata.data.preparation import Categories, Impute, PrepareOptions
from fedstrata.objective.metric_info import METRICS_OF_NUMBERS
from fedstrata.objective.objective import NUMBER_LOSSES
from fedstrata.partition import Scheme, scheme_from
from fedstrata.personal import PersonalMethod
from fedstrata.uploads.attacks.updates import BACKDOOR, DATA_ATTACKS, LABEL_FLIP, NO_ATTACK, named_attacks
from fedstrata.uploads.checks.update_checks import CheckName
from fedstrata.uploads.compression import CompressionKind
from fedstrata.uploads.rules import AGGREGATIONS, options_of

_Count = Annotated[int, Interval(ge=0, le=MAX_SAMPLES)]
_Round = Annotated[int, Interval(ge=1, le=MAX_RUN_ROUNDS)]
_ClientId = Annotated[int, Interval(ge=0, le=MAX_CLIENTS - 1)]
_Name = Annotated[str, MinLen(1)]

OWN_TEST: Literal["own"] = "own"
"""The value of ``data.test`` that stands for the test samples of the data set."""

ALL_INDEPENDENT = "none"
"""The value of ``data.unit`` that says that all samples are independent."""

DEFAULT_TEST_SHARE = 0.2
"""The share of a client's data that is held out by default."""


_Entry = TypeVar("_Entry")


def _check_distinct(values: tuple[_Entry, ...]) -> tuple[_Entry, ...]:
    """Refuse an entry that is named twice: it would be recorded twice."""
    if len(set(values)) < len(values):
        raise ValueError("a list that names each entry once")
    return values


# Files have lists where a frozen table wants a tuple.
_Measures = Annotated[tuple[ClientMeasureName, ...], Strict(False), AfterValidator(_check_distinct)]


def _check_rule(name: str) -> str:
    """Refuse a rule of aggregation that does not exist."""
    if name not in AGGREGATIONS:
        raise ValueError(f"one of {', '.join(AGGREGATIONS)}")
    return name


def _check_attack(kind: str) -> str:
    """Refuse an attack that does not exist. A user's module is not imported here."""
    if kind not in (NO_ATTACK, *named_attacks()) and ":" not in kind:
        raise ValueError(f"one of {', '.join((NO_ATTACK, *named_attacks()))}, or 'package.module:function'")
    return kind


_Weight = Annotated[float, Interval(gt=0, le=MAX_NUMBER)]

_Bounded = Interval(ge=-MAX_NUMBER, le=MAX_NUMBER)

_Option = bool | str | Annotated[int, _Bounded] | Annotated[float, _Bounded]
"""An option of a network, or an entry of a list that is one."""

_Columns = Annotated[tuple[_Name, ...], Strict(False), Len(1, MAX_LIST_ENTRIES), AfterValidator(_check_distinct)]


class Table(BaseModel):
    """A table with fixed keys, read without silent conversions."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def _refuse_unused(table: Table, unused: Iterable[str], chosen_by: str) -> None:
    """Refuse keys of a table that have another value than the default, where another key makes them useless."""
    for key in unused:
        value = getattr(table, key)
        if value != type(table).model_fields[key].default:
            beside = f"with {chosen_by} = {getattr(table, chosen_by)!r}, which does not use it"
            raise wrong_key(key, value, f"no {key} {beside}")


class ChoiceTable(Table):
    """A table whose first key names something, and whose other keys are the options of that."""

    model_config = ConfigDict(extra="allow")

    @property
    def options(self) -> dict[str, Any]:
        """Return all keys but the first."""
        return dict(self.model_extra or {})


class DataTable(Table):
    """Which data, and how many clients share it.

    Attributes:
        name: A known data set, a hub id, or the path of data of your own: a CSV, Parquet or ``.npz`` file, a folder of
            Parquet files, with a file per client, or of images.
        root: The folder that is searched first for named sets.
        clients: The number of clients. With the partition `natural` the default is all values of its column.
        tokens: Whether the samples are rows of tokens, which are whole numbers that stand for words and the like. They
            are not normalised.
        copies: How often every sample stands in the data that clients share, so that many clients can be measured with
            few samples. The test samples of a client may then be training samples of others, and scores come out too
            good.
        samples: The training samples per client, on average; 0 is all there are, and the default for digits and for
            data of your own.
        test: The share of each client's own data that is held out, or "own" for the test samples of the data set. This
            is the default for data of your own that have test samples.
        folds: The number of folds of cross-validation, which take the place of the share `test`. A run with seed s
            tests fold s mod `folds` of each client's samples; its repeat, which is s div `folds`, says how clients and
            folds are drawn. So the seeds of a repeat test every sample once.
        repeats: How often a comparison or a sweep repeats the cross-validation where no seeds are named: its seeds are
            then 0 to `folds` * `repeats` - 1.
        validation: The share of each client's training samples on which models are compared while choices are made; no
            model is trained on them, and they are no test samples.
        public: The number of unlabelled samples on the server, which no client holds.
        unit: The column whose equal values mark samples that are not independent; by default the data set's own. "none"
            says that all samples are independent.
        label: The column of the classes; by default the one that is called label, class, target or y. A comparison of a
            column with a number, or of texts with a text in quotes, makes the two classes "no" and "yes", as "num > 0"
            and "kind == 'ill'" do.
        classes: The class of each value of that column, as in {0 = "well", 1 = "ill", 2 = "ill"}. By default its values
            are the classes.
        inputs: The columns of a table that are the features of a sample. By default all columns of numbers but those
            that name the classes, clients, units or rows.
        window: The readings in a window of a recording; by default 128.
        step: The readings from the begin of a window to that of the next; by default a window, so that none is in two.
        size: The height and width, in pixels, to which the images in folders are resized.
        scale: Whether numbers and pixels are centred and scaled by the training samples. Otherwise numbers stay as they
            are, and pixels are from 0 to 1.
        impute: What a gap in a column of numbers of a table is filled with, by the training rows. With "none" a gap is
            refused. A gap among texts is no category, unless "most_frequent" fills it.
        indicators: Whether the network is told which values of a table were gaps, by a further input for each column
            that has some.
        categories: What the texts of a table become: an input of 0 or 1 for each text ("one_hot"), numbers in
            alphabetical order, or no inputs.
        statistics: Whose training rows the filled values, the mean and the deviation of a table are taken from: those
            of all clients, whose exact sums and counts the server then learns, or each client's own, which nobody
            learns. All clients share the list of texts.
        memory: Where the samples are: in memory ("ram"), or on the disk ("disk"), in a file of converted samples from
            which every batch is read when it is needed. "auto" is the disk if they take more than half of the memory.
            With the same engine, no result depends on it.
    """

    name: _Name = "digits"
    root: _Name | None = None
    clients: Annotated[int, Interval(ge=1, le=MAX_CLIENTS)] = 20
    tokens: bool = False
    copies: Annotated[int, Interval(ge=1, le=MAX_CLIENTS)] = 1
    samples: _Count = 500
    test: Annotated[float, Interval(gt=0, lt=1)] | Literal["own"] = DEFAULT_TEST_SHARE
    folds: Annotated[int, Interval(ge=2, le=MAX_RUNS)] | None = None
    repeats: Annotated[int, Interval(ge=1, le=MAX_RUNS)] = 1
    validation: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    public: _Count = 0
    unit: _Name | None = None
    label: _Name | None = None
    classes: Annotated[dict[str, _Name], Len(2, MAX_LIST_ENTRIES)] | None = None
    inputs: _Columns | None = None
    window: Annotated[int, Interval(ge=2, le=MAX_READINGS)] | None = None
    step: Annotated[int, Interval(ge=1, le=MAX_READINGS)] | None = None
    size: Annotated[int, Interval(ge=1, le=MAX_IMAGE_SIDE)] | None = None
    scale: bool = True
    impute: Impute = "median"
    indicators: bool = False
    categories: Categories = "one_hot"
    statistics: Literal["all", "own"] = "all"
    memory: Memory = "auto"

    @model_validator(mode="after")
    def _check_folds(self) -> Self:
        """Refuse two ways to hold out test samples, and repeats of none."""
        if self.repeats > 1 and not self.folds:
            raise wrong_key("repeats", self.repeats, "1 without data.folds, as cross-validation alone is repeated")
        if self.folds and self.test != DEFAULT_TEST_SHARE:
            raise wrong_key("test", self.test, f"none with data.folds = {self.folds}; leave one of the two out")
        return self

    @property
    def preparation(self) -> PrepareOptions:
        """Return how the rows of a table are prepared."""
        own = self.statistics == "own"
        return PrepareOptions(self.impute, self.indicators, self.categories, self.scale, own)

    @property
    def held_out_share(self) -> float:
        """Return the share that is held out of data without test samples of their own."""
        if self.folds:
            return 1 / self.folds
        return DEFAULT_TEST_SHARE if self.test == OWN_TEST else self.test


class ModelTable(ChoiceTable):
    """The network.

    Attributes:
        name: The name of a network of the library, or "package.module:factory". By default it is the data
            set's own, and for a table of features "mlp". Other data of your own need one.
    """

    __pydantic_extra__: dict[str, _Option | Annotated[list[_Option], MaxLen(MAX_LIST_ENTRIES)]]

    name: _Name = ""


class LocalTable(Table):
    """How a client trains.

    Attributes:
        epochs: The passes over the client's data in a round.
        batch: The samples per step; 0 is all the data at once.
        steps: The steps of a client in a round, in place of epochs; 0 is to count epochs. A client goes through its
            shuffled data again and again, so that all clients take as many steps.
        drop_last: Whether the last step of an epoch is left out where it has fewer samples than `batch`. A client
            that has fewer in all steps with all of them.
        optimizer: The optimizer of the client, whose state is new every round. "adamw" without `weight_decay` is
            "adam".
        lr: The learning rate before any schedule.
        momentum: The momentum of SGD.
        weight_decay: The pull of all trained weights to zero: a term of the gradient for SGD and Adam (L2), decoupled
            from it for AdamW.
        clip_norm: The largest norm of the gradient of a step, over all trained weights together; 0 is no limit.
        schedule: How the learning rate changes from round to round. "exponential" multiplies it by `lr_decay` after
            every round, "step" after every `schedule_rounds` rounds. "cosine" lets it fall to `lr_min` along half a
            wave. By default "exponential" where `lr_decay` is below 1, else "constant".
        lr_decay: The factor of "exponential" and "step".
        lr_min: The learning rate at which "cosine" ends.
        schedule_rounds: The rounds between two factors of "step", or those in which "cosine" falls; 0 is all rounds of
            the run after the warm-up.
        warmup_rounds: The first rounds, in which the learning rate rises linearly to `lr`; the schedule begins after
            them.
        loss: What training lowers: the name of a loss, or "package.module:function".
        class_weights: The weight of each class in the loss "cross_entropy", in the order of the classes. "balanced" is
            n / (c * n_y), with n training samples of all clients in c classes, n_y of them of class y. By default all
            classes count alike.
        metric: What scores show: the name of a metric, or "package.module:function". By default "r2" for the losses
            "mse", "mae" and "huber", else "accuracy".
        transform: The augmentation of training samples: the name of a transform, or "package.module:function".
    """

    epochs: Annotated[int, Interval(ge=1, le=MAX_EPOCHS)] = 1
    batch: _Count = 50
    steps: Annotated[int, Interval(ge=0, le=MAX_STEPS)] = 0
    drop_last: bool = False
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: Annotated[float, Interval(gt=0, le=MAX_STEP_SIZE)] = 0.01
    momentum: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Interval(ge=0, le=MAX_STEP_SIZE)] = 0.0
    clip_norm: Annotated[float, Interval(ge=0, le=MAX_STEP_SIZE)] = 0.0
    schedule: Schedule | None = None
    lr_decay: Annotated[float, Interval(gt=0, le=1)] = 1.0
    lr_min: Annotated[float, Interval(ge=0, le=MAX_STEP_SIZE)] = 0.0
    schedule_rounds: Annotated[int, Interval(ge=0, le=MAX_RUN_ROUNDS)] = 0
    warmup_rounds: Annotated[int, Interval(ge=0, le=MAX_RUN_ROUNDS)] = 0
    loss: _Name = "cross_entropy"
    class_weights: Literal["balanced"] | Annotated[tuple[_Weight, ...], Strict(False), MinLen(2)] | None = None
    metric: _Name | None = None
    transform: _Name = "none"

    @model_validator(mode="after")
    def _check_used(self) -> Self:
        """Refuse keys that contradict each other, or that another key makes useless."""
        if self.optimizer != "sgd":
            _refuse_unused(self, ["momentum"], "optimizer")
        if self.steps:
            _refuse_unused(self, ["epochs", "drop_last"], "steps")
        own = self.completed()
        used = USED_KEYS[str(own.schedule)]
        keys_of_schedules = chain.from_iterable(USED_KEYS.values())
        _refuse_unused(own, [key for key in keys_of_schedules if key not in used], "schedule")
        if self.schedule == "step" and not (self.lr_decay < 1 and self.schedule_rounds):
            key = "schedule_rounds" if self.lr_decay < 1 else "lr_decay"
            raise wrong_key(key, getattr(self, key), "a decay below 1 after at least 1 round, with schedule = 'step'")
        if self.lr_min > self.lr:
            raise wrong_key("lr_min", self.lr_min, f"at most lr = {self.lr:g}")
        if self.class_weights is not None and self.loss != "cross_entropy":
            raise wrong_key("class_weights", self.class_weights, "none with another loss than 'cross_entropy'")
        of_numbers = own.metric in METRICS_OF_NUMBERS
        if of_numbers and self.loss in ("cross_entropy", "bce"):
            raise wrong_key("metric", self.metric, f"a metric of classes with loss = {self.loss!r}, such as 'accuracy'")
        if not of_numbers and self.loss in NUMBER_LOSSES and ":" not in str(own.metric):
            raise wrong_key("metric", self.metric, f"a metric of numbers with loss = {self.loss!r}, such as 'r2'")
        return self

    def completed(self) -> LocalTable:
        """Return the table with its metric and its schedule of the learning rate written out."""
        schedule = self.schedule or ("exponential" if self.lr_decay < 1 else "constant")
        own: dict[str, Any] = {"schedule": schedule}
        own["metric"] = self.metric or ("r2" if self.loss in NUMBER_LOSSES else "accuracy")
        return self.model_copy(update=own)


class CohortTable(Table):
    """Which clients take part in a round.

    Attributes:
        fraction: The share of the clients that is sampled.
        sampling: How clients are sampled: all with the same chance, or in proportion to their training samples. With
            "poisson" each client is selected by itself with the chance `fraction`, so that the size of a cohort varies.
        weights: The weight of each client in the draw, in the order of their ids, in place of `sampling`. A client with
            weight 0 is never selected.
        dropout: The share of the cohort that never answers; one client always does. With "poisson", and with central
            differential privacy, each client drops out by itself with this chance.
        scored: The number of clients, drawn at random, that score the models of a round; 0 is all of them. So the
            measures of a round, and what it costs, do not grow with the number of clients. After the last round
            everyone scores.
    """

    fraction: Annotated[float, Interval(gt=0, le=1)] = 1.0
    sampling: Literal["uniform", "size", "poisson"] = "uniform"
    weights: Annotated[
        tuple[Annotated[float, Interval(ge=0, le=MAX_NUMBER)], ...], Strict(False), Len(0, MAX_CLIENTS)
    ] = ()
    dropout: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    scored: Annotated[int, Interval(ge=0, le=MAX_CLIENTS)] = 0


class ServerTable(Table):
    """What the server makes of the updates.

    Attributes:
        aggregation: The rule by which the updates of a cluster become one update: "mean" weighs each client by its
            samples, in "plain_mean" each client counts the same. All other rules are robust: they bound what a few
            Byzantine clients, which may send anything, can do to a cluster.
        byzantine_share: The largest share of the clients of a cluster that may be Byzantine, for "trimmed_mean", "krum"
            and "multi_krum". It is rounded down: 0.2 of four clients are none.
        clip_norm: The largest L2 norm of an update in "norm_clip", or of its difference from the centre in
            "centered_clip". By default it is `clip_quantile` of those of the cluster.
        clip_quantile: The quantile of the cluster's norms (or differences from the centre) to which updates are clipped
            where there is no `clip_norm`.
        checks: What is checked of updates before they are averaged: "directions" that keep pointing against those of
            the cluster, and "norms" that are much larger. Updates that are found are left out of the means, or
            shortened; clusters are decided with them. "auto" is both for Strata, and none for others and with central
            differential privacy.
        optimizer: What the server makes of this update, in every cluster: "none" adds it to the model (FedAvg),
            "momentum" is FedAvgM, "adagrad", "yogi" and "adam" are FedAdagrad, FedYogi and FedAdam.
        lr: The learning rate of the server (eta); by default 1 for "none" and "momentum", and 0.01 for the others.
        momentum: The share of the old first moment (beta_1).
        beta2: The share of the old second moment of "yogi" and "adam".
        tau: What is added to the root of the second moment of "adagrad", "yogi" and "adam".
    """

    aggregation: Annotated[str, AfterValidator(_check_rule)] = "mean"
    byzantine_share: Annotated[float, Interval(ge=0, lt=0.5)] = 0.2
    clip_norm: Annotated[float, Interval(gt=0, le=MAX_STEP_SIZE)] | None = None
    clip_quantile: Annotated[float, Interval(ge=0, le=1)] = 0.5
    checks: Literal["auto"] | Annotated[tuple[CheckName, ...], Strict(False)] = "auto"
    optimizer: ServerOptimizerName = "none"
    lr: Annotated[float, Interval(gt=0, le=MAX_STEP_SIZE)] | None = None
    momentum: Annotated[float, Interval(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Interval(ge=0, lt=1)] = 0.99
    tau: Annotated[float, Interval(gt=0, le=1)] = 1e-3

    @model_validator(mode="after")
    def _check_used(self) -> Self:
        """Refuse keys that the rule of aggregation or the optimiser does not use."""
        used = options_of(self.aggregation)
        options = ("byzantine_share", "clip_norm", "clip_quantile")
        _refuse_unused(self, [key for key in options if key not in used], "aggregation")
        if self.clip_norm is not None:
            _refuse_unused(self, ["clip_quantile"], "clip_norm")
        unused_by = {
            "none": ("momentum", "beta2", "tau"),
            "momentum": ("beta2", "tau"),
            "adagrad": ("beta2",),
        }
        _refuse_unused(self, unused_by.get(self.optimizer, ()), "optimizer")
        return self

    @property
    def completed(self) -> ServerTable:
        """Return the table with its learning rate written out."""
        usual = 1.0 if self.optimizer in ("none", "momentum") else 0.01
        return self.model_copy(update={"lr": usual if self.lr is None else self.lr})


class AlgorithmTable(ChoiceTable):
    """The algorithm.

    Attributes:
        name: The name of a registered algorithm, or "package.module:Class"; the other keys are its hyper-parameters.
    """

    name: str = "strata"


class PersonalTable(ChoiceTable):
    """What every client does with its cluster's model, after or beside any algorithm.

    Attributes:
        method: How clients make models of their own; the other keys are its keys. "none" is not at all.
    """

    method: str = "none"


class AttackTable(Table):
    """Clients that are Byzantine, for experiments: they send something else than they have trained.

    Attributes:
        kind: What they send: the name of an attack, or "package.module:function". "none" is honest clients only.
        share: The share of the clients that is Byzantine, rounded up.
        where: Which clients are: "spread" draws them from all, "one_cluster" from the largest true group, of which
            `share` is then the share.
        from_round: The first round in which they attack.
        strength: What the attack multiplies by; by default what is usual for it.
        losses: What they say about models that clients compare: "honest" is the truth, "for_splits" that models of
            groups have no error and that of all a very large one, "against_splits" the opposite.
        target: With "backdoor", the class by which samples with the trigger are called.
        poisoned: With "backdoor", the share of their training samples of other classes that have the trigger.
    """

    kind: Annotated[str, AfterValidator(_check_attack)] = NO_ATTACK
    share: Annotated[float, Interval(gt=0, lt=1)] = 0.1
    where: Literal["spread", "one_cluster"] = "spread"
    from_round: _Round = 1
    strength: Annotated[float, Interval(ge=-MAX_STEP_SIZE, le=MAX_STEP_SIZE)] | None = None
    losses: Literal["honest", "for_splits", "against_splits"] = "honest"
    target: Annotated[int, Interval(ge=0, lt=CLASSES)] = 0
    poisoned: Annotated[float, Interval(gt=0, le=1)] = 0.5

    @model_validator(mode="after")
    def _check_used(self) -> Self:
        """Refuse keys that the kind does not use."""
        unused = {
            NO_ATTACK: ("share", "where", "from_round", "strength", "losses"),
            **dict.fromkeys(DATA_ATTACKS, ("from_round",)),
            LABEL_FLIP: ("from_round", "strength"),
            "zero": ("strength",),
        }
        _refuse_unused(self, unused.get(self.kind, ()), "kind")
        if self.kind != BACKDOOR:
            _refuse_unused(self, ("target", "poisoned"), "kind")
        return self

    @property
    def all_honest(self) -> bool:
        """Return whether no client is Byzantine."""
        return self.kind == NO_ATTACK


class PrivacyTable(Table):
    """Client-level differential privacy, and the least size of clusters.

    Attributes:
        kind: Who adds noise: the server, to the sum of the updates of each cluster ("central"), or each client, to
            every update that it sends ("local"). "none" is nobody.
        clip_norm: The largest L2 norm of the update of a client, to which it is scaled down.
        noise_multiplier: The standard deviation of the noise, divided by `clip_norm`; in place of `epsilon`.
        epsilon: The epsilon of the whole run, from which the noise is computed; in place of `noise_multiplier`.
        delta: The delta of the whole run; by default 1e-5, or the number of clients to the power -1.1 if that is
            smaller.
        min_cluster: The least number of clients whose updates move a model that others receive. In a round in which
            fewer members of a cluster send an update, its model stays as it is. With "central", clusters of fewer
            members keep theirs.
    """

    kind: Literal["none", "central", "local"] = "none"
    clip_norm: Annotated[float, Interval(gt=0, le=MAX_STEP_SIZE)] = 1.0
    noise_multiplier: Annotated[float, Interval(ge=MIN_NOISE, le=MAX_STEP_SIZE)] | None = None
    epsilon: Annotated[float, Interval(gt=0, le=MAX_EPSILON)] | None = None
    delta: Annotated[float, Interval(gt=0, lt=1)] | None = None
    min_cluster: Annotated[int, Interval(ge=1, le=MAX_CLIENTS)] = 1

    @model_validator(mode="after")
    def _check_used(self) -> Self:
        """Refuse keys that the kind does not use, and two ways to say how much noise there is, or none."""
        if self.kind == "none":
            _refuse_unused(self, ("clip_norm", "noise_multiplier", "epsilon", "delta"), "kind")
        elif (self.noise_multiplier is None) == (self.epsilon is None):
            raise ValueError(f"either epsilon or noise_multiplier with kind = {self.kind!r}")
        return self


class NetworkTable(Table):
    """How updates travel.

    Attributes:
        compression: How clients compress their updates: rounded to "bfloat16", or at random to "int8", or the largest
            numbers only ("top_k"), with error feedback. "none" is float32.
        share: The share of the numbers of an update that "top_k" sends, rounded up.
    """

    compression: CompressionKind = "none"
    share: Annotated[float, Interval(gt=0, le=1)] = 0.01

    @model_validator(mode="after")
    def _check_used(self) -> Self:
        """Refuse a share where nothing uses it."""
        if self.compression != "top_k":
            _refuse_unused(self, ("share",), "compression")
        return self


class EngineTable(Table):
    """What computes.

    Attributes:
        name: The engine. "processes" and "ray" equal "loop" bit for bit, on many cores or machines. "batched" equals it
            but for rounding, with all clients as one program; a network with dropout has other masks there.
        device: The device that computes. "loop" can use CUDA and MPS with any network, "batched" CUDA.
        precision: The precision of products in training; "bfloat16" pays where the processor has it, and "tf32" on
            GPUs of compute capability 8.0 or more, with device "cuda". All else is float32.
        workers: The number of processes, or of Ray's tasks in a round; 0 is as many as cores. No result depends on it.
        timeout: The seconds without progress after which a worker is replaced and its work done again; 0 waits without
            end. No result depends on it.
    """

    name: Literal["auto", "loop", "batched", "processes", "ray"] = "auto"
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    workers: Annotated[int, Interval(ge=0, le=MAX_WORKERS)] = 0
    timeout: Annotated[int, Interval(ge=0, le=MAX_TIMEOUT_SECONDS)] = 600


class ProbeTable(Table):
    """What is measured without touching training.

    Attributes:
        gap: The measures by which every layer is compared with the true groups, every round.
        matrices: The measures by which all clients that answered are compared with each other.
        layers: The selectors of layers for `matrices`, as in LayerCFL, with a matrix for each selector. By default
            there is one for each layer, and one for all of them together.
        rounds: The rounds with such matrices; by default every round.
    """

    gap: _Measures = ()
    matrices: _Measures = ()
    layers: Annotated[tuple[_Name, ...], Strict(False), Len(0, MAX_LIST_ENTRIES), AfterValidator(_check_distinct)] = ()
    rounds: Annotated[tuple[_Round, ...], Strict(False), Len(0, MAX_LIST_ENTRIES), AfterValidator(_check_distinct)] = ()

    @model_validator(mode="after")
    def _check_used(self) -> Self:
        """Refuse the keys of matrices where none are measured."""
        for key in ("layers", "rounds"):
            if getattr(self, key) and not self.matrices:
                raise wrong_key(key, getattr(self, key), "none without matrices, which use it")
        return self


class RecordsTable(Table):
    """What else a run records.

    Attributes:
        track: What else gets the numbers of every round, in ``tracking`` in the run folder. Needs the extra ``track``.
        inputs: Whether each client sends 32 means of random features of its inputs after the last round, by which
            ``fedstrata assign --unlabelled`` places new clients. A finished run that is resumed with it adds them.
    """

    track: Literal["none", "tensorboard"] = "none"
    inputs: bool = False


class ReportTable(Table):
    """What the page is told beside the records of the run.

    Attributes:
        baseline: Whether FedAvg is run on the same clients afterwards, so that page and summary say what grouping
            gained against one model for all. Its run folder is ``baseline`` in the folder of the run. A comparison has
            FedAvg among its algorithms instead; a sweep has none.
    """

    baseline: bool = False


class ClientChangeTable(Table):
    """Clients that join or leave before a round.

    Attributes:
        round: The round, counted from 1.
        clients: The ids of the clients, of ``data.clients`` in all.
    """

    round: _Round
    clients: Annotated[tuple[_ClientId, ...], Strict(False), Len(1, MAX_CLIENTS)]


class DataChangeTable(Table):
    """A client that gets other data before a round.

    Attributes:
        round: The round, counted from 1.
        client: The id of the client.
        takes_data_of: The client whose data it has from then on, and which takes no part itself.
    """

    round: _Round
    client: _ClientId
    takes_data_of: _ClientId


class MisplacementTable(Table):
    """Clients that are put into another cluster by force before a round (HiCFL, Fig. 11).

    Attributes:
        round: The round, counted from 1.
        share: The share of the clients.
    """

    round: _Round
    share: Annotated[float, Interval(gt=0, le=1)]


class EventsTable(Table):
    """What happens to the clients during the run.

    Attributes:
        join: Clients that take part from a round on.
        leave: Clients that take part no more from a round on.
        change: Clients whose data change.
        misplace: Clients that are put into the wrong cluster.
    """

    join: Annotated[tuple[ClientChangeTable, ...], Strict(False)] = ()
    leave: Annotated[tuple[ClientChangeTable, ...], Strict(False)] = ()
    change: Annotated[tuple[DataChangeTable, ...], Strict(False)] = ()
    misplace: Annotated[tuple[MisplacementTable, ...], Strict(False)] = ()


class Experiment(Table):
    """One experiment, every default written out.

    Attributes:
        seed: The seed of every random choice.
        rounds: The number of rounds of communication.
        label: What the run is called in a comparison; by default the name of the algorithm.
        data: Which data, and how many clients share it.
        partition: How the samples are partitioned: the name of a scheme, and its keys.
        model: The network.
        local: How a client trains.
        cohort: Which clients take part in a round.
        server: What the server makes of the updates.
        algorithm: The algorithm that is run.
        personal: What every client does with its cluster's model.
        attack: Clients that send something else than they have trained.
        privacy: Client-level differential privacy, and the least size of clusters.
        network: How updates travel.
        algorithms: The hyper-parameters of others, for comparisons. A table with a `name` is an entry of its own, so
            that one algorithm can take part several times. Such a table may have a table `personal`.
        engine: What computes.
        events: What happens to the clients during the run.
        probe: What else is measured.
        records: What else a run records.
        report: What the page is told beside the records.
    """

    seed: Annotated[int, Interval(ge=0, le=MAX_SEED)] = 0
    rounds: _Round = 50
    label: Annotated[str, MinLen(1), MaxLen(MAX_LABEL_CHARACTERS)] | None = None
    data: DataTable = DataTable()
    partition: dict[str, Any] = Field(default_factory=lambda: {"scheme": "iid"})
    model: ModelTable = ModelTable()
    local: LocalTable = LocalTable()
    cohort: CohortTable = CohortTable()
    server: ServerTable = ServerTable()
    algorithm: AlgorithmTable = AlgorithmTable()
    personal: PersonalTable = PersonalTable()
    attack: AttackTable = AttackTable()
    privacy: PrivacyTable = PrivacyTable()
    network: NetworkTable = NetworkTable()
    algorithms: dict[str, dict[str, Any]] = Field(default_factory=dict)
    engine: EngineTable = EngineTable()
    events: EventsTable = EventsTable()
    probe: ProbeTable = ProbeTable()
    records: RecordsTable = RecordsTable()
    report: ReportTable = ReportTable()

    @model_validator(mode="after")
    def _check_tables(self) -> Self:
        """Refuse keys that contradict those of another table."""
        local = self.local
        if local.warmup_rounds >= self.rounds:
            raise wrong_key("local.warmup_rounds", local.warmup_rounds, f"fewer than rounds = {self.rounds}")
        end = local.warmup_rounds + (local.schedule_rounds or self.rounds)
        if "lr_min" in USED_KEYS[str(local.completed().schedule)] and not local.lr_min and end < self.rounds:
            still = f"from round {end + 1} on of {self.rounds} nothing would be learned"
            raise wrong_key("local.lr_min", local.lr_min, f"a number above 0: {still}")
        return self

    @property
    def title(self) -> str:
        """Return what the run is called in a comparison."""
        return self.label or self.algorithm.name

    @property
    def default_seeds(self) -> Sequence[int]:
        """Return the seeds of a comparison that names none: those of all folds and repeats, or that of the run."""
        return range(self.data.folds * self.data.repeats) if self.data.folds else (self.seed,)

    @property
    def reading(self) -> ReadOptions:
        """Return how samples are made of the files."""
        data = self.data
        unit = data.unit if data.unit != ALL_INDEPENDENT else None
        column = self.partition.get("column")
        return ReadOptions(
            label=data.label,
            classes=tuple((data.classes or {}).values()),
            class_values=tuple(data.classes or {}),
            inputs=data.inputs or (),
            # A network that reads the number of a client could memorise the clients.
            kept_out=tuple(str(name) for name in (column, unit) if name),
            window=data.window,
            step=data.step,
            size=data.size,
            scale=data.scale,
            gaps=data.impute != "none",
            categories=data.categories != "none",
            memory=data.memory,
        )

    @property
    def scheme(self) -> Scheme:
        """Return the partition scheme.

        Raises:
            ExperimentError: When its keys do not fit.
        """
        return scheme_from(self.partition)

    def algorithm_of(self) -> Algorithm[Any]:
        """Make the algorithm with its hyper-parameters.

        Raises:
            ExperimentError: When there is no such algorithm, or its keys do not fit.
        """
        return algorithm_from(self.algorithm.name, self.algorithm.options)

    def personal_of(self) -> PersonalMethod | None:
        """Make the personal method with its keys; None where there is none.

        Raises:
            ExperimentError: When there is no such method, or its keys do not fit.
        """
        return personal_from(self.personal.method, self.personal.options)
