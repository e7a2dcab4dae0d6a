"""A run in its folder: what is written down in every round, and how a stopped run goes on."""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
import torch

from fedstrata.config import Experiment, dumps
from fedstrata.config.reading import completed_keys, plain_keys
from fedstrata.config.tables import ALL_INDEPENDENT
from fedstrata.core import CLIENT, SHARED, VALIDATION, Evaluation, Metric, Plan, ProposesSplits, Report, Score, State
from fedstrata.data import DATASETS
from fedstrata.engine.shared_work import LocalStores
from fedstrata.errors import RecordError
from fedstrata.files import refuse_links, remove_file, root_folder
from fedstrata.folder_lock import folder_lock
from fedstrata.metric_info import MetricInfo
from fedstrata.models import portable
from fedstrata.quoting import shown
from fedstrata.records import Folder, complete, save, summarise, track
from fedstrata.records.checkpoint import checkpoints
from fedstrata.records.resume import find_resumable
from fedstrata.records.schema import BASELINE, RUN_FOLDER_ENTRIES, ClientEntry, DataRecord
from fedstrata.report.client_names import ClientNames
from fedstrata.report.references import last_scores
from fedstrata.resources import disk_error
from fedstrata.runner.attacks import honest_summary
from fedstrata.runner.backdoor import backdoor_summary
from fedstrata.runner.baseline import add_baseline, baseline_of, gain_text
from fedstrata.runner.build import RunSetup, build_run, objective_of, on_same_clients
from fedstrata.runner.classified import classify_test_samples, confusion_of, right_samples
from fedstrata.runner.client_descriptions import describe_clients, digest_clients
from fedstrata.runner.interrupt import Interrupt, Stopped
from fedstrata.runner.layer_gap import client_matrices, gaps
from fedstrata.runner.machine import machine
from fedstrata.runner.personal import make_personal, personal_summary
from fedstrata.runner.probes import bipartition_metrics, unstable_weights
from fedstrata.runner.progress import Progress, StatusLine
from fedstrata.runner.result import Run, network_factory
from fedstrata.runner.rounds import PlanReply, PlayedRound, answer_plans, one_thread, play_rounds, timed_reply
from fedstrata.runner.traffic import traffic
from fedstrata.runner.used_models import Choice, ModelInUse, choices_in_use, models_in_use, write_used_models
from fedstrata.runner.validation import divergence_of_loss

_logger = logging.getLogger(__name__)

RunSteps = Generator[Plan, PlanReply, Run]
"""A run in progress: it yields what it asks of the clients, is sent the reply, and returns when it is over."""

OnRound: TypeAlias = "Callable[[Mapping[str, Any], State], None]"
"""Is given the complete record of a round, and the state after it."""


def run_experiment(
    experiment: Experiment,
    out: Path,
    *,
    resume: bool = False,
    quiet: bool = False,
    watch: Callable[[Mapping[str, Any]], object] = lambda record: None,
    finished: Callable[[Path], object] = lambda folder: None,
) -> Run:
    """Run an experiment, or go on with one; with ``report.baseline``, its reference afterwards.

    Args:
        experiment: The experiment, checked and complete.
        out: The run folder; it is made if need be.
        resume: Whether to go on from the folder's checkpoint, or from the start when there is none yet.
        quiet: Whether to show no progress.
        watch: Is called with the record of each round once it is complete. What it raises ends the run, which can be
            resumed.
        finished: Is called with the folder of the run when it is finished. With a reference it is called before that,
            with the folder of the reference, and once more with that of the run.

    Raises:
        InputError: When something that the experiment names does not exist or does not fit; nothing is made then.
        Stopped: After Ctrl-C, when the round is over and saved.
    """
    with one_thread(), StatusLine(quiet) as line:
        setup = build_run(experiment)
        progress = Progress(experiment.rounds, line, setup.names, objective_of(experiment).metric_info)
        if setup.why:
            line.keep(f"engine: {setup.why}")
        if setup.inputs:
            line.keep(f"inputs: {setup.inputs}")

        def on_round(record: Mapping[str, Any], state: State) -> None:
            progress.show(record)
            watch(record)

        with Interrupt(line.keep) as interrupt:
            steps = run_steps(
                experiment,
                setup,
                out,
                resume=resume,
                on_round=on_round,
                stop=lambda: interrupt.asked,
                tell=line.keep,
            )
            run = answer_plans(steps, partial(timed_reply, setup.clients))
            finished(out)
            return with_baseline(experiment, run, setup, line, finished, resume=resume, stop=lambda: interrupt.asked)


def with_baseline(
    experiment: Experiment,
    run: Run,
    setup: RunSetup,
    line: StatusLine,
    finished: Callable[[Path], object],
    *,
    resume: bool,
    stop: Callable[[], bool] = lambda: False,
) -> Run:
    """Run the reference of a finished run, if ``report.baseline`` asks for one, and say what the run gained.

    Args:
        experiment: The experiment of the run.
        run: The finished run.
        setup: What the run was built from.
        line: Shows the progress.
        finished: Is called with the folder of the reference when it is finished, and then with that of the run.
        resume: Whether to go on with the reference that the folder may hold.
        stop: Is asked before every round whether there shall be no more for now.

    Returns:
        The run, with what it gained in its summary.

    Raises:
        Stopped: When `stop` said so.
    """
    reference = baseline_of(experiment, setup.engine)
    if reference is None:
        return run
    folder = run.folder / BASELINE
    _run_baseline(reference, setup, folder, line, resume=resume, stop=stop)
    finished(folder)
    metric = setup.objective.metric_info
    summary = add_baseline(run.folder, folder, metric)
    finished(run.folder)
    line.keep(gain_text(summary, metric))
    return replace(run, summary=summary)


def _run_baseline(
    reference: Experiment,
    setup: RunSetup,
    folder: Path,
    line: StatusLine,
    *,
    resume: bool,
    stop: Callable[[], bool],
) -> None:
    """Run the reference of a run, on the same clients and with a local store of its own.

    It comes after the run and not beside it: shared work would change the last bits of the batched engine and the
    seconds of the run, and it saves little, as clusters train on models of their own from the first split on.

    Raises:
        Stopped: After Ctrl-C. The folder is that of the run, which is resumed with its reference.
    """
    name = f"{reference.algorithm.name} reference"
    line.keep(f"{name}: one model for all on the same clients, as report.baseline = true")
    own = replace(on_same_clients(setup, reference), clients=LocalStores(setup.clients))
    progress = Progress(reference.rounds, line, setup.names, setup.objective.metric_info, name)
    told = {f"WARNING: {warning}" for warning in setup.warnings}

    def tell(text: str) -> None:
        if text not in told:
            line.keep(f"{name}: {text}")

    steps = run_steps(
        reference,
        own,
        folder,
        resume=resume,
        on_round=lambda record, state: progress.show(record),
        stop=stop,
        tell=tell,
    )
    try:
        answer_plans(steps, partial(timed_reply, own.clients))
    except Stopped as stopped:
        raise Stopped(f"{name} {stopped.where}", folder.parent) from None


def run_steps(
    experiment: Experiment,
    setup: RunSetup,
    out: Path,
    *,
    resume: bool = False,
    on_round: OnRound = lambda record, state: None,
    stop: Callable[[], bool] = lambda: False,
    tell: Callable[[str], object] = lambda line: None,
    trains_on: bool = True,
) -> RunSteps:
    """A run as a generator, so that several can be advanced side by side.

    Its records count as seconds the time that it was running itself, and the seconds that came along with each reply.

    Args:
        experiment: The experiment, checked and complete.
        setup: What was built from it.
        out: The run folder; it is made if need be. It may be a link; nothing inside it may be one.
        resume: Whether to go on from the folder's checkpoint, or from the start when there is none yet.
        on_round: Is called with the record of each round once it is complete, and the state after the round.
        stop: Is asked before every round whether there shall be no more for now.
        tell: Is called with a line for the user when something is unusual about a run that goes on.
        trains_on: Whether the run trains on where the disk refuses a checkpoint and an older one is there. Resumed, it
            repeats the rounds since then. Real devices keep their own layers of two rounds, and cannot go farther back.

    Raises:
        OSError: When the disk refuses a record, or the checkpoint of the first or the last round.
        RecordError: When another process works in the folder, it holds a run that shall not be resumed, or one that
            cannot be.
        Stopped: When `stop` said so before the run was over; all its rounds are recorded then.
    """
    fresh = setup.algorithm.init(setup.problem)  # may refuse the experiment: nothing is made then
    root = root_folder(out)
    # A data set's own unit is written down, and so is that all samples are independent.
    independent = ALL_INDEPENDENT if experiment.data.unit == ALL_INDEPENDENT else None
    units = experiment.data.model_copy(update={"unit": setup.client_data.unit or independent})
    resolved = experiment.model_copy(update={"engine": setup.engine, "data": units})
    with folder_lock(root):
        folder = Folder(root, () if ClientNames(setup.names).plain else setup.names)
        state, record = _begin(resolved, setup, folder, fresh, tell, resume=resume)
        folder.add_data(_data_record(setup))
        metric = objective_of(experiment).metric_info
        folder.add_metric(metric)
        for warning in setup.warnings:
            tell(f"WARNING: {warning}")
        if setup.private is not None:
            tell(setup.private.line)
        with track(experiment.records.track, folder.path / "tracking", dumps(resolved), folder.rounds()) as log:

            def recorded(done: Mapping[str, Any], state: State) -> None:
                log(done)
                on_round(done, state)

            recorder = _Recorder(resolved, setup, folder, record, recorded, tell, trains_on)
            state = yield from play_rounds(
                setup.algorithm,
                setup.problem,
                state,
                setup.members.sample,
                stop=lambda state: state.round >= experiment.rounds or stop(),
                observe=recorder.write,
                apply_events=setup.members.apply_events,
                evaluate=recorder.evaluations,
                upload=setup.simulate_upload,
                summed=setup.summed,
            )
            if recorder.unsaved:
                recorder.save(state)
            last = yield from _score_last_models(setup, recorder, state)
        if state.round < experiment.rounds:
            raise Stopped(f"stopped after round {state.round} of {experiment.rounds}", out)
        rounds = folder.rounds()
        measures = summarise(rounds, setup.truth(state.round), experiment.probe.target, metric)
        made = {"versions": _versions(), "machine": machine(setup.engine.device)}
        used = choices_in_use(setup, last.uses, last.chosen, last.before)
        summary = {
            **_names(experiment),
            **measures,
            **_attack_summary(setup, folder, state, used, metric),
            **({} if setup.private is None else {"privacy": setup.private.summary}),
            **last.summary,
            **made,
        }
        write_used_models(folder.path, setup, state, used)
        classified = classify_test_samples(setup, state, used)
        folder.add_confusion(None if classified is None else confusion_of(classified))
        folder.add_right_samples({} if classified is None else right_samples(classified))
        folder.finish(setup.problem.layout, state, summary)
        _logger.info("%s: the run is finished after round %d", folder.path, state.round)
        only_here = not isinstance(portable(experiment.model.name), str)
        network = network_factory(experiment, setup.client_data.sample_format) if only_here else None
        return Run(out, summary, rounds, state.tree, setup.names, setup.warnings, network)


def _attack_summary(
    setup: RunSetup, folder: Folder, state: State, used: Sequence[ModelInUse], metric: MetricInfo
) -> dict[str, Any]:
    """What the summary says about the honest clients of a run with Byzantine ones."""
    if setup.byzantine is None:
        return {}
    last = folder.rounds()[-1]
    labels = {client: node for client, node in enumerate(last["labels"]) if node >= 0}
    scores = {client: value for client, (_, value) in last_scores(folder.path).items()}
    found = honest_summary(setup.byzantine, scores, labels, setup.truth(last["round"]), metric)
    return {"attack": {**found, **backdoor_summary(setup, state, used, labels)}}


def _data_record(setup: RunSetup) -> DataRecord:
    """Who the clients are, and what looks wrong with their data."""
    held = setup.client_data
    clients = [
        # On a network, only the clients know how many samples they have.
        ClientEntry(id=id, name=name, train=len(held.train(id)) or None, test=len(held.test(id)) or None)
        for id, name in enumerate(setup.names)
    ]
    return DataRecord(clients=clients, warnings=list(setup.warnings), inputs=setup.inputs)


@dataclass(frozen=True)
class _LastModels:
    """What the clients use when a run is over.

    Attributes:
        uses: The models that they use.
        chosen: The model that each client with several candidates would use, by client.
        before: The round before which the stores have the tensors of clients' own.
        summary: What the summary says about personal models.
    """

    uses: Evaluation
    chosen: Mapping[int, int]
    before: int
    summary: Mapping[str, Any]


def _score_last_models(setup: RunSetup, recorder: _Recorder, state: State) -> Generator[Plan, PlanReply, _LastModels]:
    """Complete the record of the last round by a plan without training.

    When the last round of the run is over, the personal stage follows, where there is one.
    """
    uses = models_in_use(setup, state)
    evaluations = recorder.evaluations(state)
    before = state.round + 1
    if not evaluations:
        return _LastModels(uses, {}, before, {})
    choice = Choice.among(setup.problem, uses)
    reply = yield Plan(before, setup.problem.seed, choice.clients, state.models, choice.tasks, evaluations)
    chosen = choice.answers(reply.report)
    scores = reply.report.scores
    if setup.personal is None or state.round < recorder.experiment.rounds:
        recorder.complete(state, scores)
        return _LastModels(uses, chosen, before, {})
    made = yield from make_personal(setup, state, uses, chosen, before + 1)
    if made is not None:
        uses = made.uses
        before = made.round
        scores = {**scores, SHARED: scores[CLIENT], **made.scores}
    recorder.complete(state, scores)
    summary = personal_summary(recorder.experiment.personal.method, scores, made)
    return _LastModels(uses, chosen, before, {"personal": summary})


def _begin(
    experiment: Experiment,
    setup: RunSetup,
    folder: Folder,
    fresh: State,
    tell: Callable[[str], object],
    *,
    resume: bool,
) -> tuple[State, Mapping[str, Any] | None]:
    """The state that a run begins or goes on with, and the record of its round that is still without scores."""
    refuse_links(folder.path, RUN_FOLDER_ENTRIES)
    if not resume and any((folder.path / name).exists() for name in ("experiment.toml", "rounds.jsonl", "checkpoint")):
        raise RecordError(
            f"{str(folder.path)!r}: expected no run in this folder, found one; resume it, or take another"
        )
    found = find_resumable(folder, fresh, plain_keys(experiment), _origin(setup), completed_keys) if resume else None
    own_data = experiment.data.name not in DATASETS
    if found is not None and own_data:
        _refuse_changed_data(experiment, setup, folder)
    folder.create(dumps(experiment))
    if found is None:
        _logger.info("%s: the run begins", folder.path)
        folder.rewind(0)
        held = setup.client_data
        if all(len(held.train(client)) for client in range(len(held))):  # On a network, the clients alone have data.
            digests = digest_clients(held) if own_data else None
            folder.add_client_descriptions(describe_clients(held)._replace(digests=digests))
        return fresh, None
    _logger.info("%s: the run goes on after round %d", folder.path, found.checkpoint.state.round)
    for line in found.notes:
        tell(f"resumed from round {found.checkpoint.state.round}: {line}")
    setup.clients.store.restore(found.checkpoint.store)
    folder.rewind(found.checkpoint.state.round)
    if found.checkpoint.state.round < experiment.rounds:
        # The run may have been finished with fewer rounds; it is not any more.
        remove_file(folder.path / "summary.json")
    return found.checkpoint.state, found.checkpoint.record


def _refuse_changed_data(experiment: Experiment, setup: RunSetup, folder: Folder) -> None:
    """Refuse to go on with other samples of the clients than those that the run began with.

    Raises:
        RecordError: When a client has others; the text names the first one.
    """
    before = folder.client_digests()
    if before is None:
        return
    now = digest_clients(setup.client_data)
    for client, name in enumerate(setup.names):
        if len(before) != len(now) or not np.array_equal(before[client], now[client]):
            raise RecordError(
                f"{folder.path}: expected the data that the run began with, found others of client {name}; "
                f"put the old data back in {shown(experiment.data.name)}, or start a run without --resume"
            )


@dataclass
class _Recorder:
    """Writes down the rounds of a run. The scores of a round's models come with the reply of the next round."""

    experiment: Experiment
    setup: RunSetup
    folder: Folder
    record: Mapping[str, Any] | None
    on_round: OnRound
    tell: Callable[[str], object]
    trains_on: bool
    unsaved: int = 0  # the first round of which the checkpoint could not be written, since the last one that could

    def evaluations(self, state: State) -> Mapping[str, Evaluation]:
        """The evaluations that the record of the last round waits for."""
        if self.record is None:
            return {}
        clients = self.setup.members.scoring(state.round, last=state.round >= self.experiment.rounds)
        wanted = self.setup.algorithm.evaluations(self.setup.problem, state, clients)
        if self.setup.client_data.validates:
            wanted = {**wanted, VALIDATION: replace(wanted[CLIENT], split="validation")}
        return wanted

    def complete(self, state: State, scores: Mapping[str, Score]) -> None:
        """Write the record of the last round with the scores of its models."""
        if self.record is None:
            return
        objective = objective_of(self.experiment)
        done = complete(self.record, state.labels, self.setup.truth(state.round), scores, objective.metric_info)
        classifies = objective.classifies and len(self.setup.client_data.outputs) == 1
        diverging = divergence_of_loss(self.setup.problem.layout, scores[CLIENT].loss, classifies)
        done["events"] = [*done["events"], *diverging]
        self.folder.add(done, scores[CLIENT])
        said = objective.metric_info.text(done["acc_client"])
        _logger.debug("round %d: %d clusters, %s %s", done["round"], done["clusters"], objective.metric_info.name, said)
        self.on_round(done, state)

    def write(self, done: PlayedRound[Any]) -> None:
        """Complete the record of the round before, and begin a new one; then save the state."""
        self.complete(done.before, done.reply.report.scores)
        self._write_decision(done)
        _logger.debug(
            "round %d: planned in %.3f s, answered in %.3f s, decided in %.3f s; %d of %d answered",
            done.plan.round,
            done.seconds_planning,
            done.reply.seconds,
            done.seconds_deciding,
            len(done.sample.cohort) - len(done.sample.dropped) - len(done.reply.absent),
            len(done.sample.cohort),
        )
        store = self.setup.clients.store
        number = done.plan.round
        cohort = done.sample.cohort.tolist()
        spoilt = list(store.spoilt(number))
        reset = {"kind": "reset", "clients": spoilt, "why": "training with their own tensors went astray"}
        self.record = {
            "round": number,
            **self._clusters(done.state),
            **self._bytes(done.plan, done.reply.report),
            "cohort": cohort,
            "absent": sorted({*done.sample.dropped.tolist(), *done.reply.absent} & set(cohort)),
            "rejected": sorted({*done.rejected, *done.reply.rejected}),
            "events": [*done.events, *([reset] if spoilt else [])],
            "metrics": [asdict(metric) for metric in (*done.diagnostics.metrics, *self._proposals(done))],
            "seconds": done.seconds_planning + done.reply.seconds + perf_counter() - done.replied,
            "seconds_training": done.reply.seconds,
            "seconds_server": done.seconds_planning + done.seconds_deciding,
        }
        try:
            self.save(done.state)
        except OSError as error:
            self._train_on(number, error)

    def save(self, state: State) -> None:
        """Write the checkpoint of a round, whose record is still without scores."""
        assert self.record is not None
        save(
            self.folder.checkpoints,
            state,
            self.setup.clients.store.tensors(),
            self.record,
            experiment=plain_keys(self.experiment),
            versions=_origin(self.setup),
            lines=self.folder.log.digest,
        )
        if self.unsaved:
            self.tell(f"round {state.round}: checkpoints can be written again")
        self.unsaved = 0

    def _train_on(self, round: int, error: OSError) -> None:
        """Go on without the checkpoint of a round, if that loses nothing but time; the next round tries again.

        Raises:
            OSError: The error, where the run has to end: there is no older checkpoint, or no later round.
        """
        found = disk_error(error, self.folder.path)
        if found is None or not self.trains_on or round >= self.experiment.rounds:
            raise error
        older = checkpoints(self.folder.checkpoints)
        if not older:
            raise error
        assert self.record is not None
        event = {"kind": "unsaved", "why": found.reason}
        self.record = {**self.record, "events": [*self.record["events"], event]}
        if not self.unsaved:
            self.unsaved = round
            self.tell(
                f"WARNING: round {round}: its checkpoint cannot be written: {found.reason}; the run trains on, and "
                f"each round tries again; if it is interrupted before, it is resumed from round {int(older[0].stem)}"
            )

    def _write_decision(self, done: PlayedRound[Any]) -> None:
        """Write the layer gaps, matrices, unstable weights and tree of a round."""
        number = done.plan.round
        truth = self.setup.truth(number)
        probe = self.experiment.probe
        layout = self.setup.problem.layout
        if probe.gap and truth is not None:
            measured = gaps(layout, done.plan, done.report, truth, probe.gap)
            if measured:
                self.folder.add_gaps(number, measured)
        matrices = done.diagnostics.matrices
        if number in probe.rounds or not probe.rounds:
            n = self.setup.problem.clients
            matrices += client_matrices(layout, done.plan, done.report, n, probe.matrices, probe.layers)
        if matrices:
            self.folder.add_matrices(number, matrices)
        if probe.unstable_weights:
            weights = unstable_weights(layout, done.changed, done.report)
            if weights:
                self.folder.add_weights(number, weights)
        self.folder.add_tree(done.state.tree)

    def _proposals(self, done: PlayedRound[Any]) -> list[Metric]:
        """How right the bipartitions would be that the algorithm would make in a round."""
        algorithm = self.setup.algorithm
        truth = self.setup.truth(done.plan.round)
        if not self.experiment.probe.bipartition or truth is None or not isinstance(algorithm, ProposesSplits):
            return []
        return bipartition_metrics(algorithm, self.setup.problem, done.changed, done.report, truth)

    def _clusters(self, state: State) -> dict[str, Any]:
        """The part of a record that says who is in which cluster; a client that has left or not joined yet is at -1."""
        pending = state.labels < 0
        nodes = torch.where(pending, state.waiting, state.nodes[state.labels])
        nodes[~torch.isin(self.setup.everyone, self.setup.members.active(state.round))] = -1
        return {
            "clusters": len(set(state.labels[~pending].tolist())),
            "labels": nodes.tolist(),
            "pending": (pending & (nodes >= 0)).nonzero().flatten().tolist(),
        }

    def _bytes(self, plan: Plan, report: Report) -> dict[str, int]:
        """The bytes of a round. The union of all data is no client: the samples are sent once, and no model ever."""
        n = self.setup.problem.clients
        if n in plan.cohort.tolist():
            data = self.setup.client_data.weight(n) if plan.round == 1 else 0
            return {"bytes_down": 0, "bytes_up": 0, "bytes_buffers": 0, "bytes_data": data}
        stored = partial(self.setup.clients.store.read, before=plan.round)
        sent = traffic(self.setup.problem.layout, plan, report, stored, self.setup.compression)
        return {"bytes_down": sent.down, "bytes_up": sent.up, "bytes_buffers": sent.buffers, "bytes_data": 0}


def _names(experiment: Experiment) -> dict[str, Any]:
    return {
        "algorithm": experiment.algorithm.name,
        "dataset": experiment.data.name,
        "partition": experiment.partition["scheme"],
        "model": experiment.model.name,
        "loss_function": experiment.local.loss,
        "metric": experiment.local.metric,
        "seed": experiment.seed,
    }


def _origin(setup: RunSetup) -> dict[str, str]:
    """What the last bits of a run depend on beside its keys: the versions of the libraries, and the machine."""
    return {**_versions(), **machine(setup.engine.device)}


@cache
def _versions() -> dict[str, str]:
    names = ("fedstrata", "torch", "numpy", "scipy", "scikit-learn")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}
