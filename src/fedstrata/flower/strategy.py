"""`Clustered`: a strategy of Flower that trains one model for each group of nodes that belong together.

It plays the same rounds as a simulation, with the same records; its clients are `app_clients.AppClients`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from safetensors.numpy import save_file

from fedstrata.base.errors import ContractError, ExperimentError, InputError, first_line
from fedstrata.base.files import json_text
from fedstrata.build.run_setup import first_plan
from fedstrata.config import Experiment
from fedstrata.core import State
from fedstrata.engine import Ask
from fedstrata.engine.device import one_thread
from fedstrata.engine.loop import best_candidate
from fedstrata.flower.app_clients import AppClients, ServedClients
from fedstrata.flower.app_form import AppForm, AppKeys, refuse_needs
from fedstrata.flower.federation import RoundRules
from fedstrata.flower.grid import BoundedGrid, Clock
from fedstrata.flower.members import Members
from fedstrata.flower.rounds import known_members, network_folder, play_on_nodes
from fedstrata.play.outside import Model, OutsideModel, outside_experiment, outside_server, outside_setup
from fedstrata.play.progress import StatusLine
from fedstrata.results.run import Run
from fedstrata.uploads.noise import SIMULATED_RUN, random_digits


class Clustered(FedAvg):
    """Different models for different nodes: any clustering algorithm of fedstrata, for an app that Flower runs.

    The arguments of `FedAvg` stay those of `FedAvg`; `start` takes those of every strategy, and leaves a run folder.

    Args:
        algorithm: The algorithm: its name, or an object such as ``fedstrata.Strata(alpha=0.01)``.
        model: What makes a model with random values, for algorithms that begin with several; a class such as ``Net``.
            Of a module of torch it also says which layers are convolutions, and which normalise.
        out: The run folder; by default a new one in ``runs``.
        seed: The seed of all that is random on the server: who takes part, and what the algorithm draws.
        clients: The largest number of nodes that take part, also of those that come later; by default those that are
            connected when it starts.
        resume: Whether to go on with the run in the folder.
        tables: Further tables of the experiment, such as ``{"server": {"aggregation": "median"}}``.
        shape: The shape of a sample as the network reads it, such as (1, 28, 28). With it and a module of torch as
            `model`, the run folder also predicts: ``fedstrata.load(folder).predict(node, samples)``.
        classes: The number of classes, as the network has outputs; it belongs to `shape`.
        serve: Whether the app answers a whole round at once, as `fedstrata.flower.serve` lets it.
        loss: The name of the mean loss among the metrics of an evaluation.
        accuracy: The name of the share of samples that are right; without such a metric there are no accuracies.
        fedavg: The arguments of `FedAvg`.
    """

    def __init__(
        self,
        algorithm: Any = "strata",
        *,
        model: Model | None = None,
        out: Path | str | None = None,
        seed: int = 0,
        clients: int | None = None,
        resume: bool = False,
        tables: Mapping[str, Mapping[str, Any]] | None = None,
        shape: tuple[int, ...] | None = None,
        classes: int = 2,
        serve: bool = False,
        loss: str = "eval_loss",
        accuracy: str = "eval_acc",
        **fedavg: Any,
    ) -> None:
        """Ask nobody yet."""
        super().__init__(**fedavg)
        for name in ("fraction_train", "fraction_evaluate"):
            if not 0 < (value := getattr(self, name)) <= 1:
                raise InputError(f"{name} = {value}: expected more than 0 and at most 1, as models are scored by nodes")
        self.algorithm = algorithm
        self._model = OutsideModel({}, model, seed, shape, classes)
        self.out = out
        self.seed = seed
        self.clients = clients
        self.resume = resume
        self.tables = tables or {}
        self.serve = serve
        self.keys = AppKeys(self.arrayrecord_key, self.configrecord_key, self.weighted_by_key, loss, accuracy)
        self.clock = Clock()
        self.run: Run | None = None
        self._nodes: AppClients | None = None
        self._state: State | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Refuse: a round is more than one exchange of messages, so that `start` plays it as a whole."""
        raise ContractError("Clustered plays its rounds in start; it cannot be inside of another strategy")

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Play the rounds.

        Args:
            grid: Flower's grid.
            initial_arrays: The first model.
            num_rounds: The number of rounds.
            timeout: The seconds that a message may take.
            train_config: What every message to train has in its config. Its "lr" is also the step size that algorithms
                know of.
            evaluate_config: The same for messages to evaluate.
            evaluate_fn: Evaluates the model of the largest cluster on the server after each round. It is no mean over
                the nodes: other clusters may be right where this one is wrong.

        Returns:
            The arrays of the largest cluster, and the metrics of every round. The models of all clusters are in
            `models` and in the run folder.

        Raises:
            InputError: When the algorithm needs more than this app does, or a key is wrong.
            EngineError: When too few nodes are there, or none answers.
        """
        first = {name: array.numpy() for name, array in initial_arrays.items()}
        model = replace(self._model, first=first)
        bounded = BoundedGrid(grid)
        members = self._members(bounded, timeout)
        experiment, out = self._experiment(model, len(members.all_names), num_rounds, train_config)
        # The members change the rounds of joining while the run goes on.
        server = outside_server(experiment, model, members.joins)
        name = experiment.algorithm.name
        refuse_needs(first_plan(server.algorithm, server.problem), name, served=self.serve)
        if server.personal is not None and not self.serve:
            raise ExperimentError(f"personal.method = {experiment.personal.method!r}: expected serve=True, found False")
        given: dict[str, Any] = {
            "algorithm": name,
            "form": AppForm.of(server.problem.layout, first, self.keys),
            "configs": {"train": train_config or ConfigRecord(), "evaluate": evaluate_config or ConfigRecord()},
        }
        nodes = AppClients(grid=bounded, members=members, timeout=timeout, clock=self.clock, **given)
        clients: AppClients | ServedClients = nodes
        if self.serve:
            rules = RoundRules(deadline=timeout, max_attempts=1)
            run = random_digits(network_folder(out) / "run", len(SIMULATED_RUN))
            clients = ServedClients(bounded, members, rules, clock=self.clock, name=run, **given)
        self._nodes = nodes
        setup = outside_setup(experiment, server, model, clients, members.all_names)
        result = Result()

        def tell_of(record: Mapping[str, Any], state: State) -> None:
            self._state = state
            # An app that serves sends no metrics of its own.
            scored = {self.keys.accuracy: record["acc_weighted"], self.keys.loss: record["loss"]}
            metrics = MetricRecord()
            metrics.update({key: value for key, value in scored.items() if value is not None})
            result.evaluate_metrics_clientapp.setdefault(record["round"], metrics)
            if evaluate_fn is not None and (found := evaluate_fn(record["round"], self._largest())) is not None:
                result.evaluate_metrics_serverapp[record["round"]] = found

        if evaluate_fn is not None and (before := evaluate_fn(0, initial_arrays)) is not None:
            result.evaluate_metrics_serverapp[0] = before
        with one_thread(), StatusLine(quiet=False) as line:
            members.tell = nodes.tell = clients.tell = line.keep
            self.run = play_on_nodes(
                experiment,
                setup,
                out,
                line,
                members,
                bounded.get_nodes,
                resume=self.resume,
                after=lambda plan: self._add_metrics(result, plan.round, nodes),
                on_round=tell_of,
            )
        result.arrays = self._largest()
        return result

    @property
    def clusters(self) -> dict[str, int]:
        """The tree node of the cluster whose model each node uses, by the name of the node, or its id without one."""
        run = self._finished()
        uses = {name: run.model_of(name).node for name in run.labels}
        return {name: run.labels[name] if node is None else node for name, node in uses.items()}

    @property
    def models(self) -> dict[int, ArrayRecord]:
        """The model of each cluster, by its tree node."""
        state, nodes = self._played()
        return {node: nodes.form.record(row) for node, row in zip(state.nodes.tolist(), state.models, strict=True)}

    def export(self, target: Path | str) -> Path:
        """Write the model of each cluster as a file of safetensors, and ``clusters.json``: who uses which.

        Args:
            target: The folder, which is made if need be.
        """
        folder = Path(target)
        folder.mkdir(parents=True, exist_ok=True)
        for node, record in self.models.items():
            save_file({name: array.numpy() for name, array in record.items()}, folder / f"cluster-{node}.safetensors")
        content = {name: f"cluster-{node}.safetensors" for name, node in self.clusters.items()}
        (folder / "clusters.json").write_text(json_text(content, indent=1) + "\n")
        return folder

    def assign(self, grid: Grid, node_ids: Iterable[int]) -> dict[int, int]:
        """Find the cluster of nodes that took no part: that whose model has the lowest loss on their training data.

        Args:
            grid: Flower's grid.
            node_ids: The ids of the nodes.

        Returns:
            The tree node of the cluster of each node that answered, by the id of the node.
        """
        state, known = self._played()
        members = Members([])
        members.nodes = asked = dict(enumerate(node_ids))
        clients = replace(known, grid=BoundedGrid(grid), members=members)
        asks = {client: [Ask("evaluate", row, "all") for row in state.models] for client in asked}
        found = {}
        for client, answers in clients.asked(state.round + 1, asks):
            losses = torch.tensor([answer.loss for answer in answers])
            if not bool(losses.isnan().all()):
                found[asked[client]] = int(state.nodes[best_candidate(torch.arange(len(losses)), losses)])
        return found

    def _finished(self) -> Run:
        if self.run is None:
            raise InputError("expected a run that is over, found none; call start first")
        return self.run

    def _played(self) -> tuple[State, AppClients]:
        if self._state is None or self._nodes is None:
            raise InputError("expected a run that has begun, found none; call start first")
        return self._state, self._nodes

    def _largest(self) -> ArrayRecord:
        """The model of the cluster with the most nodes."""
        state, nodes = self._played()
        sizes = torch.bincount(state.labels[state.labels >= 0], minlength=len(state.models))
        return nodes.form.record(state.models[int(sizes.argmax())])

    def _experiment(
        self, model: OutsideModel, clients: int, rounds: int, config: ConfigRecord | None
    ) -> tuple[Experiment, Path]:
        """The experiment that the arguments make, and its folder."""
        given = dict(config or {})
        local = {own: given[name] for own, name in {"lr": "lr", "epochs": "local-epochs"}.items() if name in given}
        fraction = min(1.0, max(self.fraction_train, self.min_train_nodes / clients))
        scored = max(self.min_evaluate_nodes, 1, int(self.fraction_evaluate * clients))
        cohort = {"fraction": fraction, "scored": 0 if scored >= clients else scored}
        own: dict[str, Mapping[str, Any]] = {"local": local, "cohort": cohort}
        tables = {name: {**own.get(name, {}), **self.tables.get(name, {})} for name in {**own, **self.tables}}
        return outside_experiment(
            model, self.algorithm, clients=clients, rounds=rounds, out=self.out, resume=self.resume, tables=tables
        )

    def _members(self, grid: BoundedGrid, timeout: float) -> Members:
        """The nodes that take part, as soon as they are enough: of a run that goes on, its own."""
        members, round = Members([], self.clients), 0
        if self.resume:
            if self.out is None:
                raise InputError("resume=True: expected the folder of the run in out, found none")
            round = known_members(members, Path(self.out))
        wanted = max(1, min(self.min_available_nodes, len(members.names) or self.min_available_nodes))
        if members.names and (here := grid.get_nodes()) and not any(node.name for node in here):
            members.update(here, round)
            if not members.nodes:
                raise InputError(
                    f"resume=True: expected nodes of the run in {self.out}, found nodes without names, whose ids are "
                    "new at every start, as in Flower's simulation; register nodes with names, or start a new run"
                )
        members.wait(grid.get_nodes, wanted, timeout, self.clock, round=round, key="min_available_nodes")
        if members.places is None:
            members.limit(len(members.names))
        return members

    def _add_metrics(self, result: Result, round: int, nodes: AppClients) -> None:
        """Add the metrics of a plan: its evaluations are those of the models of the round before."""
        kinds = {
            "train": (round, self.train_metrics_aggr_fn, result.train_metrics_clientapp),
            "scores": (round - 1, self.evaluate_metrics_aggr_fn, result.evaluate_metrics_clientapp),
        }
        for kind, (of, aggregated, metrics) in kinds.items():
            if contents := nodes.contents.get(kind):
                try:
                    metrics[of] = aggregated(contents, self.weighted_by_key)
                except Exception as error:  # of what nodes sent, or of the user's own function
                    nodes.tell(f"round {of}: the metrics of {kind} cannot be put together: {first_line(error)}")
