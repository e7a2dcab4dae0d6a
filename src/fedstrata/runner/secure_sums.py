"""Secure aggregation of a run: on what terms clients add up, and what cannot be done where nobody sees an update."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from fedstrata.config import Experiment
from fedstrata.core import TRAIN, Algorithm, Disclosure, Problem, disclosure_of
from fedstrata.core.aggregation_rules import MEANS
from fedstrata.errors import ExperimentError
from fedstrata.privacy.secure_sum import SumTerms

_ON = "with privacy.secure_aggregation = true"

_NAMES = "fedavg, finetune, fedprox, ditto, fedbn, fedper, fedrep, lg_fedavg, oracle, random_groups"
"""The algorithms of the library whose server needs sums alone, for a message. What counts is what each declares."""


def sum_terms(experiment: Experiment, problem: Problem, algorithm: Algorithm[Any]) -> SumTerms:
    """The terms of the sums that the server sees in place of updates, if it sees sums.

    Args:
        experiment: The experiment.
        problem: What is fixed for the run.
        algorithm: The algorithm without the personal stage, which stays on the clients.

    Raises:
        ExperimentError: When something in the experiment needs single updates.
    """
    table = experiment.privacy
    if not table.secure_aggregation:
        return SumTerms()
    _refuse_algorithm(experiment, disclosure_of(algorithm, experiment.rounds))
    rule = experiment.server.aggregation
    if rule not in MEANS:
        raise ExperimentError(
            f"server.aggregation = {rule!r}: expected {' or '.join(map(repr, MEANS))} {_ON}, as every other rule "
            "compares single updates; use a mean, or leave secure_aggregation out"
        )
    compression = experiment.network.compression
    if compression != "none":
        raise ExperimentError(
            f"network.compression = {compression!r}: expected 'none' {_ON}, as masks hide whole numbers of one size; "
            "leave it out, and choose privacy.sum_bits"
        )
    probe = experiment.probe
    for key, found in (("gap", probe.gap), ("matrices", probe.matrices), ("unstable_weights", probe.unstable_weights)):
        if found:
            raise ExperimentError(f"probe.{key}: expected none {_ON}, as it is of single updates; leave it out")
    _refuse_buffers(problem, algorithm)
    return SumTerms(
        secure=True,
        limit=table.sum_limit,
        bits=table.sum_bits,
        min_clients=table.min_sum,
        weighted=rule == "mean",
    )


def _refuse_algorithm(experiment: Experiment, disclosure: Disclosure | None) -> None:
    """Refuse algorithms that look at single updates, and newcomers that would have to choose a cluster."""
    name = experiment.algorithm.name
    if disclosure is None or disclosure.server_needs != "sums":
        raise ExperimentError(
            f"algorithm.name = {name!r}: expected one of {_NAMES} {_ON}, as the server sees no "
            "single update, by which others decide about clusters; take one of them, or leave secure_aggregation out"
        )
    if disclosure.given_clusters and experiment.events.join:
        raise ExperimentError(
            f"events.join: expected none {_ON} and algorithm.name = {name!r}, as a newcomer trains before it has a "
            "cluster, and would be in no sum"
        )


def _refuse_buffers(problem: Problem, algorithm: Algorithm[Any]) -> None:
    """Refuse to send running statistics, which have no common range."""
    # As in `check_first_plan`, nothing depends on the true groups.
    first = replace(problem, truth=torch.zeros(problem.clients, dtype=torch.int64))
    plan = algorithm.plan(first, algorithm.init(first), torch.arange(problem.clients))
    for tensor, sent in zip(problem.layout.tensors, plan.tasks[TRAIN].upload, strict=True):
        if sent and tensor.kind == "buffer":
            raise ExperimentError(
                f"privacy.secure_aggregation = true: expected a network without running statistics, found "
                f"{tensor.name}, which has no common range; use group normalisation, or algorithm.name = 'fedbn'"
            )
