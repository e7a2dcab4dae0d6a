"""Which updates count in the means of clusters, which are left out, and what is said of them."""

from dataclasses import replace

import torch
from folded import problem_of

from fedstrata.algorithms.strata import Strata
from fedstrata.algorithms.strata.checked_updates import CheckedUpdates, check_updates
from fedstrata.algorithms.strata.state import StrataState
from fedstrata.core import TRAIN, Report, Result, Rows, make_pending
from fedstrata.testing import toy_layout, toy_problem

PROBLEM = problem_of(6)


def report_of(*scales: float) -> Report:
    """A round in which six clients send ones times a scale, in the normal training and in another task."""
    values = torch.tensor(scales)[:, None].expand(-1, PROBLEM.layout.p)
    ids = torch.arange(6)
    result = Result(Rows(ids, values), torch.zeros(6, dtype=torch.int64), torch.full((6,), 10), torch.full((6, 1), 0.0))
    return Report({TRAIN: result, "test A": result})


def checked(state: StrataState, *scales: float) -> CheckedUpdates:
    return check_updates(
        PROBLEM.layout, state, report_of(*scales), torch.zeros(6, dtype=torch.int64), sign_check=True, copy_check=True
    )


def counted(found: CheckedUpdates) -> dict[int, float]:
    rows = found.counted.results[TRAIN].updates
    return dict(zip(rows.clients.tolist(), rows.values[:, 0].tolist(), strict=True))


def test_a_round_of_like_updates_stays_as_it_is() -> None:
    found = checked(Strata().init(PROBLEM), 1.0, 1.0, 1.5, 1.0, 1.0, 1.0)
    assert found.events == () and found.counted is found.report


def test_a_long_update_is_shortened_in_the_mean_at_once_and_left_out_in_the_next_round() -> None:
    """The mean ratio is 8 ^ (1 / 2.5) = 2.3 after a round, and 8 ^ (1.9 / 3.4) = 3.2 > 2.5 after two."""
    long = (1.0, 1.0, 1.0, 1.0, 1.0, 8.0)
    first = checked(Strata().init(PROBLEM), *long)
    assert first.events == ({"kind": "clipped", "clients": [5]},) and counted(first)[5] == 0.5  # of 8, more than 3
    second = checked(first.state, *long)
    assert second.events == ({"kind": "oversized", "clients": [5]},) and 5 not in counted(second)
    # In the tests of groups it takes part, no longer than others.
    assert second.report.results["test A"].updates.values[5, 0] == 1.0


def test_updates_that_point_backwards_are_left_out_and_long_ones_shortened_in_the_same_round() -> None:
    state = Strata().init(PROBLEM)
    for _ in range(2):
        found = checked(state, 1.0, 1.0, 1.0, -1.0, 1.0, 3.0)
        state = found.state
    assert found.events == ({"kind": "reversed", "clients": [3]}, {"kind": "clipped", "clients": [5]})
    assert counted(found) == {0: 1.0, 1: 1.0, 2: 1.0, 4: 1.0, 5: 2.0}


def test_a_one_sided_update_does_not_count_and_its_sender_is_doubted() -> None:
    """Client 5 sends the mean of the others minus twice their standard deviation, as ALIE does."""
    layout = toy_layout(linear=400)
    others = torch.randn(5, layout.p, generator=torch.Generator().manual_seed(0))
    sent = torch.cat([others, (others.mean(dim=0) - 2 * others.std(dim=0))[None]])
    ids = torch.arange(6)
    result = Result(Rows(ids, sent), torch.zeros(6, dtype=torch.int64), torch.full((6,), 10), torch.zeros(6, 1))
    state = Strata(norm_check=False).init(toy_problem(6, layout))
    labels = torch.zeros(6, dtype=torch.int64)
    found = check_updates(layout, state, Report({TRAIN: result}), labels, sign_check=True, copy_check=True)
    assert found.events == ({"kind": "one_sided", "clients": [5]},)
    assert sorted(counted(found)) == [0, 1, 2, 3, 4]
    assert found.state.directions is not None
    assert found.state.directions.suspect.tolist() == [False] * 5 + [True]


def test_an_update_that_two_clients_send_counts_once() -> None:
    found = checked(Strata().init(PROBLEM), 1.0, 1.5, 1.2, 1.1, 1.2, 1.3)
    assert found.events == ({"kind": "copied", "clients": [4]},)
    assert sorted(counted(found)) == [0, 1, 2, 3, 5]
    assert 4 in found.report.results[TRAIN].updates.clients


def test_the_copies_of_an_honest_update_hide_nobody() -> None:
    """Two of six send flipped signs, and in every third round what client 0 sends. They are known by what they send."""
    state = Strata().init(PROBLEM)
    left_out = list[list[int]]()
    for round in range(1, 7):
        sent = (1.0, 1.1, 1.2, 1.3, 1.0, 1.0) if round % 3 == 0 else (1.0, 1.1, 1.2, 1.3, -1.0, -1.01)
        found = checked(state, *sent)
        state = found.state
        left_out.append([client for client in range(6) if client not in counted(found)])
    assert left_out == [[4, 5]] * 6
    assert found.events == ({"kind": "reversed", "clients": [4, 5]},)


def test_who_is_left_out_cannot_take_the_place_of_the_honest_client_that_it_copies() -> None:
    state = Strata().init(PROBLEM)
    bad = (-1.0, 1.1, 1.2, 1.3, 1.4, 1.5)
    for scales in (bad, bad, bad, (1.5, *bad[1:])):
        found = checked(state, *scales)
        state = found.state
    assert sorted(counted(found)) == [1, 2, 3, 4, 5]
    assert state.left_out.tolist() == [True] + [False] * 5


def test_a_doubted_client_does_not_count_in_the_round_in_which_it_comes_back() -> None:
    """Client 5 leaves its own cluster for that of the others."""
    state = Strata().init(PROBLEM)
    assert state.directions is not None
    state = replace(
        state,
        labels=torch.tensor([0, 0, 0, 0, 0, 1]),
        models=state.models.repeat(2, 1),
        nodes=state.nodes.repeat(2),
        clusters=state.clusters * 2,
        directions=state.directions.doubting(torch.tensor([5])),
    )
    together = torch.zeros(6, dtype=torch.int64)
    found = check_updates(
        PROBLEM.layout, state, report_of(1.0, 1.1, 1.2, 1.3, 1.4, -1.0), together, sign_check=True, copy_check=True
    )
    assert sorted(counted(found)) == [0, 1, 2, 3, 4]
    assert found.events == ({"kind": "reversed", "clients": [5]},)


def test_a_doubted_client_that_chooses_its_cluster_later_does_not_count_in_that_round() -> None:
    state = Strata().init(PROBLEM)
    assert state.directions is not None
    doubted = state.directions.doubting(torch.tensor([5]))
    state = replace(make_pending(state, [4, 5], node=0), directions=doubted)
    together = torch.zeros(6, dtype=torch.int64)
    found = check_updates(
        PROBLEM.layout, state, report_of(1.0, 1.1, 1.2, 1.3, 1.4, -1.0), together, sign_check=True, copy_check=True
    )
    assert sorted(counted(found)) == [0, 1, 2, 3, 4]


def test_without_the_checks_everything_counts() -> None:
    state = Strata(norm_check=False, direction_check=False).init(PROBLEM)
    labels = torch.zeros(6, dtype=torch.int64)
    found = check_updates(
        PROBLEM.layout, state, report_of(1.0, 1.5, 1.2, -1.0, 1.2, 50.0), labels, sign_check=False, copy_check=False
    )
    assert found.events == () and counted(found)[5] == 50.0 and len(counted(found)) == 6
