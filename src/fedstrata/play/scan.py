"""A few rounds of FedAvg that say which layers separate the clients of an experiment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch

from fedstrata.algorithms.evidence.layer_scan import (
    LEVEL,
    SCAN_ROUNDS,
    LayerChoice,
    LayerEvidence,
    add_evidence,
    no_evidence,
    participants,
    scan_layers,
)
from fedstrata.algorithms.evidence.split_half import add_fold_tasks, selected_clients
from fedstrata.build.build import build_run
from fedstrata.config import Experiment
from fedstrata.core import (
    Algorithm,
    Diagnostics,
    Plan,
    Problem,
    Report,
    State,
    aggregate,
    extend_state,
    fedavg_plan,
    initial_state,
)
from fedstrata.engine.device import one_thread
from fedstrata.play.rounds import Rules, answer_plans, no_events, play_rounds, timed_reply


@dataclass(frozen=True)
class _ScanState(State):
    """The state of FedAvg, and what its rounds have shown so far."""

    evidence: LayerEvidence


@dataclass(frozen=True)
class _ScannedFedAvg(Algorithm[_ScanState]):
    """FedAvg whose clients also train on folds of their data, once their numbers of samples are known."""

    source: ClassVar[str] = "McMahan et al., AISTATS 2017"

    def init(self, problem: Problem) -> _ScanState:
        """One model for all clients, and no evidence."""
        evidence = no_evidence(problem.layout, problem.clients)
        return extend_state(initial_state(problem), _ScanState, evidence=evidence)

    def plan(self, problem: Problem, state: _ScanState, cohort: torch.Tensor) -> Plan:
        """The plan of FedAvg with a task for each fold of the data."""
        asked = participants(problem, state, state.evidence, LEVEL, cohort)
        return add_fold_tasks(fedavg_plan(problem, state, cohort), asked, state.evidence.sizes)

    def update(self, problem: Problem, state: _ScanState, report: Report) -> tuple[_ScanState, Diagnostics]:
        """Add the evidence of the round, and average."""
        asked = participants(problem, state, state.evidence, LEVEL, selected_clients(report))
        evidence = add_evidence(problem.layout, state.evidence, report, asked)
        moved, diagnostics = aggregate(problem, state, report, self.assign(problem, state, report))
        return replace(moved, evidence=evidence), diagnostics


def scan_experiment(
    experiment: Experiment,
    rounds: int = SCAN_ROUNDS,
    show: Callable[[str], None] = lambda line: None,
    warn: Callable[[str], None] = lambda line: None,
) -> LayerChoice:
    """Train one model for all clients for some rounds, after the first also on folds of their data, and scan once.

    The clients, their data and who takes part are those of the experiment. Its algorithm does not matter, and the
    ground truth is not used. Nothing is written.

    Args:
        experiment: The experiment, checked and complete.
        rounds: The number of rounds of FedAvg. The first only tells how many samples clients have.
        show: Takes a line after every round.
        warn: Takes a line for each warning about the data.

    Raises:
        InputError: When something that the experiment names does not exist or does not fit, or the server of the
            experiment sees no single updates.
    """
    fedavg = experiment.algorithm.model_validate({"name": "fedavg"})
    algorithm = _ScannedFedAvg()
    with one_thread():
        setup = build_run(experiment.model_copy(update={"algorithm": fedavg}))
        problem = setup.server.problem
        for warning in setup.warnings:
            warn(f"WARNING: {warning}")
        rules = replace(Rules.of(setup), algorithm=algorithm, apply_events=no_events)
        steps = play_rounds(
            rules,
            algorithm.init(problem),
            stop=lambda state: state.round >= rounds,
            observe=lambda done: show(f"round {done.plan.round}/{rounds}"),
        )
        state = answer_plans(steps, partial(timed_reply, setup.clients))
        return scan_layers(problem.layout, state.evidence, problem.generator("scout", rounds))
