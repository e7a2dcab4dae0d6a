"""Strata: a cluster is split only if models for its groups prove themselves on data that trained none of them.

No thresholds, no number of clusters and no choice of layers. fedstrata's own algorithm; docs/methods/strata.md has the
promise, its proof and its limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from annotated_types import Interval
from pydantic.dataclasses import dataclass

from fedstrata.algorithms.evidence.split_half import MIN_FOLD, is_split_half_round, next_level
from fedstrata.algorithms.keys import STRICT, Auto, NonNegativeInteger
from fedstrata.algorithms.strata.candidates import MIN_CLIENTS
from fedstrata.algorithms.strata.choices import (
    add_other_models,
    choice_events,
    choices_left,
    chosen_clusters,
)
from fedstrata.algorithms.strata.state import ClusterState, StrataState
from fedstrata.algorithms.strata.trial import Trial, Verdict, begin_trial, personal_trial, verdict_of
from fedstrata.algorithms.strata.trial_tasks import add_group_task, add_trial_tasks, group_updates, with_answers
from fedstrata.base.lazy_torch import torch
from fedstrata.core import (
    TRAIN,
    Decision,
    Diagnostics,
    Evaluation,
    Matrix,
    Plan,
    Problem,
    Report,
    State,
    aggregate,
    cluster_evaluation,
    extend_state,
    fedavg_plan,
    initial_state,
)


@dataclass(frozen=True, config=STRICT)
class Strata:
    """Strata: splits only what proves itself on other data; no thresholds, a bounded chance of a wrong split.

    In split-half rounds (2, 4, 6, 9, 13, 19, 28, each about 1.5 times the last) clients also train on half A of their
    data. Groups of clients with similar updates are candidates, and the model of a group is that of the cluster plus
    its mean update. In the next round, clients measure the losses of these models on half B. A cluster is split into
    groups if the members of each prefer its model beyond chance, and lose less by it than by one model for all. For
    clients of one distribution this happens, in any round of a run, with a probability of at most `alpha`.

    For some rounds after a split, each member may still take another one of the new clusters, by its training loss. A
    client that was absent becomes pending and takes the one of lowest training loss; so does a newcomer.

    Attributes:
        alpha: The largest probability, over the whole run, of splitting clients that all share one distribution.
            docs/methods/strata.md has the assumptions, and the bound for one cluster beside others that differ.
        reassignment_rounds: The number of rounds in which a client may still choose another cluster after its own was
            split, or after it has come.
        compares: Which models are to lower the loss of the members: those of the groups as they are ("group"), or
            personal models that clients make of them ("personal"). Auto is "personal" in a run with a personal stage,
            such as ``personal.method = "best"``, and else "group".
    """

    source: ClassVar[str] = "fedstrata, docs/methods/strata.md"
    default_checks: ClassVar[tuple[str, ...]] = ("directions", "norms")

    alpha: Annotated[float, Interval(gt=0, lt=1)] = 0.05
    reassignment_rounds: NonNegativeInteger = 2
    compares: Literal["group", "personal"] | Auto = "auto"

    def with_personal_models(self) -> Strata:
        """The algorithm for a run with a personal stage."""
        return replace(self, compares="personal") if self.compares == "auto" else self

    def init(self, problem: Problem) -> StrataState:
        """Everyone in one cluster."""
        nobody = torch.zeros(problem.clients, dtype=torch.int64)
        return extend_state(initial_state(problem), StrataState, clusters=(ClusterState(),), choices=nobody)

    def plan(self, problem: Problem, state: StrataState, cohort: torch.Tensor) -> Plan:
        """Everyone trains the model of its cluster. Some also train on half A, or judge models on half B."""
        plan = add_other_models(fedavg_plan(problem, state, cohort), state)
        plan = add_trial_tasks(plan, problem.layout, state.labels, state.trials)
        return add_group_task(plan, state.labels, _due(state), state.samples)

    def update(self, problem: Problem, state: StrataState, report: Report) -> tuple[StrataState, Diagnostics]:
        """Conclude trials, begin others, split clusters, and average the updates."""
        round = state.round + 1
        labels = self.assign(problem, state, report)

        # 1. Conclude the trials in which enough members have answered.
        clusters = list(state.clusters)
        splits = dict[int, list[torch.Tensor]]()
        decisions = dict[int, Decision]()
        for cluster, trial in state.trials.items():
            stayed = _stayed(state, labels, cluster)
            trial = with_answers(trial, report, stayed)
            if trial.is_complete(int(stayed.sum())):
                clusters[cluster], verdict = self._concluded(clusters[cluster], trial, round)
                decisions[cluster] = verdict.decision
                if clusters[cluster].trial is None and len(verdict.leaves) > 1:
                    splits[cluster] = [trial.clients[trial.groups.inside[leaf]] for leaf in verdict.leaves]
            elif trial.is_given_up(round):
                clusters[cluster] = replace(clusters[cluster], trial=None)
                decisions[cluster] = Decision("trial_given_up", values={"round": float(round)})
            else:
                clusters[cluster] = replace(clusters[cluster], trial=trial)

        # 2. Begin a trial in the clusters that are due.
        matrices = list[Matrix]()
        for cluster in _due(state):
            stayed = _stayed(state, labels, cluster)
            known = clusters[cluster]
            begun = begin_trial(
                problem,
                state.models[cluster],
                group_updates(report, stayed),
                level=next_level(self.alpha, known.trials_begun),
                node=int(state.nodes[cluster]),
                round=round,
            )
            if begun is not None:
                trial, likeness = begun
                clusters[cluster] = replace(known, trial=trial, trials_begun=known.trials_begun + 1)
                matrices += likeness
            elif state.tree[int(state.nodes[cluster])].decision is None:
                decisions[cluster] = _too_few_for_trial(int(stayed.sum()), round)

        # 3. Split clusters, and average the updates inside them (FedAvg).
        after_splits, parents, clusters = _split(state, labels, splits, clusters)
        after, diagnostics = aggregate(problem, state, report, after_splits, parents, decisions)
        choices = choices_left(state, report, labels, self.reassignment_rounds)
        for cluster in splits:
            choices[labels == cluster] = self.reassignment_rounds
        sizes = report.results[TRAIN].sizes
        samples = int(sizes.median()) if len(sizes) else state.samples
        after = replace(after, clusters=tuple(clusters), choices=choices, samples=samples)
        events = (*choice_events(state, labels), *diagnostics.events)
        return after, Diagnostics(events, diagnostics.metrics, tuple(matrices))

    def _concluded(self, known: ClusterState, trial: Trial, round: int) -> tuple[ClusterState, Verdict]:
        """A cluster after a trial in which enough members have answered, and what the trial says."""
        verdict = verdict_of(trial, round)
        known = replace(known, trial=None)
        if len(verdict.leaves) > 1 and self.compares == "personal" and not trial.of_personal_models:
            next_trial = personal_trial(trial, verdict, round)
            known = replace(known, trial=next_trial, last_personal_trial=round)
            verdict = replace(verdict, decision=replace(verdict.decision, kind="groups_on_trial"))
        return known, verdict

    def assign(self, problem: Problem, state: StrataState, report: Report) -> torch.Tensor:
        """Clients that are pending, or may choose, belong to the model of lowest loss on their training data."""
        return chosen_clusters(state, report)

    def evaluations(self, problem: Problem, state: State, clients: torch.Tensor) -> dict[str, Evaluation]:
        """Everyone uses the model of its cluster."""
        return cluster_evaluation(problem, state, clients)


def _too_few_for_trial(members: int, round: int) -> Decision:
    """The decision about a cluster of which too few members have enough samples, or sent anything."""
    values = {"round": float(round), "members": float(members), "least": float(MIN_CLIENTS), "samples": 2.0 * MIN_FOLD}
    return Decision("too_few_for_trial", values=values)


def _stayed(state: StrataState, labels: torch.Tensor, cluster: int) -> torch.Tensor:
    """Who was in a cluster before a round and is in it after the choices of the round, bool (n,)."""
    return (labels == cluster) & (state.labels == cluster)


def _due(state: StrataState) -> list[int]:
    """The clusters in which a trial begins in the round after a state."""
    round = state.round + 1
    if not is_split_half_round(round):
        return []
    return [cluster for cluster, known in enumerate(state.clusters) if known.is_due(round)]


def _split(
    state: StrataState,
    labels: torch.Tensor,
    splits: Mapping[int, Sequence[torch.Tensor]],
    clusters: Sequence[ClusterState],
) -> tuple[torch.Tensor, torch.Tensor, list[ClusterState]]:
    """A cluster for each group of a split.

    Members that are in no group become pending. A cluster that all members have just left for others ends.

    Args:
        state: The state before the round.
        labels: The cluster of each client, (n,).
        splits: The clients of each group of a split, ids, by cluster.
        clusters: What is known of each cluster.

    Returns:
        The clusters of the clients, (n,); the cluster that each comes from, (k',); and what is known of each.
    """
    after = torch.full_like(labels, -1)
    parents = list[int]()
    known = list[ClusterState]()
    for cluster, memory in enumerate(clusters):
        members = labels == cluster
        if cluster in splits:
            for clients in splits[cluster]:
                after[clients] = len(parents)
                parents.append(cluster)
                known.append(ClusterState(trials_begun=memory.trials_begun))
        elif bool(members.any()) or not bool((labels[state.labels == cluster] >= 0).any()):
            after[members] = len(parents)
            parents.append(cluster)
            known.append(memory)
    return after, torch.tensor(parents), known
