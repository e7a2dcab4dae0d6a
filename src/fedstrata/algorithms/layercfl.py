"""CFL on the layers in which clients differ.

Yuan, Qian, Yuan, et al., "LayerCFL: an efficient federated learning with layer-wised clustering", Cybersecurity 2023,
Algorithms 1 and 2. One round is one pass of Algorithm 1's repeat: `plan` and local training are FedAvg's
(`core.standard_round`, `engine`).

Compare convolutions under feature skew and fully connected layers under label skew. The paper takes one layer, by
statistics; `conv` joins all convolutions. Name one to follow the paper, such as `conv4` of `vgg16`, the paper's fourth
layer. With all layers the method is CFL, but for final clusters; its cosine is Eq. 6.

`LayerCFL` is the paper. With ``layers = "auto"``, `AutoLayerCFL` first finds the layer to compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass as plain_dataclass
from dataclasses import fields, replace
from typing import Any, ClassVar, TypeVar

from pydantic.dataclasses import dataclass

from fedstrata.algorithms.bipartition.round import (
    RoundAnswers,
    SplitDecision,
    collect_answers,
    independent_norm,
    max_norm,
    mean_norm,
    split_and_average,
)
from fedstrata.algorithms.evidence.layer_scan import LayerEvidence, no_evidence, scan_plan, scan_round, views_with_bias
from fedstrata.algorithms.keys import (
    STRICT,
    AtLeastTwo,
    Auto,
    Gamma,
    NonNegative,
    PositiveInteger,
    Selectors,
    selector_tuple,
)
from fedstrata.base.lazy_torch import torch
from fedstrata.base.limits import Share
from fedstrata.clustering import CLIENT_MEASURES, ClientMeasureName, bipartition, cosine
from fedstrata.clustering.hierarchy import Linkage
from fedstrata.clustering.separation import theorem_1_bound
from fedstrata.clustering.similarity import STILL
from fedstrata.core import (
    Algorithm,
    Decision,
    Diagnostics,
    Matrix,
    Plan,
    Problem,
    Report,
    Result,
    State,
    assign_pending,
    extend_state,
    fedavg_plan,
    initial_state,
)

_EPS1_OF_INDEPENDENT = 1.5
"""The automatic eps1, in multiples of the norm that the mean of independent updates has. Where clients are alike, their
mean update is several times as long at first, and tends to that norm."""

_EPS2_SHARE = 0.35
"""The automatic eps2, as a share of the longest update in the compared layers. A local model that fits its client
hardly moves; where clients of two groups share one, updates stay long. It was chosen with seeds below 10 of the data of
``experiments/papers/defaults.py``, whose results are of others."""


@plain_dataclass(frozen=True)
class ClusterHistory:
    """What is remembered of every cluster.

    Attributes:
        max_norms: The largest norm of any member's update so far in the compared layers, (k,). A part has at least
            that of the cluster that it was part of.
        final: The clusters that are not examined again, (k,) bool. A client that joins one reopens it.
        labels: The cluster of each client after the last round, (n,), which tells who has been moved since.
    """

    max_norms: torch.Tensor
    final: torch.Tensor
    labels: torch.Tensor


@plain_dataclass(frozen=True)
class LayerCFLState(State):
    """What LayerCFL remembers.

    Attributes:
        cluster_history: What is remembered of every cluster.
    """

    cluster_history: ClusterHistory


LayerCFLStateT = TypeVar("LayerCFLStateT", bound=LayerCFLState)


@dataclass(frozen=True, config=STRICT)
class LayerCFL(Algorithm[LayerCFLState]):
    """LayerCFL: recursive bipartition by the cosines of some layers' updates, when their norms allow it.

    Not in the paper: a cluster is examined by the answers of its members in this round, if there are enough (quorum,
    min_split). A pending client belongs to no cluster now; at its next answer it joins one: of the leaves below the
    node where it is pending, the one whose model has the lowest training loss. Members that did not answer when their
    cluster was split are pending at its node, and newcomers at the root. A client that joins reopens a final cluster.

    Attributes:
        layers: The layers that are compared. Algorithm 2 selects one, by statistics obtained in advance: it is named as
            in "conv4", and `fedstrata scout` says which. "first_linear" is one, too (label skew, the paper's Fig. 10).
            "conv" joins all convolutions into one slice (feature skew), as a list of names does with its own, and "all"
            joins all conv and linear layers, when neither is known. With "auto" the server chooses the layer (or all)
            in the first rounds. Clients with enough samples (48, or fewer where most clients are small) also train on
            folds of their data; the layer whose differences appear again in the other fold is taken. Nothing is split
            before.
        eps1: The norm of the mean update below which the model of a cluster is stationary. "auto", which is ours, is
            1.5 times the norm that the mean of such updates would have if their directions were independent.
        eps2: If the largest norm of an update in the compared layers is at least eps2, the model does not fit every
            member. "auto", which is ours, is 0.35 of the largest norm of such an update so far, in the cluster or in
            those that it was part of.
        gamma: The largest approximation error that Theorem 1 assumes (gamma_max, the largest gamma_i of Eq. 15). 0
            switches the theorem off.
        linkage: How similar two groups are. "single" minimises the largest similarity across the two groups exactly.
        measure: What a split is proposed by. A name with d compares updates, such as dcos (Eq. 26) or dl2 (Eq. 24).
            One without compares weights, such as cos (Eq. 25) or l2 (Eq. 23). l1 and dl1 are not in the paper.
        first: The first round in which a cluster may be split.
        quorum: The share of the members asked in a round that must have answered for a cluster to be examined.
        min_split: The smallest number of members that must have answered for a cluster to be examined.
    """

    source: ClassVar[str] = "Yuan et al., Cybersecurity 2023"

    layers: Selectors = "all"
    eps1: NonNegative | Auto = "auto"
    eps2: NonNegative | Auto = "auto"
    gamma: Gamma = 0.7
    linkage: Linkage = "single"
    measure: ClientMeasureName = "dcos"
    # Not in the paper.
    first: PositiveInteger = 1
    quorum: Share = 0.5
    min_split: AtLeastTwo = 8

    def __new__(cls, layers: Selectors = "all", **keys: Any) -> LayerCFL:
        """With ``layers = "auto"`` an `AutoLayerCFL` is made, as `pathlib.Path` makes a path of the system's kind."""
        if cls is LayerCFL and layers == "auto":
            cls = AutoLayerCFL
        return object.__new__(cls)

    def init(self, problem: Problem) -> LayerCFLState:
        """Everyone in one cluster.

        Raises:
            LayoutError: When a selector of `layers` matches nothing.
        """
        self._compared_columns(problem)
        return extend_state(initial_state(problem), LayerCFLState, cluster_history=no_updates_yet(problem.clients))

    def update(self, problem: Problem, state: LayerCFLState, report: Report) -> tuple[LayerCFLState, Diagnostics]:
        """Algorithm 2 for every cluster whose members answered, then the mean of Algorithm 1.

        A part starts from the model before that mean and moves by its own members' mean. The paper's parts start
        after it.
        """
        state, answers = with_answers(
            problem, state, report, self._compared_columns(problem), quorum=self.quorum, min_split=self.min_split
        )
        examined = answers.usable if state.round + 1 >= self.first else {}
        decisions = {cluster: self.examine(problem, state, answered, cluster) for cluster, answered in examined.items()}
        # The recursion: a part is examined as a cluster in later rounds.
        return split_and_remember(problem, state, report, answers, decisions)

    def examine(self, problem: Problem, state: LayerCFLState, answered: Result, cluster: int) -> SplitDecision:
        """Algorithm 1's until and Algorithm 2 for one cluster, given the answers of its members.

        Where the paper returns the model (its else), the cluster is final: it trains on, and is not examined again.
        """
        columns = self._compared_columns(problem)
        layer = ", ".join(selector_tuple(self.layers))

        # Algorithm 2, "Get" (it subtracts two models, without a client) and "Select": Delta theta* of this round.
        updates = answered.updates.take_columns(columns).values
        eps1 = self.eps1
        if isinstance(eps1, str):
            eps1 = _EPS1_OF_INDEPENDENT * independent_norm(problem, answered)
        eps2 = self.eps2
        if isinstance(eps2, str):
            eps2 = _EPS2_SHARE * float(state.cluster_history.max_norms[cluster])
        norm_of_mean = mean_norm(problem, answered)
        largest_norm = max_norm(updates)
        values = {"mean_norm": norm_of_mean, "max_norm": largest_norm, "eps1": eps1, "eps2": eps2}

        # Algorithm 1, "until": the model of the cluster is stationary (Eq. 27).
        if norm_of_mean >= eps1:
            return SplitDecision(Decision(kind="not_stationary", layer=layer, values=values))

        # Algorithm 2, "if", first half: some |Delta theta*_i| >= eps2 (Eq. 28 prints weights). It is tested before the
        # clustering; the outcome is the same. Still members have no directions to compare.
        if largest_norm < eps2 or largest_norm <= STILL:
            everywhere = max_norm(answered.updates.take_columns(problem.layout.conv_and_linear).values)
            kind = "layers_not_trained" if largest_norm <= STILL < everywhere else "members_converged"
            return SplitDecision(Decision(kind=kind, layer=layer, values=values), final=True)

        # Algorithm 2, "hierarchical clustering" into two parts, by cosines (Eq. 26) or another measure.
        cosines = cosine(updates)
        compared = cosines
        measure = CLIENT_MEASURES[self.measure]
        if self.measure != "dcos":
            rows = updates if measure.of_updates else state.models[cluster, columns] + updates
            compared = measure.compare(rows)  # Eq. 23 to 25
        clients = answered.updates.clients
        matrix = Matrix(int(state.nodes[cluster]), layer, self.measure, clients, compared)
        similarity = compared if measure.larger_is_closer else -compared
        second = bipartition(similarity, linkage=self.linkage).bool()

        # Algorithm 2, "if", second half: do the parts satisfy Theorem 1? By cosines whatever `measure` is.
        cross_max = float(cosines[~second][:, second].max())  # Eq. 10
        bound = theorem_1_bound(cross_max)  # Eq. 20: sqrt((1 - cross_max) / 2) > gamma_max
        parts = (clients[~second], clients[second])
        values |= {"first_part": float(len(parts[0])), "second_part": float(len(parts[1]))}
        values |= {"cross_max": cross_max, "bound": bound, "gamma": self.gamma}
        if bound <= self.gamma:
            return SplitDecision(
                Decision(kind="theorem_1_not_met", layer=layer, values=values), matrix=matrix, final=True
            )
        return SplitDecision(Decision(kind="split", layer=layer, values=values), parts, matrix)

    def _compared_columns(self, problem: Problem) -> torch.Tensor:
        """The columns of the compared layers, (q,)."""
        return problem.layout.columns(problem.layout.select(*selector_tuple(self.layers)))


def no_updates_yet(clients: int) -> ClusterHistory:
    """So many clients in one cluster, no update seen yet."""
    labels = torch.zeros(clients, dtype=torch.int64)
    return ClusterHistory(torch.zeros(1), torch.zeros(1, dtype=torch.bool), labels)


def with_answers(
    problem: Problem, state: LayerCFLStateT, report: Report, compared: torch.Tensor, **rules: Any
) -> tuple[LayerCFLStateT, RoundAnswers]:
    """The state with the longest updates of a round, and the answers by which clusters are examined, except final ones.

    Args:
        problem: What is fixed for the run.
        state: The state before the round.
        report: The report of the round.
        compared: The columns that are compared, (q,).
        rules: The rules of `collect_answers`.
    """
    known = state.cluster_history
    labels = assign_pending(state, report)
    # By `assign_pending`, or moved between rounds.
    joined = ((labels != state.labels) | (labels != known.labels)) & (labels >= 0)
    final = known.final.index_fill(0, labels[joined], False)
    answers = collect_answers(state, report, **rules, final=final)

    longest = torch.tensor([max_norm(own.updates.take_columns(compared).values) for own in answers.own])
    history = ClusterHistory(max_norms=torch.fmax(known.max_norms, longest), final=final, labels=labels)
    return replace(state, cluster_history=history), answers


def split_and_remember(
    problem: Problem,
    state: LayerCFLStateT,
    report: Report,
    answers: RoundAnswers,
    decisions: Mapping[int, SplitDecision],
) -> tuple[LayerCFLStateT, Diagnostics]:
    """`split_and_average`, with what is remembered of the clusters after it. A part is examined whatever was final."""
    moved, diagnostics = split_and_average(problem, state, report, answers, decisions)
    known = state.cluster_history
    final = known.final.clone()
    for cluster, decision in decisions.items():
        final[cluster] = decision.final
    place_of = {node: place for place, node in enumerate(state.nodes.tolist())}
    nodes = moved.nodes.tolist()
    whole = torch.tensor([node in place_of for node in nodes])
    places = torch.tensor([place_of.get(node, place_of.get(moved.tree[node].parent)) for node in nodes])
    history = ClusterHistory(known.max_norms[places], final[places] & whole, moved.labels.clone())
    return replace(moved, cluster_history=history), diagnostics


@plain_dataclass(frozen=True)
class AutoLayerCFLState(LayerCFLState):
    """What LayerCFL with a layer scan remembers.

    Attributes:
        evidence: What the layer scan has seen; None when it is over.
        layer: The layer that is compared; "" while the scan is going on.
    """

    evidence: LayerEvidence | None
    layer: str


@dataclass(frozen=True, config=STRICT)
class AutoLayerCFL(LayerCFL):
    """``LayerCFL(layers="auto")``: FedAvg with a layer scan until it chooses a layer, then `LayerCFL` on that layer.

    The paper has its layers "by statistics obtained in advance". Here they are those of
    `fedstrata.algorithms.evidence.layer_scan`, gathered in the first rounds of the run itself. The keys are those of
    `LayerCFL`.
    """

    made_by: ClassVar[type[LayerCFL]] = LayerCFL
    """Experiments name `LayerCFL`, whose `__new__` makes this class."""

    def init(self, problem: Problem) -> AutoLayerCFLState:
        """Everyone in one cluster, and no evidence."""
        state = LayerCFL().init(problem)
        history = state.cluster_history
        evidence = no_evidence(problem.layout, problem.clients)
        return extend_state(state, AutoLayerCFLState, cluster_history=history, evidence=evidence, layer="")

    def plan(self, problem: Problem, state: LayerCFLState, cohort: torch.Tensor) -> Plan:
        """Everyone trains the model of its cluster; for a scan, also on folds of its data."""
        assert isinstance(state, AutoLayerCFLState)
        plan = fedavg_plan(problem, state, cohort)
        return plan if state.evidence is None else scan_plan(problem, state, state.evidence, plan)

    def update(self, problem: Problem, state: LayerCFLState, report: Report) -> tuple[LayerCFLState, Diagnostics]:
        """Scan if it is time, then average: with LayerCFL as soon as the layer is known."""
        assert isinstance(state, AutoLayerCFLState)
        events: tuple[dict[str, object], ...] = ()
        if state.evidence is not None:
            evidence, choice = scan_round(problem, state, state.evidence, report)
            state = replace(state, evidence=evidence)
            if choice is not None:
                events = (choice.event,)
                if choice.layer is not None:
                    state = _with_layer(problem, state, evidence, choice.layer)
        after: LayerCFLState
        if state.layer:
            after, diagnostics = self._layercfl_of(state.layer).update(problem, state, report)
        else:
            columns = problem.layout.conv_and_linear
            state, answers = with_answers(problem, state, report, columns, quorum=self.quorum, min_split=self.min_split)
            examined = answers.usable if state.round + 1 >= self.first else {}
            undecided = {cluster: SplitDecision(Decision(kind="no_layer_found")) for cluster in examined}
            after, diagnostics = split_and_remember(problem, state, report, answers, undecided)
        return after, replace(diagnostics, events=(*events, *diagnostics.events))

    def _layercfl_of(self, layer: str) -> LayerCFL:
        """LayerCFL on one layer, with these keys."""
        keys = {key.name: getattr(self, key.name) for key in fields(LayerCFL)}
        return LayerCFL(**{**keys, "layers": layer})


def _with_layer(problem: Problem, state: AutoLayerCFLState, evidence: LayerEvidence, layer: str) -> AutoLayerCFLState:
    """The state as if this layer had been given from the start, with its largest norm."""
    # Nothing is split before the layer is known: there is one cluster, and the evidence is about it.
    view = list(views_with_bias(problem.layout)).index(layer)
    history = replace(state.cluster_history, max_norms=evidence.max_norms[view : view + 1])
    return replace(state, cluster_history=history, evidence=None, layer=layer)
