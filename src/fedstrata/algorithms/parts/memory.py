"""What Strata remembers between rounds."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedstrata.algorithms.parts.calm import Calm
from fedstrata.algorithms.parts.testimony import Testimony
from fedstrata.algorithms.parts.trial import Trial
from fedstrata.core import Problem, Report, State, begin
from fedstrata.lazy import torch

CHANGED = 0.2
"""Share of its members that must have changed before a cluster whose split did not pay is tested again."""


@dataclass(frozen=True)
class Memory:
    """What is remembered of one cluster.

    Attributes:
        evidence: about its members; None before the first twin round.
        tests: that it was put to.
        heard: the last round in which it was to be tested; 0 before the first.
        answered: members that answered in the last round.
        settling: rounds for which its members may still go over to the other side of its split.
        trial: a confirmed split of which it is not known yet whether it pays.
        refused: the members when a split into groups was last tried; none if none was.
    """

    evidence: Testimony | None = None
    tests: int = 0
    heard: int = 0
    answered: int = 0
    settling: int = 0
    trial: Trial | None = None
    refused: tuple[int, ...] = ()

    def of(self, members: torch.Tensor) -> Memory:
        """As far as it speaks of those who are still members, a bool (n,)."""
        evidence = self.evidence and self.evidence.only(members[self.evidence.clients])
        return replace(self, evidence=evidence, trial=self.trial and self.trial.only(members[self.trial.clients]))

    def on(self, trial: Trial | None, members: torch.Tensor | None) -> Memory:
        """With a trial, if there is one; of groups among all members, a bool (n,), or of newcomers."""
        if trial is None:
            return self
        tried = self.refused if members is None else tuple(members.nonzero().flatten().tolist())
        return replace(self, trial=trial, refused=tried)

    def idle(self, members: torch.Tensor) -> bool:
        """Whether the cluster may be tested: it is not busy with a split, and none has been refused to its members."""
        changed = len(set(members.nonzero().flatten().tolist()) ^ set(self.refused))
        return self.trial is None and not self.settling and changed >= CHANGED * len(self.refused)


@dataclass(frozen=True)
class Stratified(State):
    """What Strata knows.

    Attributes:
        memories: of every cluster, (k).
        sizes: training samples of each client, (n,); 0 where they are not known.
        newcomers: who came late, or whose data changed, and was not compared with its cluster yet, bool (n,).
        aside: who waits because its cluster was split, bool (n,).
        calm: how steadily the clients' updates turn; None where the calendar alone says when to test.
    """

    memories: tuple[Memory, ...]
    sizes: torch.Tensor
    newcomers: torch.Tensor
    aside: torch.Tensor
    calm: Calm | None


def blank(problem: Problem, calm: Calm | None) -> Stratified:
    """Everyone in one cluster, nothing known of anyone."""
    sizes, none = torch.zeros(problem.clients, dtype=torch.int64), torch.zeros(problem.clients, dtype=torch.bool)
    return Stratified(**vars(begin(problem)), memories=(Memory(),), sizes=sizes, newcomers=none, aside=none, calm=calm)


def recalled(state: Stratified) -> Stratified:
    """The state without what is no longer true, now that clients have come, left, changed or been misplaced."""
    arrived = (state.labels < 0) & ~state.aside
    memories = [memory.of(state.labels == cluster) for cluster, memory in enumerate(state.memories)]
    sizes, newcomers = torch.where(arrived, 0, state.sizes), state.newcomers | arrived
    return replace(state, memories=tuple(memories), sizes=sizes, newcomers=newcomers)


def noted(before: Stratified, after: Stratified, report: Report) -> Stratified:
    """The state after a round, with who answered from where, and who waits because of a split.

    Args:
        before: the round.
        after: it.
        report: of it.
    """
    answered = after.labels[report.results[0].updates.clients]
    memories = [replace(each, answered=int((answered == c).sum())) for c, each in enumerate(after.memories)]
    aside = (after.labels < 0) & ((before.labels >= 0) | before.aside)
    return replace(after, memories=tuple(memories), aside=aside)
