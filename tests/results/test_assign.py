import json
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from pyarrow import csv
from scipy.stats import binomtest

import builders
import fedstrata as fs
from fedstrata import cli
from fedstrata.algorithms import ALGORITHMS
from fedstrata.algorithms.baselines import Oracle
from fedstrata.algorithms.fedavg import FedAvg
from fedstrata.base.errors import DataError, RecordError
from fedstrata.config import load_experiment
from fedstrata.core import Problem, State, initial_state
from fedstrata.data import load_dataset
from fedstrata.play.run import run_experiment
from fedstrata.results.assign import _admit, assign
from fedstrata.testing import toy_problem

DIGITS = load_dataset("digits")


def experiment(algorithm: dict[str, Any], rounds: int = 2, **changes: Any) -> Any:
    tables = {"data": {"clients": 12, "samples": 60, "public": 64}, "partition": {"scheme": "rotation", "groups": 4}}
    return builders.experiment(rounds=rounds, model=None, engine=None, algorithm=algorithm, **{**tables, **changes})


def npz(path: Path, turn: int, first: int = 1200, count: int = 60, **arrays: Any) -> Path:
    """A client's data: some digits, turned."""
    inputs = np.rot90(DIGITS.inputs[first : first + count].numpy(), turn, axes=(2, 3))
    labels = DIGITS.labels[first : first + count].numpy()
    np.savez(path, **{"x": inputs.copy(), "y": labels, **arrays})
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the true groups: node 1 + g has turn g."""
    folder = tmp_path_factory.mktemp("runs") / "oracle"
    run_experiment(experiment({"name": "oracle"}, rounds=8), folder, quiet=True)
    return folder


def test_new_clients_are_placed_by_the_loss_of_the_models_on_their_data(finished: Path, tmp_path: Path) -> None:
    paths = [npz(tmp_path / f"{turn}.npz", turn, first=1100 + 60 * turn) for turn in range(4)]
    before = sorted((path.name, path.stat().st_mtime_ns) for path in finished.rglob("*"))
    placed = assign(finished, paths)
    tree = json.loads((finished / "tree.json").read_text())
    truth = json.loads((finished / "summary.json").read_text())["truth"]
    turns = {node["id"]: truth[node["members"][0]] for node in tree if node["split"] is None}
    assert [turns[each["cluster"]] for each in placed] == [0, 1, 2, 3]
    for path, each in zip(paths, placed, strict=True):
        assert each["path"] == str(path) and each["new"] is False
        losses = each["evidence"]["losses"]
        assert losses.keys() == turns.keys() and min(losses, key=losses.__getitem__) == each["cluster"]
        assert each["accuracy"] > 0.6
    assert before == sorted((path.name, path.stat().st_mtime_ns) for path in finished.rglob("*"))


def test_a_newcomers_own_test_samples_are_what_its_accuracy_is_of(finished: Path, tmp_path: Path) -> None:
    """They have wrong classes here. All training samples choose the cluster, whatever is tested."""
    x, y = DIGITS.inputs[1200:1260].numpy(), DIGITS.labels[1200:1260].numpy()
    tested, wrong = DIGITS.inputs[1300:1320].numpy(), (DIGITS.labels[1300:1320].numpy() + 1) % 10
    np.savez(tmp_path / "arrays.npz", x=x, y=y, x_test=tested, y_test=wrong)
    split = np.repeat(["train", "test"], [60, 20])
    np.savez(tmp_path / "column.npz", x=np.concatenate([x, tested]), y=np.concatenate([y, wrong]), split=split)
    (tmp_path / "files").mkdir()
    np.savez(tmp_path / "files" / "train.npz", x=x, y=y)
    np.savez(tmp_path / "files" / "test.npz", x=tested, y=wrong)
    placed = assign(finished, [tmp_path / name for name in ("arrays.npz", "column.npz", "files")])
    for each in placed:
        assert each["accuracy"] < 0.2 and each["test_samples"] == 20
        assert each["evidence"] == placed[0]["evidence"]
        exact = binomtest(round(20 * each["accuracy"]), 20).proportion_ci()
        assert each["interval"] == pytest.approx([exact.low, exact.high], abs=1e-9)
    network = fs.load(finished).cluster_model(placed[0]["cluster"])
    loss = float(torch.nn.functional.cross_entropy(network.outputs(x), torch.tensor(y)))
    assert placed[0]["evidence"]["losses"][placed[0]["cluster"]] == pytest.approx(loss, rel=1e-4)


def test_texts_and_parquet_are_read_and_classes_matched_by_name(finished: Path, tmp_path: Path) -> None:
    kept = (DIGITS.labels >= 7) & (torch.arange(len(DIGITS)) > 1000)
    inputs, labels = DIGITS.inputs[kept].numpy(), DIGITS.labels[kept].numpy()
    np.savez(tmp_path / "numbers.npz", x=inputs, y=labels)
    np.savez(tmp_path / "texts.npz", x=inputs, y=labels.astype(str))
    numbers, texts = assign(finished, [tmp_path / "numbers.npz", tmp_path / "texts.npz"])
    folder = tmp_path / "parquet"
    folder.mkdir()
    images = pa.array([_png(image) for image in inputs], pa.binary())
    pq.write_table(pa.table({"image": images, "label": labels}), folder / "train-00000-of-00001.parquet")
    (parquet,) = assign(finished, [folder])
    assert numbers["cluster"] == texts["cluster"] == parquet["cluster"]
    assert parquet["evidence"] == numbers["evidence"]


def _png(image: np.ndarray) -> bytes:
    file = BytesIO()
    Image.fromarray(image[0]).save(file, "PNG")
    return file.getvalue()


def test_a_client_of_no_clusters_kind_is_told_to_found_its_own(tmp_path: Path) -> None:
    """Twelve clients of two label groups, AdaCFL: the distance of a newcomer to the nearest cluster decides."""
    folder, groups = tmp_path / "run", {"scheme": "label_groups", "labels": [[0, 1, 2], [3, 4, 5]]}
    keys = {"name": "adacfl", "cut": 0.6, "epsilon": 0.6, "precluster": False}
    chosen = experiment(keys, rounds=2, partition=groups, data={"name": "digits", "clients": 8, "samples": 60})
    run_experiment(chosen, folder, quiet=True)
    labels = DIGITS.labels.numpy()
    paths = []
    for name, classes in (("old", (3, 4, 5)), ("unseen", (7, 8, 9))):
        rows = np.flatnonzero(np.isin(labels, classes))[-75:]
        paths.append(tmp_path / f"{name}.npz")
        np.savez(paths[-1], x=DIGITS.inputs.numpy()[rows], y=labels[rows])
    old, unseen = assign(folder, paths)
    assert (old["new"], unseen["new"], unseen["cluster"], unseen["accuracy"]) == (False, True, None, None)
    assert assign(folder, paths[1:]) == [unseen]
    assert old["cluster"] is not None and old["evidence"]["distance"] < 0.6 < unseen["evidence"]["distance"]


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_algorithm_places_new_clients(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = run_experiment(experiment({"name": name}), folder, quiet=True)
    paths = [npz(tmp_path / f"{turn}.npz", turn) for turn in (0, 1)]
    placed = assign(folder, paths)
    assert len(placed) == 2 and json.dumps(placed)
    for each in placed:
        assert each["new"] or each["cluster"] in done.state.nodes.tolist()
        assert (each["accuracy"] is None) == each["new"]


@dataclass(frozen=True)
class Growing(State):
    """What a client sent, by round: empty at first, (n, 0), then as wide as there were rounds."""

    sent: torch.Tensor
    met: torch.Tensor


class Grown(FedAvg):
    def init(self, problem: Problem) -> Growing:
        n = problem.clients
        return Growing(**vars(initial_state(problem)), sent=torch.full((n, 0), 5.0), met=torch.zeros(2, n, n))


def test_a_state_makes_room_for_clients_on_the_axes_that_count_them() -> None:
    problem, algorithm = toy_problem(2), Grown()
    state = algorithm.init(problem)
    known = Growing(**{**vars(state), "sent": torch.ones(2, 3), "met": torch.ones(2, 2, 2)})
    larger, grown = _admit(algorithm, problem, known)
    assert isinstance(grown, Growing)
    assert larger.clients == 3 and grown.labels.tolist() == [0, 0, -1] and grown.waiting.tolist() == [-1, -1, 0]
    assert grown.sent.tolist() == [[1, 1, 1], [1, 1, 1], [0, 0, 0]]
    assert grown.met[0].tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]
    assert grown.tree[0].members == (0, 1)


def test_as_many_clusters_as_clients_are_not_taken_for_clients() -> None:
    problem, algorithm = toy_problem(2, truth=[0, 1]), Oracle()
    _, grown = _admit(algorithm, problem, algorithm.init(problem))
    assert len(grown.models) == 2 and grown.labels.tolist() == [0, 1, -1]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((60, 1, 9, 9), np.uint8)}, r"found uint8 of shape \(1, 9, 9\)"),
        ({"x": np.zeros((60, 1, 8, 8), np.float32)}, "found float32 of shape"),
        ({"y": np.full(60, 11)}, "expected classes 0 to 9, as in 'digits', found 11"),
        ({"y": np.full(60, "eleven")}, "expected classes of 'digits', 0, 1, 2, 3, 4, 5, 6, 7, 8, 9; found eleven"),
        ({"x": np.zeros((1, 1, 8, 8), np.uint8), "y": np.zeros(1, int)}, "expected at least 2 samples"),
    ],
)
def test_data_that_do_not_fit_the_run_are_refused(
    arrays: dict[str, Any], message: str, finished: Path, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        assign(finished, [npz(tmp_path / "wrong.npz", 0, **arrays)])


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose classes are the texts 1, 2 and unknown, and whose visits of one patient stay together."""
    folder = tmp_path_factory.mktemp("hospitals")
    sites = ["Ghent", "Lyon"] * 30
    csv.write_csv(visits(["1", "2", "unknown"], 60).append_column("site", pa.array(sites)), folder / "visits.csv")
    data = {"name": str(folder / "visits.csv"), "label": "outcome", "unit": "patient"}
    return builders.run(folder / "run", rounds=1, data=data, partition={"scheme": "natural", "column": "site"}).folder


def visits(classes: list[Any], count: int = 24) -> Any:
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "dose": rng.normal(size=count),
            "age": rng.normal(size=count),
            "patient": np.arange(count) // 2,
            "outcome": [classes[row % len(classes)] for row in range(count)],
        }
    )


def test_classes_that_look_like_numbers_are_matched_by_name(hospitals: Path, tmp_path: Path) -> None:
    """Arrow reads 1 and 2 of a CSV file as integers, which are no class numbers: class 1 of the run has number 0."""
    pq.write_table(visits(["1", "2"]), tmp_path / "Oslo.parquet")
    csv.write_csv(visits([1, 2]), tmp_path / "Oslo.csv")
    texts, numbers = assign(hospitals, [tmp_path / "Oslo.parquet", tmp_path / "Oslo.csv"])
    assert numbers | {"path": ""} == texts | {"path": ""}
    csv.write_csv(visits([0, 1]), tmp_path / "Bern.csv")
    with pytest.raises(DataError, match=r"Bern.csv: expected classes of .*, 1, 2, unknown; found 0"):
        assign(hospitals, [tmp_path / "Bern.csv"])


def test_a_newcomer_without_the_unit_of_the_run_is_refused(hospitals: Path, tmp_path: Path) -> None:
    """Visits of one patient would be in both training and test."""
    csv.write_csv(visits(["1", "2"]).drop_columns(["patient"]), tmp_path / "Oslo.csv")
    with pytest.raises(DataError, match=r"Oslo.csv: expected the column 'patient' of data.unit, found none; add"):
        assign(hospitals, [tmp_path / "Oslo.csv"])


def test_a_file_with_several_clients_is_not_one_newcomer(hospitals: Path, tmp_path: Path) -> None:
    """All rows were placed as those of one client, whatever the column of the clients said."""
    for name, sites in (("one", ["Oslo"] * 24), ("two", ["Oslo", "Bern"] * 12)):
        csv.write_csv(visits(["1", "2"]).append_column("site", pa.array(sites)), tmp_path / f"{name}.csv")
    assert assign(hospitals, [tmp_path / "one.csv"])[0]["client"] == "one"
    with pytest.raises(DataError, match=r"found 2 values of .*'site'; give each client"):
        assign(hospitals, [tmp_path / "two.csv"])


def test_only_a_finished_run_places_clients(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"found no summary\.json"):
        assign(tmp_path, [npz(tmp_path / "a.npz", 0)])
    (tmp_path / "models").mkdir()
    for name in ("experiment.toml", "summary.json", "tree.json", "data.json", "rounds.jsonl", "models/clients.json"):
        (tmp_path / name).write_bytes((finished / name).read_bytes())
    with pytest.raises(RecordError, match="expected a checkpoint in"):
        assign(tmp_path, [tmp_path / "a.npz"])


def test_the_command_prints_json(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = npz(tmp_path / "a.npz", 1)
    with pytest.raises(SystemExit) as caught:
        cli.main(["assign", str(finished), str(path)])
    assert not caught.value.code
    (placed,) = json.loads(capsys.readouterr().out)
    keys = [
        "client",
        "path",
        "cluster",
        "members",
        "new",
        "evidence",
        "accuracy",
        "test_samples",
        "interval",
        "warnings",
    ]
    assert list(placed) == keys
    assert (placed["client"], placed["path"]) == ("a", str(path))
    # Nodes 1 to 4 hold the clients of turns 0 to 3, three each.
    assert placed["members"] == [str(client) for client in range(3 * (placed["cluster"] - 1), 3 * placed["cluster"])]


def test_a_newcomer_in_other_units_is_told(tmp_path: Path) -> None:
    """Its pressures are in pascals where those of the run are in hectopascals."""
    rng = np.random.default_rng(0)

    def table(path: Path, scale: float = 1.0) -> Path:
        temperature = rng.normal(10, 2, 40)
        columns = {"temperature": temperature, "pressure": scale * rng.normal(1013, 5, 40)}
        path.parent.mkdir(exist_ok=True)
        csv.write_csv(pa.table({**columns, "label": (temperature > 10).astype(int)}), path)
        return path

    for site in "abcd":
        table(tmp_path / "sites" / f"{site}.csv")
    keys = {"rounds": 1, "data": {"name": str(tmp_path / "sites")}, "algorithm": "fedavg", "model": "mlp"}
    run_experiment(load_experiment(keys), tmp_path / "run", quiet=True)
    newcomers = [table(tmp_path / "e.csv"), table(tmp_path / "f.csv", scale=100)]
    same, other = (each["warnings"] for each in assign(tmp_path / "run", newcomers))
    assert same == [] and "the mean of 'pressure' is more than 10 standard deviations" in other[0]


def test_who_fits_no_model_is_told_to_be_in_doubt(finished: Path, tmp_path: Path) -> None:
    y = (DIGITS.labels[1200:1260].numpy() + 5) % 10
    strange, sound = assign(finished, [npz(tmp_path / "strange.npz", 0, y=y), npz(tmp_path / "sound.npz", 0)])
    assert any("guessing would have 2.30" in line for line in strange["warnings"])
    assert sound["warnings"] == []


def test_newcomers_are_placed_without_the_data_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = DIGITS.inputs.numpy(), DIGITS.labels.numpy()
    clients = {name: (x[start : start + 60], y[start : start + 60]) for name, start in (("Ghent", 0), ("Lyon", 60))}
    tables = {"rounds": 1, "model": {"name": "mlp"}, "algorithm": {"name": "fedavg"}, "engine": {"name": "loop"}}
    fs.run(tables, tmp_path / "run", clients=clients, quiet=True)
    monkeypatch.setattr("fedstrata.data.memory._KEPT", {})  # as in another process
    (found,) = fs.assign(tmp_path / "run", [npz(tmp_path / "Oslo.npz", 0)])
    assert found["client"] == "Oslo" and found["members"] == ["Ghent", "Lyon"]
