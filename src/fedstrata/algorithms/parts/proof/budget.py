"""What folds of the clients' data prove: when clusters are tested, at what price, and what came of it.

A cluster has a budget for the chance of splitting it although all its members are alike, and its tests share it.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedstrata.algorithms.parts.proof.testimony import Testimony, add, silence
from fedstrata.clustering import Confirmation
from fedstrata.core import Decision, Layout, Rows
from fedstrata.lazy_torch import torch

FOUND = "the groups found in one part of the data hold in the other"
"""What a confirmed test of groups means."""


def is_twin_round(round: int) -> bool:
    """Whether clients train on folds too: in rounds 2, 3, 4, 6, 9, 13, 19, 28 and so on, each half as late again."""
    turn = 2
    while turn < round:
        turn = turn * 3 // 2
    return turn == round


def level(alpha: float, tests: int) -> float:
    """What the next test of a cluster may spend after so many: alpha / 2, / 6, / 12, ...; all together spend alpha.

    Shares that fall faster leave nothing for a late structure, of which the evidence of many twin rounds is gathered.
    """
    return alpha / ((tests + 1) * (tests + 2))


def gathered(layout: Layout, known: Testimony | None, sent: Sequence[Rows], members: torch.Tensor) -> Testimony:
    """What is known of the members of a cluster, a bool (n,), with what they sent in this round."""
    if known is None or known.folds != len(sent):
        known = silence(layout, len(sent))
    return add(layout, known.only(members[known.clients]), sent)


def spoken(found: Confirmation, round: int, confirmed: str = FOUND) -> Decision:
    """A test in words; what it means if it confirms a split."""
    if not found.tested:
        return Decision(f"not tested in round {round}: {found.reason}")
    chance = f"p = {found.p:.2g}, level {found.level:.2g}"
    criteria = {
        "z": found.statistic,
        "contrast": found.contrast,
        "p": found.p,
        "level": found.level,
        "floor": found.floor,
    }
    why = f"not split: {chance} in round {round}"
    if found.confirmed:
        why = f"round {round}, {found.layer}: {confirmed} (Z = {found.statistic:.1f}, {chance})"
    return Decision(why, found.layer, criteria)
