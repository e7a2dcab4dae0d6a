import math
from pathlib import Path

import numpy as np
import pytest
import torch
from experiments.tools import outcomes
from experiments.tools.outcomes import MISSING
from experiments.trust import leak_tables, leakage, leaks
from torch import nn


def test_scores_that_are_apart_are_told_apart_and_equal_ones_are_not() -> None:
    assert leakage.detection([2.0, 3.0], [0.0, 1.0]) == leakage.Detection(auc=1.0, tpr=1.0)
    assert leakage.detection([0.0, 1.0], [2.0, 3.0]) == leakage.Detection(auc=0.0, tpr=0.0)
    assert leakage.detection([1.0, 1.0], [1.0, 1.0]) == leakage.Detection(auc=0.5, tpr=0.0)


def test_three_of_four_pairs_in_order_are_an_auc_of_three_quarters() -> None:
    assert leakage.detection([1.0, 3.0], [0.0, 2.0]).auc == 0.75


def test_the_log_odds_are_those_of_the_probabilities() -> None:
    logits = torch.tensor([[math.log(3.0), 0.0], [200.0, 0.0]])
    found = leakage.scaled_confidence(logits, torch.tensor([0, 0]))
    assert found == pytest.approx([math.log(3.0), 200.0])  # 3/4 against 1/4; no infinity where p is 1


def test_a_confidence_like_that_of_the_shadow_models_scores_a_half() -> None:
    shadows = np.array([[0.0, 10.0], [2.0, 12.0]])  # means 1 and 11, deviation sqrt(2)
    scores = leakage.likelihood_scores(np.array([1.0, 11.0 + math.sqrt(2.0)]), shadows)
    assert scores == pytest.approx([0.5, 0.8413], abs=1e-4)


def test_one_step_on_uniform_probabilities_shows_the_shares_exactly() -> None:
    shares = torch.tensor([[0.75, 0.25, 0.0, 0.0]])
    update = 0.1 * (shares - 0.25)
    assert leakage.shares_from_bias(update, torch.tensor([1]), lr=0.1) == pytest.approx(shares.numpy())


def test_shares_that_are_linear_in_what_is_seen_are_learned() -> None:
    shares = np.random.default_rng(0).dirichlet([1.0] * 3, size=60)
    seen = shares @ np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    estimate = leakage.shares_by_regression(seen[:40], shares[:40], seen[40:])
    assert leakage.agreement(estimate, shares[40:])["r2"] > 0.99


def test_an_estimate_that_is_the_same_for_all_explains_nothing() -> None:
    truth = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert leakage.agreement(np.full((2, 2), 0.5), truth) == {"r": 0.0, "r2": 0.0}


def test_an_error_of_a_tenth_is_twenty_decibels() -> None:
    assert leakage.psnr(torch.full((4,), 0.6), torch.full((4,), 0.5)) == pytest.approx(20.0, abs=1e-5)
    assert leakage.psnr(torch.ones(4), torch.ones(4)) == math.inf


def test_found_images_are_matched_in_any_order() -> None:
    truth = torch.stack([torch.zeros(1, 2, 2), torch.ones(1, 2, 2)])
    found = torch.stack([torch.full((1, 2, 2), 0.9), torch.full((1, 2, 2), 0.1)])
    assert leakage.matching(found, truth) == [1, 0]
    assert leakage.matched_psnr(found, truth) == pytest.approx([20.0, 20.0], abs=1e-4)


def test_the_first_layer_shows_a_single_input_exactly() -> None:
    torch.manual_seed(0)
    network, image = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), torch.rand(1, 6)
    loss = nn.functional.cross_entropy(network(image), torch.tensor([2]))
    weight, bias, *_ = torch.autograd.grad(loss, list(network.parameters()))
    found = leakage.inputs_of_linear_layer(weight, bias)
    assert len(found) and torch.allclose(found, image.expand_as(found), atol=1e-5)


def test_the_closed_form_gives_the_image_of_one_step_of_the_experiment() -> None:
    torch.manual_seed(0)
    image, network = torch.rand(1, 1, 28, 28), leaks.fresh_network("mlp", 0)
    sent = leaks.sent_gradients(network, (image - 0.5) / 0.25, torch.tensor([3]), batch=1)
    found = leaks.closed_form_images(sent, lambda images: (images - 0.5) / 0.25).view(-1, 1, 28, 28)
    assert leakage.psnr(leakage.best_candidates(found, image)[0], image[0]) > 40


def test_a_search_finds_the_image_of_a_small_network() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 32), nn.Sigmoid(), nn.Linear(32, 4))
    image, label = torch.rand(1, 1, 4, 4), torch.tensor([1])
    observe = leaks.observer(network, "all")
    gradients = torch.autograd.grad(nn.functional.cross_entropy(network(image), label), list(network.parameters()))
    start = torch.Generator().manual_seed(0)
    found = leakage.gradient_match(
        network, observe, observe(gradients), label, (1, 4, 4), lambda images: images, start, smoothness=0.0
    )
    assert leakage.psnr(found, image) > 20


def test_a_sketch_adds_every_column_to_one_bucket_with_a_sign() -> None:
    observe = leaks.count_sketch(50, width=8, seed=3)
    buckets = torch.stack([observe([column[:20].view(4, 5), column[20:]]) for column in torch.eye(50)])
    assert buckets.abs().sum(dim=1).tolist() == [1] * 50
    row = torch.randint(-5, 6, (50,), generator=torch.Generator().manual_seed(0)).float()
    assert torch.equal(observe([row]), row @ buckets)


def test_what_is_seen_of_the_head_is_its_two_tensors() -> None:
    network = leaks.fresh_network("mlp", 0)
    gradients = [torch.full_like(value, float(place)) for place, value in enumerate(network.parameters())]
    assert leaks.observer(network, "head")(gradients).unique().tolist() == [2.0, 3.0]
    assert leaks.observer(network, "body")(gradients).unique().tolist() == [0.0, 1.0]


@pytest.mark.parametrize("name", leak_tables.LEAKS)
def test_tables_without_results_say_so(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(outcomes, "RESULTS", tmp_path)
    lines = leak_tables.LEAKS[name]().splitlines()
    assert all(MISSING in line for line in lines[2:])
    assert len({line.count("|") for line in lines}) == 1


@pytest.mark.parametrize("name", leak_tables.LEAKS)
def test_tables_of_committed_results_are_complete(name: str) -> None:
    assert MISSING not in leak_tables.LEAKS[name]()


def test_everything_that_is_measured_says_what_it_depends_on() -> None:
    assert leaks.STUDIES.keys() == leaks.CONDITIONS.keys()
