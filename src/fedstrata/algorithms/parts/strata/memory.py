"""What Strata remembers between rounds."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedstrata.algorithms.parts.proof.testimony import Testimony
from fedstrata.algorithms.parts.strata.calm import Calm
from fedstrata.algorithms.parts.strata.trial import Trial
from fedstrata.core import Problem, Report, State, initial_state
from fedstrata.lazy_torch import torch


@dataclass(frozen=True)
class Memory:
    """What is remembered of one cluster.

    Attributes:
        evidence: about its members; None before the first twin round.
        tests: that it was put to, those as a side of another cluster included.
        trials: of it, and of the clusters that it comes from, in which duels might have parted its members.
        heard: the last round in which it, or the cluster that it was split from, was to be tested; 0 before the first.
        answered: the most members that answered in a round so far.
        settling: rounds for which its members may still go over to the other side of its split.
        trial: groups of which it is not known yet whether models of their own serve them better.
        refused: whether groups inside the sides of a test once did not pay; then later trials are of the sides alone,
            at a fraction of the cost.
    """

    evidence: Testimony | None = None
    tests: int = 0
    trials: int = 0
    heard: int = 0
    answered: int = 0
    settling: int = 0
    trial: Trial | None = None
    refused: bool = False

    def of(self, members: torch.Tensor) -> Memory:
        """As far as it speaks of those who are still members, a bool (n,)."""
        evidence = self.evidence and self.evidence.only(members[self.evidence.clients])
        return replace(self, evidence=evidence, trial=self.trial and self.trial.only(members[self.trial.clients]))

    def on(self, trial: Trial | None) -> Memory:
        """With a trial that begins, if any does."""
        return replace(self, trial=trial, trials=self.trials + (trial is not None and trial.groups.unproven > 0))

    def after(self, trial: Trial, *, made: bool) -> Memory:
        """When a trial is over, and a split was made or not."""
        dear = trial.groups.proven > 0 and len(trial.groups) > 3
        return replace(self, trial=None, refused=self.refused or (dear and not made))

    @property
    def idle(self) -> bool:
        """Whether the cluster may be tested: it is not busy with a split."""
        return self.trial is None and not self.settling


@dataclass(frozen=True)
class Stratified(State):
    """What Strata knows.

    Attributes:
        memories: of every cluster, (k).
        sizes: training samples of each client, (n,); 0 where they are not known.
        tests: to which a side of a confirmed split with the client was put, as the cluster that it might become, (n,).
        newcomers: who came late, or whose data changed, and was not compared with its cluster yet, bool (n,).
        aside: who waits because its cluster was split, bool (n,).
        calm: how steadily the clients' updates turn; None where the calendar alone says when to test.
    """

    memories: tuple[Memory, ...]
    sizes: torch.Tensor
    tests: torch.Tensor
    newcomers: torch.Tensor
    aside: torch.Tensor
    calm: Calm | None


def blank(problem: Problem, calm: Calm | None) -> Stratified:
    """Everyone in one cluster, nothing known of anyone."""
    zeros, nobody = (torch.zeros(problem.clients, dtype=kind) for kind in (torch.int64, torch.bool))
    return Stratified(
        **vars(initial_state(problem)),
        memories=(Memory(),),
        sizes=zeros,
        tests=zeros,
        newcomers=nobody,
        aside=nobody,
        calm=calm,
    )


def examined(state: Stratified, cluster: int) -> bool:
    """Whether the tree says what came of a test of a cluster; those of a side are told of the cluster it came from."""
    decision = state.tree[int(state.nodes[cluster])].decision
    return decision is not None and "p" in decision.values


def recalled(state: Stratified) -> Stratified:
    """The state without what is no longer true, now that clients have come, left, changed or been misplaced."""
    arrived = (state.labels < 0) & ~state.aside
    memories = [memory.of(state.labels == cluster) for cluster, memory in enumerate(state.memories)]
    sizes, tests = (torch.where(arrived, 0, each) for each in (state.sizes, state.tests))
    return replace(state, memories=tuple(memories), sizes=sizes, tests=tests, newcomers=state.newcomers | arrived)


def noted(before: Stratified, after: Stratified, report: Report) -> Stratified:
    """The state after a round, with who answered from where, and who waits because of a split.

    Args:
        before: the round.
        after: it.
        report: of it.
    """
    answered = after.labels[report.results[0].updates.clients]
    counts = [int((answered == cluster).sum()) for cluster in range(len(after.memories))]
    memories = [replace(each, answered=max(n, each.answered)) for each, n in zip(after.memories, counts, strict=True)]
    aside = (after.labels < 0) & ((before.labels >= 0) | before.aside)
    return replace(after, memories=tuple(memories), aside=aside)
