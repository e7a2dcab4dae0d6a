"""Differential privacy of a run: what it promises, with how much noise, and for what it does not stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from fedstrata.base.errors import ExperimentError
from fedstrata.base.quoting import shown
from fedstrata.build.participation import Participation, cohort_size, most_answers
from fedstrata.config import Experiment
from fedstrata.config.selection import baseline_of
from fedstrata.config.tables import PrivacyTable
from fedstrata.core import Layout, Mask, Plan, Problem
from fedstrata.uploads.accounting import Exposure, Sampled, epsilon_of, noise_for
from fedstrata.uploads.disclosure import Coverage, Disclosure, coverage_of
from fedstrata.uploads.noise import CentralNoise, LocalNoise, NoiseSeed
from fedstrata.uploads.rules import MEANS

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
        amount: How much noise there is, and what it promises.
        mechanism: What the server does with updates, or what clients do before they send them.
    """

    coverage: Coverage
    exposure: Exposure
    amount: NoiseAmount
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
            "epsilon": self.amount.epsilon,
            "delta": self.amount.delta,
            "noise_multiplier": self.amount.multiplier,
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
        full = epsilon_of(self.exposure.with_full_participation, self.amount.multiplier, self.amount.delta)
        return bool(self.exposure.sampled) and self.amount.epsilon < full

    @property
    def line(self) -> str:
        """The same in one line for people."""
        return (
            f"privacy: epsilon {self.amount.epsilon:.3g} at delta {self.amount.delta:.1g} for any one client (noise "
            f"multiplier {self.amount.multiplier:.3g}, {self.kind}). Covered: {', '.join(self.coverage.covered)}. "
            f"Not covered: {', '.join(self.coverage.not_covered)}"
        )


class NoiseAmount(NamedTuple):
    """How much noise a run has, and what it promises.

    Attributes:
        multiplier: The standard deviation of the noise, divided by the clipping norm.
        epsilon: What the run reaches.
        delta: What goes with it.
    """

    multiplier: float
    epsilon: float
    delta: float


def private_run(
    experiment: Experiment,
    problem: Problem,
    disclosure: Disclosure | None,
    plan: Plan,
    participation: Participation,
    *,
    noise_seed: NoiseSeed | None = None,
    participants_known: bool = True,
) -> PrivateRun | None:
    """The differential privacy of an experiment; None where there is none.

    Args:
        experiment: The experiment.
        problem: What is fixed for the run.
        disclosure: What its algorithm says that it discloses; None if it says nothing.
        plan: The first plan of the algorithm, for all clients.
        participation: Who takes part, by chance.
        noise_seed: The seed of the noise; by default that of the run, which is no secret.
        participants_known: Whether it is known before the run who can take part in each round.

    Raises:
        ExperimentError: When something in the experiment has no differential privacy.
    """
    table = experiment.privacy
    _refuse_unreachable_size(experiment, disclosure)
    if table.kind == "none":
        return None
    _refuse_unfit(experiment)
    coverage = covered_by_epsilon(experiment, disclosure, plan, participants_known=participants_known)
    sent = _sent_tensors(experiment, problem.layout, plan)
    exposure = _exposure(table, coverage, experiment.rounds, participation)
    amount = noise_of_run(table, exposure, problem.clients)
    seed = NoiseSeed(problem.seed) if noise_seed is None else noise_seed
    mechanism: CentralNoise | LocalNoise
    if table.kind == "central":
        mechanism = CentralNoise(
            layout=problem.layout,
            released=sent,
            clip_norm=table.clip_norm,
            noise_multiplier=amount.multiplier,
            answers=participation.expected_answers,
            least_clients=table.min_cluster,
            noise_seed=seed,
            rule=problem.aggregation.rule,
        )
    else:
        mechanism = LocalNoise(
            layout=problem.layout, clip_norm=table.clip_norm, noise_multiplier=amount.multiplier, noise_seed=seed
        )
    return PrivateRun(coverage, exposure, amount, mechanism)


def with_central_privacy(problem: Problem, private: PrivateRun | None) -> Problem:
    """The problem of a run in which the server adds noise, if it does."""
    if private is None or not isinstance(private.mechanism, CentralNoise):
        return problem
    return replace(problem, aggregation=private.mechanism)


def client_noise(private: PrivateRun | None) -> LocalNoise | None:
    """What the clients of a run do with updates before they send them, if they do."""
    if private is None or not isinstance(private.mechanism, LocalNoise):
        return None
    return private.mechanism


def covered_by_epsilon(
    experiment: Experiment, disclosure: Disclosure | None, plan: Plan, *, participants_known: bool
) -> Coverage:
    """What epsilon covers in an experiment.

    Args:
        experiment: The experiment.
        disclosure: What its algorithm says that it discloses; None if it says nothing.
        plan: The first plan of the algorithm.
        participants_known: As in `private_run`.

    Raises:
        ExperimentError: When the algorithm, or what clients make of its models, has no differential privacy.
    """
    kind = experiment.privacy.kind
    assert kind != "none"
    events = experiment.events
    newcomers = bool(events.join or events.change) or not participants_known
    coverage = coverage_of(kind, disclosure, plan, experiment.rounds, newcomers=newcomers)
    if isinstance(coverage, str):
        name = shown(experiment.algorithm.name)
        raise ExperimentError(f"privacy.kind = {shown(kind)}: expected 'none' with algorithm.name = {name}: {coverage}")
    return replace(coverage, not_covered=(*coverage.not_covered, *_outside_of_the_rounds(experiment)))


def _outside_of_the_rounds(experiment: Experiment) -> list[str]:
    """What a run gives away beside the rounds of its algorithm, in words."""
    # Here, as it loads all that it computes with.
    from fedstrata.personal.best import Best

    outside = list[str]()
    method = experiment.personal_of()
    if isinstance(method, Best):
        if method.prior == "cohort" and experiment.privacy.kind == "central":
            raise ExperimentError(
                "personal.prior = 'cohort': expected 'none' with privacy.kind = 'central', as how much a client keeps "
                "of a tuned model would depend on the losses of all others, without noise"
            )
        outside.append("the losses by which clients choose how much of a tuned model they keep")
    elif ":" in experiment.personal.method:
        outside.append("what clients send for a personal method of your own")
    if baseline_of(experiment, experiment.engine) is not None:
        outside.append("the run of FedAvg beside this one (report.baseline), which has an epsilon of its own")
    return outside


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


def noise_of_run(table: PrivacyTable, exposure: Exposure, clients: int) -> NoiseAmount:
    """How much noise a run has, and what it promises.

    Args:
        table: The keys, of which one of two says how much.
        exposure: What a client adds to.
        clients: The number of clients.

    Raises:
        ExperimentError: When delta promises nothing.
    """
    if table.delta is not None and table.delta > 1 / clients:
        raise ExperimentError(
            f"privacy.delta = {table.delta:g}: expected at most {1 / clients:.1g}, one over the number of clients; a "
            "larger one lets all data of some client be published"
        )
    delta = table.delta if table.delta is not None else min(_LARGEST_DELTA, clients**_DELTA_EXPONENT)
    return _amount(exposure, table.noise_multiplier, table.epsilon, delta)


def _refuse_unreachable_size(experiment: Experiment, disclosure: Disclosure | None) -> None:
    """Refuse a least size of clusters that nothing reaches, or that says nothing."""
    least = experiment.privacy.min_cluster
    clients = experiment.data.clients
    if least > clients:
        raise ExperimentError(f"privacy.min_cluster = {least}: expected at most {clients}, the number of clients")
    cohort = experiment.cohort
    largest = most_answers(experiment)
    # With central noise the members of a cluster are counted, and else those who answer: no model would ever move.
    if experiment.privacy.kind != "central" and least > largest:
        dropout = f", without cohort.dropout = {cohort.dropout:g}" if cohort.dropout else ""
        raise ExperimentError(
            f"privacy.min_cluster = {least}: expected at most {largest}, the clients of a round with cohort.fraction = "
            f"{cohort.fraction:g} of {clients}{dropout}; lower it, or raise cohort.fraction"
        )
    if least > 1 and disclosure is not None and not disclosure.clients_keep_data:
        raise ExperimentError(
            f"privacy.min_cluster = {least}: expected 1 with algorithm.name = {experiment.algorithm.name!r}, which has "
            "one model of all data, and no clusters"
        )
    rule = experiment.server.aggregation
    # The geometric median is the update of a client with more than half of the samples.
    if least > 1 and rule in ("krum", "geometric_median"):
        raise ExperimentError(
            f"privacy.min_cluster = {least}: expected 1 with server.aggregation = {rule!r}, which may hand on the "
            "update of a single client; use 'multi_krum', or another rule"
        )


def _refuse_unfit(experiment: Experiment) -> None:
    """Refuse what the accounting does not hold for."""
    if experiment.privacy.kind == "local":
        return
    if experiment.network.compression == "top_k":
        raise ExperimentError(
            "network.compression = 'top_k': expected 'none', 'bfloat16' or 'int8' with privacy.kind = 'central', whose "
            "accounting is for clients that keep nothing of their earlier updates"
        )
    rule = experiment.server.aggregation
    if rule not in MEANS:
        raise ExperimentError(
            f"server.aggregation = {rule!r}: expected {' or '.join(map(repr, MEANS))} with privacy.kind = 'central', "
            "whose noise is for sums of clipped updates; use privacy.kind = 'local', or a mean"
        )
    if experiment.server.checks not in ("auto", ()):
        raise ExperimentError(
            f"server.checks = {list(experiment.server.checks)}: expected [] with privacy.kind = 'central', where no "
            "client may change how another one counts"
        )
    cohort = experiment.cohort
    if cohort.weights or cohort.sampling == "size":
        found = "cohort.weights" if cohort.weights else "cohort.sampling = 'size'"
        raise ExperimentError(
            f"{found}: expected clients of equal chance with privacy.kind = 'central'; use cohort.sampling = 'poisson'"
        )


def _exposure(table: PrivacyTable, coverage: Coverage, rounds: int, participation: Participation) -> Exposure:
    """What a client adds to over the run."""
    if table.kind == "local":
        # Whoever knows the cohorts knows in which rounds a client sent something.
        return Exposure("replace_one", rounds + coverage.further_queries)
    drawn = Counter(_cohorts(rounds, participation))
    by_chance = tuple(replace(one, rounds=times) for one, times in drawn.items() if one.clients > one.expected)
    queries = rounds - sum(each.rounds for each in by_chance) + coverage.further_queries
    fixed = any(each.fixed for each in by_chance)
    return Exposure("replace_one" if fixed else "add_or_remove_one", queries, by_chance)


def _cohorts(rounds: int, participation: Participation) -> Iterator[Sampled]:
    """How the cohort of each round is drawn, each as one round."""
    always = not participation.joins and not participation.leaves
    first = len(participation.active(1))
    for round in range(1, rounds + 1):
        clients = first if always else len(participation.active(round))
        if participation.poisson:
            yield Sampled(rounds=1, clients=clients, expected=participation.fraction * clients, fixed=False)
        else:
            size = float(cohort_size(clients, participation.fraction))
            yield Sampled(rounds=1, clients=clients, expected=size, fixed=True)


@lru_cache(maxsize=32)
def _amount(exposure: Exposure, multiplier: float | None, epsilon: float | None, delta: float) -> NoiseAmount:
    """The amount of noise, of which either the multiplier or epsilon is given."""
    if multiplier is None:
        assert epsilon is not None
        multiplier = noise_for(exposure, epsilon, delta)
    return NoiseAmount(multiplier, epsilon_of(exposure, multiplier, delta), delta)
