"""Which updates count in the means of clusters, which are left out, and what is said of them."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from builders import trained
from fedstrata.algorithms.fedavg import FedAvg
from fedstrata.core import TRAIN, Report
from fedstrata.core.state import ServerMemory
from fedstrata.testing import play, toy_layout, toy_problem
from fedstrata.uploads.checks.update_checks import CheckHistory, Checks

LAYOUT = toy_layout()
TOGETHER = torch.zeros(6, dtype=torch.int64)
ALL = Checks()
NOTHING = ALL.no_history(6)


def report_of(*scales: float) -> Report:
    """A round in which six clients send ones times a scale."""
    return trained(torch.tensor(scales)[:, None].expand(-1, LAYOUT.p))


def counted(
    history: ServerMemory, *scales: float, before: torch.Tensor = TOGETHER, checks: Checks = ALL
) -> tuple[Report, ServerMemory]:
    """The report of what counts in such a round, and what is then known."""
    return checks.counted(LAYOUT, history, report_of(*scales), before, TOGETHER)


def sent(report: Report) -> dict[int, float]:
    """What each client has sent that counts."""
    rows = report.results[TRAIN].updates
    return dict(zip(rows.clients.tolist(), rows.values[:, 0].tolist(), strict=True))


def after(*rounds: Sequence[float]) -> Report:
    """What counts in the last of some rounds."""
    history: ServerMemory = NOTHING
    for scales in rounds:
        report, history = counted(history, *scales)
    return report


def test_a_round_of_like_updates_stays_as_it_is() -> None:
    scales = (1.0, 1.0, 1.5, 1.0, 1.0, 1.0)
    report, _ = counted(NOTHING, *scales)
    assert report.events == () and sent(report) == sent(report_of(*scales))


def test_a_long_update_is_shortened_in_the_mean_at_once_and_left_out_in_the_next_round() -> None:
    """The mean ratio is 8 ^ (1 / 2.5) = 2.3 after a round, and 8 ^ (1.9 / 3.4) = 3.2 > 2.5 after two."""
    long = (1.0, 1.0, 1.0, 1.0, 1.0, 8.0)
    first, second = after(long), after(long, long)
    assert first.events == ({"kind": "clipped", "clients": [5]},) and sent(first)[5] == 0.5  # of 8, more than 3
    assert second.events == ({"kind": "oversized", "clients": [5]},) and 5 not in sent(second)


def test_other_tasks_than_the_normal_training_stay_as_they_are() -> None:
    report = report_of(1.0, 1.0, 1.0, 1.0, 1.0, 8.0)
    both = Report({**report.results, "test A": report.results[TRAIN]})
    found, _ = ALL.counted(LAYOUT, NOTHING, both, TOGETHER, TOGETHER)
    assert found.results["test A"] is both.results["test A"] and sent(found)[5] == 0.5


def test_updates_that_point_backwards_are_left_out_and_long_ones_shortened_in_the_same_round() -> None:
    scales = (1.0, 1.0, 1.0, -1.0, 1.0, 3.0)
    found = after(scales, scales)
    assert found.events == ({"kind": "reversed", "clients": [3]}, {"kind": "clipped", "clients": [5]})
    assert sent(found) == {0: 1.0, 1: 1.0, 2: 1.0, 4: 1.0, 5: 2.0}


def known_of_last(history: ServerMemory) -> tuple[float, float, bool]:
    """What is known of client 5: the weights of its cosines and of its norms, and whether it points backwards."""
    assert isinstance(history, CheckHistory) and history.directions is not None and history.norms is not None
    directions, norms = history.directions, history.norms
    return float(directions.weights[5]), float(norms.weights[5]), bool(directions.left_out[5])


def test_who_was_left_out_does_not_count_in_another_cluster_until_it_points_forwards_there() -> None:
    flipped = (1.0, 1.1, 1.2, 1.3, 1.4, -1.0)
    _, known = counted(NOTHING, *flipped)
    assert known_of_last(known) == (1.0, 1.0, True)
    apart = torch.tensor([0, 0, 0, 0, 0, 1])
    # It comes from another cluster in this round, and has trained a model of the new one.
    report, moved = counted(known, *flipped, before=apart)
    assert report.events == ({"kind": "reversed", "clients": [5]},) and sorted(sent(report)) == [0, 1, 2, 3, 4]
    still, _ = counted(moved, *flipped)
    assert sorted(sent(still)) == [0, 1, 2, 3, 4]
    back, _ = counted(moved, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5)
    assert back.events == () and len(sent(back)) == 6


def test_whoever_is_forgotten_begins_anew_but_stays_left_out() -> None:
    """As after its data have changed."""
    _, known = counted(NOTHING, 1.0, 1.1, 1.2, 1.3, 1.4, -1.0)
    assert isinstance(known, CheckHistory)
    assert known_of_last(known.forgetting(torch.arange(6) == 5)) == (0.0, 0.0, True)


def test_what_is_not_checked_counts() -> None:
    none = Checks(())
    found, _ = counted(none.no_history(6), 1.0, 1.5, 1.2, -1.0, 1.2, 50.0, checks=none)
    assert found.events == () and sent(found)[5] == 50.0 and len(sent(found)) == 6


def test_any_algorithm_averages_what_counts_and_remembers_it_in_its_state() -> None:
    """FedAvg: client 3 sends flipped signs, and the others ones. Its update does not move the model."""
    problem = replace(toy_problem(6), checks=ALL)
    scales = torch.tensor([1.0, 1.1, 1.2, -1.0, 1.3, 1.4])
    state, diagnostics = play(FedAvg(), problem, [scales[:, None].expand(-1, problem.layout.p)] * 2)
    assert torch.allclose(state.models, torch.tensor(2.4))
    assert diagnostics[1].events == ({"kind": "reversed", "clients": [3]},)
    assert isinstance(state.history, CheckHistory) and state.history.directions is not None
    assert state.history.directions.left_out.tolist() == [False, False, False, True, False, False]
    unchecked, _ = play(FedAvg(), toy_problem(6), [scales[:, None].expand(-1, problem.layout.p)] * 2)
    assert torch.allclose(unchecked.models, torch.tensor(2 * 5 / 6))
