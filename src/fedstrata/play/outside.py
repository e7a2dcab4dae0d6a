"""A run whose clients are somewhere else: those of another framework, which are known here by their answers alone.

`play_clients` is the whole of it. `fedstrata.flower` takes its parts, as nodes may come later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedstrata import report
from fedstrata.base.errors import ContractError, ExperimentError, InputError, ModelError
from fedstrata.base.randomness import global_generators, model_seed, seed_global_generators
from fedstrata.base.registry import OBJECT, name_of_object
from fedstrata.build.elsewhere import require, rules_elsewhere
from fedstrata.build.participation import participation_elsewhere, participation_of
from fedstrata.build.problem import network_of, problem_with
from fedstrata.build.run_setup import RunSetup, ServerSetup, server_setup
from fedstrata.config import Experiment, choose
from fedstrata.core import Layout, Plan, Report
from fedstrata.data import Dataset
from fedstrata.engine import ClientData, ClientStore, Engine
from fedstrata.engine.device import one_thread
from fedstrata.models import layout_of, layout_of_arrays, row_of_arrays
from fedstrata.partition import Partition
from fedstrata.play.progress import StatusLine
from fedstrata.play.rounds import PlanReply, timed_reply
from fedstrata.play.run import play_shown
from fedstrata.report.words import OUTSIDE
from fedstrata.results.run import Run

Arrays = Mapping[str, NDArray[Any]]
"""The arrays of a model, by name."""

Model = Callable[[], nn.Module | Arrays]
"""What makes a model with random values: a module of torch, or the arrays of another framework."""

_UNKNOWN = f"{OBJECT}arrays"
"""The network of clients of which arrays alone are known."""


@dataclass(frozen=True)
class OutsideModel:
    """The model of clients that are somewhere else.

    Attributes:
        first: The arrays of the model with which the run begins.
        make: What makes a model with random values; None where nothing does.
        seed: The seed of the run.
        shape: The shape of a sample as the network reads it; None where nobody predicts here.
        classes: The number of classes; it belongs to `shape`.
    """

    first: Arrays
    make: Model | None = None
    seed: int = 0
    shape: tuple[int, ...] | None = None
    classes: int = 2

    def __post_init__(self) -> None:
        """Refuse a model in the place of what makes one, and a shape without a model."""
        if self.make is not None and (isinstance(self.make, nn.Module) or not callable(self.make)):
            raise InputError(
                f"model: expected what makes a model, such as Net, found {type(self.make).__name__}; leave out ()"
            )
        if self.shape is not None and self.make is None:
            raise InputError(f"shape = {self.shape}: expected what makes a module of torch beside it, as in model=Net")

    @property
    def name(self) -> str:
        """The name of the network in the experiment."""
        return _UNKNOWN if self.shape is None or self.make is None else name_of_object(self.make)

    def layout(self) -> Layout:
        """The tensors of the models: of a module of torch as the simulator has them.

        Raises:
            InputError: When the arrays are not those of the module.
        """
        made = None if self.make is None else self.make()
        if not isinstance(made, nn.Module):
            if self.shape is not None:
                raise InputError(f"shape = {self.shape}: expected model to make a module of torch, found {type(made)}")
            return layout_of_arrays(self.first)
        layout = layout_of(made)
        names = {spec.name for spec in layout.tensors}
        named = made.named_parameters(remove_duplicate=False)
        trained = {name for name, parameter in named if parameter.requires_grad}
        others = [name for name, values in self.first.items() if np.issubdtype(values.dtype, np.floating)]
        others = [name for name in others if name not in names]
        if any(name in trained for name in others):
            return layout_of_arrays(self.first)  # Of weights that two layers share, a client has the arrays of both.
        if other := [name for name in others if name not in made.state_dict()]:
            raise InputError(f"the first arrays: expected the tensors of the model, found {other[0]!r} besides")
        self._row(self.first, layout, "the first arrays")
        return layout

    def fresh(self, layout: Layout) -> Callable[[int], torch.Tensor]:
        """The first models: that with which the run begins, and others where an algorithm wants several."""

        def fresh(number: int) -> torch.Tensor:
            if not number:
                return self._row(self.first, layout, "the first arrays")
            if self.make is None:
                raise ExperimentError(
                    "this algorithm begins with several different models: expected what makes one, as in model=Net, "
                    "found none"
                )
            with global_generators():
                seed_global_generators(model_seed(self.seed, number))
                made = self.make()
            if isinstance(made, nn.Module):
                made = {name: values.detach().cpu().numpy() for name, values in made.state_dict().items()}
            return self._row(made, layout, "model")

        return fresh

    def _row(self, arrays: Arrays, layout: Layout, whose: str) -> torch.Tensor:
        try:
            return row_of_arrays(arrays, layout)
        except ModelError as error:
            raise InputError(f"{whose}: {error}") from None


def outside_experiment(
    model: OutsideModel,
    algorithm: Any,
    *,
    clients: int,
    rounds: int,
    out: Path | str | None,
    resume: bool,
    tables: Mapping[str, Mapping[str, Any]],
) -> tuple[Experiment, Path]:
    """The experiment that the arguments make, as `play_clients` has them, and its folder."""
    own: dict[str, Mapping[str, Any]] = {
        "data": {"name": OUTSIDE, "clients": clients},
        "model": {"name": model.name},
        "partition": {"scheme": "natural", "column": "node"},
    }
    merged = {name: {**own.get(name, {}), **tables.get(name, {})} for name in {**own, **tables}}
    source = {"seed": model.seed, "rounds": rounds, "algorithm": algorithm, **merged}
    return choose(source, (), out, resume=resume, find_data=False)


def outside_server(experiment: Experiment, model: OutsideModel, joins: Mapping[int, int]) -> ServerSetup:
    """What the server needs.

    Args:
        experiment: The experiment.
        model: The model of the clients.
        joins: The round of each client's first cohort. The caller may change it while the run goes on.

    Raises:
        ExperimentError: When the experiment has what only a simulation can do.
    """
    layout = model.layout()
    require(
        {
            **rules_elsewhere(experiment),
            "privacy.kind: expected 'none', as only devices that run fedstrata's own training add noise": (
                experiment.privacy.kind == "none"
            ),
            "network.compression: expected 'none', as only devices that run fedstrata's own training compress": (
                experiment.network.compression == "none"
            ),
            "records.inputs: expected false, as such clients send no statistics": not experiment.records.inputs,
            "report.baseline: expected false; play algorithm 'fedavg' with the same clients into another folder": (
                not experiment.report.baseline
            ),
        },
        "of clients that are not simulated",
    )
    problem = problem_with(experiment, layout, model.fresh(layout))
    return server_setup(experiment, problem, participation_elsewhere(experiment, joins))


def outside_setup(
    experiment: Experiment, server: ServerSetup, model: OutsideModel, clients: Engine, names: Sequence[str]
) -> RunSetup:
    """What the run needs."""
    return RunSetup(
        server=server,
        clients=clients,
        client_data=_no_samples(len(names), model),
        engine=experiment.engine.model_copy(update={"name": "loop", "device": "cpu"}),
        names=tuple(names),
        on_devices=True,
        network=None if model.shape is None else network_of(experiment, model.shape, (model.classes,)),
    )


def _no_samples(clients: int, model: OutsideModel) -> ClientData:
    """The data that are known of the clients: none, of samples that are normalised already."""
    shape = model.shape or (1,)
    mean = (0.0,) * shape[0]
    labels = torch.zeros(1, dtype=torch.int64)
    dataset = Dataset(OUTSIDE, torch.zeros(1, *shape), labels, model.classes, mean, tuple(1.0 for _ in mean))
    return ClientData(dataset, Partition.of_one(clients, model.classes), model.seed)


def no_outputs(models: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """Refuse to compute outputs: the server has no network.

    Raises:
        ContractError: Always.
    """
    raise ContractError("expected an algorithm that computes no outputs on the server, as the network is the clients'")


@dataclass(eq=False)
class _Clients:
    """Clients by their answers."""

    run: Callable[[Plan], Report]
    store: ClientStore = field(default_factory=ClientStore)
    outputs = staticmethod(no_outputs)


def play_clients(
    answer: Callable[[Plan], Report],
    arrays: Arrays,
    algorithm: Any = "strata",
    *,
    names: Sequence[str],
    rounds: int,
    model: Model | None = None,
    out: Path | str | None = None,
    seed: int = 0,
    resume: bool = False,
    tables: Mapping[str, Mapping[str, Any]] | None = None,
    shape: tuple[int, ...] | None = None,
    classes: int = 2,
) -> Run:
    """Play a run whose clients are those of another framework, and leave a run folder like any other.

    Args:
        answer: It makes the report of a plan. `fedstrata.engine.Work` says what a plan asks of a client that can train
            a model and evaluate one. A client that does not answer is an absent row.
        arrays: The first model, by the names of its arrays, in the order in which the framework has them.
        algorithm: The algorithm: its name, or an object such as ``fedstrata.Strata(alpha=0.01)``.
        names: The names of the clients, (n,); their places are their ids.
        rounds: The number of rounds.
        model: What makes a model with random values, for algorithms that begin with several; a class such as ``Net``.
            Of a module of torch it also says which layers are convolutions, and which normalise.
        out: The run folder; by default a new one in ``runs``.
        seed: The seed of all that is random on the server.
        resume: Whether to go on with the run in the folder.
        tables: Further tables of the experiment, such as ``{"cohort": {"fraction": 0.5}}``.
        shape: The shape of a sample as the network reads it. With it and a module of torch as `model`, the run folder
            also predicts: ``fedstrata.load(folder).predict(client, samples)``.
        classes: The number of classes; it belongs to `shape`.

    Returns:
        The finished run. Its page is in its folder.

    Raises:
        InputError: When a key is wrong, or the arrays do not fit the model.
    """
    if len(set(names)) < len(names):
        raise InputError(f"names = {list(names)}: expected different names")
    known = OutsideModel(arrays, model, seed, shape, classes)
    experiment, folder = outside_experiment(
        known, algorithm, clients=len(names), rounds=rounds, out=out, resume=resume, tables=tables or {}
    )
    server = outside_server(experiment, known, participation_of(experiment).joins)
    setup = outside_setup(experiment, server, known, _Clients(answer), names)

    def reply(plan: Plan) -> PlanReply:
        found = timed_reply(setup.clients, plan)
        here = {id for each in found.report.results.values() for id in each.updates.clients.tolist()}
        missing = {*plan.cohort.tolist()} - here if plan.tasks else ()
        return found._replace(absent=dict.fromkeys(sorted(missing), "no answer"))

    with one_thread(), StatusLine(quiet=False) as line:
        run = play_shown(experiment, setup, folder, line, reply=reply, resume=resume)
    report.build(folder)
    return run
