"""Split a cluster in two when its model is stationary for the cluster but not for its members.

Sattler, Müller, Samek, "Clustered federated learning: model-agnostic distributed multitask optimization under
privacy constraints", IEEE TNNLS 2020, Algorithms 1 to 3. Called FMTL or MTCFL by the papers that compare with it.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedstrata import core
from fedstrata.algorithms.keys import STRICT, AtLeastTwo, Auto, Gamma, NonNegative, PositiveInteger
from fedstrata.algorithms.layercfl import LayerCFL, LayerCFLState
from fedstrata.base.lazy_torch import torch
from fedstrata.base.limits import Share
from fedstrata.clustering.hierarchy import Linkage


@dataclass(frozen=True, config=STRICT)
class CFL(core.Algorithm[LayerCFLState]):
    """CFL: recursive bipartition by the cosines of whole updates, when their norms allow it.

    It is LayerCFL with all layers (conv and linear), but for one line: no cluster is ever final. Algorithm 3 examines
    every cluster in every round.

    A cluster is examined by the answers of its members in this round, if there are enough (quorum, min_split). A
    pending client belongs to no cluster now; at its next answer it joins one: of the leaves below the node where it is
    pending, the one whose model has the lowest training loss. Members that did not answer when their cluster was split
    are pending at its node, and newcomers at the root.

    Attributes:
        eps1: The norm of the mean update below which the model of a cluster is stationary. "auto", which is ours, is
            1.5 times the norm that the mean of such updates would have if their directions were independent.
        eps2: If the largest update norm is at least eps2, the model does not fit every member. "auto", which is ours,
            is 0.35 of the largest norm of an update so far, in the cluster or in those that it was part of.
        gamma: The largest approximation error that Theorem 1 assumes. 0 switches the theorem off.
        linkage: How similar two groups are. "single" minimises the largest similarity across the two groups exactly.
        first: The first round in which a cluster may be split.
        quorum: The share of the members asked in a round that must have answered for a cluster to be examined.
        min_split: The smallest number of members that must have answered for a cluster to be examined.
    """

    source: ClassVar[str] = "Sattler et al., IEEE TNNLS 2020"

    eps1: NonNegative | Auto = "auto"
    eps2: NonNegative | Auto = "auto"
    gamma: Gamma = 0.7
    linkage: Linkage = "single"
    # Not in the paper.
    first: PositiveInteger = 1
    quorum: Share = 0.5
    min_split: AtLeastTwo = 8

    def init(self, problem: core.Problem) -> LayerCFLState:
        """Everyone in one cluster."""
        return self._layercfl.init(problem)

    def update(
        self, problem: core.Problem, state: LayerCFLState, report: core.Report
    ) -> tuple[LayerCFLState, core.Diagnostics]:
        """Bipartition every cluster that meets the criterion, then average."""
        after, diagnostics = self._layercfl.update(problem, state, report)
        history = after.cluster_history
        return replace(after, cluster_history=replace(history, final=torch.zeros_like(history.final))), diagnostics

    @property
    def _layercfl(self) -> LayerCFL:
        """LayerCFL with all layers, and these keys."""
        return LayerCFL(layers="all", **{key.name: getattr(self, key.name) for key in fields(self)})
