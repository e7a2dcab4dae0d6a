"""Build everything that a run needs from an experiment. What can be checked without data is checked first."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from math import prod
from typing import Any, Literal

import numpy as np
import torch

from fedstrata import data
from fedstrata.attacks import ByzantineClients, Trigger
from fedstrata.compression import Compression
from fedstrata.config import Experiment
from fedstrata.config.tables import ALL_INDEPENDENT, OWN_TEST, EngineTable, LocalTable, ServerTable
from fedstrata.core import (
    Algorithm,
    Layout,
    LearningRateSchedule,
    LocalTraining,
    Plan,
    Problem,
    Report,
    ServerOptimizer,
)
from fedstrata.core.aggregation_rules import aggregation_of
from fedstrata.data.column_roles import CLIENT_COLUMN, SPLIT_COLUMN, TRIAL_COLUMN
from fedstrata.engine import (
    ENGINES,
    ClientData,
    Engine,
    SimulationSpec,
    choose_engine,
    engine_candidates,
    resolve_engine,
)
from fedstrata.errors import ExperimentError, LayoutError, PartitionError
from fedstrata.models import MODELS, NetworkShape, layout_of, make_network, portable, row_of, side
from fedstrata.models.forward_order import order_warning
from fedstrata.objective import Objective
from fedstrata.partition import Partition, partition_samples, with_validation
from fedstrata.personal import KnowsPersonalModels, PersonalMethod
from fedstrata.privacy.local import LocalPrivacy
from fedstrata.privacy.secure_sum import Summed, SumTerms, summed_report
from fedstrata.quoting import shown
from fedstrata.randomness import generator, seed_of
from fedstrata.records import require
from fedstrata.registry import PortableObject
from fedstrata.runner.attacks import (
    attack_warnings,
    byzantine_clients,
    check_attack,
    with_flipped_labels,
    with_trigger,
)
from fedstrata.runner.data_warnings import data_warnings
from fedstrata.runner.membership import Membership, membership, sampling_weights
from fedstrata.runner.privacy import PrivateRun, client_noise, private_run, with_central_privacy
from fedstrata.runner.probes import check_probes
from fedstrata.runner.secure_sums import sum_terms

_logger = logging.getLogger(__name__)

_LAYER_KEYS = ("layers", "personal")
"""The keys of algorithms that hold selectors of layers."""


@dataclass(frozen=True)
class RunSetup:
    """What a run needs.

    Attributes:
        problem: What is fixed for the run.
        algorithm: The algorithm with its hyper-parameters, and what the personal method does in every round.
        clients: The engine, or the devices, that hold the data.
        members: Who takes part in which round.
        client_data: The data of all clients.
        engine: The engine of the experiment, with the choice that "auto" led to.
        why: The reason for this choice in one line; empty when the experiment names the engine.
        names: The name of each client, (n,). Clients without names have their numbers.
        warnings: What looks wrong with the data, in a line each.
        public: The unlabelled samples of the server before they are normalised, (samples, ...); None for none.
        inputs: Which columns of a table the networks read, in one line; empty where the data are no table.
        objective: What the networks learn.
        personal: How clients make models of their own; None where they do not.
        byzantine: The clients that send something else than they have trained; None where all are honest.
        private: The differential privacy of the run; None where there is none.
        client_noise: What clients do with updates before they send them, if they do. On real devices it is not here:
            the devices do it.
        trigger: The trigger of their backdoor; None where they have none.
        sums: The terms of the sums that the server sees in place of updates. On real devices they are not here: the
            devices keep to them.
        compression: How clients compress their updates; None where they do not.
        uploads_are_decoded: Whether the reports of the clients are decompressed already, as those of real devices are.
    """

    problem: Problem
    algorithm: Algorithm[Any]
    clients: Engine
    members: Membership
    client_data: ClientData
    engine: EngineTable
    why: str = ""
    names: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    public: torch.Tensor | None = None
    inputs: str = ""
    objective: Objective = field(default_factory=Objective)
    personal: PersonalMethod | None = None
    byzantine: ByzantineClients | None = None
    private: PrivateRun | None = None
    client_noise: LocalPrivacy | None = None
    trigger: Trigger | None = None
    sums: SumTerms = field(default_factory=SumTerms)
    compression: Compression | None = None
    uploads_are_decoded: bool = False

    @property
    def everyone(self) -> torch.Tensor:
        """All client ids, (n,)."""
        return torch.arange(self.problem.clients)

    def simulate_upload(self, plan: Plan, report: Report) -> Report:
        """What the server gets of a report, where clients add noise, are Byzantine, or compress what they send."""
        if self.client_noise is not None:
            report = self.client_noise.of_report(plan, report)
        if self.byzantine is not None:
            report = self.byzantine.corrupt(plan, report)
        if self.compression is not None and not self.uploads_are_decoded:
            # Nothing else fits into what travels, whoever sends it.
            report = self.compression.of_report(plan, report, self.clients.store)
        return report

    def summed(self, plan: Plan, report: Report) -> Summed:
        """What the server sees of that, with secure aggregation."""
        return summed_report(self.sums, self.problem.layout, plan, report) if self.sums.secure else Summed(report)

    def truth(self, round: int) -> torch.Tensor | None:
        """The true group of each client in a round, (n,). It changes with the data of a client."""
        if self.problem.truth is None:
            return None
        truth = self.problem.truth.clone()
        for client, (since, other) in self.members.handovers.items():
            truth[client] = truth[other if round >= since else client]
        return truth


def build_run(experiment: Experiment) -> RunSetup:
    """Make the network, check the first plan of the algorithm, then read and partition the data.

    Raises:
        InputError: When something that the experiment names does not exist or does not fit.
    """
    algorithm = experiment.algorithm_of()
    personal = experiment.personal_of()
    members = membership(experiment)
    resolve_engine(experiment.engine.name, experiment.engine.device)
    _refuse_public(experiment)
    check_attack(experiment)
    require(experiment.records.track)
    info = data.find(experiment.data.name, experiment.data.root).info
    if info is not None:
        outputs = objective_of(experiment).outputs_of_classes(info.classes)
        expected = problem_of(experiment, info.shape, outputs)
        check_first_plan(algorithm, expected, personal)
        private_run(experiment, expected, algorithm, members)
        sum_terms(experiment, expected, algorithm)
        check_probes(experiment, algorithm, expected)
    dataset, own_test = _samples(experiment)
    _logger.info("data %s: %d samples of %s, %d classes", dataset.name, len(dataset), dataset.shape, dataset.classes)
    dataset = with_targets(experiment, dataset)
    problem = problem_of(experiment, dataset.shape, dataset.outputs)
    check_first_plan(algorithm, problem, personal)
    private = private_run(experiment, problem, algorithm, members)
    problem = with_central_privacy(problem, private)
    check_probes(experiment, algorithm, problem)
    partition = _partition(experiment, dataset, own_test)
    _refuse_unseen_groups(dataset, partition)
    dataset = _normalised_by_training(experiment, dataset, partition)
    warnings = (
        *data_warnings(experiment, dataset, partition, own_test),
        *_network_warnings(experiment, dataset),
        *attack_warnings(experiment),
    )
    names = partition.names or tuple(map(str, range(experiment.data.clients)))
    truth = None if partition.truth is None else torch.from_numpy(partition.truth)
    byzantine = byzantine_clients(experiment, problem.layout, truth)
    partition = with_flipped_labels(experiment, dataset, partition, byzantine)
    dataset, trigger = with_trigger(experiment, dataset, partition, byzantine)
    spec = _spec(experiment, dataset, partition, members)
    sizes = _sizes(spec.client_data, 0)
    _logger.info("%d clients with %d to %d training samples", len(sizes), min(sizes), max(sizes))
    members = _weighted(members, experiment, spec.client_data)
    engine, why = _engine(experiment, spec, members, problem.training)
    _logger.info("engine %s on %s, model of %d parameters", engine.name, engine.device, problem.layout.p)
    clients = ENGINES[engine.name](spec, engine.device, engine.workers, engine.timeout)
    public = _public(experiment, dataset, partition)
    normalised = None if public is None else dataset.normalise(public)
    problem = replace(problem, truth=truth, public=normalised, predict=clients.predict)
    return RunSetup(
        problem=problem,
        algorithm=with_personal_stage(algorithm, personal),
        clients=clients,
        members=members,
        client_data=spec.client_data,
        engine=engine,
        why=why,
        names=names,
        warnings=warnings,
        public=public,
        inputs=_inputs(dataset),
        objective=spec.objective,
        personal=personal,
        byzantine=byzantine,
        private=private,
        client_noise=client_noise(private),
        trigger=trigger,
        sums=sum_terms(experiment, problem, algorithm),
        compression=compression_of(experiment, problem.layout),
    )


def _inputs(dataset: data.Dataset) -> str:
    """What the networks read of a table or of recordings, in one line; empty for other data."""
    if dataset.feature_names:
        # The library makes these two itself where files or arguments say the same.
        made = (CLIENT_COLUMN, SPLIT_COLUMN)
        others = [name if name.strip() else "a column without a name" for name in dataset.columns if name not in made]
        return ", ".join(dataset.feature_names) + (f"; no inputs: {', '.join(others)}" if others else "")
    if TRIAL_COLUMN in dataset.columns and dataset.inputs.ndim == 3:
        channels, readings = dataset.shape
        recordings = len(np.unique(dataset.columns[TRIAL_COLUMN]))
        windows = f"{len(dataset):,} windows of {readings} readings in {channels} channels"
        return f"{windows}, of {recordings:,} recordings"
    return ""


def _sizes(client_data: ClientData, round: int) -> list[int]:
    """The training samples of each client in a round."""
    return [len(client_data.train(client, round=round)) for client in range(len(client_data))]


def _weighted(members: Membership, experiment: Experiment, client_data: ClientData) -> Membership:
    """Who takes part, with the weights that the experiment samples by."""
    return replace(members, weights=sampling_weights(experiment.cohort, partial(_sizes, client_data)))


def on_same_clients(setup: RunSetup, experiment: Experiment) -> RunSetup:
    """The setup of another experiment with the same clients, data and network.

    Args:
        setup: What was built from the first experiment.
        experiment: One that differs in algorithm, personal models, local training, server and cohort at most.

    Raises:
        ExperimentError: When its networks learn something else, which the clients of the first do not compute.
    """
    objective = objective_of(experiment)
    for key in ("loss", "metric", "transform"):
        expected = getattr(setup.objective, key)
        if getattr(objective, key) != expected:
            raise ExperimentError(
                f"local.{key} = {shown(getattr(objective, key))}: expected {shown(expected)}, as in the other runs, "
                "with which it shares its clients; run it on its own"
            )
    form = setup.client_data.sample_format
    problem = problem_of(experiment, form.network_shape, form.output_shape)
    own = setup.problem
    problem = replace(problem, truth=own.truth, public=own.public, predict=own.predict)
    members = _weighted(membership(experiment), experiment, setup.client_data)
    algorithm = experiment.algorithm_of()
    personal = experiment.personal_of()
    check_first_plan(algorithm, problem, personal)
    private = private_run(experiment, problem, algorithm, members)
    problem = with_central_privacy(problem, private)
    sums = sum_terms(experiment, problem, algorithm)
    algorithm = with_personal_stage(algorithm, personal)
    return replace(
        setup,
        algorithm=algorithm,
        personal=personal,
        problem=problem,
        members=members,
        private=private,
        client_noise=client_noise(private),
        sums=sums,
        compression=compression_of(experiment, problem.layout),
    )


def with_personal_stage(algorithm: Algorithm[Any], method: PersonalMethod | None) -> Algorithm[Any]:
    """The algorithm of a run with a personal method; None is a run without one."""
    if method is None:
        return algorithm
    return method.around(algorithm.with_personal_models() if isinstance(algorithm, KnowsPersonalModels) else algorithm)


def _samples(experiment: Experiment) -> tuple[data.Dataset, int]:
    """The samples of the experiment, and how many of them, the last ones, are test samples of the data set's own."""
    wanted = experiment.data
    if wanted.test != OWN_TEST:
        return _with_unit(experiment, _load(experiment)).copied(wanted.copies), 0
    if wanted.copies > 1:
        raise ExperimentError(
            f"data.copies = {wanted.copies}: expected 1 with data.test = {OWN_TEST!r}; hold out a share of each "
            "client's samples instead, as data.test = 0.2"
        )
    both = data.load_both(wanted.name, wanted.root, experiment.reading)
    train, test = (_for_network(experiment, split) for split in both)
    train = _with_unit(experiment, train)
    column = experiment.partition.get("column")
    needed = [name for name in (train.unit, column) if isinstance(name, str)]
    return train.followed_by(test, needed), len(test)


def _with_unit(experiment: Experiment, dataset: data.Dataset) -> data.Dataset:
    """The samples with the unit of dependence that the experiment names."""
    unit = experiment.data.unit
    return dataset if unit is None else replace(dataset, unit=None if unit == ALL_INDEPENDENT else unit)


def _load(experiment: Experiment, split: Literal["train", "test"] = "train") -> data.Dataset:
    """The samples of a split, as the network needs them."""
    dataset = data.load_dataset(experiment.data.name, experiment.data.root, split, experiment.reading)
    return _for_network(experiment, dataset)


def _for_network(experiment: Experiment, dataset: data.Dataset) -> data.Dataset:
    """The samples as tokens if the experiment says so, and images of the size that the network needs."""
    if experiment.data.tokens:
        dataset = dataset.as_tokens()
    wanted = side(experiment.model.name)
    return dataset if wanted is None or dataset.shape[1:] == (wanted, wanted) else dataset.resized(wanted)


def _engine(
    experiment: Experiment, spec: SimulationSpec, members: Membership, training: LocalTraining
) -> tuple[EngineTable, str]:
    """The engine with "auto" resolved, and the reason for the choice."""
    wanted = experiment.engine
    why = ""
    name, device = resolve_engine(wanted.name, wanted.device)
    if name == "auto":
        cohort = members.sample(1).cohort
        candidates = engine_candidates(spec, wanted.workers, device, wanted.timeout)
        chosen, why = choose_engine(spec, candidates, training, cohort, experiment.rounds)
        name = chosen.name
        device = chosen.device
    return wanted.model_copy(update={"name": name, "device": device}), why


def _spec(experiment: Experiment, dataset: data.Dataset, partition: Partition, members: Membership) -> SimulationSpec:
    """What the engine is made of."""
    # Of the columns, only the one that marks independent units is still needed.
    columns = {} if dataset.unit is None else {dataset.unit: dataset.columns[dataset.unit]}
    return SimulationSpec(
        _network(experiment, dataset.shape, dataset.outputs),
        replace(dataset, columns=columns).channels_last(),
        partition,
        experiment.seed,
        # The plans that follow the last round must not meet data of a later one.
        {client: (since, other) for client, (since, other) in members.handovers.items() if since <= experiment.rounds},
        experiment.engine.precision,
        objective_of(experiment),
    )


def spreads_units(experiment: Experiment) -> bool:
    """Whether the units that are held out are spread over the classes, as `partition_samples` does it."""
    # The splits of known data sets are those of all published results.
    return experiment.data.name not in data.DATASETS


def _partition(experiment: Experiment, dataset: data.Dataset, own_test: int) -> Partition:
    wanted = experiment.data
    spread_units = spreads_units(experiment)
    try:
        partition = partition_samples(
            experiment.scheme,
            dataset.labels.numpy(),
            clients=wanted.clients,
            samples=wanted.samples,
            test=wanted.held_out_share,
            seed=experiment.seed,
            classes=dataset.classes,
            columns=dataset.columns,
            unit=dataset.units,
            own_test=own_test,
            spread_units=spread_units,
        )
        if wanted.validation:
            labels = dataset.labels.numpy()
            partition = with_validation(
                partition, labels, wanted.validation, experiment.seed, dataset.units, spread_units=spread_units
            )
    except PartitionError as error:
        if str(error).startswith(("partition.", "data.validation")):
            raise
        # What was left out of the files may be why too little is there.
        notes = "".join(f". {note}" for note in dataset.notes)
        found = f"data.clients = {wanted.clients}, data.samples = {wanted.samples}: {error}{notes}"
        raise PartitionError(found) from None
    for key, value in (("gap", list(experiment.probe.gap)), ("bipartition", experiment.probe.bipartition)):
        if value and partition.truth is None:
            raise ExperimentError(
                f"probe.{key} = {shown(value)}: needs a partition with true groups, but "
                f"partition.scheme = {experiment.partition['scheme']!r} has none; use another, or leave probe.{key} out"
            )
    return partition


def _normalised_by_training(experiment: Experiment, dataset: data.Dataset, partition: Partition) -> data.Dataset:
    """Data of a user's own with the mean and deviation of the samples that clients train on, and of no others.

    Only training samples of clients that take part are used. Known data sets have constants.
    """
    own = experiment.data.name not in data.DATASETS
    if not own or experiment.data.normalise == "none" or dataset.holds_tokens:
        return dataset
    rows = torch.from_numpy(np.sort(np.concatenate(partition.train)))
    mean, std = data.channel_statistics(dataset.inputs, dataset.stored_rows(rows))
    return replace(dataset, mean=mean, std=std)


def _public(experiment: Experiment, dataset: data.Dataset, partition: Partition) -> torch.Tensor | None:
    """Unlabelled samples for the server, not normalised: of the test file, or else of what no client holds."""
    count = experiment.data.public
    if not count:
        return None
    has_test = data.has_own_test(data.find(experiment.data.name, experiment.data.root))
    if has_test and experiment.data.test != OWN_TEST:
        dataset = _load(experiment, "test")
        free = torch.arange(len(dataset))
    else:
        held = torch.from_numpy(np.concatenate([*partition.train, *partition.test, *partition.validation]))
        free = torch.arange(len(dataset))[~torch.isin(torch.arange(len(dataset)), held)]
    if count > len(free):
        raise ExperimentError(f"data.public = {count}: expected at most the {len(free)} samples that no client holds")
    order = torch.randperm(len(free), generator=generator(experiment.seed, "public"))
    return dataset.gather(free[order[:count]])


def objective_of(experiment: Experiment) -> Objective:
    """What the networks of an experiment learn."""
    local = experiment.local
    return Objective(local.loss, local.metric or "accuracy", local.transform)


def _refuse_public(experiment: Experiment) -> None:
    """Refuse public samples where models are no classifiers: algorithms compare the classes that they predict."""
    if experiment.data.public and not objective_of(experiment).classifies:
        raise ExperimentError(
            f"data.public = {experiment.data.public}: expected 0 with local.loss = {experiment.local.loss!r}, as "
            "algorithms compare the class probabilities of public samples; use local.loss = 'cross_entropy'"
        )


def with_targets(experiment: Experiment, dataset: data.Dataset) -> data.Dataset:
    """The data with the targets that the loss needs.

    Raises:
        ExperimentError: When a function of the objective does not exist, or the loss does not fit the data.
    """
    objective = objective_of(experiment)
    objective.check()
    targets = objective.targets_for(dataset.labels, dataset.classes, dataset.targets, dataset.name)
    return replace(dataset, targets=targets, answer=objective.answer(targets))


def _refuse_unseen_groups(dataset: data.Dataset, partition: Partition) -> None:
    """Refuse groups that differ in what they call the classes, where the loss does not look at classes."""
    if dataset.targets is not None and bool((partition.relabel != partition.relabel[:1]).any()):
        raise PartitionError(
            "partition.scheme = 'concept': expected a loss of classes, as its groups differ in the classes alone; "
            "use local.loss = 'cross_entropy', or another scheme"
        )


def _network(
    experiment: Experiment, shape: tuple[int, ...], outputs: tuple[int, ...], start: int = 0
) -> Callable[[], torch.nn.Module]:
    """A function that makes the network, also in another process."""
    seed = seed_of(experiment.seed, "model", client=start)
    kind = NetworkShape(_as_read(experiment, shape), outputs, experiment.data.tokens)
    return partial(make_network, portable(experiment.model.name), kind, seed, experiment.model.options)


def _as_read(experiment: Experiment, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a sample as the network reads it: some read images of one size only."""
    wanted = side(experiment.model.name)
    return (shape[0], wanted, wanted) if wanted is not None and len(shape) == 3 else shape


def _network_warnings(experiment: Experiment, dataset: data.Dataset) -> tuple[str, ...]:
    """What looks wrong with a network of the user's own."""
    if experiment.model.name in MODELS:
        return ()
    network = _network(experiment, dataset.shape, dataset.outputs)()
    kind = torch.int64 if experiment.data.tokens else torch.float32
    found = order_warning(network, layout_of(network), torch.zeros(2, *_as_read(experiment, dataset.shape), dtype=kind))
    return () if found is None else (found,)


def problem_of(experiment: Experiment, shape: tuple[int, ...], outputs: tuple[int, ...]) -> Problem:
    """The problem of an experiment, before any sample is read.

    Args:
        experiment: The experiment.
        shape: The shape of a sample.
        outputs: The shape of the outputs for one sample.
    """
    layout = layout_of(_network(experiment, shape, outputs)())

    def fresh(start: int) -> torch.Tensor:
        given = portable(experiment.model.name)
        if start and isinstance(given, PortableObject) and isinstance(given.thing, torch.nn.Module):
            raise ExperimentError(
                f"algorithm.name = {experiment.algorithm.name!r} begins with several different models, and the model "
                "is one network with its weights; give its class, or a function that makes it"
            )
        return row_of(_network(experiment, shape, outputs, start)(), layout)

    return Problem(
        layout=layout,
        fresh=fresh,
        clients=experiment.data.clients,
        seed=experiment.seed,
        rounds=experiment.rounds,
        training=training_of(experiment.local),
        lr_schedule=schedule_of(experiment.local),
        aggregation=aggregation_of(experiment.server.aggregation, experiment.server.model_dump()),
        bucket_size=experiment.server.bucket_size,
        min_cluster=experiment.privacy.min_cluster,
        local_noise=experiment.privacy.kind == "local",
        server=server_of(experiment.server),
        features=prod(_as_read(experiment, shape)),
        public=torch.empty(0) if experiment.data.public else None,  # a placeholder until the data is read
    )


def compression_of(experiment: Experiment, layout: Layout) -> Compression | None:
    """How clients compress their updates; None where they do not, or no updates travel."""
    table = experiment.network
    if table.compression == "none" or experiment.algorithm.name == "centralized":
        return None
    return Compression(layout, table.compression, table.share, experiment.seed)


def training_of(local: LocalTable) -> LocalTraining:
    """The local training before any schedule: the keys that have the name of a field."""
    return LocalTraining(**{field.name: getattr(local, field.name) for field in fields(LocalTraining)})


def server_of(server: ServerTable) -> ServerOptimizer:
    """What the server makes of the mean updates."""
    return ServerOptimizer(server.optimizer, server.lr or 1.0, server.momentum, server.beta2, server.tau)


def schedule_of(local: LocalTable) -> LearningRateSchedule:
    """How the learning rate changes from round to round."""
    return LearningRateSchedule(
        decay=local.lr_decay,
        kind=local.schedule or "exponential",
        period=max(local.schedule_rounds, 1),
        floor=local.lr_min / local.lr,
        warmup=local.warmup_rounds,
    )


def check_first_plan(algorithm: Algorithm[Any], problem: Problem, personal: PersonalMethod | None = None) -> None:
    """Ask for a first plan as if all clients were in one group, so that wrong layers are found before data is read.

    Raises:
        ExperimentError: When a key of the algorithm does not fit the network, or the personal method does not fit.
    """
    problem = replace(problem, truth=torch.zeros(problem.clients, dtype=torch.int64))
    try:
        algorithm.plan(problem, algorithm.init(problem), torch.arange(problem.clients))
    except LayoutError as error:
        raise ExperimentError(f"algorithm.{_key_of(algorithm, problem.layout)} = {error}") from None
    if personal is not None:
        personal.check(problem, algorithm)


def _key_of(algorithm: Algorithm[Any], layout: Layout) -> str:
    """The key whose selectors match no layer."""
    for each in fields(algorithm):  # type: ignore[arg-type]  # every registered algorithm is a dataclass
        value = getattr(algorithm, each.name)
        try:
            if each.name in _LAYER_KEYS:
                layout.select(*([value] if isinstance(value, str) else value))
        except LayoutError:
            return each.name
    return "name"
