"""What tests are made of: a small experiment, its run and its federation, a plan, a report, and what a run has left.

    finished = run(tmp_path / "run", algorithm={"name": "ifca", "k": 2}, cohort={"fraction": 0.5})
    setup = federation(privacy={"kind": "local", "noise_multiplier": 0.05})
    plan = plan_of([[0], [1]])
    report = report_of(plan, torch.zeros(2, plan.models.shape[1]), sizes=[3, 5])

A test file that needs other tables throughout gives them first: ``run(out, TABLES, rounds=2)``.
"""

import hashlib
import json
import os
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from safetensors import safe_open
from safetensors.torch import save as to_bytes

import fedstrata as fs
from fedstrata.build.build import build_run
from fedstrata.build.run_setup import RunSetup
from fedstrata.comparison import Comparison
from fedstrata.comparison.judge import Judge
from fedstrata.config import Experiment, load_experiment
from fedstrata.core import (
    TRAIN,
    Diagnostics,
    Layout,
    LocalTask,
    LocalTraining,
    Plan,
    Problem,
    Report,
    Result,
    Rows,
    State,
    TensorSpec,
    tree_events,
)
from fedstrata.core.layout import Kind
from fedstrata.core.state import StateT
from fedstrata.objective.metric_info import ACCURACY
from fedstrata.play.rounds import Rules, answer_plans, play_rounds, timed_reply
from fedstrata.report.comparison.folder import Document, Outcome
from fedstrata.testing import toy_layout, toy_problem

DIGITS: dict[str, Any] = {
    "rounds": 4,
    "data": {"name": "digits", "clients": 6, "samples": 40, "test": 0.2},
    "partition": {"scheme": "rotation", "groups": 2},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"lr": 0.2, "batch": 10},
    "algorithm": {"name": "fedavg"},
    "engine": {"name": "loop"},
}
"""The tables of an experiment of a tenth of a second: six clients with digits, turned in two ways."""

CHOOSING = ("name", "scheme", "kind", "optimizer", "method")
"""Keys by which a table chooses something; the other keys of the table belong to the choice."""


def keys(tables: Mapping[str, Any] = DIGITS, /, **changes: Any) -> dict[str, Any]:
    """The tables of an experiment with some changes.

    Args:
        tables: The tables, as in an experiment file.
        changes: New values of single keys, in a dict for each table. A table that chooses something, such as
            ``{"name": "ifca", "k": 2}``, replaces the whole one, and None takes it away.
    """
    found = dict(tables)
    for name, value in changes.items():
        merges = isinstance(value, dict) and not value.keys() & set(CHOOSING)
        found[name] = {**found.get(name, {}), **value} if merges else value
    return {name: value for name, value in found.items() if value is not None}


def experiment(tables: Mapping[str, Any] = DIGITS, /, **changes: Any) -> Experiment:
    """The experiment of some tables with changes, as in `keys`."""
    return load_experiment(keys(tables, **changes))


def run(out: Path | str, tables: Mapping[str, Any] = DIGITS, /, **changes: Any) -> fs.Run:
    """Run the experiment of some tables with changes, as in `keys`, in a folder; ``resume=True`` goes on there."""
    resume = changes.pop("resume", False)
    return fs.run(keys(tables, **changes), out, resume=resume, quiet=True)


def federation(tables: Mapping[str, Any] = DIGITS, /, **changes: Any) -> RunSetup:
    """What a run of some tables with changes, as in `keys`, is built from: `turns.play` plays its rounds."""
    return build_run(experiment(tables, **changes))


def last_models(setup: RunSetup, rounds: int) -> torch.Tensor:
    """The models, (k, p), after so many rounds."""
    state = setup.server.algorithm.init(setup.server.problem)
    steps = play_rounds(Rules.of(setup), state, stop=lambda state: state.round >= rounds, observe=lambda done: None)
    models: torch.Tensor = answer_plans(steps, partial(timed_reply, setup.clients)).models
    return models


def problem(clients: int, layout: Layout | None = None, **changes: Any) -> Problem:
    """A problem whose models start at zero, by default with the layers ``conv`` and ``fc`` of three weights each."""
    layout = layout or toy_layout()
    return replace(toy_problem(clients, layout), **changes)


def layout_with(shapes: Mapping[str, int | tuple[int, ...]]) -> Layout:
    """A layout of tensors by name, such as ``{"conv.weight": 5, "norm.running_mean": 1, "fc.weight": (2, 3)}``.

    Layers called ``conv...`` are convolutions, those called ``norm...`` normalise, and all others are linear. Running
    statistics are buffers.
    """
    tensors = list[TensorSpec]()
    for name, shape in shapes.items():
        layer, _, tensor = name.rpartition(".")
        kind: Kind = "conv" if layer.startswith("conv") else "norm" if layer.startswith("norm") else "linear"
        kind = "buffer" if tensor.startswith("running") else kind
        tensors.append(TensorSpec(name, layer, kind, (shape,) if isinstance(shape, int) else shape))
    return Layout(tuple(tensors))


def task_of(
    candidates: Sequence[Sequence[int]] | torch.Tensor, layout: Layout | None = None, **changes: Any
) -> LocalTask:
    """A task in which clients train all of the first candidate that fits best, send all of it and keep nothing.

    Args:
        candidates: The models that each client may start from, (m, c).
        layout: The tensors of the network; by default `toy_layout`.
        changes: Other fields of the task.
    """
    layout = layout or toy_layout()
    fields = {
        "candidates": torch.as_tensor(candidates),
        "training": LocalTraining(),
        "trainable": layout.everything,
        "upload": layout.everything,
        "load_local": layout.nothing,
        "save_local": layout.nothing,
    }
    return LocalTask(**{**fields, **changes})


def plan_of(
    candidates: Sequence[Sequence[int]] | torch.Tensor | None = None,
    layout: Layout | None = None,
    *,
    tasks: Mapping[str, LocalTask] | None = None,
    models: torch.Tensor | None = None,
    cohort: Sequence[int] | None = None,
    round: int = 1,
    seed: int = 0,
    **changes: Any,
) -> Plan:
    """A plan with one task, as in `task_of`, or with those that are given.

    Args:
        candidates: The models that each client may start from, (m, c).
        layout: The tensors of the network; by default `toy_layout`.
        tasks: The tasks, in place of one of these candidates.
        models: The models that are sent, (k, p); by default zeros.
        cohort: The ids of the clients, (m,); by default 0 to m - 1.
        round: The number of the round.
        seed: The seed of the run.
        changes: Other fields of the task.
    """
    layout = layout or toy_layout()
    if tasks is None:
        assert candidates is not None
        tasks = {TRAIN: task_of(candidates, layout, **changes)}
    offered = [task.candidates for task in tasks.values()]
    if models is None:
        models = torch.zeros(1 + max(int(each.max()) for each in offered), layout.p)
    ids = torch.arange(len(offered[0])) if cohort is None else torch.tensor(cohort)
    return Plan(round, seed, ids, models, dict(tasks))


def answer(
    clients: Sequence[int] | torch.Tensor,
    values: torch.Tensor,
    chosen: Sequence[int] | torch.Tensor | None = None,
    sizes: Sequence[int] | torch.Tensor | None = None,
    losses: torch.Tensor | None = None,
) -> Result:
    """The answers of some clients to a task.

    Args:
        clients: The ids of the clients, (m,).
        values: The updates, (m, p).
        chosen: The models that the clients started from, (m,); by default the first one.
        sizes: The numbers of training samples, (m,); by default 1.
        losses: The losses of the candidates, (m, c); by default NaN, as where a client has no choice.
    """
    ids = torch.as_tensor(clients, dtype=torch.int64)
    return Result(
        Rows(ids, values),
        torch.zeros_like(ids) if chosen is None else torch.as_tensor(chosen, dtype=torch.int64),
        torch.ones_like(ids) if sizes is None else torch.as_tensor(sizes, dtype=torch.int64),
        torch.full((len(ids), 1), torch.nan) if losses is None else losses,
    )


def result_of(
    plan: Plan,
    values: torch.Tensor,
    sizes: Sequence[int] | torch.Tensor | None = None,
    chosen: Sequence[int] | torch.Tensor | None = None,
    losses: torch.Tensor | None = None,
    task: str = TRAIN,
) -> Result:
    """The answers of the cohort to a task of a plan.

    Args:
        plan: The plan.
        values: The updates, (m, p).
        sizes: The numbers of training samples, (m,); by default 1.
        chosen: The models that the clients started from, (m,); by default their first candidates.
        losses: The losses of the candidates, (m, c); by default NaN, as where a client has no choice.
        task: The name of the task.
    """
    candidates = plan.tasks[task].candidates
    first = candidates[:, 0] if chosen is None else chosen
    unknown = torch.full(candidates.shape, torch.nan)
    return answer(plan.cohort, values, first, sizes, unknown if losses is None else losses)


def report_of(
    plan: Plan, values: torch.Tensor, sizes: Sequence[int] | torch.Tensor | None = None, **answers: Any
) -> Report:
    """A report of the whole cohort on the plan's one task, as in `result_of`."""
    return Report({TRAIN: result_of(plan, values, sizes, **answers)})


def trained(
    values: Sequence[Sequence[float]] | torch.Tensor,
    clients: Sequence[int] | torch.Tensor | None = None,
    chosen: Sequence[int] | torch.Tensor | None = None,
    sizes: Sequence[int] | torch.Tensor | None = None,
) -> Report:
    """A report on updates by the normal training, of a plan that does not matter.

    Args:
        values: The updates, (m, p).
        clients: The ids of the clients, (m,); by default 0 to m - 1.
        chosen: The models that they started from, (m,); by default model 0.
        sizes: The numbers of training samples, (m,); by default 1.
    """
    updates = torch.as_tensor(values)
    m = len(updates)
    ids = torch.arange(m) if clients is None else torch.as_tensor(clients)
    models = torch.zeros(m, dtype=torch.int64) if chosen is None else torch.as_tensor(chosen)
    samples = torch.ones(m, dtype=torch.int64) if sizes is None else torch.as_tensor(sizes)
    return Report({TRAIN: Result(Rows(ids, updates), models, samples, torch.full((m, 1), torch.nan))})


DISK_EVENTS = ("unsaved", "resume")
"""The kinds of events about checkpoints that could not be written, and rounds that were repeated."""


def left(folder: Path, without: Container[str] = ()) -> object:
    """What a run has left: every byte of its models and matrices, its tree, and its records but for their seconds.

    Args:
        folder: The folder of the run.
        without: Kinds of events that do not matter.
    """
    files = [*folder.glob("models/*"), *folder.glob("matrices/*")]
    tables = [pq.read_table(path).to_pydict() for path in sorted(folder.glob("clients/*"))]
    nodes = json.loads((folder / "tree.json").read_text())
    # The same clients have other names on a network.
    nameless = [{key: value for key, value in each.items() if key not in ("name", "names")} for each in tables + nodes]
    records = records_of(folder)
    for each in records:
        each["events"] = [event for event in each["events"] if event["kind"] not in without]
    timeless = [{key: value for key, value in each.items() if "seconds" not in key} for each in records]
    return {path.relative_to(folder): path.read_bytes() for path in sorted(files)}, nameless, timeless


def records_of(folder: Path) -> list[dict[str, Any]]:
    """The records of the rounds of a run."""
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def seal_checkpoint(path: Path, content: bytes) -> None:
    """Write a checkpoint whose checksum is right, whatever it holds."""
    path.write_bytes(content)
    path.with_suffix(".sha256").write_text(f"{hashlib.sha256(content).hexdigest()} {len(content)}\n")


def change_checkpoint(path: Path, tensors: Mapping[str, torch.Tensor] | None = None, **metadata: Any) -> None:
    """Change some tensors of a checkpoint, and what it says about itself; its checksum is right again.

    Args:
        path: Of the checkpoint.
        tensors: By their names.
        metadata: What it says about itself, as JSON or as what is written as JSON.
    """
    with safe_open(path, framework="pt") as file:
        found = {name: file.get_tensor(name) for name in file.keys()} | dict(tensors or {})  # noqa: SIM118 (no dict)
        texts = {name: text if isinstance(text, str) else json.dumps(text) for name, text in metadata.items()}
        said = file.metadata() | texts
    seal_checkpoint(path, to_bytes(found, said))


def with_tree_events(before: State, after: StateT, diagnostics: Diagnostics) -> tuple[StateT, Diagnostics]:
    """What a round has made of a state, with what it did to the tree among the events, as a run records them."""
    return after, replace(diagnostics, events=(*diagnostics.events, *tree_events(before, after)))


def compared(
    outcomes: Sequence[Outcome],
    folder: Path = Path("c"),
    experiment: Mapping[str, Any] | None = None,
    *,
    same_training: bool = True,
    **others: Any,
) -> Comparison:
    """A comparison of runs that is not written to its folder.

    Args:
        outcomes: The runs.
        folder: Its folder.
        experiment: The keys that the runs have in common.
        same_training: Whether all train alike.
        others: Other values of its document.
    """
    judge = Judge(outcomes, ACCURACY, others.get("folds"), same_training=same_training)
    to_clients = others.get("same_clients") or len({run.seed for run in outcomes}) == 1
    document = Document(
        experiment=dict(experiment or {"data": {"name": "digits"}}),
        runs=tuple(replace(run, folder=Path(os.path.relpath(run.folder, folder))) for run in outcomes),
        metric=ACCURACY,
        table=judge.table,
        differences=judge.differences,
        overlap=judge.overlap,
        sites=judge.sites if to_clients else (),
        **others,
    )
    return Comparison(folder, document)
