"""Differential privacy of a run: what it promises, with how much noise, and for what it does not stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from fedstrata.config import Experiment
from fedstrata.config.tables import PrivacyTable, keys_of_algorithm
from fedstrata.core import Algorithm, Problem
from fedstrata.core.aggregation_rules import MEANS
from fedstrata.core.private_aggregation import CentralPrivacy
from fedstrata.errors import ExperimentError
from fedstrata.privacy import Coverage, Exposure, LocalPrivacy, Sampled, coverage_of, epsilon_of, noise_for
from fedstrata.quoting import shown
from fedstrata.runner.membership import Membership, cohort_size

_LARGEST_DELTA = 1e-5
"""The default of delta in runs of few clients."""

_DELTA_EXPONENT = -1.1
"""With many clients the default of delta is their number to this power, as in McMahan et al., ICLR 2018."""


@dataclass(frozen=True)
class PrivateRun:
    """The differential privacy of a run.

    Attributes:
        kind: Who adds the noise: the server ("central"), or every client ("local").
        epsilon: What the run reaches.
        delta: What goes with it.
        noise_multiplier: The standard deviation of the noise, divided by `clip_norm`.
        clip_norm: The largest norm of an update.
        exposure: What was accounted for.
        coverage: What epsilon covers.
        central: What the server does; None where clients add the noise.
        local: What clients do; None where the server adds the noise.
    """

    kind: str
    epsilon: float
    delta: float
    noise_multiplier: float
    clip_norm: float
    exposure: Exposure
    coverage: Coverage
    central: CentralPrivacy | None
    local: LocalPrivacy | None

    @property
    def summary(self) -> dict[str, Any]:
        """What the summary of the run says."""
        return {
            "kind": self.kind,
            "unit": "client",
            "adjacency": self.exposure.adjacency,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "noise_multiplier": self.noise_multiplier,
            "clip_norm": self.clip_norm,
            "sums": self.exposure.without_chance.releases,
            "amplified_by_sampling": bool(self.exposure.sampled),
            "covered": list(self.coverage.covered),
            "not_covered": list(self.coverage.not_covered),
            "decisions_covered": self.coverage.decisions,
        }

    @property
    def line(self) -> str:
        """The same in one line for people."""
        return (
            f"privacy: epsilon {self.epsilon:.3g} at delta {self.delta:.1g} for any one client (noise multiplier "
            f"{self.noise_multiplier:.3g}, {self.kind}). Covered: {', '.join(self.coverage.covered)}. Not covered: "
            f"{', '.join(self.coverage.not_covered)}"
        )


def private_run(
    experiment: Experiment,
    problem: Problem,
    algorithm: Algorithm[Any],
    members: Membership,
    *,
    noise_seed: int | None = None,
    members_known: bool = True,
) -> PrivateRun | None:
    """The differential privacy of an experiment; None where there is none.

    Args:
        experiment: The experiment.
        problem: What is fixed for the run.
        algorithm: The algorithm without the personal stage, which stays on the clients.
        members: Who takes part, by chance.
        noise_seed: The seed of the noise; by default that of the run, which is no secret.
        members_known: Whether it is known before the run who can take part in each round.

    Raises:
        ExperimentError: When something in the experiment has no differential privacy.
    """
    table = experiment.privacy
    _refuse_unreachable_size(experiment)
    if table.kind == "none":
        return None
    _refuse_unfit(experiment, members_known=members_known)
    n = problem.clients
    # As in a rehearsal, nothing depends on the true groups.
    first = problem if problem.truth is not None else replace(problem, truth=torch.zeros(n, dtype=torch.int64))
    plan = algorithm.plan(first, algorithm.init(first), torch.arange(n))
    keys = keys_of_algorithm(algorithm)
    coverage = coverage_of(table.kind, experiment.algorithm.name, keys, plan, experiment.rounds)
    if isinstance(coverage, str):
        raise ExperimentError(
            f"privacy.kind = {shown(table.kind)}: expected 'none' with algorithm.name = "
            f"{shown(experiment.algorithm.name)}: {coverage}"
        )
    sent = tuple(any(masks) for masks in zip(*(task.upload for task in plan.tasks.values()), strict=True))
    for tensor, upload in zip(problem.layout.tensors, sent, strict=True):
        if upload and tensor.kind == "buffer":
            raise ExperimentError(
                f"privacy.kind = {shown(table.kind)}: expected a network without running statistics, found "
                f"{tensor.name}, which noise would spoil; use group normalisation, or algorithm.name = 'fedbn'"
            )
    exposure = _exposure(table, coverage, experiment.rounds, members)
    delta = table.delta if table.delta is not None else min(_LARGEST_DELTA, n**_DELTA_EXPONENT)
    noise, epsilon = _noise_and_epsilon(exposure, table.noise_multiplier, table.epsilon, delta)
    seed = problem.seed if noise_seed is None else noise_seed
    central = CentralPrivacy(
        layout=problem.layout,
        released=sent,
        clip_norm=table.clip_norm,
        noise_multiplier=noise,
        answers=members.expected_answers,
        min_cluster=table.min_cluster,
        noise_seed=seed,
    )
    local = LocalPrivacy(problem.layout, table.clip_norm, noise, seed)
    return PrivateRun(
        kind=table.kind,
        epsilon=epsilon,
        delta=delta,
        noise_multiplier=noise,
        clip_norm=table.clip_norm,
        exposure=exposure,
        coverage=coverage,
        central=central if table.kind == "central" else None,
        local=local if table.kind == "local" else None,
    )


def with_central_privacy(problem: Problem, private: PrivateRun | None) -> Problem:
    """The problem of a run in which the server adds noise, if it does."""
    return problem if private is None else replace(problem, privacy=private.central)


def _refuse_unreachable_size(experiment: Experiment) -> None:
    """Refuse a least size of clusters that nothing reaches, or that says nothing."""
    least = experiment.privacy.min_cluster
    clients = experiment.data.clients
    if least > clients:
        raise ExperimentError(f"privacy.min_cluster = {least}: expected at most {clients}, the number of clients")
    if least > 1 and experiment.algorithm.name == "centralized":
        raise ExperimentError(
            f"privacy.min_cluster = {least}: expected 1 with algorithm.name = 'centralized', which has one model of "
            "all data, and no clusters"
        )
    if least > 1 and experiment.server.aggregation == "krum":
        raise ExperimentError(
            f"privacy.min_cluster = {least}: expected 1 with server.aggregation = 'krum', which hands on the update of "
            "a single client; use 'multi_krum', or another rule"
        )


def _refuse_unfit(experiment: Experiment, *, members_known: bool) -> None:
    """Refuse what the accounting does not hold for."""
    if experiment.privacy.kind == "local":
        return
    rule = experiment.server.aggregation
    if rule not in MEANS:
        raise ExperimentError(
            f"server.aggregation = {rule!r}: expected {' or '.join(map(repr, MEANS))} with privacy.kind = 'central', "
            "whose noise is for sums of clipped updates; use privacy.kind = 'local', or a mean"
        )
    cohort = experiment.cohort
    if cohort.weights or cohort.sampling == "size":
        found = "cohort.weights" if cohort.weights else "cohort.sampling = 'size'"
        raise ExperimentError(
            f"{found}: expected clients of equal chance with privacy.kind = 'central'; use cohort.sampling = 'poisson'"
        )
    if cohort.fraction < 1 and cohort.sampling != "poisson" and not members_known:
        raise ExperimentError(
            f"cohort.sampling = {cohort.sampling!r}: expected 'poisson' with privacy.kind = 'central' on real devices, "
            "as it is not known from how many clients a cohort will be drawn"
        )


def _exposure(table: PrivacyTable, coverage: Coverage, rounds: int, members: Membership) -> Exposure:
    """What a client adds to over the run."""
    if table.kind == "local":
        # Whoever knows the cohorts knows in which rounds a client sent something.
        return Exposure("replace_one", rounds + coverage.more)
    drawn = Counter(_cohorts(rounds, members))
    by_chance = [Sampled(times, *of) for of, times in drawn.items() if of[0] > of[1]]
    releases = rounds - sum(each.rounds for each in by_chance) + coverage.more
    fixed = any(each.fixed for each in by_chance)
    return Exposure("replace_one" if fixed else "add_or_remove_one", releases, tuple(by_chance))


def _cohorts(rounds: int, members: Membership) -> Iterator[tuple[int, float, bool]]:
    """From how many clients the cohort of each round is drawn, how many of them, and whether it is always so many."""
    always = not members.joins and not members.leaves
    first = len(members.active(1))
    for round in range(1, rounds + 1):
        clients = first if always else len(members.active(round))
        if members.poisson:
            yield clients, members.fraction * clients, False
        else:
            yield clients, float(cohort_size(clients, members.fraction)), True


@lru_cache(maxsize=32)
def _noise_and_epsilon(
    exposure: Exposure, noise: float | None, epsilon: float | None, delta: float
) -> tuple[float, float]:
    """The noise multiplier and the epsilon, one of which is given."""
    if noise is None:
        assert epsilon is not None
        noise = noise_for(exposure, epsilon, delta)
    return noise, epsilon_of(exposure, noise, delta)
