"""Secure aggregation of a run: on what terms clients add up, and what cannot be done where nobody sees an update."""

from __future__ import annotations

from fedstrata.algorithms import ALGORITHMS
from fedstrata.base.errors import ExperimentError
from fedstrata.build.participation import cohort_size, most_answers
from fedstrata.build.privacy import refuse_more_than_answer
from fedstrata.config import Experiment
from fedstrata.core import TRAIN, Layout, Plan
from fedstrata.core.aggregation_rules import MEANS
from fedstrata.flower.secure_sum.sums import SumTerms, require_sums_alone
from fedstrata.uploads.coverage import UNDECLARED
from fedstrata.uploads.disclosure import Disclosure, disclosure_of

_ON = "with privacy.secure_aggregation = true"


def sum_terms(experiment: Experiment, layout: Layout, disclosure: Disclosure | None, plan: Plan) -> SumTerms:
    """The terms of the sums that the server sees in place of updates, if it sees sums.

    Args:
        experiment: The experiment.
        layout: The tensors of the network.
        disclosure: What the algorithm says that it discloses; None if it says nothing.
        plan: The first plan of the algorithm, for all clients.

    Raises:
        ExperimentError: When something in the experiment needs single updates.
        ContractError: When the plan asks for more than the algorithm says.
    """
    table = experiment.privacy
    if not table.secure_aggregation:
        return SumTerms()
    _refuse_algorithm(experiment, disclosure)
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
    refuse_more_than_answer("min_sum", table.min_sum, experiment)
    require_sums_alone(plan)
    _refuse_buffers(layout, plan)
    terms = SumTerms(
        secure=True,
        limit=table.sum_limit,
        bits=table.sum_bits,
        min_clients=table.min_sum,
        weighted=rule == "mean",
    )
    _refuse_dropout(experiment, terms)
    return terms


def _refuse_dropout(experiment: Experiment, terms: SumTerms) -> None:
    """Refuse a drop-out of so many clients that no sum is ever opened."""
    cohort = experiment.cohort
    asked = cohort_size(experiment.data.clients, cohort.fraction)
    if cohort.sampling != "poisson" and most_answers(experiment) < terms.needed(asked):
        raise ExperimentError(
            f"cohort.dropout = {cohort.dropout:g}: expected less {_ON}, where {terms.needed(asked)} of the {asked} "
            "clients of a round have to answer; lower it"
        )


def _refuse_algorithm(experiment: Experiment, disclosure: Disclosure | None) -> None:
    """Refuse algorithms that look at single updates, and newcomers that would have to choose a cluster."""
    name = experiment.algorithm.name
    if disclosure is None:
        raise ExperimentError(f"algorithm.name = {name!r}: expected another one {_ON}: {UNDECLARED}")
    if disclosure.server_needs != "sums":
        expected = ", ".join(_summing_algorithms(experiment.rounds))
        raise ExperimentError(
            f"algorithm.name = {name!r}: expected one of {expected} {_ON}, as the server sees no "
            "single update, by which others decide about clusters; take one of them, or leave secure_aggregation out"
        )
    events = experiment.events
    if disclosure.given_clusters and (events.join or events.change):
        raise ExperimentError(
            f"events.{'join' if events.join else 'change'}: expected none {_ON} and algorithm.name = {name!r}, as a "
            "client without a cluster would have to train before it has one, and would be in no sum"
        )


def _summing_algorithms(rounds: int) -> list[str]:
    """The algorithms of the library whose server needs sums alone."""
    own = {name: kind for name, kind in ALGORITHMS.items() if kind.__module__.startswith("fedstrata.")}
    found = {name: disclosure_of(kind(), rounds) for name, kind in own.items()}
    return [name for name, each in found.items() if each is not None and each.server_needs == "sums"]


def _refuse_buffers(layout: Layout, plan: Plan) -> None:
    """Refuse to send running statistics, which have no common range."""
    for tensor, sent in zip(layout.tensors, plan.tasks[TRAIN].upload, strict=True):
        if sent and tensor.kind == "buffer":
            raise ExperimentError(
                f"privacy.secure_aggregation = true: expected a network without running statistics, found "
                f"{tensor.name}, which has no common range; use group normalisation, or algorithm.name = 'fedbn'"
            )
