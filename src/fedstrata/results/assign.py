"""Place new clients by a finished run. Each is a newcomer that waits at the root of the cluster tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from math import inf, isfinite, log
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import betaincinv

from fedstrata import data
from fedstrata.base.errors import DataError
from fedstrata.base.randomness import seed_of
from fedstrata.build.build import build_run
from fedstrata.build.participation import participation_of
from fedstrata.build.problem import network_of, problem_of
from fedstrata.build.run_setup import server_setup
from fedstrata.build.samples import for_network, with_targets
from fedstrata.config import Experiment, load_experiment
from fedstrata.config.folders import experiment_file_of
from fedstrata.config.tables import ALL_INDEPENDENT
from fedstrata.core import CLIENT, Algorithm, Plan, Problem, Report, make_pending, reassign
from fedstrata.core.state import StateT
from fedstrata.data import Dataset, SampleFormat
from fedstrata.data.dataset import numbers_as_names
from fedstrata.data.mapped import blocks
from fedstrata.data.memory import Clients, keep
from fedstrata.data.preparation import refitted
from fedstrata.engine import ClientData, Loop
from fedstrata.engine.device import one_thread
from fedstrata.objective import Objective
from fedstrata.partition import Partition, hold_out
from fedstrata.results.run import Run, load
from fedstrata.uploads.validation import validate

_FAR = 10.0
"""The mean of a feature is far away from so many standard deviations on: its unit may be another one."""


def assign(
    folder: Path | str, newcomers: Sequence[Path | str], *, clients: Clients | None = None, unlabelled: bool = False
) -> list[dict[str, Any]]:
    """Say where new clients belong, by a finished run.

    Each client does what a newcomer would do in the round after the last one, as if it were the only newcomer. Test
    samples of its own are used, as in a run; without any, the same share of its data is held out as of the other
    clients' data. Its training samples alone choose the cluster. The mean and spread of the run normalise the new data
    too. The data of the run are needed only where the server has unlabelled samples of them (``data.public``).

    Args:
        folder: The folder of a finished run.
        newcomers: The data of each new client: a file or folder in one of the forms that runs read.
        clients: The data of each client of the run, if it was given them as objects.
        unlabelled: Whether new clients are placed by their inputs alone, as they know no labels. The run needs
            ``records.inputs``, and clusters whose inputs differ.

    Returns:
        A dict for each client. ``client`` is its name, that of its file, and ``path`` its data. ``cluster`` is the tree
        node of its cluster, or None, and ``members`` are the names of the clients in it. ``new`` says whether it fits
        no cluster and would found one of its own. ``evidence`` has ``losses``, the mean training loss
        of each candidate model by tree node, and what else the algorithm notes, such as a distance. ``accuracy`` is
        that of the cluster's model on its test samples, or None; with another metric, its name stands in place of
        "accuracy", such as ``mse``, or ``perplexity`` of ``"mine:perplexity"``. ``test_samples`` is their number. An
        accuracy has ``interval``, the lowest and the highest one that other test samples of the client may show: that
        of Clopper and Pearson, at 95 %, as if the samples were independent.
        ``warnings`` says what makes the answer doubtful, in a line each.
        With `unlabelled` nothing is tested, and ``evidence`` has ``probabilities``, of each cluster by tree node, and
        ``recognised``: the share of the nearest cluster's members whose inputs would place them there, each held out.
        In doubt, ``cluster`` is None, and ``warnings`` says why.

    Raises:
        InputError: When the folder is no finished run, or some data do not fit it. With `unlabelled`, also when inputs
            tell no cluster from all others.
    """
    folder = Path(folder)
    paths = list(map(Path, newcomers))
    if clients is not None:
        keep(clients)
    run = load(folder)
    if unlabelled:
        # It imports scikit-learn, which takes a second.
        from fedstrata.results.unlabelled import assign_unlabelled

        return assign_unlabelled(run, paths)
    # A few newcomers need no other device than the processor.
    sets = ("engine.name=loop", "engine.device=cpu", "engine.precision=float32")
    experiment = load_experiment(experiment_file_of(folder), sets, find_data=False)
    read = _read(experiment, run.sample_format, paths)
    with one_thread():
        problem, algorithm, objective = _problem_of(experiment, run)
        problem, state = _admit(algorithm, problem, run.state)
        loops = [Loop(run.new_network(), problem.layout, each, objective=objective) for each in read]
        placed = [_place(algorithm, problem, state, loop, run.names) for loop in loops]
    metric = objective.metric.rpartition(":")[2]
    found = []
    for path, new, each in zip(paths, read, placed, strict=True):
        value, samples = each.pop("value"), len(new.test(experiment.data.clients))
        figures = {metric: value, "test_samples": samples}
        if value is not None and objective.metric_info.share_of_samples:
            figures["interval"] = _interval(value * samples, samples)
        warnings = list(_warnings(experiment, new.dataset, each["evidence"]["losses"]))
        found.append({"client": path.stem, "path": str(path), **each, **figures, "warnings": warnings})
    return found


def _interval(right: float, samples: int) -> list[float]:
    """The 95 % interval of a share of which so many of some samples are known (Clopper and Pearson, 1934)."""
    wrong = samples - right
    low = betaincinv(right, wrong + 1, 0.025) if right > 0 else 0.0
    high = betaincinv(right + 1, wrong, 0.975) if wrong > 0 else 1.0
    return [float(low), float(high)]


def _problem_of(experiment: Experiment, run: Run) -> tuple[Problem, Algorithm[Any], Objective]:
    """The problem and the algorithm of a run, and what its networks learn.

    The data of the run are read where its server has unlabelled samples of them. Their labels are never needed: the
    true groups say nothing of a newcomer.
    """
    if experiment.data.public:
        server = build_run(experiment).server
        return server.problem, server.algorithm, server.objective
    form = run.sample_format
    problem = problem_of(experiment, network_of(experiment, form.network_shape, form.output_shape))
    problem = replace(problem, truth=torch.zeros(problem.clients, dtype=torch.int64))
    server = server_setup(experiment, problem, participation_of(experiment))
    # Balancing weights are those of the run's own samples.
    objective = replace(server.objective, class_weights=tuple(run.summary.get("class_weights", ())))
    return server.problem, server.algorithm, objective


def _place(
    algorithm: Algorithm[StateT], problem: Problem, state: StateT, client: Loop, names: Sequence[str]
) -> dict[str, Any]:
    """Say where a newcomer belongs, and why. It has the last id; the other clients have these names."""
    k = len(state.models)
    nodes = state.nodes.tolist()
    newcomer = problem.clients - 1
    cohort = torch.tensor([newcomer])
    plan = algorithm.plan(problem, state, cohort)
    report = validate(problem.layout, plan, client.run(plan))
    label = int(algorithm.assign(problem, state, report)[newcomer])
    _, diagnostics = algorithm.update(problem, state, report)
    evidence: dict[str, Any] = {"losses": _losses(plan, report, nodes)}
    for event in diagnostics.events:
        if event.get("client") == newcomer:
            evidence |= {key: value for key, value in event.items() if key not in ("kind", "client", "node")}
    found: dict[str, Any] = {"cluster": None, "members": [], "new": label >= k, "evidence": evidence, "value": None}
    if 0 <= label < k:
        uses = algorithm.evaluations(problem, reassign(state, {newcomer: label}), cohort)
        scored = Plan(state.round + 2, 0, cohort[:0], state.models, evaluations={CLIENT: uses[CLIENT]})
        score = client.run(scored).scores[CLIENT]
        members = [names[member] for member in state.tree[nodes[label]].members if member < len(names)]
        found |= {"cluster": nodes[label], "members": members, "value": float(score.values)}
    return found


def _read(experiment: Experiment, own: SampleFormat, paths: Sequence[Path]) -> list[ClientData]:
    """Read the data of the new clients as those of the run, with the format of its samples."""
    # Features are found by their names, in whatever order the file of a client has them.
    prepared = own.preparation
    options = replace(experiment.reading, inputs=own.feature_names)
    if prepared is not None and prepared.features:
        options = replace(options, texts=prepared.texts)
    unit = None if experiment.data.unit == ALL_INDEPENDENT else experiment.data.unit
    read = []
    for path in paths:
        # A resolved path is never taken for the name of a data set.
        name = str(path.resolve())
        tests = 0
        if data.has_own_test(data.find(name)):
            new, tests = data.load_both(name, options=options)
        else:
            new = data.load_dataset(name, options=options)
        new = for_network(experiment, new)
        found = str(new.inputs.dtype).removeprefix("torch.")
        shape = own.network_shape if prepared is None else own.shape
        if prepared is not None and new.holds_rows:
            found = own.dtype  # whose precision may be another one
        if (new.shape, found) != (shape, own.dtype):
            raise DataError(
                f"{path}: expected samples as in {experiment.data.name!r}, {own.dtype} of shape {shape}, found "
                f"{found} of shape {new.shape}"
            )
        if len(new) < 2:
            raise DataError(f"{path}: expected at least 2 samples, one to train and one to test, found {len(new)}")
        column = str(experiment.partition.get("column", ""))
        if (count := len(np.unique(new.columns.get(column, ())))) > 1:
            raise DataError(
                f"{path}: expected the data of one client, found {count} values of partition.column = {column!r}; give "
                "each client a file of its own"
            )
        # Samples of one unit, such as a recording, must not be in both training and test.
        if unit is not None and unit not in new.columns:
            raise DataError(
                f"{path}: expected the column {unit!r} of data.unit, found {', '.join(new.columns) or 'none'}; add "
                "it, as its equal values say which samples stay together"
            )
        new = replace(
            new,
            labels=_classes(path, new, own, experiment.data.name),
            classes=own.classes,
            class_names=own.class_names,
            mean=own.mean,
            std=own.std,
            preparation=prepared,
            unit=unit,
        )
        read.append(_divided(experiment, with_targets(experiment, new), tests))
    return read


def _divided(experiment: Experiment, new: Dataset, own_test: int) -> ClientData:
    """Take test samples of a client's own, the last ones, or hold out a share with the same draw for every newcomer."""
    if own_test:
        held = np.arange(len(new)) >= len(new) - own_test
    else:
        rng = np.random.default_rng(seed_of(experiment.seed, "assign"))
        held = hold_out(new.labels.numpy(), experiment.data.held_out_share, rng, new.units, spread=True)
    train, test = (np.flatnonzero(chosen) for chosen in (~held, held))
    if (prepared := new.preparation) is not None and prepared.options.own:
        new = replace(new, preparation=refitted(prepared, new.inputs, torch.from_numpy(train)))
    # It follows the clients of the run, whose data are not here.
    n = experiment.data.clients
    partition = Partition.of_one(n + 1, new.classes, n, (train, test))
    return ClientData(new, partition, experiment.seed)


def _warnings(experiment: Experiment, new: Dataset, losses: Mapping[int, float]) -> Iterator[str]:
    """What makes the place of a newcomer doubtful: strange features, or losses that guessing would have.

    Args:
        experiment: The experiment of the run.
        new: The data of the newcomer.
        losses: The training loss of each model that it was offered, by tree node.
    """
    if new.inputs.dtype.is_floating_point:
        centers = torch.stack([new.normalise(block).sum(dim=0) for block in blocks(new.inputs)]).sum(dim=0) / len(new)
        levels = centers.flatten(1).mean(dim=1) if centers.ndim > 1 else centers
        names = new.preparation.outputs if new.preparation else [f"channel {at}" for at in range(len(levels))]
        far = [name for name, level in zip(names, levels.tolist(), strict=True) if abs(level) > _FAR]
        if far:
            yield (
                f"the mean of {', '.join(map(repr, far[:5]))} is more than {_FAR:g} standard deviations from that of "
                "the run's samples; are the units the same?"
            )
    lowest = min(losses.values(), default=0.0)
    guessing = log(new.classes) if new.classes > 1 else inf
    if experiment.local.loss == "cross_entropy" and new.targets is None and lowest > guessing:
        yield (
            f"no model fits it: the lowest loss on its training samples is {lowest:.2f}, and guessing would have "
            f"{guessing:.2f}; it may belong to no cluster"
        )


def _classes(path: Path, new: Dataset, own: SampleFormat, name: str) -> torch.Tensor:
    """The classes of new samples, with the numbers that the run gives them to those of its data set."""
    names = new.class_names
    labels = new.labels
    if not names and new.targets is None and _classes_are_texts(own, name):
        # Texts that all look like numbers are read as numbers, and are no numbers of classes.
        names, labels = numbers_as_names(labels)
    strange = [each for each in names if each not in own.class_names]
    if strange:
        known = ", ".join(own.class_names) or f"0 to {own.classes - 1}"
        raise DataError(f"{path}: expected classes of {name!r}, {known}; found {', '.join(strange)}")
    order = torch.tensor([own.class_names.index(each) for each in names] or range(new.classes))
    if len(order) > own.classes:
        raise DataError(f"{path}: expected classes 0 to {own.classes - 1}, as in {name!r}, found {len(order) - 1}")
    return order[labels]


def _classes_are_texts(own: SampleFormat, name: str) -> bool:
    """Whether the files of the run may hold the names of the classes and not their numbers.

    Known data sets hold numbers. Texts are numbered in alphabetical order, so that names in another order, such as of a
    data set of Hugging Face, stand for numbers.
    """
    return bool(own.class_names) and name not in data.DATASETS and list(own.class_names) == sorted(own.class_names)


def _admit(algorithm: Algorithm[StateT], problem: Problem, state: StateT) -> tuple[Problem, StateT]:
    """The problem and state with one more client, of which the algorithm knows nothing yet."""
    truth = None if problem.truth is None else torch.cat([problem.truth, problem.truth[:1]])
    larger = replace(problem, clients=problem.clients + 1, truth=truth)
    grown = _grown(state, algorithm.init(problem), algorithm.init(larger))
    return larger, make_pending(grown, [problem.clients], node=0)


def _grown(value: Any, before: Any, after: Any) -> Any:
    """A value of a state, extended on the axes where a fresh state for more clients is longer.

    Args:
        value: The value at the end of the run.
        before: The same value in a fresh state of the run.
        after: The same value in a fresh state for more clients.
    """
    if type(value) is not type(before):
        return value  # What is not there at the start, such as evidence, names its clients itself.
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value)]
        grown = {name: _grown(getattr(value, name), getattr(before, name), getattr(after, name)) for name in names}
        return replace(value, **grown)
    if not isinstance(value, torch.Tensor):
        return value
    for axis, (less, more) in enumerate(zip(before.shape, after.shape, strict=True)):
        if more > less:
            fresh = after.narrow(axis, less, more - less)
            shape = [*value.shape[:axis], more - less, *value.shape[axis + 1 :]]
            # A tensor that has become wider since the start has no fresh rows of its width.
            room = fresh if list(fresh.shape) == shape else value.new_zeros(shape)
            value = torch.cat([value, room], dim=axis)
    return value


def _losses(plan: Plan, report: Report, nodes: Sequence[int]) -> dict[int, float]:
    """The training loss of each cluster's model that a single client was offered, by tree node."""
    losses = dict[int, float]()
    for name, result in report.results.items():
        task = plan.tasks[name]
        pairs = zip(task.candidates.flatten().tolist(), result.losses.flatten().tolist(), strict=False)
        losses |= {nodes[model]: loss for model, loss in pairs if 0 <= model < len(nodes) and isfinite(loss)}
    return losses
