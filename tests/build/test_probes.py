import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedstrata as fs
from builders import keys, run
from fedstrata.algorithms.cfl import CFL
from fedstrata.algorithms.hicfl import HiCFL
from fedstrata.algorithms.layercfl import LayerCFL
from fedstrata.base.errors import InputError
from fedstrata.build.probes import bipartition_metrics, unstable_weights
from fedstrata.core import Algorithm, Layout, Problem, Report, TensorSpec
from fedstrata.testing import Scripted, play, toy_problem

SMALL = keys(
    data={"name": "digits", "clients": 6, "samples": 30},
    model={"name": "mlp", "hidden": [4]},
    algorithm={"name": "hicfl"},
)
PROBES = {
    "matrices": ["dcos", "l2"],
    "layers": ["linear1", "linear"],
    "rounds": [1, 3],
    "bipartition": True,
    "unstable_weights": True,
    "target": 0.12,
}

LINE = Layout((TensorSpec("fc.weight", "fc", "linear", (40,)),))
"""A layer of 40 weights, of which two are a twentieth."""

PAIRS = torch.tensor([[1.0, 0.1], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.1]])
"""Two pairs of clients that pull in opposite directions."""


def digest(folder: Path, *kinds: str) -> dict[str, str]:
    files = [path for kind in kinds for path in sorted((folder / kind).iterdir())]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> fs.Run:
    return run(tmp_path_factory.mktemp("probed") / "run", SMALL, probe=PROBES)


def test_probes_record_what_was_asked_for(probed: fs.Run) -> None:
    folder = probed.folder
    assert [path.name for path in sorted((folder / "matrices").iterdir())] == ["00001.npz", "00003.npz"]
    with np.load(folder / "matrices" / "00003.npz") as arrays:
        names = [f"-1|{measure}|{layer}" for measure in ("dcos", "l2") for layer in ("linear1", "linear")]
        assert [name for name in arrays.files if not name.endswith("|clients")] == names
        assert arrays["-1|dcos|linear"].shape == (6, 6)
        assert arrays["-1|l2|linear1|clients"].tolist() == [0, 1, 2, 3, 4, 5]
    assert [path.name for path in sorted((folder / "weights").iterdir())] == ["00002.npz", "00003.npz", "00004.npz"]
    with np.load(folder / "weights" / "00002.npz") as arrays:
        assert arrays["linear1"].shape == (6, 13)  # 5 % of 64 * 4 + 4 weights
        assert arrays["linear2"].shape == (6, 3)  # 2.5 of 4 * 10 + 10, rounded up
        assert arrays["linear1|clients"].tolist() == [0, 1, 2, 3, 4, 5]
        assert bool((np.diff(arrays["linear1"], axis=1) > 0).all()) and int(arrays["linear1"].max()) < 260
    accuracies = [record["acc_client"] for record in probed.rounds]
    assert probed.summary["acc_best"] == max(accuracies)
    assert probed.summary["acc_best_round"] == 1 + accuracies.index(max(accuracies))
    assert probed.summary["rounds_to_target"] == next(n for n, value in enumerate(accuracies, 1) if value >= 0.12)
    # A window of three uploads is full in round 3.
    assert [record["round"] for record in probed.rounds for m in record["metrics"] if m["name"] == "smaller_side"]
    assert not any(m["name"] == "bipartition_accuracy" for record in probed.rounds[:2] for m in record["metrics"])
    assert all(any(m["name"] == "bipartition_accuracy" for m in record["metrics"]) for record in probed.rounds[2:])


def test_probes_do_not_touch_training_and_the_page_shows_them(probed: fs.Run, tmp_path: Path) -> None:
    plain = run(tmp_path / "run", SMALL)
    assert digest(plain.folder, "models", "clients") == digest(probed.folder, "models", "clients")
    assert not (plain.folder / "weights").exists() and "rounds_to_target" not in plain.summary
    assert "linear1, dcos, all clients" in (probed.folder / "report.html").read_text()
    alone = run(tmp_path / "fedavg", SMALL, algorithm={"name": "fedavg"}, probe={"matrices": ["dcos"], "rounds": [2]})
    assert "linear1, dcos, all clients" in (alone.folder / "report.html").read_text()


def last_round(algorithm: Algorithm[Any], problem: Problem, updates: list[torch.Tensor]) -> tuple[Any, Report]:
    """The state before the last round, and the report of that round."""
    state: Any = algorithm.init(problem)
    if len(updates) > 1:
        state, _ = play(algorithm, problem, updates[:-1])
    plan = algorithm.plan(problem, state, torch.arange(problem.clients))
    return state, Scripted(updates).run(plan)


def pair_problem() -> Problem:
    return toy_problem(4, Layout((TensorSpec("conv.weight", "conv", "conv", (2,)),)), truth=[0, 0, 1, 1])


@pytest.mark.parametrize(
    "algorithm",
    [
        HiCFL(epsilon=0.0),
        CFL(eps1=0.0),
        LayerCFL(layers="conv", eps1=0.0),
    ],
)
def test_a_bipartition_is_proposed_where_none_is_due(algorithm: Any) -> None:
    """No threshold is ever met, so nothing is split; the two pairs are apart in every round."""
    problem = pair_problem()
    state, report = last_round(algorithm, problem, [PAIRS, PAIRS, PAIRS])
    (split,) = algorithm.proposed_split(problem, state, report)
    assert split.node == 0
    assert {tuple(split.first.tolist()), tuple(split.second.tolist())} == {(0, 1), (2, 3)}
    metrics = bipartition_metrics(algorithm, problem, state, report, torch.tensor([0, 0, 1, 1]))
    assert [(each.name, each.value, each.node) for each in metrics] == [
        ("smaller_side", 2.0, 0),
        ("bipartition_accuracy", 1.0, 0),
    ]
    wrong = bipartition_metrics(algorithm, problem, state, report, torch.tensor([0, 1, 1, 1]))
    assert wrong[1].value == 0.75  # client 1 is on the side of client 0
    alike = bipartition_metrics(algorithm, problem, state, report, torch.tensor([3, 3, 3, 3]))
    assert [each.name for each in alike] == ["smaller_side"]
    assert algorithm.update(problem, state, report)[0].tree[0].split is None


def test_clients_that_point_one_way_are_all_on_one_side() -> None:
    algorithm, problem = HiCFL(), pair_problem()
    state, report = last_round(algorithm, problem, [PAIRS.abs() + 1] * 3)
    metrics = bipartition_metrics(algorithm, problem, state, report, torch.tensor([0, 0, 0, 1]))
    assert [(each.name, each.value) for each in metrics] == [("smaller_side", 0.0), ("bipartition_accuracy", 0.75)]


def test_the_weights_that_changed_most_are_a_twentieth_of_a_layer() -> None:
    """Client 0 moves weights 7 and 30 most, by 3 and -5; client 1 all weights alike, so its first two count."""
    before = torch.zeros(2, 40)
    after = torch.full((2, 40), 1.0)
    after[0, 7] = 3.0
    after[0, 30] = -5.0
    problem = toy_problem(2, LINE)
    state, report = last_round(HiCFL(), problem, [before, after])
    clients, places = unstable_weights(LINE, state, report)["fc"]
    assert (clients.tolist(), places.tolist()) == ([0, 1], [[7, 30], [0, 1]])
    first, report = last_round(HiCFL(), problem, [before])
    assert unstable_weights(LINE, first, report) == {}


DIRICHLET = {"scheme": "dirichlet", "alpha": 1.0}
"""A partition without true groups."""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"probe": {"matrices": ["cos"], "layers": ["conv9"]}}, "layers = 'conv9' matches no layer"),
        ({"probe": {"matrices": ["cos"], "rounds": [1, 5]}}, r"rounds = \[1, 5\]: expected rounds from 1 to"),
        ({"algorithm": {"name": "fedavg"}, "probe": {"bipartition": True}}, "bipartition = true: .*name = 'fedavg'"),
        ({"algorithm": {"name": "cfl"}, "probe": {"unstable_weights": True}}, "unstable_weights = true: .* 'cfl'"),
        ({"partition": DIRICHLET, "probe": {"bipartition": True}}, "bipartition = true: .*scheme = 'dirichlet'"),
    ],
)
def test_a_probe_that_would_record_nothing_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"^probe\.{message}") as caught:
        run(tmp_path / "run", SMALL, **changes)
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()
