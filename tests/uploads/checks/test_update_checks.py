"""Which updates count in the means of clusters, which are left out, and what is said of them."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from builders import trained
from fedstrata.algorithms.fedavg import FedAvg
from fedstrata.core import TRAIN, Report
from fedstrata.core.server import CheckedUpdates, UpdateHistory, history_of
from fedstrata.testing import play, toy_layout, toy_problem
from fedstrata.uploads.checks.update_checks import Checks

LAYOUT = toy_layout()
TOGETHER = torch.zeros(6, dtype=torch.int64)
ALL = Checks()
NOTHING: UpdateHistory = ALL.no_history(6)
NOBODY = torch.zeros(6, dtype=torch.bool)


def report_of(*scales: float) -> Report:
    """A round in which six clients send ones times a scale, in the normal training and in another task."""
    result = trained(torch.tensor(scales)[:, None].expand(-1, LAYOUT.p)).results[TRAIN]
    return Report({TRAIN: result, "test A": result})


def checked(
    history: UpdateHistory, *scales: float, before: torch.Tensor = TOGETHER, checks: Checks = ALL
) -> CheckedUpdates:
    return checks.check(LAYOUT, history, report_of(*scales), before, TOGETHER, chose=NOBODY)


def counted(found: CheckedUpdates) -> dict[int, float]:
    rows = found.counted.results[TRAIN].updates
    return dict(zip(rows.clients.tolist(), rows.values[:, 0].tolist(), strict=True))


def after(*rounds: Sequence[float]) -> CheckedUpdates:
    """What is found in the last of some rounds."""
    history = NOTHING
    for scales in rounds:
        found = checked(history, *scales)
        history = found.history
    return found


def test_a_round_of_like_updates_stays_as_it_is() -> None:
    found = checked(NOTHING, 1.0, 1.0, 1.5, 1.0, 1.0, 1.0)
    assert found.events == () and found.counted is found.report


def test_a_long_update_is_shortened_in_the_mean_at_once_and_left_out_in_the_next_round() -> None:
    """The mean ratio is 8 ^ (1 / 2.5) = 2.3 after a round, and 8 ^ (1.9 / 3.4) = 3.2 > 2.5 after two."""
    long = (1.0, 1.0, 1.0, 1.0, 1.0, 8.0)
    first, second = after(long), after(long, long)
    assert first.events == ({"kind": "clipped", "clients": [5]},) and counted(first)[5] == 0.5  # of 8, more than 3
    assert second.events == ({"kind": "oversized", "clients": [5]},) and 5 not in counted(second)
    # In the tests of groups it takes part, no longer than others.
    assert second.report.results["test A"].updates.values[5, 0] == 1.0


def test_updates_that_point_backwards_are_left_out_and_long_ones_shortened_in_the_same_round() -> None:
    scales = (1.0, 1.0, 1.0, -1.0, 1.0, 3.0)
    found = after(scales, scales)
    assert found.events == ({"kind": "reversed", "clients": [3]}, {"kind": "clipped", "clients": [5]})
    assert counted(found) == {0: 1.0, 1: 1.0, 2: 1.0, 4: 1.0, 5: 2.0}


def test_a_one_sided_update_does_not_count_and_its_sender_is_doubted() -> None:
    """Client 5 sends the mean of the others minus twice their standard deviation, as ALIE does."""
    layout = toy_layout(linear=400)
    others = torch.randn(5, layout.p, generator=torch.Generator().manual_seed(0))
    sent = torch.cat([others, (others.mean(dim=0) - 2 * others.std(dim=0))[None]])
    checks = Checks(("directions", "signs", "copies"))
    found = checks.check(layout, checks.no_history(6), trained(sent), TOGETHER, TOGETHER)
    assert found.events == ({"kind": "one_sided", "clients": [5]},)
    assert sorted(counted(found)) == [0, 1, 2, 3, 4]
    assert found.history.suspect is not None
    assert found.history.suspect.tolist() == [False] * 5 + [True]


def test_an_update_that_two_clients_send_counts_once() -> None:
    found = checked(NOTHING, 1.0, 1.5, 1.2, 1.1, 1.2, 1.3)
    assert found.events == ({"kind": "copied", "clients": [4]},)
    assert sorted(counted(found)) == [0, 1, 2, 3, 5]
    assert 4 in found.report.results[TRAIN].updates.clients


def test_the_copies_of_an_honest_update_hide_nobody() -> None:
    """Two of six send flipped signs, and in every third round what client 0 sends. They are known by what they send."""
    flipped, copying = (1.0, 1.1, 1.2, 1.3, -1.0, -1.01), (1.0, 1.1, 1.2, 1.3, 1.0, 1.0)
    rounds = (flipped, flipped, copying, flipped, flipped, copying)
    for number in range(1, 7):
        assert sorted(counted(after(*rounds[:number]))) == [0, 1, 2, 3]
    assert after(*rounds).events == ({"kind": "reversed", "clients": [4, 5]},)


def test_who_is_left_out_cannot_take_the_place_of_the_honest_client_that_it_copies() -> None:
    bad = (-1.0, 1.1, 1.2, 1.3, 1.4, 1.5)
    found = after(bad, bad, bad, (1.5, *bad[1:]))
    assert sorted(counted(found)) == [1, 2, 3, 4, 5]
    assert found.history.left_out(6).tolist() == [True] + [False] * 5


def test_a_doubted_client_does_not_count_in_the_round_in_which_it_comes_back_or_chooses_its_cluster() -> None:
    doubted = NOTHING.doubting(torch.tensor([5]))
    for own in (1, -1):
        before = torch.tensor([0, 0, 0, 0, 0, own])
        found = checked(doubted, 1.0, 1.1, 1.2, 1.3, 1.4, -1.0, before=before)
        assert sorted(counted(found)) == [0, 1, 2, 3, 4]
        assert found.events == ({"kind": "reversed", "clients": [5]},)


def test_what_is_not_checked_counts() -> None:
    none = Checks(())
    found = checked(none.no_history(6), 1.0, 1.5, 1.2, -1.0, 1.2, 50.0, checks=none)
    assert found.events == () and counted(found)[5] == 50.0 and len(counted(found)) == 6


def test_any_algorithm_averages_what_counts_and_remembers_it_in_its_state() -> None:
    """FedAvg: client 3 sends flipped signs, and the others ones. Its update does not move the model."""
    problem = replace(toy_problem(6), checks=ALL)
    scales = torch.tensor([1.0, 1.1, 1.2, -1.0, 1.3, 1.4])
    state, diagnostics = play(FedAvg(), problem, [scales[:, None].expand(-1, problem.layout.p)] * 2)
    assert torch.allclose(state.models, torch.tensor(2.4))
    assert diagnostics[1].events == ({"kind": "reversed", "clients": [3]},)
    assert history_of(state).left_out(6).tolist() == [False, False, False, True, False, False]
    unchecked, _ = play(FedAvg(), toy_problem(6), [scales[:, None].expand(-1, problem.layout.p)] * 2)
    assert torch.allclose(unchecked.models, torch.tensor(2 * 5 / 6))
