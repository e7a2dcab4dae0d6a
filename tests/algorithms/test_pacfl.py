import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from baseline_federation import experiment
from scripted import next_round

from builders import layout_with, with_tree_events
from fedstrata.algorithms.one_shot import SignatureState
from fedstrata.algorithms.pacfl import PACFL, RESOLUTION
from fedstrata.build.build import build_run
from fedstrata.clustering import principal_angles, silhouette_cut
from fedstrata.config import load_experiment
from fedstrata.core import SINGULAR_VECTORS, Diagnostics, Rows, make_pending
from fedstrata.testing import Scripted, toy_problem

PAIR, FEATURES = 2, 3
TWO = layout_with({"fc.weight": (PAIR, 1)})
PROBLEM = replace(toy_problem(4, TWO), features=FEATURES)
UPDATES = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 5.0], [0.0, 7.0]])
UP, NEARLY_UP, ALONG, NEARLY_ALONG = [0.0, 0, 1], [0.0, 0.1, 1], [1.0, 0, 0], [1.0, 0.1, 0]
LINES: Mapping[int, list[float]] = {0: UP, 1: NEARLY_UP, 2: ALONG, 3: NEARLY_ALONG}


def vectors(clients: Sequence[int], lines: Mapping[int, list[float]] = LINES) -> Rows:
    """One vector of one class each; all others are absent, so zeros."""
    rows = torch.zeros(len(clients), PAIR * SINGULAR_VECTORS, FEATURES)
    rows[:, 0] = torch.tensor([lines[client] for client in clients])
    return Rows(torch.tensor(clients), rows.flatten(1))


def play(
    algorithm: PACFL, cohorts: Sequence[Sequence[int]], state: SignatureState | None = None, **keys: Any
) -> tuple[SignatureState, list[Diagnostics]]:
    state, diagnostics = state or algorithm.init(PROBLEM), list[Diagnostics]()
    for cohort in cohorts:
        plan = algorithm.plan(PROBLEM, state, torch.tensor(cohort))
        report = Scripted([UPDATES]).run(plan)
        sent = {name: vectors(plan.cohort[asked].tolist(), **keys) for name, asked in plan.client_stats.items()}
        state, note = with_tree_events(state, *algorithm.update(PROBLEM, state, replace(report, client_stats=sent)))
        diagnostics.append(note)
    return state, diagnostics


@pytest.mark.parametrize("cut", ["auto", 20.0])
def test_clients_are_grouped_by_the_angles_of_their_data_while_they_train(cut: Any) -> None:
    state, diagnostics = play(PACFL(cut=cut), [range(4)])
    assert state.labels.tolist() == [0, 0, 1, 1] and state.clustered == 1
    assert state.models.tolist() == [[2, 0], [0, 6]]
    matrix = diagnostics[0].matrices[0]
    assert (matrix.layer, matrix.measure) == ("data", "smallest angle")
    assert matrix.values[0, 1] == pytest.approx(5.710593, abs=1e-5)  # atan(0.1)
    assert matrix.values[0, 2] == pytest.approx(90)


def test_vectors_are_sent_once() -> None:
    algorithm = PACFL(cut=20.0)
    states = [algorithm.init(PROBLEM), play(PACFL(quorum=1.0), [[0, 2]])[0], play(algorithm, [[0, 1, 2]])[0]]
    states.append(make_pending(play(algorithm, [range(4)])[0], [2], node=0))
    plans = [algorithm.plan(PROBLEM, state, torch.arange(4)) for state in states]
    assert [plan.cohort[plan.client_stats["subspaces"]].tolist() for plan in plans] == [[0, 1, 2, 3], [1, 3], [3], [2]]


def test_angles_that_float32_cannot_tell_from_0_make_no_groups() -> None:
    """IID digits: of 12 clients all pairs shared a line to the last bit of float32, but one that missed by 0.0035."""
    tilt = math.tan(math.radians(0.0035))
    rows = torch.zeros(4, PAIR * SINGULAR_VECTORS, FEATURES)
    rows[:, 0] = torch.tensor([[0.0, 0, 1], [0.0, 0, 1], [0, 0, 1], [0, tilt, 1]])
    assert silhouette_cut(principal_angles(rows)) < 0.001
    state, _ = play(PACFL(), [range(4)], lines={client: rows[client, 0].tolist() for client in range(4)})
    assert state.labels.tolist() == [0, 0, 0, 0] and state.clustered == 1
    assert round(RESOLUTION, 3) == 0.028


def test_vectors_are_gathered_while_one_model_is_trained() -> None:
    state, diagnostics = play(PACFL(cut=20.0, quorum=1.0), [[0, 2], [1, 3]])
    assert [len(note.events) for note in diagnostics] == [0, 1]
    assert state.labels.tolist() == [0, 0, 1, 1] and state.clustered == 2
    # (0.5, 2.5) after round 1; then clients 1 and 3 alone.
    assert state.models.tolist() == [[3.5, 2.5], [0.5, 9.5]]


def test_a_newcomer_sends_its_vectors_before_it_trains() -> None:
    algorithm = PACFL(cut=20.0)
    state, _ = play(algorithm, [[0, 1, 2]])
    assert state.labels.tolist() == [0, 0, 1, -1]
    plan = algorithm.plan(PROBLEM, state, torch.tensor([0, 3]))
    assert plan.tasks["train"].candidates.tolist() == [[0], [-1]]
    assert algorithm.assign(PROBLEM, state, Scripted([UPDATES]).run(plan)).tolist() == [0, 0, 1, -1]
    state, _ = play(algorithm, [[0, 3]], state)
    assert state.labels.tolist() == [0, 0, 1, 1] and state.models[1].tolist() == [0, 5]
    assert algorithm.plan(PROBLEM, state, torch.tensor([3])).tasks["train"].candidates.tolist() == [[1]]


def test_a_client_whose_data_changed_is_placed_by_its_new_vectors() -> None:
    algorithm = PACFL(cut=20.0)
    state = make_pending(play(algorithm, [range(4)])[0], [3], node=0)
    state, _ = play(algorithm, [[3]], state, lines={3: UP})
    assert state.labels.tolist() == [0, 0, 1, 0]


def test_the_mean_angle_sees_more_than_where_subspaces_meet() -> None:
    # All share one direction; a second one tells the clients apart.
    rows = torch.zeros(4, PAIR * SINGULAR_VECTORS, FEATURES)
    rows[:, 0] = torch.tensor([0.0, 0, 1])
    rows[:, 1] = torch.tensor([[1.0, 0, 0], [1, 0.1, 0], [0, 1, 0], [0, 1, 0.1]])
    found = {}
    for angle in ("smallest", "mean"):
        algorithm = PACFL(cut=20.0, angle=angle)
        stats = {"subspaces": rows.flatten(1)}
        state, _ = next_round(algorithm, PROBLEM, algorithm.init(PROBLEM), UPDATES, client_stats=stats)
        found[angle] = state.labels.tolist()
    assert found == {"smallest": [0, 0, 0, 0], "mean": [0, 0, 1, 1]}


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param({}, id="one output for each class"),
        pytest.param({"model": {"name": "test_pacfl:convolutions"}}, id="no linear layer"),
        pytest.param({"model": {"name": "test_pacfl:OutputFirst"}}, id="another linear layer is the last one"),
        pytest.param({"local": {"loss": "mse", "lr": 0.01}}, id="one output for all classes"),
    ],
)
def test_the_angles_are_those_of_the_data_whatever_the_network(keys: dict[str, Any]) -> None:
    """The number of vectors was once read from the last linear layer: then others than those sent were compared."""
    setup = build_run(load_experiment({**experiment("pacfl"), **keys}))
    state = setup.server.algorithm.init(setup.server.problem)
    plan = setup.server.algorithm.plan(setup.server.problem, state, torch.arange(setup.server.problem.clients))
    _, note = setup.server.algorithm.update(setup.server.problem, state, setup.clients.run(plan))
    data = setup.client_data
    spans = []
    for client in range(setup.server.problem.clients):
        inputs = data.samples(data.train(client))[0].flatten(1)
        labels = data.labels(data.train(client))
        of_classes = [inputs[labels == label].T for label in range(10)]
        spans.append(torch.cat([torch.linalg.svd(each, full_matrices=False).U[:, :3].T for each in of_classes]))
    one, other = spans[:2]
    cosine = torch.linalg.svdvals(torch.linalg.qr(one.T).Q.T @ torch.linalg.qr(other.T).Q)[0].clamp(max=1.0)
    assert float(note.matrices[0].values[0, 1]) == pytest.approx(math.degrees(math.acos(float(cosine))), abs=0.1)


def convolutions(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    """A network of convolutions only."""
    return torch.nn.Sequential(torch.nn.Conv2d(1, classes, 8), torch.nn.Flatten())


class OutputFirst(torch.nn.Module):
    """A network that names its last layer first."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.output = torch.nn.Linear(40, classes)
        self.body = torch.nn.Linear(64, 40)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.output(self.body(images.flatten(1)).relu())
        return found
