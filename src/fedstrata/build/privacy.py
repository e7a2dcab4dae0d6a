"""Differential privacy of a run: what it promises, with how much noise, and for what it does not stand."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from fedstrata.base.errors import ExperimentError
from fedstrata.base.quoting import shown
from fedstrata.build.participation import Participation, cohort_size, dropouts
from fedstrata.config import Experiment
from fedstrata.config.selection import baseline_of
from fedstrata.config.tables import PrivacyTable
from fedstrata.core import Layout, Mask, Plan, Problem
from fedstrata.uploads.accounting import Exposure, Sampled, epsilon_of, noise_for
from fedstrata.uploads.disclosure import Coverage, Disclosure, coverage_of
from fedstrata.uploads.noise import CentralNoise, LocalNoise, NoiseSeed
from fedstrata.uploads.rules import MAY_HAND_ON_ONE, MEANS

_LARGEST_DELTA = 1e-5
"""The default of delta in runs of few clients."""

_DELTA_EXPONENT = -1.1
"""With many clients the default of delta is their number to this power, as in McMahan et al., ICLR 2018."""


@dataclass(frozen=True)
class PrivateRun:
    """The differential privacy of a run.

    Attributes:
        coverage: What epsilon covers.
        exposure: What was accounted for.
        epsilon: What the run reaches.
        delta: What goes with it.
        mechanism: What the server does with updates, or what clients do before they send them.
    """

    coverage: Coverage
    exposure: Exposure
    epsilon: float
    delta: float
    mechanism: CentralNoise | LocalNoise

    @property
    def kind(self) -> str:
        """Who adds the noise: the server ("central"), or every client ("local")."""
        return "central" if isinstance(self.mechanism, CentralNoise) else "local"

    @property
    def summary(self) -> dict[str, Any]:
        """What the summary of the run says."""
        return {
            "kind": self.kind,
            "unit": "client",
            "adjacency": self.exposure.adjacency,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "noise_multiplier": self.mechanism.noise_multiplier,
            "clip_norm": self.mechanism.clip_norm,
            "sums": self.exposure.with_full_participation.queries,
            "amplified_by_sampling": self.amplified,
            "covered": list(self.coverage.covered),
            "not_covered": list(self.coverage.not_covered),
            "decisions_covered": self.coverage.decisions,
        }

    @property
    def amplified(self) -> bool:
        """Whether epsilon is lower than if all clients took part in every round."""
        full = epsilon_of(self.exposure.with_full_participation, self.mechanism.noise_multiplier, self.delta)
        return bool(self.exposure.sampled) and self.epsilon < full

    @property
    def line(self) -> str:
        """The same in one line for people."""
        return (
            f"privacy: epsilon {self.epsilon:.3g} at delta {self.delta:.1g} for any one client (noise multiplier "
            f"{self.mechanism.noise_multiplier:.3g}, {self.kind}). Covered: {', '.join(self.coverage.covered)}. "
            f"Not covered: {', '.join(self.coverage.not_covered)}"
        )


def private_run(
    experiment: Experiment,
    problem: Problem,
    disclosure: Disclosure | None,
    plan: Plan,
    participation: Participation,
    *,
    noise_seed: NoiseSeed | None = None,
) -> PrivateRun | None:
    """The differential privacy of an experiment; None where there is none.

    Args:
        experiment: The experiment.
        problem: What is fixed for the run.
        disclosure: What its algorithm says that it discloses; None if it says nothing.
        plan: The first plan of the algorithm, for all clients.
        participation: Who takes part, by chance.
        noise_seed: The seed of the noise; by default that of the run, which is no secret.

    Raises:
        ExperimentError: When something in the experiment has no differential privacy.
    """
    table = experiment.privacy
    _refuse_unreachable_size(experiment, disclosure, participation)
    if table.kind == "none":
        return None
    if table.kind == "central":
        _refuse_unfit(experiment)
    newcomers = bool(experiment.events.join or experiment.events.change) or not participation.known
    coverage = coverage_of(table.kind, disclosure, plan, experiment.rounds, newcomers=newcomers)
    if isinstance(coverage, str):
        name = shown(experiment.algorithm.name)
        raise ExperimentError(
            f"privacy.kind = {shown(table.kind)}: expected 'none' with algorithm.name = {name}: {coverage}"
        )
    coverage = replace(coverage, not_covered=(*coverage.not_covered, *_outside_of_the_rounds(experiment)))
    sent = _sent_tensors(experiment, problem.layout, plan)
    exposure = _exposure(table, coverage, experiment.rounds, participation)
    delta = _delta(table, problem.clients)
    multiplier, epsilon = _noise(exposure, table.noise_multiplier, table.epsilon, delta)
    noise: dict[str, Any] = {
        "layout": problem.layout,
        "clip_norm": table.clip_norm,
        "noise_multiplier": multiplier,
        "noise_seed": noise_seed or NoiseSeed(problem.seed),
    }
    mechanism: CentralNoise | LocalNoise
    if table.kind == "local":
        mechanism = LocalNoise(**noise)
    else:
        mechanism = CentralNoise(
            **noise,
            released=sent,
            answers=participation.expected_answers,
            least_clients=table.min_cluster,
            rule=problem.aggregation.rule,
        )
    return PrivateRun(coverage, exposure, epsilon, delta, mechanism)


def _outside_of_the_rounds(experiment: Experiment) -> list[str]:
    """What a run gives away beside the rounds of its algorithm, in words."""
    method = experiment.personal_of()
    if experiment.privacy.kind == "central" and (why := getattr(method, "no_central_noise", "")):
        raise ExperimentError(f"personal.{why}")
    # A method that does not say what it sends may send anything.
    sent = "" if method is None else getattr(method, "sends", "what clients send for a personal method of your own")
    baseline = ""
    if baseline_of(experiment, experiment.engine) is not None:
        baseline = "the run of FedAvg beside this one (report.baseline), which has an epsilon of its own"
    inputs = "the means of features of inputs that clients send (records.inputs)" if experiment.records.inputs else ""
    return [text for text in (sent, baseline, inputs) if text]


def _sent_tensors(experiment: Experiment, layout: Layout, plan: Plan) -> Mask:
    """The tensors that clients send in some task of a plan, (l,)."""
    sent = tuple(any(masks) for masks in zip(*(task.upload for task in plan.tasks.values()), strict=True))
    for tensor, upload in zip(layout.tensors, sent, strict=True):
        if upload and tensor.kind == "buffer":
            raise ExperimentError(
                f"privacy.kind = {shown(experiment.privacy.kind)}: expected a network without running statistics, "
                f"found {tensor.name}, which noise would spoil; use group normalisation, or algorithm.name = 'fedbn'"
            )
    return sent


def _delta(table: PrivacyTable, clients: int) -> float:
    """The delta of a run of so many clients.

    Raises:
        ExperimentError: When it promises nothing.
    """
    if table.delta is None:
        return min(_LARGEST_DELTA, float(clients**_DELTA_EXPONENT))
    if table.delta > 1 / clients:
        raise ExperimentError(
            f"privacy.delta = {table.delta:g}: expected at most {1 / clients:.1g}, one over the number of clients; a "
            "larger one lets all data of some client be published"
        )
    return table.delta


def _refuse_unreachable_size(
    experiment: Experiment, disclosure: Disclosure | None, participation: Participation
) -> None:
    """Refuse a least size of clusters that nothing reaches, or that says nothing."""
    least = experiment.privacy.min_cluster
    # With central noise the members of a cluster are counted, and else those who answer: no model would ever move.
    largest = participation.clients
    if not participation.independent_dropout:
        size = cohort_size(largest, participation.fraction)
        largest = size - dropouts(size, participation.dropout)
    if least > largest:
        raise ExperimentError(
            f"privacy.min_cluster = {least}: expected at most {largest}, the clients that can answer in a round; "
            "lower it, or raise cohort.fraction"
        )
    if least > 1 and disclosure is not None and not disclosure.clients_keep_data:
        raise ExperimentError(
            f"privacy.min_cluster = {least}: expected 1 with algorithm.name = {experiment.algorithm.name!r}, which has "
            "one model of all data, and no clusters"
        )
    rule = experiment.server.aggregation
    if least > 1 and rule in MAY_HAND_ON_ONE:
        raise ExperimentError(
            f"privacy.min_cluster = {least}: expected 1 with server.aggregation = {rule!r}, which may hand on the "
            "update of a single client; use 'multi_krum', or another rule"
        )


def _refuse_unfit(experiment: Experiment) -> None:
    """Refuse what the accounting of central noise does not hold for."""
    server, cohort = experiment.server, experiment.cohort
    means = " or ".join(map(repr, MEANS))
    needed = (
        # Clients would add what they kept of their earlier updates.
        ("network.compression = 'top_k'", experiment.network.compression != "top_k", "'none', 'bfloat16' or 'int8'"),
        # The noise is for sums of clipped updates.
        (f"server.aggregation = {server.aggregation!r}", server.aggregation in MEANS, means),
        # No client may change how another one counts.
        (f"server.checks = {list(server.checks)}", server.checks in ("auto", ()), "[]"),
        ("cohort.weights", not cohort.weights, "clients of equal chance"),
        ("cohort.sampling = 'size'", cohort.sampling != "size", "clients of equal chance"),
    )
    for key, fits, expected in needed:
        if not fits:
            raise ExperimentError(f"{key}: expected {expected} with privacy.kind = 'central'")


def _exposure(table: PrivacyTable, coverage: Coverage, rounds: int, participation: Participation) -> Exposure:
    """What a client adds to over the run."""
    if table.kind == "local":
        # Whoever knows the cohorts knows in which rounds a client sent something.
        return Exposure("replace_one", rounds + coverage.further_queries)
    fixed = not participation.poisson
    # How the cohort of each round is drawn, each as one round.
    drawn = Counter[Sampled]()
    always = not participation.joins and not participation.leaves
    first = len(participation.active(1))
    for round in range(1, rounds + 1):
        clients = first if always else len(participation.active(round))
        size = cohort_size(clients, participation.fraction) if fixed else participation.fraction * clients
        drawn[Sampled(rounds=1, clients=clients, expected=float(size), fixed=fixed)] += 1
    by_chance = tuple(replace(one, rounds=times) for one, times in drawn.items() if one.clients > one.expected)
    queries = rounds - sum(each.rounds for each in by_chance) + coverage.further_queries
    return Exposure("replace_one" if fixed and by_chance else "add_or_remove_one", queries, by_chance)


@lru_cache(maxsize=32)
def _noise(exposure: Exposure, multiplier: float | None, epsilon: float | None, delta: float) -> tuple[float, float]:
    """The noise multiplier of a run, and the epsilon that it reaches. One of the two is given."""
    if multiplier is None:
        assert epsilon is not None
        multiplier = noise_for(exposure, epsilon, delta)
    return multiplier, epsilon_of(exposure, multiplier, delta)
