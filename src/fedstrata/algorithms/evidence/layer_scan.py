"""Find the layer in which clients differ most clearly, from their updates alone: no labels, no ground truth.

LayerCFL is to be told its layers "by statistics obtained in advance"; these are such statistics. In some rounds every
client also trains on folds of its data. For every layer we ask whether the similarities of the clients by one fold are
those by another (a split-half test): what comes from a client's own sample is not found again, and what truly
distinguishes clients is. Where the test finds nothing, no layer is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from fedstrata.algorithms.evidence.fold_similarity import FoldSimilarity, compared_views, groups_test, with_round
from fedstrata.algorithms.evidence.split_half import (
    FULL_FOLD,
    Participants,
    add_fold_tasks,
    fold_updates,
    needed_samples,
    next_level,
    select_participants,
    selected_clients,
    usable_sizes,
)
from fedstrata.base.lazy_torch import torch
from fedstrata.clustering import cosine, in_views, norms, replication, smallest_sure_p
from fedstrata.clustering.patterns import MIN_TEST_CLIENTS
from fedstrata.core import TRAIN, Decision, Layout, Plan, Problem, Report, Rows, State, TensorSpec

SCAN_ROUNDS = 3
"""The rounds before the first scan. In the first round of a run, nobody knows yet how many samples clients have."""

LEVEL = 0.02
"""The probability of choosing a layer although all clients are alike, for all scans of a run together."""

_EQUAL_CORRELATIONS = 0.05
"""Correlations that differ by no more count as equal. Then the layer is taken in which updates have least in common,
because there Theorem 1 of LayerCFL allows most noise. In 24 federations of MNIST and Fashion-MNIST, half of them with
so few samples that the pattern was weak, that came nearer to the largest gap of a layer (0.01 below it on average) than
the largest Z, or the size of the pattern, which are large in first layers too (0.10 and 0.09).
"""

_MAX_REPEATS = 20
"""The choice is repeated so often, each time without other clients."""


@dataclass(frozen=True)
class LayerEvidence:
    """What folds of the clients' data have shown since the last scan.

    Attributes:
        by_layer: The similarities by every layer, and by all of them together; None before the first such round.
        by_bias: The similarities by the bias of the last layer alone; None before the first such round, or without one.
        common: The mean cosine of two different clients, summed over such rounds, for every view, (v,).
        rounds: The number of such rounds.
        max_norms: The largest norm of an update by all data so far, for every view, (v,).
        sizes: The number of training samples of each client, (n,); 0 until it has answered.
        most_answers: The largest number of clients that answered in one round so far.
    """

    by_layer: FoldSimilarity | None
    by_bias: FoldSimilarity | None
    common: torch.Tensor
    rounds: int
    max_norms: torch.Tensor
    sizes: torch.Tensor
    most_answers: int = 0


@dataclass(frozen=True)
class LayerScore:
    """How clearly clients differ in one layer, in all layers, or in the last layer's bias.

    Attributes:
        name: The name of the layer, ``"all"``, or the name of the bias.
        correlation: The correlation of the clients' similarities between halves of their data: see `Replication`.
        apart: The size of the pattern that replicates, as cosines of updates without what all have in common.
        common: The mean cosine of two different clients.
        p: The probability that chance replicates as well in this view.
    """

    name: str
    correlation: float
    apart: float
    common: float
    p: float


@dataclass(frozen=True)
class LayerChoice:
    """What a scan says.

    Attributes:
        layer: The layer in which clients differ most clearly, or all; None when they differ in none.
        scores: The scores of the views; none without a test.
        bias: The name of the bias of the last layer, which sees little but how often each class occurs; None where
            there is none.
        clients: How many were compared. Without any evidence, how many have enough samples.
        rounds: In how many rounds, at most.
        level: The level of the test.
        p: The probability that chance replicates as well in any of the layers; 1 without a test.
        floor: The smallest p that so many clients can reach.
        agreement: The share of the repeats without some of the clients that choose the same layer.
        needed: The number of training samples that a client needs to be compared.
    """

    layer: str | None
    scores: tuple[LayerScore, ...]
    bias: str | None
    clients: int
    rounds: int
    level: float
    p: float = 1.0
    floor: float = 1.0
    agreement: float = 0.0
    needed: int = 2 * FULL_FOLD

    def of(self, name: str) -> LayerScore:
        """The score of one of the views."""
        return next(score for score in self.scores if score.name == name)

    @property
    def skew(self) -> str | None:
        """What the choice suggests: skew of "labels", or "other" skew; None when it suggests nothing."""
        if self.layer is None or self.bias is None:
            return None
        bias = self.of(self.bias)
        # The bias of the last layer replicates as well as anything under label skew, and hardly under rotation.
        return "labels" if bias.p <= self.level and bias.correlation >= self.of(self.layer).correlation / 2 else "other"

    @property
    def decision(self) -> Decision:
        """What was measured, how sure that is, and what it suggests, as data."""
        values = {"compared_clients": float(self.clients), "rounds": float(self.rounds), "level": self.level}
        if not self.scores and not self.rounds:
            enough = self.clients >= MIN_TEST_CLIENTS and smallest_sure_p(self.clients) <= self.level
            kind = "scan_without_answers" if enough else "scan_without_samples"
            return Decision(kind=kind, values={**values, "samples_needed": float(self.needed)})
        if not self.scores:
            return Decision(kind="scan_without_clients", values={**values, "floor": self.floor})
        layers = [score for score in self.scores if score.name != self.bias]
        best = max(layers, key=lambda score: score.correlation) if self.layer is None else self.of(self.layer)
        values |= {"correlation": best.correlation, "p": self.p}
        if self.bias is not None:
            values |= {"bias_correlation": self.of(self.bias).correlation, "bias_p": self.of(self.bias).p}
        if self.layer is None:
            return Decision(kind="no_separation", layer=best.name, values=values)
        largest = max(layers, key=lambda score: score.correlation)
        if largest.correlation > best.correlation:
            values |= {"largest_correlation": largest.correlation, "largest_p": largest.p}
        values |= {"agreement": self.agreement, "label_skew": float(self.skew == "labels")}
        return Decision(kind="layer_chosen", layer=self.layer, values=values)

    @property
    def event(self) -> dict[str, object]:
        """The event of a scan; `best_layer` is there without a choice too."""
        decision = self.decision
        layers = {"layer": self.layer, "best_layer": decision.layer}
        return {"kind": "scout", **layers, "why": decision.kind, "values": dict(decision.values)}


def views_with_bias(layout: Layout) -> dict[str, torch.Tensor]:
    """The columns of every view: each layer, all of them if there are several, and the last one's bias."""
    bias = bias_of(layout)
    return {**compared_views(layout), **({} if bias is None else {bias: layout.columns(layout.select(bias))})}


def bias_of(layout: Layout) -> str | None:
    """The bias of the last layer: it moves with how often each class occurs, whatever the inputs look like."""
    last = [tensor.name for tensor in layout.tensors if tensor.layer == layout.layers[-1] and tensor.kind == "linear"]
    # Where the weights are pruned or normalised, the bias comes before them.
    named = [name for name in last if name.rpartition(".")[2] in ("bias", "bias_orig")]
    if len(last) > 1 and named:
        return named[0]
    return last[1] if len(last) == 2 else None


def no_evidence(layout: Layout, clients: int) -> LayerEvidence:
    """Nothing has been shown yet about so many clients."""
    v = len(views_with_bias(layout))
    sizes = torch.zeros(clients, dtype=torch.int64)
    return LayerEvidence(None, None, torch.zeros(v), 0, torch.zeros(v), sizes)


def without_clients(evidence: LayerEvidence, clients: torch.Tensor) -> LayerEvidence:
    """The evidence without some clients, given as a bool (n,): their data may have changed since."""
    by_layer, by_bias = (each and each.only(~clients[each.clients]) for each in (evidence.by_layer, evidence.by_bias))
    return replace(evidence, by_layer=by_layer, by_bias=by_bias, sizes=torch.where(clients, 0, evidence.sizes))


def participants(
    problem: Problem, state: State, evidence: LayerEvidence, level: float, cohort: torch.Tensor
) -> Participants | None:
    """Who trains on folds of its data, of the only cluster; None until the numbers of samples are known.

    Args:
        problem: What is fixed for the run.
        state: The state before the round, with one cluster.
        evidence: The evidence before the round.
        level: The level of the scan.
        cohort: The clients that the round selects, ids.
    """
    answering = evidence.most_answers or None
    return select_participants(problem, state, evidence.sizes, level, answering, cohort)


def scan_plan(problem: Problem, state: State, evidence: LayerEvidence, plan: Plan) -> Plan:
    """The plan in which clients also train on folds of their data, in the last rounds before a scan."""
    return add_fold_tasks(plan, _scanned(problem, state, evidence, plan.cohort), evidence.sizes)


def scan_round(
    problem: Problem, state: State, evidence: LayerEvidence, report: Report
) -> tuple[LayerEvidence, LayerChoice | None]:
    """Add what a round showed, and scan the layers if it was the last one before a scan.

    Args:
        problem: What is fixed for the run.
        state: The state before the round, with one cluster.
        evidence: The evidence before the round.
        report: The report of the round.

    Returns:
        The evidence, and the choice if there was a scan. A choice of no layer begins with new evidence.
    """
    round = state.round + 1
    known = without_clients(evidence, state.labels < 0)
    known = add_evidence(problem.layout, known, report, _scanned(problem, state, evidence, selected_clients(report)))
    if not scan_due(round):
        return known, None
    choice = scan_layers(problem.layout, known, problem.generator("scout", round), level_of(round))
    if choice.layer is None:
        anew = no_evidence(problem.layout, problem.clients)
        known = replace(anew, max_norms=known.max_norms, sizes=known.sizes, most_answers=known.most_answers)
    return known, choice


def _scanned(problem: Problem, state: State, evidence: LayerEvidence, cohort: torch.Tensor) -> Participants | None:
    """Who trains on folds of its data in the coming round of a run, which selects a cohort."""
    round = state.round + 1
    if not is_scanned(round):
        return None
    return participants(problem, state, without_clients(evidence, state.labels < 0), level_of(round), cohort)


def add_evidence(layout: Layout, evidence: LayerEvidence, report: Report, asked: Participants | None) -> LayerEvidence:
    """Add what a round showed.

    Args:
        layout: The layout of the network.
        evidence: The evidence before the round.
        report: The report of clients that all started from the same model.
        asked: Who was to train on folds of its data; None for nobody.
    """
    updates = report.results[TRAIN].updates
    max_norms = evidence.max_norms
    if len(updates.clients):
        max_norms = torch.maximum(
            max_norms, norms(updates.values, in_views(views_with_bias(layout).values())).amax(dim=1).to(max_norms)
        )
    if asked is not None:
        evidence = _with_similarities(layout, evidence, fold_updates(report, asked))
    return replace(
        evidence,
        max_norms=max_norms,
        sizes=usable_sizes(evidence.sizes, report, asked),
        most_answers=max(evidence.most_answers, len(updates.clients)),
    )


def _with_similarities(layout: Layout, evidence: LayerEvidence, sent: Sequence[Rows]) -> LayerEvidence:
    """The evidence with updates of the same clients by every fold of their data, (m, p) each."""
    if len(sent[0].clients) < MIN_TEST_CLIENTS:
        return evidence
    columns = views_with_bias(layout)
    bias = bias_of(layout)
    by_bias = evidence.by_bias
    if bias is not None:
        tensor = next(tensor for tensor in layout.tensors if tensor.name == bias)
        by_bias = with_round(Layout((tensor,)), by_bias, [fold.take_columns(columns[bias]) for fold in sent])
    different = ~torch.eye(len(sent[0].clients), dtype=torch.bool)
    cosines = [cosine(fold.values, in_views(columns.values()))[:, different].mean(dim=1) for fold in sent]
    return replace(
        evidence,
        by_layer=with_round(layout, evidence.by_layer, sent),
        by_bias=by_bias,
        common=evidence.common + torch.stack(cosines).mean(dim=0),
        rounds=evidence.rounds + 1,
    )


def scan_layers(
    layout: Layout, evidence: LayerEvidence, generator: torch.Generator, level: float = LEVEL
) -> LayerChoice:
    """Choose the layer in which the clients differ most clearly.

    Args:
        layout: The layout of the network.
        evidence: What folds of the clients' data have shown.
        generator: Draws the re-arrangements of clients.
        level: The probability of choosing a layer although all clients are alike.
    """
    bias = bias_of(layout)
    known = evidence.by_layer
    if known is None or not len(known.clients):
        needed = needed_samples(evidence.sizes, 2)
        able = int((evidence.sizes >= needed).sum())
        return LayerChoice(None, (), bias, able, 0, level, needed=needed)
    clients, found = groups_test(layout, known, generator, level)
    rounds = int(known.rounds.max())
    nothing = LayerChoice(None, (), bias, len(clients), rounds, level, found.p, found.floor)
    if not found.tested:
        return nothing
    scores = _scores(layout, evidence, generator, level)
    layers = [score for score in scores if score.name != bias]
    eligible = torch.tensor([score.name == found.layer or score.p <= level for score in layers]) & found.confirmed
    if not bool(eligible.any()):
        return replace(nothing, scores=scores)
    common = evidence.common / evidence.rounds
    chosen = _clearest(torch.tensor([score.correlation for score in layers]), common, eligible)
    halves = _halves(known.only(torch.isin(known.clients, clients)))
    agreement = _agreement(halves, common, eligible, chosen)
    return replace(nothing, layer=layers[chosen].name, scores=scores, agreement=agreement)


def _scores(
    layout: Layout, evidence: LayerEvidence, generator: torch.Generator, level: float
) -> tuple[LayerScore, ...]:
    """The score of every view: the layers, all of them together, and the last one's bias."""
    if evidence.by_layer is None:
        return ()
    known = evidence.by_layer
    by_view = {
        name: replace(known, similarity=known.similarity[place : place + 1])
        for place, name in enumerate(compared_views(layout))
    }
    bias = bias_of(layout)
    if bias is not None and evidence.by_bias is not None:
        by_view[bias] = evidence.by_bias
    common = (evidence.common / evidence.rounds).tolist()
    pairs = zip(by_view.items(), common, strict=True)
    return tuple(_score(name, one, mean, generator, level) for (name, one), mean in pairs)


def _score(name: str, known: FoldSimilarity, common: float, generator: torch.Generator, level: float) -> LayerScore:
    """What is seen in one view alone."""
    clients, found = groups_test(Layout((TensorSpec(name, name, "linear", ()),)), known, generator, level)
    if not found.tested:
        return LayerScore(name, 0.0, 0.0, common, found.p)
    first, second = _halves(known.only(torch.isin(known.clients, clients)))
    again = replication(first, second)
    return LayerScore(name, float(again.correlation), float(again.apart), common, found.p)


def _halves(known: FoldSimilarity) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean similarity of clients, all pairs of whom were seen, by the two halves of their data, (v, m, m) each."""
    m = len(known.clients)
    f = known.folds
    parts = known.similarity.double().reshape(-1, f, m, f, m) / known.rounds[:, None]
    first = slice(f // 2)
    second = slice(f // 2, f)
    return parts[:, first, :, first].mean(dim=(1, 3)), parts[:, second, :, second].mean(dim=(1, 3))


def _clearest(correlation: torch.Tensor, common: torch.Tensor, eligible: torch.Tensor) -> int:
    """The layer that replicates best. Of those with equal correlations, it is the one with least in common."""
    correlation = torch.where(eligible, correlation, -torch.inf)
    equal = correlation >= correlation.max() - _EQUAL_CORRELATIONS
    return int(torch.where(equal, common[: len(correlation)], torch.inf).argmin())


def _agreement(
    halves: Sequence[torch.Tensor],
    common: torch.Tensor,
    eligible: torch.Tensor,
    chosen: int,
) -> float:
    """The share of the repeats without some of the clients that choose the same layer."""
    m = halves[0].shape[1]
    again = list[bool]()
    for repeat in range(min(_MAX_REPEATS, m)):
        kept = torch.arange(m) % _MAX_REPEATS != repeat
        fewer = [half[:, kept][:, :, kept] for half in halves]
        correlation = replication(fewer[0], fewer[1]).correlation
        again.append(_clearest(correlation, common, eligible) == chosen)
    return sum(again) / len(again)


def is_scanned(round: int) -> bool:
    """Whether clients train on folds of their data in a round while the layer is not known."""
    return round > _next_scan(round)[1] - SCAN_ROUNDS


def scan_due(round: int) -> bool:
    """Whether there is a scan after a round."""
    return round == _next_scan(round)[1]


def level_of(round: int) -> float:
    """The level of the next scan, from a round on. All scans of a run together spend `LEVEL`."""
    return next_level(LEVEL, _next_scan(round)[0])


def _next_scan(round: int) -> tuple[int, int]:
    """Which scan comes next, from 0, and the round it comes after: 3, 6, 12, 24 and so on."""
    number = max(0, ceil(round / SCAN_ROUNDS) - 1).bit_length()
    return number, SCAN_ROUNDS * 2**number
