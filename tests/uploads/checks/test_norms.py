"""Clients whose updates are much longer than others: mean ratios by hand, and who is left out."""

from collections.abc import Sequence
from math import exp, log, sqrt
from typing import Any

import numpy as np
import pytest
import torch

from builders import trained
from fedstrata.clustering.groups import Ints
from fedstrata.core import TRAIN, Layout, Report, TensorSpec
from fedstrata.core.aggregation import clipped_to_twice_median
from fedstrata.uploads.checks.compared_updates import compared_updates
from fedstrata.uploads.checks.norms import NormHistory, clip_long_updates, mean_logs, no_norms, with_norms

FIVE = torch.zeros(5, dtype=torch.int64)
LAYOUT = Layout((TensorSpec("head.weight", "head", "linear", (2,)),))


def report_of(norms: Sequence[float] | torch.Tensor, **answers: Any) -> Report:
    """A round in which clients have sent updates along x of some norms; `trained` has the other arguments."""
    values = torch.as_tensor(norms)
    return trained(torch.stack([values, torch.zeros_like(values)], dim=1), **answers)


def after_report(known: NormHistory, report: Report, labels: torch.Tensor, layout: Layout = LAYOUT) -> NormHistory:
    """What is known after a round."""
    return with_norms(known, compared_updates(layout, report, labels), labels)


def after_rounds(*rounds: list[float], known: NormHistory | None = None, **keys: list[int]) -> NormHistory:
    """What is known of five clients of one cluster after some rounds, by the norms of their updates."""
    known = known or no_norms(5)
    for norms in rounds:
        known = after_report(known, report_of(norms, **keys), FIVE)
    return known


def ratios(known: NormHistory) -> list[float]:
    """The mean ratio of each client."""
    return [exp(mean) for mean in mean_logs(known).tolist()]


def test_the_mean_ratio_is_that_of_logarithms_with_rounds_of_no_difference() -> None:
    """A client of ratio 32 has 32 ^ (1 / 2.5) = 4 after a round, and 32 ^ (1.9 / 3.4) = 6.94 after two."""
    assert ratios(after_rounds([2.0, 2.0, 2.0, 2.0, 64.0])) == pytest.approx([1.0] * 4 + [4.0])
    assert ratios(after_rounds(*[[2.0, 2.0, 2.0, 2.0, 64.0]] * 2))[4] == pytest.approx(32 ** (1.9 / 3.4))


def test_who_keeps_sending_far_longer_updates_is_left_out_and_comes_back_when_it_stops() -> None:
    long = after_rounds(*[[1.0, 1.1, 0.9, 1.0, 8.0]] * 3)
    assert long.left_out.tolist() == [False] * 4 + [True]
    # A weight of 0.9 + 0.81 + 0.729 of log 8 in 4.939 is a ratio of 2.79, and a round later 2.195 in 5.595 is 2.26.
    back = [after_rounds(*[[1.0, 1.1, 0.9, 1.0, 1.0]] * rounds, known=long) for rounds in (1, 2)]
    assert [ratios(each)[4] for each in back] == pytest.approx([2.79, 2.26], abs=0.005)
    assert [bool(each.left_out[4]) for each in back] == [True, False]


def test_two_rounds_of_five_times_the_median_are_not_enough() -> None:
    """5 ^ (1 / 2.5) = 1.90 and, after a second round, 5 ^ (1.9 / 3.4) = 2.46 are at most 2.5; after a third, 2.82."""
    rounds = [[1.0, 1.0, 1.0, 1.0, 5.0]] * 3
    assert [bool(after_rounds(*rounds[:count]).left_out[4]) for count in (1, 2, 3)] == [False, False, True]


def test_who_has_more_samples_may_send_longer_updates() -> None:
    sizes = [10, 10, 10, 10, 50]
    assert ratios(after_rounds([1.0, 1.0, 1.0, 1.0, 5.0], sizes=sizes)) == pytest.approx([1.0] * 5)
    assert not after_rounds(*[[1.0, 1.0, 1.0, 1.0, 5.0]] * 5, sizes=sizes).left_out.any()


def test_the_largest_median_bounds_what_norms_are_compared_with() -> None:
    """The median falls from 1 to 0.1, and a client goes on with 1: that is 4 times a quarter of 1, and not 10 times."""
    known = after_rounds([1.0] * 5, [0.1, 0.1, 0.1, 0.1, 1.0])
    assert known.largest_median == 1.0
    assert known.logs.tolist() == pytest.approx([log(0.4)] * 4 + [log(4.0)])


def test_the_number_of_a_cluster_changes_nothing() -> None:
    """A cluster of norm 1 beside one of norm 20: a quarter of 20 is what all norms are compared with at least."""
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    norms = [1.0, 1.0, 1.0, 3.0, 20.0, 20.0, 20.0, 20.0]
    one = after_report(no_norms(8), report_of(norms, chosen=labels), labels)
    other = after_report(no_norms(8), report_of(norms, chosen=1 - labels), 1 - labels)
    assert one.logs.tolist() == other.logs.tolist() == pytest.approx([log(1 / 5)] * 3 + [log(3 / 5)] + [0.0] * 4)


def test_norms_that_lie_far_apart_are_no_reason_to_leave_anybody_out() -> None:
    """From 1/9 to 9 times the median, of five clients: the score of the longest is 0.6745 * log 9 / log 3 = 1.35."""
    assert not after_rounds(*[[1 / 9, 1 / 3, 1.0, 3.0, 9.0]] * 4).left_out.any()


def test_half_of_a_cluster_is_never_left_out_and_two_clients_are_not_compared() -> None:
    four = after_report(no_norms(4), report_of([1.0, 1.0, 20.0, 20.0]), FIVE[:4])
    assert not four.left_out.any() and four.weights.tolist() == [1.0] * 4
    five = after_report(no_norms(5), report_of([1.0, 1.0, 1.0, 20.0, 20.0]), FIVE)
    assert five.left_out.tolist() == [False] * 3 + [True] * 2
    two = after_report(no_norms(2), report_of([1.0, 20.0]), FIVE[:2])
    assert two.weights.tolist() == [0.0, 0.0]


def test_pending_clients_and_updates_of_zero_are_not_compared() -> None:
    labels = torch.tensor([0, 0, 0, 0, -1])
    known = after_report(no_norms(5), report_of([1.0, 1.0, 1.0, 1.0, 9.0]), labels)
    assert known.weights.tolist() == [1.0] * 4 + [0.0]
    assert after_rounds([1.0, 1.0, 1.0, 1.0, 0.0]).weights.tolist() == [1.0] * 4 + [0.0]


def test_who_goes_over_to_another_cluster_is_still_known_there() -> None:
    long = after_rounds(*[[1.0, 1.0, 1.0, 1.0, 5.0]] * 3)
    moved = after_report(long, report_of([1.0] * 5, chosen=[1, 0, 0, 0, 1]), FIVE)
    assert moved.left_out.tolist() == [False] * 4 + [True]


def test_forgetting_a_client_forgets_all_of_it() -> None:
    known = after_rounds(*[[1.0, 1.0, 1.0, 1.0, 5.0]] * 3).without(torch.arange(5) == 4)
    assert (float(known.logs[4]), float(known.weights[4]), bool(known.left_out[4])) == (0.0, 0.0, False)


def test_normalisation_layers_and_buffers_say_nothing() -> None:
    """Two weights of norm sqrt(2), beside a running variance of any size."""
    layout = Layout((*LAYOUT.tensors, TensorSpec("norm.running_var", "norm", "buffer", (1,))))
    values = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 99.0]])
    result = trained(values).results[TRAIN]
    known = after_report(no_norms(3), Report({TRAIN: result}), FIVE[:3], layout)
    assert known.largest_median == pytest.approx(sqrt(2)) and known.logs.tolist() == [0.0] * 3
    assert clipped_to_twice_median(layout, result.updates).values.equal(values)


def clipped_report(known: NormHistory, report: Report, labels: torch.Tensor = FIVE) -> tuple[Report, Ints]:
    """The report without long updates, and whose were shortened."""
    shorter, long = clip_long_updates(known, compared_updates(LAYOUT, report, labels), report, labels)
    return shorter, report.results[TRAIN].updates.clients.numpy()[long]


def norms_of(report: Report) -> list[float]:
    return report.results[TRAIN].updates.values[:, 0].tolist()


def test_no_update_counts_more_than_twice_the_median_of_its_cluster_from_the_first_round_on() -> None:
    report = report_of([1.0, 2.0, 3.0, 4.0, 8.0])
    known = after_report(no_norms(5), report, FIVE)
    shorter, long = clipped_report(known, report)
    assert norms_of(shorter) == pytest.approx([1.0, 2.0, 3.0, 4.0, 2 * 3.0]) and long.tolist() == [4]
    assert norms_of(report) == [1.0, 2.0, 3.0, 4.0, 8.0]


def test_an_update_of_more_than_three_times_the_median_counts_half() -> None:
    """Otherwise four of twenty could bring a backdoor into the shared model before they are left out."""
    for norm, counted in ((9.0, 2 * 3.0), (9.01, 3.0 / 2), (50.0, 3.0 / 2)):
        shorter, long = clipped_report(no_norms(5), report_of([1.0, 2.0, 3.0, 4.0, norm]))
        assert norms_of(shorter)[4] == pytest.approx(counted) and long.tolist() == [4]


def test_an_update_is_shortened_from_twice_the_median_on() -> None:
    for norms in ([1.0, 1.0, 2.0], [1.0, 2.0, 3.0, 4.0, 6.0]):
        report = report_of(norms)
        same, nobody = clipped_report(no_norms(len(norms)), report, FIVE[: len(norms)])
        assert same is report and not len(nobody)
    shorter, long = clipped_report(no_norms(3), report_of([1.0, 1.0, 2.1]), FIVE[:3])
    assert norms_of(shorter) == pytest.approx([1.0, 1.0, 2.0]) and long.tolist() == [2]


def test_clusters_have_their_own_medians_and_those_of_two_clients_none() -> None:
    """Of three clients, 1 is the median; of the other two, nobody knows which one is right."""
    report = report_of([1.0, 1.0, 9.0, 1.0, 9.0], chosen=[0, 0, 0, 1, 1])
    shorter, long = clipped_report(no_norms(5), report, torch.tensor([0, 0, 0, 1, 1]))
    assert norms_of(shorter) == pytest.approx([1.0, 1.0, 0.5, 1.0, 9.0]) and long.tolist() == [2]


def test_who_goes_over_to_a_cluster_is_shortened_there_and_pending_clients_are_not_compared() -> None:
    """Whoever goes from cluster to cluster is never compared over rounds, so each round has to bound it."""
    report = report_of([1.0, 1.0, 1.0, 9.0, 9.0], chosen=[0, 0, 0, 1, 0])
    labels = torch.tensor([0, 0, 0, 0, -1])
    known = after_report(no_norms(5), report, labels)
    assert known.weights.tolist() == [1.0] * 3 + [0.0] * 2
    shorter, long = clipped_report(known, report, labels)
    assert norms_of(shorter) == pytest.approx([1.0, 1.0, 1.0, 0.5, 9.0]) and long.tolist() == [3]


def test_who_has_more_samples_is_shortened_less() -> None:
    report = report_of([1.0, 1.0, 1.0, 1.0, 8.0], sizes=[10, 10, 10, 10, 30])
    shorter, _ = clipped_report(no_norms(5), report)
    assert norms_of(shorter)[4] == pytest.approx(2 * 3)
    claimed = report_of([1.0, 1.0, 1.0, 1.0, 29.0], sizes=[10, 10, 10, 10, 10_000])
    assert norms_of(clipped_report(no_norms(5), claimed)[0])[4] == pytest.approx(2 * 10)


def test_all_clusters_at_once_are_as_each_by_itself() -> None:
    """Clusters 0, 2 and 7 of clients with other norms and sizes, of whom some are away and some send long updates.

    No cluster has a median below a quarter of another's, with which it would be compared.
    """
    draw = np.random.default_rng(0)
    labels = torch.from_numpy(draw.choice([0, 2, 7], 30))
    sizes = torch.from_numpy(draw.integers(10, 500, 30))
    together = no_norms(30)
    alone = {cluster: no_norms(30) for cluster in (0, 2, 7)}
    for round in range(8):
        clients = torch.from_numpy(np.sort(draw.permutation(30)[:25]))
        norms = (1.0 + labels[clients] / 7) * torch.from_numpy(draw.lognormal(0, 0.2, 25)).float()
        norms[(clients % 6 == 0) & (round > 2)] *= 12.0
        everyone = report_of(norms, clients=clients, chosen=labels[clients], sizes=sizes[clients])
        together = after_report(together, everyone, labels)
        clipped = set(clipped_report(together, everyone, labels)[1].tolist())
        for cluster in alone:
            own = torch.where(labels == cluster, labels, -1)
            here = labels[clients] == cluster
            some = Report({TRAIN: everyone.results[TRAIN].only(here)})
            alone[cluster] = after_report(alone[cluster], some, own)
            assert clipped & set(clients[here].tolist()) == set(clipped_report(alone[cluster], some, own)[1].tolist())
    assert together.left_out.any()
    for cluster, known in alone.items():
        here = labels == cluster
        for field in ("logs", "weights", "left_out"):
            assert getattr(together, field)[here].equal(getattr(known, field)[here])
