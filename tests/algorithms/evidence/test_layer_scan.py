from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import weight_norm

from builders import answer, layout_with
from fedstrata.algorithms.evidence.layer_scan import (
    LEVEL,
    LayerChoice,
    LayerEvidence,
    LayerScore,
    add_evidence,
    bias_of,
    is_scanned,
    level_of,
    no_evidence,
    participants,
    scan_due,
    scan_layers,
    views_with_bias,
    without_clients,
)
from fedstrata.algorithms.evidence.split_half import Participants
from fedstrata.core import Layout, Report, initial_state
from fedstrata.models import layout_of
from fedstrata.testing import toy_problem

WIDTH = 30
LAYOUT = layout_with({"conv.weight": WIDTH, "norm.weight": 2, "fc.weight": WIDTH, "fc.bias": WIDTH})


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def signal(n: int, groups: int, seed: int) -> torch.Tensor:
    """Directions that the members of a group share, (n, WIDTH)."""
    return torch.randn(groups, WIDTH, generator=seeded(seed))[torch.arange(n) % groups]


def half(n: int, conv: Any = 0.0, weight: Any = 0.0, bias: Any = 0.0, seed: int = 1) -> torch.Tensor:
    """Updates (n, p): what is given, and noise of its own."""
    noise = torch.randn(n, LAYOUT.p, generator=seeded(seed))
    for layer, added in (("conv", conv), ("fc.weight", weight), ("fc.bias", bias)):
        noise[:, LAYOUT.columns(LAYOUT.select(layer))] += added
    return noise


def report_of(*updates: torch.Tensor, clients: list[int] | None = None) -> Report:
    """A report with a result for each of some updates (n, p), from all or some clients; parts come after the first."""
    ids = torch.tensor(range(len(updates[0])) if clients is None else clients, dtype=torch.int64)
    folds = {2: ("A", "B"), 4: ("A1", "A2", "B1", "B2")}.get(len(updates) - 1, ())
    samples = {"train": 200} | {f"scan {part} of {len(folds)}": 200 // len(folds) for part in folds}
    each = zip(samples.items(), updates, strict=True)
    return Report({name: answer(ids, rows[ids], sizes=[size] * len(ids)) for (name, size), rows in each})


def asked(n: int, folds: int = 2) -> Participants:
    return Participants(torch.arange(n), folds)


def evidence_of(n: int, rounds: int = 1, folds: int = 2, **given: Any) -> LayerEvidence:
    evidence = no_evidence(LAYOUT, n)
    for round in range(rounds):
        parts = [half(n, seed=10 * round + seed, **given) for seed in range(1, folds + 1)]
        report = report_of(torch.stack(parts).sum(dim=0), *parts)
        evidence = add_evidence(LAYOUT, evidence, report, asked(n, folds))
    return evidence


def test_the_views_are_every_layer_all_of_them_and_the_last_bias() -> None:
    looks = views_with_bias(LAYOUT)
    assert list(looks) == ["conv", "fc", "all", "fc.bias"]
    assert [len(columns) for columns in looks.values()] == [WIDTH, 2 * WIDTH, 3 * WIDTH, WIDTH]
    alone = layout_with({"fc.weight": 3})
    assert list(views_with_bias(alone)) == ["fc"] and bias_of(alone) is None
    assert bias_of(layout_with({"conv.weight": 3, "conv.bias": 3})) is None


def test_the_bias_of_normalised_or_pruned_weights_comes_before_them() -> None:
    normalised = nn.Sequential(nn.Linear(4, 3), weight_norm(nn.Linear(3, 2)))
    assert bias_of(layout_of(normalised)) == "1.bias"
    pruned = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    prune.l1_unstructured(pruned[1], "weight", amount=0.5)
    assert bias_of(layout_of(pruned)) == "1.bias"
    assert bias_of(layout_of(nn.Sequential(nn.Linear(4, 3), nn.LSTM(3, 2)))) is None


def test_a_round_tells_what_folds_show_what_all_have_in_common_and_who_has_how_many_samples() -> None:
    a = torch.zeros(6, LAYOUT.p)
    for columns in views_with_bias(LAYOUT).values():
        a[:, columns[0]], a[torch.arange(6), columns[1]] = 3.0, torch.tensor([4.0, 4, 4, -4, -4, -4])
    report = report_of(2 * a, a, a)
    evidence = add_evidence(LAYOUT, no_evidence(LAYOUT, 6), report, asked(6))
    evidence = add_evidence(LAYOUT, evidence, report, asked(6))
    # Cosines: 2 of 5 others at 1, 3 at (9 - 16) / 25.
    assert evidence.common[0].item() / evidence.rounds == pytest.approx((2 + 3 * -7 / 25) / 5)
    assert evidence.rounds == 2 and evidence.sizes.tolist() == [200] * 6
    assert evidence.max_norms[0].item() == pytest.approx(10.0)
    assert evidence.by_layer is not None and evidence.by_layer.similarity.shape == (3, 12, 12)
    assert evidence.by_bias is not None and evidence.by_bias.similarity.shape == (1, 12, 12)
    assert bool((evidence.by_layer.rounds == 2).all())


def test_without_folds_the_longest_update_and_the_sizes_are_remembered() -> None:
    evidence = add_evidence(LAYOUT, no_evidence(LAYOUT, 4), report_of(half(4)), None)
    assert evidence.by_layer is None and float(evidence.max_norms[0]) > 0 and evidence.sizes.tolist() == [200] * 4
    nobody = add_evidence(LAYOUT, evidence, report_of(half(4), clients=[]), None)
    assert torch.equal(nobody.max_norms, evidence.max_norms)
    alone = add_evidence(LAYOUT, evidence, report_of(*[half(4)] * 3, clients=[0, 1, 2]), asked(4))
    assert alone.by_layer is None and alone.rounds == 0  # three show nothing about each other


def test_what_clients_showed_is_forgotten_with_their_data() -> None:
    evidence = without_clients(evidence_of(6), torch.tensor([False, True, False, False, False, False]))
    assert evidence.sizes.tolist() == [200, 0, 200, 200, 200, 200]
    assert evidence.by_layer is not None and evidence.by_layer.clients.tolist() == [0, 2, 3, 4, 5]
    assert evidence.by_bias is not None and evidence.by_bias.clients.tolist() == [0, 2, 3, 4, 5]


def test_nobody_trains_on_parts_of_its_data_before_sample_counts_are_known() -> None:
    problem = toy_problem(20, LAYOUT)
    blank = no_evidence(LAYOUT, 20)
    everyone = torch.arange(20)
    assert participants(problem, initial_state(problem), blank, LEVEL, everyone) is None
    known = add_evidence(LAYOUT, blank, report_of(half(20)), None)
    found = participants(problem, initial_state(problem), known, LEVEL, everyone)
    assert found is not None and found.clients.tolist() == list(range(20)) and found.folds == 2


def test_of_many_clients_those_train_on_parts_of_their_data_that_the_round_selects() -> None:
    problem = toy_problem(300, LAYOUT)
    known = replace(no_evidence(LAYOUT, 300), sizes=torch.full((300,), 200), most_answers=20)
    cohort = torch.arange(0, 300, 15)
    found = participants(problem, initial_state(problem), known, LEVEL, cohort)
    assert found is not None and found.clients.tolist() == cohort.tolist()


def test_groups_in_one_layer_are_found_there() -> None:
    found = scan_layers(LAYOUT, evidence_of(20, 2, conv=signal(20, 4, 7)), seeded())
    assert found.layer == "conv" and found.of("conv").correlation > 0.8 and found.of("conv").p == found.p == 0.001
    assert found.of("fc").p > 0.1 and found.agreement == 1.0 and found.skew == "other"
    assert (found.clients, found.rounds) == (20, 2)
    assert found.decision.kind == "layer_chosen" and found.decision.layer == "conv"
    assert found.decision.values["agreement"] == 1.0 and found.decision.values["label_skew"] == 0.0


def test_a_bias_that_replicates_suggests_label_skew_but_is_never_chosen() -> None:
    found = scan_layers(LAYOUT, evidence_of(20, conv=signal(20, 1, 3), bias=2 * signal(20, 4, 7)), seeded())
    assert found.layer == "fc" and found.skew == "labels"
    assert found.of("fc.bias").correlation > found.of("fc").correlation
    assert found.decision.values["bias_correlation"] > 0.9 and found.decision.values["label_skew"] == 1.0


def test_of_layers_that_replicate_alike_the_one_where_updates_have_least_in_common_is_chosen() -> None:
    shared = 10 * signal(20, 1, 3)
    evidence = evidence_of(20, conv=9 * signal(20, 2, 7) + shared, weight=9 * signal(20, 2, 8))
    both = scan_layers(LAYOUT, evidence, seeded())
    assert both.of("conv").correlation > 0.98 and both.of("fc").correlation > 0.98
    assert both.of("fc").common < both.of("conv").common and both.layer == "fc"


def test_noise_alone_is_no_separation() -> None:
    found = [scan_layers(LAYOUT, evidence_of(12), seeded(seed)) for seed in range(3)]
    assert all(each.layer is None and each.skew is None for each in found)
    decision = found[0].decision
    assert (decision.kind, decision.values["compared_clients"], decision.values["rounds"]) == ("no_separation", 12, 1)
    assert decision.layer in ("conv", "fc", "all") and decision.values["bias_p"] > LEVEL


def test_clients_alike_in_all_but_noise_levels_are_no_separation() -> None:
    levels, shared = torch.linspace(1.0, 3.0, 16)[:, None], 3 * signal(16, 1, 3)
    common = half(1, conv=shared[:1], weight=shared[:1], seed=0)
    a, b = (levels * half(16, seed=seed) + common for seed in (1, 2))
    evidence = add_evidence(LAYOUT, no_evidence(LAYOUT, 16), report_of(a + b, a, b), asked(16))
    assert scan_layers(LAYOUT, evidence, seeded()).layer is None


def test_four_folds_tell_few_clients_apart() -> None:
    found = scan_layers(LAYOUT, evidence_of(6, folds=4, conv=signal(6, 2, 7)), seeded())
    assert found.layer == "conv" and found.clients == 6 and found.of("conv").correlation > 0.8


def test_a_bias_alone_names_no_layer_but_is_told() -> None:
    layers = (
        LayerScore("conv", 0.1, 0.01, 0.3, 0.4),
        LayerScore("fc", 0.2, 0.01, 0.3, 0.1),
        LayerScore("fc.bias", 0.3, 0.1, 0.3, 0.001),
    )
    found = LayerChoice(None, layers, "fc.bias", 20, 3, LEVEL, p=0.2)
    assert found.skew is None and found.decision.kind == "no_separation" and found.decision.layer == "fc"
    values = {"correlation": 0.2, "p": 0.2, "level": LEVEL, "bias_correlation": 0.3, "bias_p": 0.001}
    assert {name: found.decision.values[name] for name in values} == values


def test_too_few_clients_are_not_judged() -> None:
    nothing = scan_layers(LAYOUT, no_evidence(LAYOUT, 4), seeded())
    assert nothing.layer is None and nothing.scores == () and nothing.rounds == 0
    assert nothing.decision.kind == "scan_without_samples" and nothing.decision.values["samples_needed"] == 48
    unanswered = replace(no_evidence(LAYOUT, 20), sizes=torch.full((20,), 200))
    assert scan_layers(LAYOUT, unanswered, seeded()).decision.kind == "scan_without_answers"
    found = scan_layers(LAYOUT, evidence_of(8, conv=signal(8, 2, 7)), seeded())
    assert (found.layer, found.scores, found.clients, found.rounds) == (None, (), 8, 1)
    assert found.decision.kind == "scan_without_clients" and found.floor == pytest.approx(0.029, abs=1e-3)


def test_a_last_layer_without_a_bias_says_nothing_about_the_kind_of_skew() -> None:
    view = LayerScore("conv", 0.5, 0.1, 0.3, 0.001)
    found = LayerChoice("conv", (view,), None, 20, 3, LEVEL, p=0.001, agreement=0.95)
    assert found.skew is None and found.decision.values["label_skew"] == 0.0
    assert found.decision.values["agreement"] == 0.95 and "bias_correlation" not in found.decision.values
    slots = Layout(LAYOUT.tensors[:3])
    a, b = (half(20, seed=seed, conv=signal(20, 4, 7))[:, : slots.p] for seed in (1, 2))
    evidence = add_evidence(slots, no_evidence(slots, 20), report_of(a + b, a, b), asked(20))
    again = scan_layers(slots, evidence, seeded())
    assert evidence.by_bias is None and again.layer == "conv"
    assert [view.name for view in again.scores] == ["conv", "fc", "all"]


def test_scans_come_ever_more_rarely_and_spend_the_level_together() -> None:
    assert [round for round in range(1, 30) if is_scanned(round)] == [1, 2, 3, 4, 5, 6, 10, 11, 12, 22, 23, 24]
    levels = {round: level_of(round) for round in range(1, 200) if scan_due(round)}
    assert list(levels) == [3, 6, 12, 24, 48, 96, 192]
    assert levels[3] == pytest.approx(LEVEL / 2) and levels[6] == pytest.approx(LEVEL / 6)
    assert sum(levels.values()) == pytest.approx(LEVEL * 7 / 8)
