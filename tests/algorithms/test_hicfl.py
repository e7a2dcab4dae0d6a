import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from scripted import next_round

from builders import answer, layout_with
from fedstrata.algorithms.hicfl import HiCFL, HiCFLState, reorganise
from fedstrata.clustering import ari
from fedstrata.core import (
    Decision,
    Diagnostics,
    LearningRateSchedule,
    LocalTraining,
    Problem,
    Report,
    aggregate,
    make_pending,
    reassign,
    tree_events,
)
from fedstrata.testing import play, toy_problem
from fedstrata.uploads.noise import CentralNoise
from fedstrata.uploads.validation import without_clients
from recorded import decision_of, metric

PLANE = layout_with({"conv.weight": 2})
SIX = [torch.tensor([row]) for row in ([1.0, 0], [1, 1], [0, 1], [0, 2], [0.1, 2], [0.2, 2])]
"""semantics.md, golden case 5: the updates of one client."""

FIVE = torch.tensor([[1.0, 1.0], [2.0, 0.0], [0.0, 1.0], [-1.0, 1.0], [-1.0, -0.5]])
"""Golden case 6: the updates of five clients in round t."""

ALL_WEIGHTS = 1e9
"""The xi that no weight reaches, so that stability looks at all weights."""

PAIRS = torch.tensor([[1.0, 0.1], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.1]])
"""Two pairs that pull in opposite directions."""


def wobbling(updates: torch.Tensor, stability: Sequence[float]) -> list[torch.Tensor]:
    """Three rounds that end with `updates`: turned away by a and back, S = |(cos a + cos a) / 2 - 1| = 1 - cos a."""
    cos = 1 - torch.tensor(stability)
    sin = (1 - cos.square()).sqrt()
    x, y = updates.T
    return [updates, torch.stack([cos * x - sin * y, sin * x + cos * y], dim=1), updates]


def go_on(
    algorithm: HiCFL, problem: Problem, state: HiCFLState, updates: torch.Tensor, rounds: int
) -> tuple[HiCFLState, list[Diagnostics]]:
    diagnostics = []
    for _ in range(rounds):
        state, note = next_round(algorithm, problem, state, updates)
        diagnostics.append(note)
    return state, diagnostics


@pytest.mark.parametrize(("window", "mean"), [(3, 0.003721), (4, 0.002173), (5, 0.050264), (6, 0.214475)])
def test_the_mean_stability_of_a_window_reproduces_golden_case_5(window: int, mean: float) -> None:
    _, diagnostics = play(HiCFL(window=window, xi=ALL_WEIGHTS), toy_problem(1, PLANE), SIX)
    assert metric(diagnostics[-1], "stability", layer="conv") == pytest.approx(mean, abs=1e-6)
    assert [metric(note, "stability", layer="conv") is not None for note in diagnostics].index(True) == window - 1


def test_weight_selection_reproduces_golden_case_5() -> None:
    """The step size is 0.01, so xi is 0.0005; the changes are 0.0004, 0.0006, -0.0006, -0.0010."""
    line = layout_with({"fc.weight": 4})
    old, new = torch.full((1, 4), 0.010), torch.tensor([[0.0104, 0.0106, 0.0094, 0.0090]])
    state, diagnostics = play(HiCFL(), toy_problem(1, line), [old, new])
    assert state.window.selected_weights[0].nonzero().flatten().tolist() == [1, 2, 3]
    assert [metric(note, "weights_used") for note in diagnostics] == [None, 0.75]


def test_a_layer_without_an_unstable_weight_is_looked_at_whole() -> None:
    steps = [torch.ones(1, 6), torch.tensor([[1.0, 1.0, 1.0, 1.0, 3.0, 1.0]])]
    state, diagnostics = play(HiCFL(xi=1.0), toy_problem(1), steps)
    assert state.window.selected_weights[0].tolist() == [True, True, True, False, True, False]
    assert metric(diagnostics[-1], "weights_used") == pytest.approx(4 / 6)


def test_weights_are_selected_once_per_lineage_and_all_are_used_when_told_so() -> None:
    later = [*SIX[:2], 5 * SIX[2], SIX[3]]
    state, _ = play(HiCFL(xi=0.5), toy_problem(1, PLANE), later)
    assert state.window.selected_weights.tolist() == [[False, True]]
    _, diagnostics = play(HiCFL(xi=ALL_WEIGHTS), toy_problem(1, PLANE), later)
    assert metric(diagnostics[-1], "weights_used") == 1.0


def test_stability_looks_at_the_selected_weights_but_clients_are_compared_in_the_whole_layer() -> None:
    """The first weight never changes; the second turns round every time, so alone it is as unstable as can be."""
    moves = [torch.tensor([[3.0, 1.0], [-3.0, 1.0]]), torch.tensor([[3.0, -1.0], [-3.0, -1.0]])] * 2
    state, diagnostics = play(HiCFL(xi=0.5, epsilon=1.9), toy_problem(2, PLANE), moves[:3])
    assert metric(diagnostics[-1], "stability", layer="conv") == 2.0 and len(state.models) == 1  # |(-1 - 1) / 2 - 1|
    state, _ = play(HiCFL(xi=0.5, epsilon=2.1), toy_problem(2, PLANE), moves[:3])
    assert decision_of(state).values["cross_mean"] == pytest.approx(-0.8)  # (-9 + 1) / 10


def test_the_reference_split_reproduces_golden_case_6() -> None:
    steady = [0.04, 0.01, 0.03, 0.02, 0.01]
    updates = wobbling(FIVE, steady)
    state, diagnostics = play(HiCFL(epsilon=0.05, xi=ALL_WEIGHTS), toy_problem(5, PLANE), updates)
    assert state.labels.tolist() == [0, 0, 1, 1, 1]
    decision = decision_of(state)
    assert decision.layer == "conv" and decision.kind == "split"
    norms = {"mean_norm": 0.538516, "max_norm": 2.0, "ratio": 0.269258}
    expected = {"reference": 1, "stability": 0.022, "with_reference": 2, "without": 3, "at_ending": 0, **norms}
    assert {name: decision.values[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    cosines = diagnostics[-1].matrices[0]
    assert cosines.values[1].tolist() == pytest.approx([0.707107, 1, 0, -0.707107, -0.894427], abs=1e-6)
    assert (cosines.node, cosines.layer, cosines.clients.tolist()) == (0, "conv", [0, 1, 2, 3, 4])
    assert diagnostics[-1].events[0]["into"] == [1, 2]


@pytest.mark.parametrize(("epsilon", "kind"), [(0.041, "split"), (0.039, "no_stable_layer")])
def test_a_layer_must_be_stable_in_every_member(epsilon: float, kind: str) -> None:
    updates = wobbling(FIVE, [0.04, 0.01, 0.03, 0.02, 0.01])
    state, _ = play(HiCFL(epsilon=epsilon, xi=ALL_WEIGHTS), toy_problem(5, PLANE), updates)
    seen = decision_of(state)
    assert len(state.models) == (2 if kind == "split" else 1) and seen.kind == kind
    expected = {"every_member": 1.0, "epsilon": epsilon, "stability": 0.022, "max_stability": 0.04}
    assert {name: seen.values[name] for name in expected} == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("other", "layers"), [("fc", None), ("conv", "conv")])
def test_it_must_be_one_layer_that_is_stable_in_each_member(other: str, layers: str | None) -> None:
    """Client 0 is stable in conv alone; client 1 in fc alone, or in conv too (semantics.md, A13)."""
    still, turn = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [1.0, 0, 0]])
    rounds = []
    for row in turn:
        one = torch.cat([still, row])
        two = torch.cat([-row, still] if other == "fc" else [-still, row])
        rounds.append(torch.stack([one, two]))
    state, _ = play(HiCFL(epsilon=0.1, xi=ALL_WEIGHTS), toy_problem(2), rounds)
    assert len(state.models) == (1 if layers is None else 2)
    assert layers is None or decision_of(state).layer == layers


def test_of_several_stable_layers_the_one_of_smallest_mean_decides_and_the_first_of_equals() -> None:
    for scale, layer in ((0.1, "fc"), (0.0, "conv")):
        wave = [torch.tensor([0.0, scale, 0.0]), torch.tensor([0.0, -scale, 0.0]), torch.tensor([0.0, scale, 0.0])]
        side, base = torch.tensor([[1.0], [-1.0]]), torch.tensor([1.0, 0.0, 0.0])
        rounds = [torch.cat([side * (base + w), side * base], dim=1) for w in wave]
        state, _ = play(HiCFL(epsilon=0.5, xi=ALL_WEIGHTS), toy_problem(2), rounds)
        assert decision_of(state).layer == layer and len(state.models) == 2


@pytest.mark.parametrize(("epsilon", "fc"), [(0.019, [[1.0], [-1.0]]), (0.02, [[3.0], [1.0]])])
def test_where_no_stable_layer_shows_a_difference_the_stablest_says_so(epsilon: float, fc: list[list[float]]) -> None:
    """Three rounds: nobody turns in the convolution, where all point one way.

    With t = 0.1, fc goes (1, t), (1, -t), (1, t), so S = 1 - cos = 1 - (1 - t²) / (1 + t²) = 0.0198. First it is not
    stable yet, so that its two sides are not tried; then it is, and has one side.
    """
    conv = torch.full((2, 3), 0.1)
    updates = [torch.cat([conv, torch.tensor(fc) * torch.tensor([1.0, t, 0.0])], dim=1) for t in (0.1, -0.1, 0.1)]
    state, diagnostics = play(HiCFL(epsilon=epsilon, xi=ALL_WEIGHTS), toy_problem(2), updates)
    seen = decision_of(state)
    assert len(state.models) == 1 and not diagnostics[2].matrices
    assert seen.layer == "conv" and seen.values["stability"] == pytest.approx(0, abs=1e-9)
    assert seen.kind == "same_direction" and seen.values["reference"] == 0.0


def test_epsilon_by_itself_is_half_the_step_size_of_the_round() -> None:
    problem = replace(toy_problem(5, PLANE), training=LocalTraining(lr=0.2), lr_factor=LearningRateSchedule(decay=0.5))
    state, _ = play(HiCFL(xi=ALL_WEIGHTS), problem, wobbling(FIVE, [0.04] * 5))
    assert decision_of(state).values["epsilon"] == pytest.approx(0.5 * 0.2 * 0.5**2)
    state, _ = play(HiCFL(), problem, wobbling(FIVE, [0.0] * 5))
    assert len(state.models) == 2


def test_members_that_agree_are_not_split() -> None:
    alike = torch.tensor([[1.0, 0.1], [1.0, 0.0], [1.0, -0.1], [-0.2, 0.0]])
    state, _ = play(HiCFL(rho=0.6), toy_problem(4, PLANE), [alike] * 3)  # mean (0.7, 0), longest 1.005
    assert decision_of(state).kind == "members_agree"
    assert decision_of(state).values["ratio"] == pytest.approx(0.697, abs=1e-3)
    state, _ = play(HiCFL(rho=0.8), toy_problem(4, PLANE), [alike] * 3)
    assert state.labels.tolist() == [0, 0, 0, 1]


def test_members_that_all_point_one_way_are_not_split() -> None:
    one_way = torch.tensor([[1.0, 0], [9, 0], [1, 1], [2, 1]])
    state, diagnostics = play(HiCFL(rho=1.0), toy_problem(4, PLANE), [one_way] * 4)
    assert decision_of(state).kind == "same_direction" and decision_of(state).values["reference"] == 0.0
    assert len(state.models) == 1 and not diagnostics[-1].matrices


def test_who_did_not_move_is_no_reference_and_updates_that_are_all_zero_are_never_split() -> None:
    state, _ = play(HiCFL(), toy_problem(4, PLANE), [torch.zeros(4, 2)] * 4)
    assert len(state.models) == 1 and decision_of(state).kind == "members_agree"
    some = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 0.1], [-1.0, 0.0]])
    state, _ = play(HiCFL(), toy_problem(4, PLANE), [some] * 3)
    assert state.labels.tolist() == [1, 0, 0, 1] and decision_of(state).values["reference"] == 1.0


def test_four_groups_are_found_in_two_levels_within_seven_rounds_because_windows_start_anew() -> None:
    """Also: the second split moves clients by id, not by position inside their cluster."""
    truth = torch.tensor([0, 2, 1, 3, 0, 2, 1, 3, 0, 2, 1, 3])
    axes = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])[truth]
    coarse, fine = axes * torch.tensor([3.0, 0.5]), axes * torch.tensor([0.05, 3.0])
    state, diagnostics = play(HiCFL(), toy_problem(12, PLANE), [coarse] * 3 + [fine] * 4)
    assert [len(note.events) for note in diagnostics] == [0, 0, 1, 0, 0, 2, 0]
    assert ari(state.labels, truth) == 1.0 and sorted(state.labels.bincount().tolist()) == [3, 3, 3, 3]
    state, _ = play(HiCFL(), toy_problem(12, PLANE), [coarse] * 3 + [fine] * 2)
    values = {"answered": 6, "asked": 6, "not_ready": 6, "min_split": 2, "quorum": 0.5}
    assert decision_of(state, 1).kind == "too_few_members" and decision_of(state, 1).values == values


def test_improper_clusters_correct_themselves() -> None:
    """Fig. 11: who was put into the wrong cluster is split off again, into a cluster of its own."""
    problem, algorithm = toy_problem(6, PLANE), HiCFL()
    updates = torch.tensor([[1.0, 0.0], [1.0, 0.1], [1.0, -0.1], [-1.0, 0.0], [-1.0, 0.1], [-1.0, -0.1]])
    state, _ = go_on(algorithm, problem, algorithm.init(problem), updates, 4)
    assert state.labels.tolist() == [0, 0, 0, 1, 1, 1]
    state, diagnostics = go_on(algorithm, problem, reassign(state, {5: 0}), updates, 2)
    assert decision_of(state, 1).kind == "members_agree" and not diagnostics[-1].events  # the other three do
    state, diagnostics = go_on(algorithm, problem, state, updates, 1)
    assert state.labels.tolist() == [0, 0, 0, 2, 2, 1] and diagnostics[0].events[0]["into"] == [3, 4]
    state, diagnostics = go_on(algorithm, problem, state, updates, 6)
    assert state.labels.tolist() == [0, 0, 0, 2, 2, 1] and not any(note.events for note in diagnostics)


def test_a_window_is_of_a_clients_own_uploads_however_many_rounds_they_took() -> None:
    _, diagnostics = play(HiCFL(quorum=1.0), toy_problem(4, PLANE), [PAIRS] * 5, absent=[[], [3], [], [3], []])
    assert [len(note.events) for note in diagnostics] == [0, 0, 0, 0, 1]


def test_a_newcomer_without_a_window_does_not_hold_up_the_others_and_chooses_a_side_after_the_split() -> None:
    everyone, some = [0, 1, 2, 3], [0, 1, 2]
    cohorts = [some, some, everyone, everyone]
    state, diagnostics = play(HiCFL(), toy_problem(4, PLANE), [PAIRS] * 3, cohorts=cohorts[:3])
    assert state.labels.tolist() == [0, 0, 1, -1] and state.waiting.tolist() == [-1, -1, -1, 0]
    assert diagnostics[2].matrices[0].clients.tolist() == [0, 1, 2]
    state, _ = play(HiCFL(), toy_problem(4, PLANE), [PAIRS] * 4, cohorts=cohorts)
    assert state.labels.tolist() == [0, 0, 1, 0]  # scripted clients take the first offer
    state, _ = play(HiCFL(quorum=1.0), toy_problem(4, PLANE), [PAIRS] * 3, cohorts=cohorts[:3])
    values = {"answered": 4, "asked": 4, "not_ready": 1, "min_split": 2, "quorum": 1.0}
    assert decision_of(state).kind == "too_few_members" and decision_of(state).values == values


def test_a_member_that_was_away_is_placed_on_return_and_its_window_starts_anew() -> None:
    everyone, some = [0, 1, 2, 3], [0, 1, 2]
    cohorts = [everyone, everyone, some, some, everyone, everyone, everyone, everyone]
    state, diagnostics = play(HiCFL(), toy_problem(4, PLANE), [PAIRS] * 8, cohorts=cohorts)
    assert [len(note.events) for note in diagnostics] == [0, 0, 1, 0, 0, 0, 1, 0]
    assert state.labels.tolist() == [0, 0, 2, 1]  # it took the first offer, and was split off three rounds later
    assert state.window.counts.tolist() == [1, 1, 5, 1]


def test_a_client_whose_data_changed_starts_a_new_window_even_in_its_old_cluster() -> None:
    problem, algorithm = toy_problem(4, PLANE), HiCFL(epsilon=0.0)
    state, _ = go_on(algorithm, problem, algorithm.init(problem), PAIRS, 4)
    state, _ = go_on(algorithm, problem, make_pending(state, [2], node=0), PAIRS, 1)
    assert state.labels.tolist() == [0, 0, 0, 0] and state.window.counts.tolist() == [5, 5, 1, 5]


@pytest.mark.parametrize(
    ("ending", "events", "labels"),
    [("none", [], [0, 0, 0, 0]), ("fine", [6], [0, 0, 1, 1]), ("personal", [6, 9], [0, 1, 2, 3])],
)
def test_endings_split_clusters_whose_members_agree_once_or_until_everybody_is_alone(
    ending: Literal["none", "fine", "personal"], events: list[int], labels: list[int]
) -> None:
    """Four updates at 0, 80, 100 and 200 degrees, whose mean has the length 0.41.

    Every layer is stable from round 3 on, so that the ending begins in round 6. Client 0 is the reference, and 2 and 3
    point away from it. So does 3 from 2, whose windows are full again in round 9. Then 0 and 1, which point to one
    side, are parted as well.
    """
    angles = torch.tensor([0.0, 80, 100, 200]).deg2rad()
    fan = torch.stack([angles.cos(), angles.sin()], dim=1)
    state, diagnostics = play(HiCFL(rho=0.4, ending=ending, patience=3), toy_problem(4, PLANE), [fan] * 14)
    assert [round for round, note in enumerate(diagnostics, start=1) if note.events] == events
    assert state.labels.tolist() == labels and state.ending_round == (6 if events else 0)
    assert not events or decision_of(state).values["at_ending"] == 1.0


def test_members_whose_updates_are_all_short_are_not_split() -> None:
    """The pairs of (1, 0) and (-1, 0): the longest update is 1."""
    sides = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]])
    for eps2, kind, clusters in ((1.0, "split", 2), (1.01, "members_converged", 1)):
        state, _ = play(HiCFL(eps2=eps2), toy_problem(4, PLANE), [sides] * 3)
        assert decision_of(state).kind == kind and len(state.models) == clusters


@pytest.mark.parametrize(("last", "split"), [(0, 3), (5, 8), (14, None)])
def test_the_ending_waits_for_a_slow_first_split(last: int, split: int | None) -> None:
    """Two clients that want the opposite turn right round until after round `last`."""
    sides = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    updates = [sides * ((-1.0) ** round if round <= last else 1.0) for round in range(1, 15)]
    algorithm = HiCFL(ending="fine", patience=3, epsilon=0.5)
    state, diagnostics = play(algorithm, toy_problem(2, PLANE), updates)
    assert [round for round, note in enumerate(diagnostics, start=1) if note.events] == ([split] if split else [])
    assert state.ending_round == (split + 4 if split else 0)


def groups(moves: torch.Tensor, sizes: Sequence[int]) -> tuple[Problem, Any, Any, Report]:
    """Clusters of so many clients, whose models start at 0 and have just moved by `moves` (k, 2)."""
    n, k = sum(sizes), len(sizes)
    problem, labels = toy_problem(n, PLANE), torch.arange(k).repeat_interleave(torch.tensor(sizes))
    nothing = Report({"train": answer(range(n), torch.zeros(n, 2))})
    before, _ = aggregate(problem, HiCFL().init(problem), nothing, labels, torch.zeros(k, dtype=torch.int64))
    moved = Report({"train": answer(range(n), moves[labels], labels)})
    after, _ = aggregate(problem, before, moved, labels, torch.arange(k))
    return problem, before, after, moved


def test_re_organising_lets_the_larger_of_two_similar_clusters_take_over_the_smaller() -> None:
    moves = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [4.0, 0.0]])
    problem, before, after, report = groups(moves, [2, 3, 1])
    merged = reorganise(problem, before, after, report)
    assert merged.labels.tolist() == [0, 0, 1, 1, 1, 0]
    assert merged.models.tolist() == [[2.0, 0.0], [-1.0, 0.0]]  # (2 * 1 + 1 * 4) / 3
    assert merged.nodes.tolist() == [1, 2]
    assert tree_events(after, merged) == [{"kind": "dissolve", "node": 3, "into": [1]}]
    assert [node.members for node in merged.tree[1:]] == [(0, 1, 5), (2, 3, 4), (5,)]
    assert [node.split for node in merged.tree[1:]] == [None, None, 2]
    assert decision_of(merged, 3) == Decision("merged", None, {"into": 1.0})


def test_clusters_of_which_nobody_has_answered_are_merged_half_and_half() -> None:
    """With differential privacy they move by noise."""
    problem, before, after, report = groups(torch.tensor([[1.0, 0.0], [4.0, 0.0]]), [2, 3])
    merged = reorganise(problem, before, after, without_clients(report, range(5)))
    assert merged.models.tolist() == [[2.5, 0.0]]


def test_with_differential_privacy_merged_clusters_count_by_their_members() -> None:
    """The first cluster has 1000 samples of each client, which nobody may see."""
    problem, before, after, report = groups(torch.tensor([[1.0, 0.0], [4.0, 0.0]]), [1, 3])
    result = replace(report.results["train"], sizes=torch.tensor([1000, 1, 1, 1]))
    noisy = CentralNoise(problem.layout, (True,), clip_norm=5.0, noise_multiplier=0.0, answers=lambda round: 4.0)
    merged = reorganise(replace(problem, aggregation=noisy), before, after, Report({"train": result}))
    assert merged.models.tolist() == [[3.25, 0.0]]  # (1 * 1 + 3 * 4) / 4


def test_a_layer_that_nobody_moves_decides_nothing() -> None:
    """The convolution is frozen: its stability is 0. In the linear layer clients agree but for their lengths."""
    lengths = torch.tensor([0.2, 0.5, 0.8, 1.1, 1.4, 1.7])[:, None]
    updates = torch.cat([torch.zeros(6, 3), lengths * torch.tensor([[1.0, 0.0, 0.0]])], dim=1)
    _, diagnostics = play(HiCFL(epsilon=0.05), toy_problem(6), [updates] * 9)
    layers = {event["layer"] for each in diagnostics for event in each.events if event["kind"] == "split"}
    assert "conv" not in layers


def test_clusters_that_a_third_one_is_torn_between_are_not_merged() -> None:
    """0 and 1 are similar; 2 is similar to 1, and in conflict with 0. So is 0 between 1 and 2."""
    torn = torch.tensor([[1.0, 0.0], [0.5, 1.0], [-0.5, 1.0]])
    problem, before, after, report = groups(torn, [1, 1, 1])
    merged = reorganise(problem, before, after, report)
    assert merged.tree == after.tree and torch.equal(merged.models, after.models)


def test_the_next_most_similar_cluster_is_considered_when_the_most_similar_may_not_be_merged() -> None:
    """Cluster 0 is nearest to 1 (20 degrees), but 3 is torn between these two; 2 (30 degrees) is not in conflict."""
    degrees = torch.tensor([0.0, 20.0, -30.0, -75.0]) / 180 * math.pi
    moves = torch.stack([degrees.cos(), degrees.sin()], dim=1)
    problem, before, after, report = groups(moves, [1, 2, 2, 2])
    merged = reorganise(problem, before, after, report)
    assert merged.labels.tolist() == [1, 0, 0, 1, 1, 2, 2]
    assert tree_events(after, merged) == [{"kind": "dissolve", "node": 1, "into": [3]}]


def test_merging_goes_on_until_nobody_may_be_merged_and_of_equals_the_first_remains() -> None:
    moves = torch.tensor([[1.0, 0.0], [1.0, 0.2], [2.0, 0.0]])
    problem, before, after, report = groups(moves, [1, 1, 1])
    merged = reorganise(problem, before, after, report)
    assert len(merged.models) == 1 and len(tree_events(after, merged)) == 2 and merged.nodes.tolist() == [1]
    assert merged.models[0].tolist() == pytest.approx([4 / 3, 0.2 / 3])


def test_a_client_that_waited_at_a_cluster_that_dissolved_is_offered_a_model() -> None:
    problem, before, after, report = groups(torch.tensor([[1.0, 0.0], [1.0, 0.1]]), [3, 2])
    away = make_pending(after, [4])
    present = Report({"train": report.results["train"].only(torch.arange(5) < 4)})
    merged = reorganise(problem, before, away, present)
    plan = HiCFL().plan(problem, merged, torch.arange(5))
    assert merged.labels.tolist() == [0, 0, 0, 0, -1] and plan.tasks["train"].candidates.tolist() == [[0]] * 5


def test_the_re_organising_ending_merges_once_and_then_decides_nothing() -> None:
    """The pairs part in round 3; later all move alike, which only an ending mends, in round 8."""
    alike = torch.tensor([[1.0, 0.1], [1.0, 0.0], [1.0, 0.0], [1.0, 0.1]])
    algorithm = HiCFL(ending="reorganise", patience=4)
    state, diagnostics = play(algorithm, toy_problem(4, PLANE), [PAIRS] * 3 + [alike] * 5 + [PAIRS] * 6)
    assert [round for round, note in enumerate(diagnostics, start=1) if note.events] == [3, 8]
    assert diagnostics[7].events == ({"kind": "dissolve", "node": 2, "into": [1]},)
    assert state.labels.tolist() == [0, 0, 0, 0] and decision_of(state, 1).kind == "clustering_complete"
    leaves = [node.members for node in state.tree if node.split is None]
    assert leaves == [(0, 1, 2, 3)] and sorted(state.nodes.tolist()) == [1]
