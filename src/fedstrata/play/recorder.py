"""Write down the rounds of a run: their records with the bytes that travel, what was decided, and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any, TypeAlias

import torch

from fedstrata.base.resources import disk_error
from fedstrata.build.probes import client_matrices, gaps
from fedstrata.build.run_setup import RunSetup
from fedstrata.config import Experiment
from fedstrata.config.reading import plain_keys
from fedstrata.core import (
    CLIENT,
    VALIDATION,
    Evaluation,
    Layout,
    Mask,
    Plan,
    Report,
    Score,
    State,
)
from fedstrata.play.rounds import PlayedRound
from fedstrata.records.checkpoint import Checkpoint, checkpoints, require_saveable, save
from fedstrata.records.folder import Folder
from fedstrata.records.measures import complete
from fedstrata.records.resume import origin
from fedstrata.uploads.compression import Compression
from fedstrata.uploads.validation import divergence_of_loss

OnRound: TypeAlias = "Callable[[Mapping[str, Any], State], None]"
"""Is given the complete record of a round, and the state after it."""


@dataclass
class Recorder:
    """Writes down the rounds of a run. The scores of a round's models come with the reply of the next round.

    Attributes:
        experiment: The experiment, with what was chosen for it.
        setup: What was built from it.
        folder: The run folder.
        record: The record of the last round, still without scores; None before the first round.
        on_round: Is given the complete record of a round, and the state after it.
        tell: Is called with a line for the user when something is unusual.
        may_skip_checkpoints: Whether the run goes on where the disk refuses a checkpoint and an older one is there.
        unsaved: The first round since the last checkpoint whose own could not be written; 0 where there is none.
    """

    experiment: Experiment
    setup: RunSetup
    folder: Folder
    record: Mapping[str, Any] | None
    on_round: OnRound
    tell: Callable[[str], object]
    may_skip_checkpoints: bool
    unsaved: int = 0

    def evaluations(self, state: State) -> Mapping[str, Evaluation]:
        """The evaluations that the record of the last round waits for."""
        if self.record is None:
            return {}
        clients = self.setup.server.participation.scoring(state.round, last=state.round >= self.experiment.rounds)
        wanted = self.setup.server.algorithm.evaluations(self.setup.server.problem, state, clients)
        if self.setup.client_data.validates:
            wanted = {**wanted, VALIDATION: replace(wanted[CLIENT], split="validation")}
        return wanted

    def complete(self, state: State, scores: Mapping[str, Score]) -> None:
        """Write the record of the last round with the scores of its models."""
        if self.record is None:
            return
        objective = self.setup.server.objective
        done = complete(self.record, state.labels, self.setup.truth(state.round), scores, objective.metric_info)
        classifies = objective.classifies and len(self.setup.client_data.dataset.outputs) == 1
        diverging = divergence_of_loss(self.setup.server.problem.layout, scores[CLIENT].loss, classifies)
        done["events"] = [*done["events"], *diverging]
        self.folder.add(done, scores[CLIENT])
        self.on_round(done, state)

    def write(self, done: PlayedRound[Any]) -> None:
        """Complete the record of the round before, and begin a new one; then save the state."""
        self.complete(done.before, done.reply.report.scores)
        self._write_decision(done)
        store = self.setup.clients.store
        number = done.plan.round
        cohort = done.sample.cohort.tolist()
        not_finite = list(store.not_finite_clients(number))
        reset = {"kind": "reset", "clients": not_finite}
        rejected = {client for event in done.events if event["kind"] == "rejected" for client in event["clients"]}
        self.record = {
            "round": number,
            **self._clusters(done.state),
            **self._bytes(done.plan, done.reply.report),
            "cohort": cohort,
            "absent": sorted({*done.sample.dropped.tolist(), *done.reply.absent} & set(cohort)),
            "rejected": sorted(rejected),
            "events": [*done.events, *([reset] if not_finite else [])],
            "metrics": [asdict(metric) for metric in done.diagnostics.metrics],
            "seconds": done.seconds_planning + done.reply.seconds + perf_counter() - done.replied,
            "seconds_training": done.reply.seconds,
            "seconds_server": done.seconds_planning + done.seconds_deciding,
        }
        try:
            self.save(done.state)
        except OSError as error:
            self._continue_without_checkpoint(number, error)

    def save(self, state: State) -> None:
        """Write the checkpoint of a round, whose record is still without scores."""
        assert self.record is not None
        if state.round == 1:
            require_saveable(state)  # much of it is empty before
        checkpoint = Checkpoint(
            state=state,
            store=self.setup.clients.store.tensors(),
            record=self.record,
            experiment=plain_keys(self.experiment),
            versions=origin(self.setup.engine.device),
            lines=self.folder.log.digest,
        )
        save(self.folder.checkpoints, checkpoint)
        if self.unsaved:
            self.tell(f"round {state.round}: checkpoints can be written again")
        self.unsaved = 0

    def _continue_without_checkpoint(self, round: int, error: OSError) -> None:
        """Go on without the checkpoint of a round, if that loses nothing but time; the next round tries again.

        Raises:
            OSError: The error, where the run has to end: there is no older checkpoint, or no later round.
        """
        found = disk_error(error, self.folder.path)
        older = checkpoints(self.folder.checkpoints)
        if found is None or not older or not self.may_skip_checkpoints or round >= self.experiment.rounds:
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
        """Write the layer gaps, matrices and tree of a round."""
        number = done.plan.round
        truth = self.setup.truth(number)
        probe = self.experiment.probe
        layout = self.setup.server.problem.layout
        if probe.gap and truth is not None:
            measured = gaps(layout, done.plan, done.report, truth, probe.gap)
            if measured:
                self.folder.add_gaps(number, measured)
        matrices = done.diagnostics.matrices
        if number in probe.rounds or not probe.rounds:
            n = self.setup.server.problem.clients
            matrices += client_matrices(layout, done.plan, done.report, n, probe.matrices, probe.layers)
        if matrices:
            self.folder.add_matrices(number, matrices)
        self.folder.add_tree(done.state.tree)

    def _clusters(self, state: State) -> dict[str, Any]:
        """The part of a record that says who is in which cluster; a client that has left or not joined yet is at -1."""
        pending = state.labels < 0
        nodes = torch.where(pending, state.waiting, state.nodes[state.labels])
        nodes[~torch.isin(self.setup.everyone, self.setup.server.participation.active(state.round))] = -1
        return {
            "clusters": len(set(state.labels[~pending].tolist())),
            "labels": nodes.tolist(),
            "pending": (pending & (nodes >= 0)).nonzero().flatten().tolist(),
        }

    def _bytes(self, plan: Plan, report: Report) -> dict[str, int]:
        """The bytes of a round. The union of all data is no client: the samples are sent once, and no model ever."""
        n = self.setup.server.problem.clients
        if n in plan.cohort.tolist():
            data = self.setup.client_data.weight(n) if plan.round == 1 else 0
            return {"bytes_down": 0, "bytes_up": 0, "bytes_buffers": 0, "bytes_data": data}
        stored = partial(self.setup.clients.store.read, before=plan.round)
        sent = traffic(self.setup.server.problem.layout, plan, report, stored, self.setup.server.compression)
        return {"bytes_down": sent.down, "bytes_up": sent.up, "bytes_buffers": sent.buffers, "bytes_data": 0}


_FLOAT_BYTES = 4
"""Bytes of a float32, and of the index that names the chosen one of several models."""


@dataclass(frozen=True)
class Traffic:
    """Bytes of the tensors that travel, without headers.

    Attributes:
        down: The parameters to the whole cohort, absent clients included.
        up: The parameters from the clients that answered, what they chose, the losses of models that they only
            compared, and the statistics that were asked for.
        buffers: The statistics of normalisation layers, both ways.
    """

    down: int
    up: int
    buffers: int


def traffic(
    layout: Layout,
    plan: Plan,
    report: Report,
    stored: Callable[[int], Collection[int]] | None = None,
    compression: Compression | None = None,
) -> Traffic:
    """Count what a plan sends down and what came back for it; a rejected row was sent and counts.

    Args:
        layout: The tensors of the network.
        plan: The plan for the whole cohort.
        report: The report of the clients that answered.
        stored: Returns the tensors that the device of a client had before the round; by default all that the plan
            loads from it. A tensor that is not there yet is received, as the first head of FedPer is.
        compression: How clients compress their updates; None where they do not.
    """
    down = 0
    up = 0
    buffers = 0
    for row, client in enumerate(plan.cohort.tolist()):
        own = None if stored is None else stored(client)
        needed: dict[int, Mask] = {}
        for task in plan.tasks.values():
            for candidate in task.candidates[row].tolist():
                kept = enumerate(task.load_local)
                received = tuple(not keep or (own is not None and tensor not in own) for tensor, keep in kept)
                before = needed.get(candidate, layout.nothing)
                needed[candidate] = tuple(a or b for a, b in zip(before, received, strict=True))
        for candidate, mask in needed.items():
            if candidate >= 0:
                parameters, statistics = _bytes(layout, mask)
                down += parameters
                buffers += statistics
    for name, result in report.results.items():
        task = plan.tasks[name]
        parameters, statistics = _bytes(layout, task.upload)
        if compression is not None:
            parameters = compression.parameter_bytes(task)
        known = ~result.losses.isnan()
        # A client that trains one of several models sends its choice; where nothing is trained, it sends all losses.
        numbers = known.any(dim=1) if any(task.trainable) else known
        up += parameters * len(result.sizes) + _FLOAT_BYTES * int(numbers.sum())
        buffers += statistics * len(result.sizes)
    up += sum(_FLOAT_BYTES * rows.values.numel() for rows in report.client_stats.values())
    return Traffic(down, up, buffers)


def _bytes(layout: Layout, mask: Mask) -> tuple[int, int]:
    """Bytes of the parameters and of the buffers of a mask."""
    sizes = {True: 0, False: 0}
    for slot, span, sent in zip(layout.tensors, layout.spans, mask, strict=True):
        sizes[slot.kind == "buffer"] += _FLOAT_BYTES * (span.stop - span.start) * sent
    return sizes[False], sizes[True]
