from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from builders import federation, keys, run
from fedstrata import core
from fedstrata.base.errors import ExperimentError
from fedstrata.build.build import build_run
from fedstrata.build.participation import Participation, participation_of
from fedstrata.config import load_experiment
from fedstrata.core import initial_state
from fedstrata.testing import toy_problem


def of(**events: Any) -> Participation:
    return with_tables(events=events)


def with_tables(clients: int = 6, **tables: Any) -> Participation:
    return participation_of(load_experiment({"data": {"clients": clients}, **tables}))


def two_clusters(round: int) -> core.State:
    """The state after a round: clients 0 to 2 and 3 to 5, which were split in round 1."""
    node = core.Node
    tree = (node(0, None, (0, 1, 2, 3, 4, 5), 0, 1), node(1, 0, (0, 1, 2), 1), node(2, 0, (3, 4, 5), 1))
    labels, waiting = torch.tensor([0, 0, 0, 1, 1, 1]), torch.full((6,), -1)
    return core.State(torch.zeros(2, 6), labels, torch.tensor([1, 2]), waiting, round, tree)


def test_clients_take_part_from_the_round_they_join_until_the_round_they_leave() -> None:
    participation = of(join=[{"round": 3, "clients": [4, 5]}], leave=[{"round": 4, "clients": [0, 4]}])
    assert [participation.active(round).tolist() for round in (1, 2, 3, 4)] == [
        [0, 1, 2, 3],
        [0, 1, 2, 3],
        [0, 1, 2, 3, 4, 5],
        [1, 2, 3, 5],
    ]


@pytest.mark.parametrize(
    ("cohort", "expected"),
    [
        ({}, [6.0, 5.0]),
        ({"fraction": 0.1}, [1.0, 1.0]),  # 0.6 clients are rounded to one
        ({"fraction": 0.5, "dropout": 0.3}, [2.0, 2.0]),  # 3 without 0.9, rounded; 2.5 rounded up without 0.9
        ({"fraction": 0.1, "sampling": "poisson"}, [0.6, 0.5]),
        ({"fraction": 0.5, "dropout": 0.3, "sampling": "poisson"}, [2.1, 1.75]),
    ],
)
def test_as_many_answers_are_expected_as_cohorts_give(cohort: dict[str, Any], expected: list[float]) -> None:
    participation = with_tables(cohort=cohort, events={"leave": [{"round": 2, "clients": [0]}]})
    assert [participation.expected_answers(round) for round in (1, 2)] == pytest.approx(expected)
    if not participation.poisson:
        cohort_of_2, dropped = participation.sample(2)
        assert len(cohort_of_2) - len(dropped) == expected[1]


def test_one_client_of_a_cohort_always_answers() -> None:
    """Of six clients, cohorts of three lose two; of the two that stay, the one of a cohort answers."""
    cohort, leave = {"fraction": 0.5, "dropout": 0.5}, [{"round": 2, "clients": [0, 1, 2, 3]}]
    participation = with_tables(rounds=5, cohort=cohort, events={"leave": leave})
    found = [participation.sample(round) for round in (1, 2)]
    assert [(len(sample.cohort), len(sample.dropped)) for sample in found] == [(3, 2), (1, 0)]


def test_a_newcomer_waits_at_the_root_and_one_that_left_where_it_was() -> None:
    participation = of(join=[{"round": 3, "clients": [5]}], leave=[{"round": 2, "clients": [0]}])
    state, events = participation.apply_events(initial_state(toy_problem(6)), 1)
    assert state.labels.tolist() == [0, 0, 0, 0, 0, -1] and events == []
    assert state.tree[0].members == (0, 1, 2, 3, 4)
    state, events = participation.apply_events(state, 2)
    assert state.labels.tolist() == [-1, 0, 0, 0, 0, -1] and events == [{"kind": "leave", "clients": [0]}]


def test_a_client_whose_data_changed_is_placed_like_a_newcomer() -> None:
    participation = of(change=[{"round": 2, "client": 1, "takes_data_of": 5}])
    assert participation.active(1).tolist() == [0, 1, 2, 3, 4]
    state, _ = participation.apply_events(initial_state(toy_problem(6)), 1)
    state, events = participation.apply_events(state, 2)
    assert state.labels.tolist() == [0, -1, 0, 0, 0, -1] and state.waiting[1] == 0
    assert events == [{"kind": "change", "clients": [1]}]


def test_misplaced_clients_are_put_into_another_cluster() -> None:
    participation, state = of(misplace=[{"round": 2, "share": 0.5}]), initial_state(toy_problem(6))
    untouched, events = participation.apply_events(state, 2)
    assert torch.equal(untouched.labels, state.labels)
    assert [(event["kind"], event["clients"]) for event in events] == [("misplace", [])]  # there is only one cluster
    two = two_clusters(round=1)
    moved, events = participation.apply_events(two, 2)
    assert int((moved.labels != two.labels).sum()) == 3 and events[0]["kind"] == "misplace"
    assert moved.tree[1].members == tuple((moved.labels == 0).nonzero().flatten().tolist())


def test_before_the_first_split_clients_are_misplaced_as_soon_as_there_are_two_clusters() -> None:
    """Round 1 has one cluster, which is split in round 1: those of round 1 are misplaced before round 2, once."""
    participation, state = of(misplace=[{"round": 1, "share": 0.5}]), initial_state(toy_problem(6))
    assert participation.apply_events(state, 1)[1][0]["clients"] == []
    two = two_clusters(round=1)
    moved, events = participation.apply_events(two, 2)
    assert [event["kind"] for event in events] == ["misplace"] and int((moved.labels != two.labels).sum()) == 3
    assert participation.apply_events(two, 3)[1] == []


def swap(round: int, client: int, other: int) -> dict[str, int]:
    return {"round": round, "client": client, "takes_data_of": other}


@pytest.mark.parametrize(
    ("message", "events"),
    [
        ("client 6 does not exist", {"join": [{"round": 2, "clients": [6]}]}),
        ("one client in round 1", {"join": [{"round": 2, "clients": [0, 1, 2, 3, 4, 5]}]}),
        ("one client in round 4", {"leave": [{"round": 2, "clients": [0, 1, 2]}, {"round": 4, "clients": [3, 4, 5]}]}),
        ("in round 3", {"leave": [{"round": 3, "clients": [0, 1, 2, 3, 4]}], "change": [swap(1, 0, 5)]}),
        ("rounds of at most rounds = 50, found 51", {"join": [{"round": 51, "clients": [1]}]}),
        ("rounds of at most rounds = 50", {"change": [swap(51, 1, 2)]}),
        (
            "client 2 .* join in round 2, join in round 3",
            {"join": [{"round": 2, "clients": [1, 2]}, {"round": 3, "clients": [2]}]},
        ),
        ("client 1 .* change in round 2, change in round 3", {"change": [swap(2, 1, 2), swap(3, 1, 3)]}),
        ("takes no part .* found client 3", {"change": [swap(2, 3, 3)]}),
        ("takes no part .* found client 1", {"change": [swap(2, 0, 1), swap(3, 1, 0)]}),
        ("takes no part .* found client 1", {"change": [swap(2, 0, 1)], "join": [{"round": 3, "clients": [1]}]}),
        ("client 0 .* leave in round 3", {"change": [swap(3, 0, 1)], "leave": [{"round": 3, "clients": [0]}]}),
        ("client 0 .* join in round 5", {"change": [swap(5, 0, 1)], "join": [{"round": 5, "clients": [0]}]}),
        (
            "client 1 .* join in round 5, leave in round 5",
            {"join": [{"round": 5, "clients": [1]}], "leave": [{"round": 5, "clients": [1]}]},
        ),
    ],
)
def test_events_that_cannot_happen_are_one_clear_error(message: str, events: dict[str, Any]) -> None:
    with pytest.raises(ExperimentError, match=message):
        of(**events)


def test_a_run_with_joins_leaves_and_changed_data_keeps_its_books(tmp_path: Path) -> None:
    events = {
        "join": [{"round": 3, "clients": [7]}],
        "leave": [{"round": 3, "clients": [0]}],
        "change": [swap(2, 1, 8)],
    }
    rounds = run(tmp_path / "run", data={"clients": 9}, events=events).rounds
    assert [record["cohort"] for record in rounds] == [list(range(7))] * 2 + [list(range(1, 8))] * 2
    assert rounds[1]["labels"] == [0, 0, 0, 0, 0, 0, 0, -1, -1]
    assert rounds[3]["labels"] == [-1, 0, 0, 0, 0, 0, 0, 0, -1] and rounds[3]["pending"] == []
    kinds = [[event["kind"] for event in record["events"]] for record in rounds]
    assert kinds == [[], ["change"], ["join", "leave"], []]


@given(st.integers(0, 99), st.integers(1, 50), st.integers(1, 40), st.floats(0.01, 1.0), st.floats(0.0, 0.99))
def test_a_cohort_is_ascending_and_its_absent_clients_are_part_of_it(
    seed: int, round: int, n: int, fraction: float, dropout: float
) -> None:
    participation = Participation(n, seed, fraction, dropout)
    cohort, absent = participation.sample(round)
    assert cohort.tolist() == sorted(set(cohort.tolist())) and set(cohort.tolist()) <= set(range(n))
    assert set(absent.tolist()) <= set(cohort.tolist())
    assert len(cohort) == max(1, int(fraction * n + 0.5)) and len(absent) == min(
        int(dropout * len(cohort) + 0.5), len(cohort) - 1
    )
    again = participation.sample(round)
    assert torch.equal(cohort, again[0]) and torch.equal(absent, again[1])


def test_clients_are_sampled_in_proportion_to_their_weights_and_those_without_weight_never() -> None:
    participation = Participation(4, 0, fraction=0.25, weights=lambda round: torch.tensor([0.0, 1.0, 1.0, 8.0]))
    drawn = torch.zeros(4)
    for round in range(1, 401):
        cohort, _ = participation.sample(round)
        drawn[cohort] += 1
    assert drawn[0] == 0 and drawn.sum() == 400
    assert 0.74 < float(drawn[3] / 400) < 0.86  # 0.8, and four standard deviations are 0.08
    assert torch.equal(participation.sample(7).cohort, participation.sample(7).cohort)


def test_with_central_noise_no_client_drops_out_because_of_another_one() -> None:
    """Of two clients, or of three, one or two would always answer. Each by itself, all numbers of answers occur."""
    privacy = {"kind": "central", "epsilon": 8.0, "clip_norm": 1.0}
    for clients in (2, 3):
        participation = with_tables(clients, cohort={"dropout": 0.5}, privacy=privacy)
        assert participation.independent_dropout
        answers = [clients - len(participation.sample(round).dropped) for round in range(1, 401)]
        assert set(answers) == set(range(clients + 1))
        deviation = (clients / 4 / 400) ** 0.5
        assert abs(sum(answers) / 400 - participation.expected_answers(1)) < 4 * deviation


@pytest.mark.parametrize("poisson", [True, False])
def test_of_a_secret_seed_all_bits_count(poisson: bool) -> None:
    """torch takes the low 32 bits of a seed, which can be tried out."""
    draws = [
        Participation(64, seed, fraction=0.5, poisson=poisson, secret=True).sample(1).cohort.tolist()
        for seed in (5, 5 + 2**40, 5)
    ]
    assert draws[0] == draws[2] != draws[1]


def test_by_size_the_weights_are_the_training_samples_of_the_round() -> None:
    setup = federation(
        data={"clients": 4, "samples": 60},
        partition={"scheme": "quantity", "alpha": 1.0},
        cohort={"fraction": 0.5, "sampling": "size"},
        events={"change": [swap(2, 0, 3)]},
    )
    assert setup.server.participation.weights is not None
    sizes = [len(setup.client_data.train(client)) for client in range(4)]
    assert setup.server.participation.weights(1).tolist() == sizes and len(set(sizes)) > 1
    assert setup.server.participation.weights(2).tolist() == [sizes[3], *sizes[1:]]
    assert federation(data={"clients": 4}).server.participation.weights is None


@pytest.mark.parametrize(
    ("cohort", "message"),
    [
        ({"weights": [1.0, 2.0], "fraction": 0.5}, "expected a weight for each of the 3 clients, found 2"),
        ({"weights": [0.0, 0.0, 0.0]}, "expected a weight above 0 of a client in round 1"),
        ({"weights": [1.0, 2.0, 3.0], "sampling": "size", "fraction": 0.5}, "expected none beside cohort.sampling"),
    ],
)
def test_weights_that_do_not_fit_are_refused(cohort: dict[str, Any], message: str) -> None:
    with pytest.raises(ExperimentError, match=f"cohort.weights: {message}"):
        with_tables(3, cohort=cohort)


@pytest.mark.parametrize(("clients", "fraction", "told"), [(8, 1.0, False), (8, 0.5, True), (7, 1.0, True)])
def test_a_run_in_which_no_cluster_can_be_split_says_so(clients: int, fraction: float, told: bool) -> None:
    tables = keys(data={"clients": clients}, algorithm={"name": "cfl"}, cohort={"fraction": fraction})
    warnings = build_run(load_experiment(tables)).warnings
    assert any(each.startswith("algorithm.min_split = 8: ") for each in warnings) == told
