"""The loop: who takes part, what they do, what is decided, what is written down; and how a stopped run goes on."""

from __future__ import annotations

import platform
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from fedstrata.config import Experiment, dumps
from fedstrata.core import Clients, Evaluation, Plan, Report, State, Tree
from fedstrata.errors import RecordError
from fedstrata.files import refuse_links, root_folder
from fedstrata.folder_lock import folder_lock
from fedstrata.records import Folder, complete, diverged, save, summarise, track
from fedstrata.records.resume import find_resumable
from fedstrata.records.schema import ENTRIES
from fedstrata.runner.build import Setting, prepare
from fedstrata.runner.interrupt import Patience, Stopped
from fedstrata.runner.layer_gap import gaps
from fedstrata.runner.progress import Line, Progress
from fedstrata.runner.sampling import draw
from fedstrata.runner.traffic import traffic
from fedstrata.runner.validation import decide, divergence_of_answers, divergence_of_loss, missed, validate


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        folder: where its records are.
        summary: as in ``summary.json``.
        rounds: as in ``rounds.jsonl``.
        state: the last one.
    """

    folder: Path
    summary: dict[str, Any]
    rounds: list[dict[str, Any]]
    state: State

    @property
    def tree(self) -> Tree:
        """Every cluster that ever was."""
        return self.state.tree

    @property
    def diverged(self) -> bool:
        """Whether training diverged in every round, so that the models are of no use."""
        return diverged(self.summary)


class Answer(NamedTuple):
    """What came back for a plan.

    Attributes:
        report: of those that answered.
        seconds: it took; of work shared with other runs, this one's part.
        absent: client -> why it did not answer, where that is known.
        rejected: client -> why its answer is not in the report.
    """

    report: Report
    seconds: float
    absent: Mapping[int, str] = MappingProxyType({})
    rejected: Mapping[int, str] = MappingProxyType({})


Steps = Generator[Plan, Answer, Run]
"""A run in progress: it yields what it asks of the clients, is sent the answer, and returns when it is over."""

Show = Callable[[Mapping[str, Any]], None]
"""Takes the record of each round once it is complete."""

Tell = Callable[[str], object]
"""Takes a line that the user should see."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch to one thread: the bits of a sum depend on how many share it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run(experiment: Experiment, out: Path, *, resume: bool = False, quiet: bool = False) -> Run:
    """Run an experiment, or go on with one.

    Args:
        experiment: checked and complete.
        out: the run folder; made if need be.
        resume: go on from the folder's checkpoint; from the start when there is none yet.
        quiet: show no progress.

    Raises:
        InputError: when something that the experiment names does not exist or does not fit; nothing is made then.
        Stopped: after Ctrl-C, when the round is over and saved.
    """
    with one_thread(), Line(quiet) as line:
        setting, progress = prepare(experiment), Progress(experiment.rounds, line)
        if setting.why:
            line.keep(f"engine: {setting.why}")
        with Patience(line.keep) as patience:
            running = steps(
                experiment,
                setting,
                out,
                resume=resume,
                show=progress.show,
                stop=lambda: patience.asked,
                tell=line.keep,
            )
            with closing(running):
                return _answered(running, setting.clients)


def _answered(running: Steps, clients: Clients) -> Run:
    """Let clients answer all that a run asks."""
    answer: Answer | None = None
    try:
        while True:
            plan = ask(running, answer)
            began = perf_counter()
            report = clients.run(plan)
            answer = Answer(report, perf_counter() - began)
    except StopIteration as end:
        finished: Run = end.value
        return finished


def ask(running: Steps, answer: Answer | None) -> Plan:
    """What a run asks next of the clients; one that has just been made takes no answer.

    Raises:
        StopIteration: when it is over, with the finished run as its value.
    """
    return next(running) if answer is None else running.send(answer)


def steps(
    experiment: Experiment,
    setting: Setting,
    out: Path,
    *,
    resume: bool,
    show: Show,
    stop: Callable[[], bool] = lambda: False,
    tell: Tell = lambda line: None,
) -> Steps:
    """A run as a generator, so that several can be advanced side by side.

    Its records count as seconds the time that it was running itself, and of every answer the seconds that came along.

    Args:
        experiment: checked and complete.
        setting: made of it.
        out: the run folder; made if need be. It may be a link; nothing inside it may be one.
        resume: as in `run`.
        show: called once a round.
        stop: asked after every round whether it shall be the last for now.
        tell: told what is unusual about a run that goes on.

    Raises:
        RecordError: when another process works in the folder, it holds a run that shall not be resumed, or one that
            cannot be.
        Stopped: when that was so before the run was over; all its rounds are recorded then.
    """
    fresh = setting.algorithm.init(setting.problem)  # may refuse the experiment: nothing is made then
    root = root_folder(out)
    units = experiment.data.model_copy(update={"unit": setting.holdings.unit})
    resolved = experiment.model_copy(update={"engine": setting.engine, "data": units})
    with folder_lock(root):
        folder = Folder(root)
        state, record = _begin(resolved, setting, folder, fresh, tell, resume=resume)
        with track(experiment.records.track, folder.path / "tracking", dumps(resolved), folder.rounds()) as log:

            def told(done: Mapping[str, Any]) -> None:
                log(done)
                show(done)

            while state.round < experiment.rounds and not stop():
                state, record = yield from _round(resolved, setting, folder, state, record, told)
            yield from _close(setting, folder, state, record, told)
        if state.round < experiment.rounds:
            raise Stopped(f"stopped after round {state.round} of {experiment.rounds}", out)
        rounds = folder.rounds()
        summary = {**_names(experiment), **summarise(rounds, setting.truth(state.round)), **_versions()}
        folder.finish(setting.problem.layout, state, summary)
        return Run(out, summary, rounds, state)


def _begin(
    experiment: Experiment, setting: Setting, folder: Folder, fresh: State, tell: Tell, *, resume: bool
) -> tuple[State, Mapping[str, Any] | None]:
    """The state that a run begins or goes on with, and the record of its round that is still without scores."""
    refuse_links(folder.path, ENTRIES)
    if not resume and any((folder.path / name).exists() for name in ("experiment.toml", "rounds.jsonl", "checkpoint")):
        raise RecordError(
            f"{str(folder.path)!r}: expected no run in this folder, found one; resume it, or take another"
        )
    found = find_resumable(folder, fresh, _keys(experiment), _versions()["versions"]) if resume else None
    folder.create(dumps(experiment))
    if found is None:
        folder.rewind(0)
        return fresh, None
    for line in found.notes:
        tell(f"resumed from round {found.checkpoint.state.round}: {line}")
    setting.clients.store.restore(found.checkpoint.store)
    folder.rewind(found.checkpoint.state.round)
    return found.checkpoint.state, found.checkpoint.record


def _keys(experiment: Experiment) -> dict[str, Any]:
    """An experiment as plain JSON values, every default written out."""
    return experiment.model_dump(mode="json", exclude_none=True)


def _round(
    experiment: Experiment,
    setting: Setting,
    folder: Folder,
    state: State,
    record: Mapping[str, Any] | None,
    show: Show,
) -> Generator[Plan, Answer, tuple[State, dict[str, Any]]]:
    """One round: the scores complete the record of the one before, the rest begins its own."""
    began, round, problem, members = perf_counter(), state.round + 1, setting.problem, setting.members
    evaluations = (
        setting.algorithm.evaluations(problem, state, members.active(state.round)) if record is not None else ()
    )
    scored = state
    state, events = members.before(state, round)
    rates = experiment.cohort
    cohort, absent = draw(problem.seed, round, members.active(round), rates.fraction, rates.dropout)
    plan = setting.algorithm.plan(problem, state, cohort)
    planning = perf_counter() - began
    answer = yield replace(plan.only(~torch.isin(plan.cohort, absent)), evaluations=evaluations)
    began = perf_counter()
    if record is not None:
        _finish(setting, folder, scored, record, evaluations, answer.report, show)
    checked = validate(problem.layout, plan, answer.report)
    report = replace(checked.report, cohort=plan.cohort)
    events += missed("absent", answer.absent) + missed("rejected", answer.rejected) + checked.events
    events += divergence_of_answers(answer.report, checked.events)
    spoilt = list(setting.clients.store.spoilt(round))
    if spoilt:
        events.append({"kind": "reset", "clients": spoilt, "why": "training with their own tensors went astray"})
    before = perf_counter()
    state, diagnostics, undone = decide(setting.algorithm, problem, state, report)
    deciding = perf_counter() - before
    truth, measures = setting.truth(round), experiment.probe.gap
    measured = gaps(problem.layout, plan, report, truth, measures) if measures and truth is not None else []
    if measured:
        folder.add_gaps(round, measured)
    if diagnostics.matrices:
        folder.add_matrices(round, diagnostics.matrices)
    folder.add_tree(state.tree)
    pending = state.labels < 0
    nodes = torch.where(pending, state.waiting, state.nodes[state.labels])
    nodes[~torch.isin(setting.everyone, members.active(round))] = -1
    begun = {
        "round": round,
        "clusters": len(set(state.labels[~pending].tolist())),
        "labels": nodes.tolist(),
        "pending": (pending & (nodes >= 0)).nonzero().flatten().tolist(),
        **_bytes(setting, plan, answer.report),
        "cohort": cohort.tolist(),
        "absent": sorted({*absent.tolist(), *answer.absent} & set(cohort.tolist())),
        "rejected": sorted({*checked.rejected, *answer.rejected}),
        "events": [*events, *undone, *(dict(event) for event in diagnostics.events)],
        "figures": dict(diagnostics.metrics),
        "seconds": planning + answer.seconds + perf_counter() - began,
        "seconds_training": answer.seconds,
        "seconds_server": planning + deciding,
    }
    save(
        folder.checkpoints,
        state,
        setting.clients.store.tensors(),
        begun,
        experiment=_keys(experiment),
        versions=_versions()["versions"],
        lines=folder.log.digest,
    )
    return state, begun


def _bytes(setting: Setting, plan: Plan, answer: Report) -> dict[str, int]:
    """Bytes of a round. The union of all data is no client: the samples are sent once, and no model ever."""
    n, round = setting.problem.clients, plan.round
    if n in plan.cohort.tolist():
        data = setting.holdings.weight(n) if round == 1 else 0
        return {"bytes_down": 0, "bytes_up": 0, "bytes_buffers": 0, "bytes_data": data}
    stored = partial(setting.clients.store.read, before=round)
    sent = traffic(setting.problem.layout, plan, answer, stored)
    return {"bytes_down": sent.down, "bytes_up": sent.up, "bytes_buffers": sent.buffers, "bytes_data": 0}


def _close(
    setting: Setting, folder: Folder, state: State, record: Mapping[str, Any] | None, show: Show
) -> Generator[Plan, Answer, None]:
    """Score the last models: a plan without work."""
    if record is None:
        return
    evaluations = setting.algorithm.evaluations(setting.problem, state, setting.members.active(state.round))
    nobody = setting.everyone[:0]
    answer = yield Plan(state.round + 1, setting.problem.seed, nobody, state.models, evaluations=evaluations)
    _finish(setting, folder, state, record, evaluations, answer.report, show)


def _finish(
    setting: Setting,
    folder: Folder,
    state: State,
    record: Mapping[str, Any],
    evaluations: tuple[Evaluation, ...],
    report: Report,
    show: Show,
) -> None:
    """Complete the record of the last round that was decided, and write it."""
    done = complete(record, state.labels, setting.truth(state.round), evaluations, report.scores)
    done["events"] = [*done["events"], *divergence_of_loss(setting.problem.layout, report.scores[0].loss)]
    folder.add(done, report.scores[0])
    show(done)


def _names(experiment: Experiment) -> dict[str, Any]:
    return {
        "algorithm": experiment.algorithm.name,
        "dataset": experiment.data.name,
        "partition": experiment.partition["scheme"],
        "model": experiment.model.name,
        "seed": experiment.seed,
    }


@cache
def _versions() -> dict[str, Any]:
    names = ("fedstrata", "torch", "numpy", "scipy", "scikit-learn")
    return {"versions": {"python": platform.python_version(), **{name: version(name) for name in names}}}
