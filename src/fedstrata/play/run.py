"""A run in its folder, at once or round by round, and the run of its baseline beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedstrata.base.files import folder_lock, root_folder
from fedstrata.build.build import build_run, on_same_clients
from fedstrata.build.run_setup import RunSetup
from fedstrata.config import Experiment
from fedstrata.config.selection import baseline_of
from fedstrata.core import Plan, State, Tree
from fedstrata.engine.device import one_thread
from fedstrata.engine.shared_work import LocalStores
from fedstrata.objective.metric_info import MetricInfo
from fedstrata.play.interrupt import Stopped, interruptible
from fedstrata.play.progress import Progress, StatusLine
from fedstrata.play.recorder import OnRound
from fedstrata.play.rounds import PlanReply, answer_plans, timed_reply
from fedstrata.play.steps import run_steps
from fedstrata.records.arrays import last_predictions, last_scores
from fedstrata.records.folder import Folder
from fedstrata.records.schema import BASELINE
from fedstrata.report.references import effects, gain
from fedstrata.results.run import Run, labels_by_name


def run_experiment(
    experiment: Experiment,
    out: Path,
    *,
    resume: bool = False,
    quiet: bool = False,
    finished: Callable[[Path], object] = lambda folder: None,
) -> Run:
    """Run an experiment, or go on with one; with ``report.baseline``, its baseline afterwards.

    Args:
        experiment: The experiment, checked and complete.
        out: The run folder; it is made if need be.
        resume: Whether to go on from the folder's checkpoint, or from the start when there is none yet.
        quiet: Whether to show no progress.
        finished: Is called with the folder of the run when it is finished. With a baseline it is called before that,
            with the folder of the baseline, and once more with that of the run.

    Raises:
        InputError: When something that the experiment names does not exist or does not fit; nothing is made then.
        Stopped: After Ctrl-C, when the round is over and saved.
    """
    with one_thread(), StatusLine(quiet) as line:
        setup = build_run(experiment)
        for choice in setup.choices:
            line.keep(choice)
        with interruptible(line.keep) as interrupt:
            run = play_shown(experiment, setup, out, line, resume=resume, stop=lambda: interrupt.asked)
            finished(out)
            return with_baseline(experiment, run, setup, line, finished, resume=resume, stop=lambda: interrupt.asked)


def play_shown(
    experiment: Experiment,
    setup: RunSetup,
    out: Path,
    line: StatusLine,
    name: str = "",
    reply: Callable[[Plan], PlanReply] | None = None,
    on_round: OnRound = lambda record, state: None,
    **options: Any,
) -> Run:
    """Play a run to its end, and show its progress.

    Args:
        experiment: The experiment, checked and complete.
        setup: What was built from it.
        out: The run folder.
        line: Shows the progress.
        name: What the run is called; empty where it is the only one.
        reply: Answers a plan; by default, the clients of the setup do.
        on_round: Is called with the record of each round and the state after it, as in `run_steps`.
        options: The other options of `run_steps`.
    """
    progress = Progress(experiment.rounds, line, setup.names, setup.server.objective.metric_info, name)
    options = {"tell": line.keep, **options}

    def show(record: Mapping[str, Any], state: State) -> None:
        progress.show(record)
        on_round(record, state)

    steps = run_steps(experiment, setup, out, on_round=show, **options)
    return answer_plans(steps, reply or partial(timed_reply, setup.clients))


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
    """Run the baseline of a finished run, if ``report.baseline`` asks for one, and keep what the run gained.

    Args:
        experiment: The experiment of the run.
        run: The finished run.
        setup: What the run was built from.
        line: Shows the progress.
        finished: Is called with the folder of the baseline when it is finished, and then with that of the run.
        resume: Whether to go on with the baseline that the folder may hold.
        stop: Is asked before every round whether there shall be no more for now.

    Returns:
        The run, with what it gained in its summary.

    Raises:
        Stopped: When `stop` said so.
    """
    baseline = baseline_of(experiment, setup.engine)
    if baseline is None:
        return run
    folder = run.folder / BASELINE
    name = f"{baseline.algorithm.name} baseline"
    line.keep(f"{name}: one model for all on the same clients, as report.baseline = true")
    # It comes after the run and not beside it: shared work would change the last bits of the batched engine and the
    # seconds of the run, and it saves little, as clusters train on models of their own from the first split on. Its
    # clients have local stores of their own.
    own = replace(on_same_clients(setup, baseline), clients=LocalStores(setup.clients))
    told = {f"WARNING: {warning}" for warning in setup.warnings}

    def tell(text: str) -> None:
        if text not in told:
            line.keep(f"{name}: {text}")

    try:
        play_shown(baseline, own, folder, line, name, resume=resume, stop=stop, tell=tell)
    except Stopped as stopped:
        # The folder is that of the run, which is resumed with its baseline.
        raise Stopped(f"{name} {stopped.where}", run.folder) from None
    finished(folder)
    summary = add_baseline(run.folder, folder, setup.server.objective.metric_info)
    finished(run.folder)
    return replace(run, summary=summary)


def add_baseline(out: Path, baseline: Path, metric: MetricInfo) -> dict[str, Any]:
    """Write into the summary of a run what it gained over its baseline.

    Args:
        out: The folder of the run, which is finished.
        baseline: The folder of the baseline, which is finished.
        metric: The metric of both.

    Returns:
        The summary of the run.
    """
    other = {client: value for client, (_, value) in last_scores(baseline).items()}
    compared = effects(last_scores(out), other, metric, last_predictions(out), last_predictions(baseline))
    found = gain(compared)
    with folder_lock(root_folder(out)):
        folder = Folder(out)
        summary = folder.summary()
        baseline_summary = Folder(baseline).summary()
        mean, other_mean = summary["acc_client"], baseline_summary["acc_client"]
        summary |= {
            "baseline_acc_client": other_mean,
            "baseline_acc_worst": baseline_summary["acc_worst"],
            "baseline_gain": None if mean is None or other_mean is None else metric.gain(mean, other_mean),
            "baseline_better": len(found.better),
            "baseline_worse": len(found.worse),
            "baseline_seconds": baseline_summary["seconds"],
            "baseline_gains": {str(client): asdict(each) for client, each in compared.items() if each},
        }
        folder.write_summary(summary)
    return summary


@dataclass(frozen=True, repr=False)
class Step:
    """A round of a run that goes on.

    Attributes:
        record: The line of ``rounds.jsonl`` about the round, with the scores of the models after it.
        state: The state of the algorithm after the round: the models of the clusters, (k, p), and so on.
        names: The name of each client, by its id, (n,).
        run: The finished run, with the last round; None before.
    """

    record: Mapping[str, Any]
    state: State
    names: tuple[str, ...]
    run: Run | None = None

    def __repr__(self) -> str:
        """Which round it is, in a line: the record and the state have many."""
        return f"Step(round={self.round}, clusters={self.record['clusters']}, run={self.run!r})"

    @property
    def round(self) -> int:
        """The number of the round, counted from 1."""
        return int(self.record["round"])

    @property
    def labels(self) -> dict[str, int]:
        """The tree node of each client after the round, by the client's name, as `Run.labels`."""
        return labels_by_name(self.names, self.record["labels"])

    @property
    def tree(self) -> Tree:
        """Every cluster that there has been up to this round."""
        return self.state.tree


def iterate_experiment(
    experiment: Experiment,
    out: Path,
    *,
    resume: bool = False,
    quiet: bool = False,
    finished: Callable[[Path], object] = lambda folder: None,
) -> Iterator[Step]:
    """Run an experiment, or go on with one, and yield each round when its models are scored.

    The models of a round are scored when the clients of the next round are asked. So when a round is yielded, the next
    one is over, too, but the last round. Whoever leaves the iteration leaves a run that can be resumed.

    Args:
        experiment: The experiment, checked and complete.
        out: The run folder; it is made if need be.
        resume: Whether to go on from the folder's checkpoint, or from the start when there is none yet.
        quiet: Whether to show no lines for the user, such as warnings and what was chosen for the experiment. There is
            no progress, as the program shows its own.
        finished: Is called with the folder of the run when it is finished, as by `run_experiment`.

    Raises:
        InputError: When something that the experiment names does not exist or does not fit; nothing is made then.
    """
    with one_thread():
        setup = build_run(experiment)
    scored = list[Step]()

    def on_round(record: Mapping[str, Any], state: State) -> None:
        scored.append(Step(record, state, setup.names))

    line = StatusLine(quiet)
    for choice in setup.choices:
        line.keep(choice)
    reply: PlanReply | None = None
    with closing(run_steps(experiment, setup, out, resume=resume, on_round=on_round, tell=line.keep)) as steps:
        while True:
            with one_thread():
                try:
                    # A generator that has not begun takes None alone.
                    plan = steps.send(reply)  # type: ignore[arg-type]
                except StopIteration as end:
                    run: Run = end.value
                    break
            yield from scored
            scored.clear()
            with one_thread():
                reply = timed_reply(setup.clients, plan)
    finished(out)
    with one_thread(), StatusLine(quiet) as line:
        run = with_baseline(experiment, run, setup, line, finished, resume=resume)
    for step in scored:
        yield replace(step, run=run if step is scored[-1] else None)
