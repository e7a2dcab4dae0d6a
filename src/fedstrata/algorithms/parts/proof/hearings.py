"""Who is heard of a cluster: whose data are cut into folds, and into how many."""

from __future__ import annotations

from dataclasses import dataclass

from fedstrata.algorithms.parts.proof.testimony import FEWEST
from fedstrata.clustering import surest
from fedstrata.core import Decision, Problem, State
from fedstrata.lazy_torch import torch

FEW = 12
"""Members up to which four folds are used, if they are large enough; with more, two reach the levels of eight tests."""

LEAST = 24
"""Samples of a fold below which a client does not vote."""

MOST = 200
"""Members of whom a random sample votes; the others follow the models."""


@dataclass(frozen=True)
class Hearing:
    """The voters of one cluster in a twin round, ids (m,), and the number of their folds."""

    cluster: int
    clients: torch.Tensor
    folds: int

    @property
    def few(self) -> bool:
        """Whether there are too few for a test of folds."""
        return self.folds == 1

    @property
    def cut(self) -> int:
        """Into how many equal parts a client's data are cut, of which a fold is one."""
        return max(2, self.folds)


def hearing(
    problem: Problem,
    state: State,
    sizes: torch.Tensor,
    cluster: int,
    folds: int | str,
    level: float,
    present: int | None = None,
) -> Hearing | None:
    """Who votes in a cluster; None where even two clear groups among them would not reach the level.

    Args:
        problem: fixed for the run.
        state: before the round.
        sizes: training samples of each client, (n,); 0 where they are not known yet.
        cluster: which.
        folds: of each voter, or ``"auto"``.
        level: of the test.
        present: members that are likely to answer; all of them by default.
    """
    members = (state.labels == cluster).nonzero().flatten()
    few = min(len(members), len(members) if present is None else max(present, 1)) <= FEW
    found = list[Hearing]()
    for count in ((4, 2) if few else (2,)) if isinstance(folds, str) else (folds,):
        # Whose samples are not known may turn out to have too few; then it is not heard.
        voters = members[(sizes[members] >= count * LEAST) | (sizes[members] == 0)]
        if len(voters) > MOST:
            draw = problem.generator(f"voters of node {int(state.nodes[cluster])}")
            voters = voters[torch.randperm(len(voters), generator=draw)[:MOST].sort().values]
        # Four folds tell any four clients apart, two need enough clients to be re-paired.
        able = len(voters) >= FEWEST and bool(sizes[voters].any())
        if able and (count == 4 or surest([len(voters)]) <= level):
            found.append(Hearing(cluster, voters, count))
    return max(found, key=lambda each: len(each.clients), default=None)


def handful(state: State, sizes: torch.Tensor, cluster: int) -> Hearing | None:
    """The voters of a cluster of two or three, whom folds cannot tell apart; None of another, or without samples."""
    members = (state.labels == cluster).nonzero().flatten()
    voters = members[sizes[members] >= 2 * LEAST]
    return Hearing(cluster, voters, 1) if len(voters) >= 2 and len(members) < FEWEST else None


def unheard(state: State, sizes: torch.Tensor, cluster: int, folds: int | str = "auto") -> Decision:
    """Why a cluster has no voters, in words."""
    members, count = state.labels == cluster, 2 if isinstance(folds, str) else folds
    able = f"{int((sizes[members] >= count * LEAST).sum())} of {int(members.sum())} members are known to have"
    why = f"{able} {count * LEAST} samples, enough for {count} folds; these are too few clients to tell apart"
    return Decision(f"not tested in round {state.round + 1}: {why}")
