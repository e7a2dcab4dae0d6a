"""A run round by round, for a program that looks at every round or stops when it likes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedstrata.base.errors import InputError
from fedstrata.build.build import build_run
from fedstrata.config import Experiment
from fedstrata.core import Layout, Plan, State, Tree
from fedstrata.data import SampleFormat
from fedstrata.engine.device import one_thread
from fedstrata.models import load_row
from fedstrata.models.trained import TrainedModel
from fedstrata.play.progress import StatusLine
from fedstrata.play.rounds import PlanReply, timed_reply
from fedstrata.play.run import with_baseline
from fedstrata.play.steps import RunSteps, run_steps
from fedstrata.results.run import Run, labels_by_name, network_factory


@dataclass(frozen=True)
class _MadeBy:
    """What a step needs of the run that made it. The data and the engine are not kept, as they take much memory.

    Attributes:
        experiment: The experiment.
        names: The name of each client, (n,).
        form: What samples look like.
        layout: The tensors of the network.
    """

    experiment: Experiment
    names: tuple[str, ...]
    form: SampleFormat
    layout: Layout


@dataclass(frozen=True, repr=False)
class Step:
    """A round of a run that goes on.

    Attributes:
        record: The line of ``rounds.jsonl`` about the round, with the scores of the models after it.
        state: The state of the algorithm after the round: the models of the clusters, (k, p), and so on.
        run: The finished run, with the last round; None before.
    """

    record: Mapping[str, Any]
    state: State
    run: Run | None = None
    _made_by: _MadeBy = field(kw_only=True)

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
        return labels_by_name(self._made_by.names, self.record["labels"])

    @property
    def tree(self) -> Tree:
        """Every cluster that there has been up to this round."""
        return self.state.tree

    def cluster_model(self, node: int) -> TrainedModel:
        """Return the model of a cluster after the round, without any client's own layers.

        Args:
            node: The tree node of the cluster, as in `labels`.

        Raises:
            InputError: When this cluster has no model, because it was split or is not there yet.
        """
        nodes = self.state.nodes.tolist()
        if node not in nodes:
            known = ", ".join(map(str, nodes))
            raise InputError(f"cluster {node}: expected one of the clusters after round {self.round}, {known}")
        form = self._made_by.form
        network = network_factory(self._made_by.experiment, form)()
        load_row(network, self._made_by.layout, self.state.models[nodes.index(node)])
        return TrainedModel(network, form)


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
    made_by = _MadeBy(experiment, setup.names, setup.client_data.dataset.sample_format, setup.server.problem.layout)

    def on_round(record: Mapping[str, Any], state: State) -> None:
        scored.append(Step(record, state, _made_by=made_by))

    line = StatusLine(quiet)
    for choice in setup.choices:
        line.keep(choice)
    with closing(run_steps(experiment, setup, out, resume=resume, on_round=on_round, tell=line.keep)) as steps:
        found = _advance(steps, None)
        while not isinstance(found, Run):
            with one_thread():
                reply = timed_reply(setup.clients, found)
            found = _advance(steps, reply)
            if not isinstance(found, Run):
                yield from scored
                scored.clear()
    finished(out)
    with one_thread(), StatusLine(quiet) as line:
        run = with_baseline(experiment, found, setup, line, finished, resume=resume)
    for step in scored:
        yield replace(step, run=run if step is scored[-1] else None)


def _advance(steps: RunSteps, reply: PlanReply | None) -> Plan | Run:
    """The next plan of a run that is sent the reply to the last one, or the finished run."""
    with one_thread():
        try:
            # A generator that has not begun takes None alone.
            return steps.send(reply)  # type: ignore[arg-type]
        except StopIteration as end:
            run: Run = end.value
            return run
