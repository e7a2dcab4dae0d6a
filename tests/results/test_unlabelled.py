from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import csv

import builders
import fedstrata as fs
from fedstrata.base.errors import DataError, RecordError
from fedstrata.build.build import build_run
from fedstrata.data import load_dataset
from fedstrata.engine.input_features import input_features
from fedstrata.records.arrays import read_input_means
from fedstrata.results.assign import assign
from fedstrata.results.run import predict_file
from fedstrata.results.unlabelled import ClusterInputs, _features

DIGITS = load_dataset("digits")


def inputs_of(*clusters: list[float]) -> ClusterInputs:
    """Clusters of members with one feature each; their tree nodes are 1, 2, ..."""
    means = np.array([[mean] for members in clusters for mean in members])
    labels = np.repeat(np.arange(len(clusters)), [len(members) for members in clusters])
    return ClusterInputs(means, labels, list(range(1, 1 + len(clusters))))


APART = inputs_of([0, 0, 2, 2], [10, 10, 12, 12])
"""Centers 1 and 11, and residuals of 1: the variance is 8 / (8 - 2) = 4 / 3."""


def test_distances_count_in_standard_deviations_of_the_members_around_their_centers() -> None:
    distances = APART.distances(np.array([[5.0]]), APART.labels >= 0)
    assert distances.tolist() == [pytest.approx([16 / (4 / 3), 36 / (4 / 3)], rel=1e-5)]
    with_error = APART.distances(np.array([[5.0]]), APART.labels >= 0, np.array([[2 / 3]]))
    assert with_error.tolist() == [pytest.approx([16 / 2, 36 / 2], rel=1e-5)]


def test_a_member_is_held_out_of_its_own_center() -> None:
    """Without it, the first center is 4 / 3, and the variance (16 / 9 + 4 / 9 + 4 / 9 + 4) / (7 - 2) = 4 / 3."""
    assert APART.held_out[0].tolist() == pytest.approx([16 / 9 / (4 / 3), 121 / (4 / 3)], rel=1e-5)
    assert APART.recognised.all() and APART.alike == []


def test_a_newcomer_is_placed_with_a_probability_that_its_few_samples_and_the_members_allow() -> None:
    """Its mean 3 has the variance 1 / 2 of 2 samples, on top of 4 / 3. Members held out have 4 / 3 for a mean of 1."""
    node, evidence, doubts = APART.place(np.array([[2.0], [4.0]]))
    odds = exp((64 - 4) / (4 / 3 + 1 / 2) / 2 / (4 / 3))
    assert evidence["probabilities"][1] == pytest.approx(odds / (1 + odds))
    assert evidence["recognised"] == 1
    assert node is None and len(doubts) == 1  # 4 / (11 / 6) > 4 / 3, which is the largest one of a member
    assert APART.place(np.array([[1.0], [3.0]]))[::2] == (1, [])
    unsure, evidence, doubts = APART.place(np.array([[-4.0], [16.0]]))
    assert evidence["probabilities"] == {1: pytest.approx(0.5), 2: pytest.approx(0.5)}
    assert unsure is None and len(doubts) == 1


@pytest.mark.parametrize(
    ("clusters", "alike"),
    [
        (([0, 1, 2, 3], [1, 0, 3, 2]), [(1, 2)]),
        (([0, 2], [10, 12]), [(1, 2)]),  # all four recognised have a p-value of 1 / 6
        (([0, 1, 2], [10, 11, 12]), []),  # and all six of 1 / 20
        (([5], [0, 0, 2, 2], [10, 10, 12, 12]), [(1, 2), (1, 3)]),  # nothing is left of the first without its member
    ],
)
def test_clusters_are_alike_unless_a_test_tells_their_members_apart(
    clusters: tuple[list[float], ...], alike: list[tuple[int, int]]
) -> None:
    assert inputs_of(*clusters).alike == alike


def test_between_clusters_that_are_alike_nobody_is_placed_and_in_others_newcomers_are() -> None:
    inputs = inputs_of([0, 0, 2, 2], [2, 2, 0, 0], [30, 30, 32, 32])
    assert inputs.alike == [(1, 2)]
    near, far = (inputs.place(np.array([[mean - 0.5], [mean + 0.5]])) for mean in (1, 31))
    assert near[0] is None and any("from 2" in doubt or "from 1" in doubt for doubt in near[2])
    assert far[0] == 3 and not far[2]


def test_members_of_one_distribution_are_rarely_told_apart() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], 6)
    told = sum(not ClusterInputs(rng.normal(size=(12, 32)), labels, [1, 2]).alike for _ in range(60))
    assert told <= 5  # 3 are expected at most


@pytest.mark.filterwarnings("error")
def test_of_many_members_several_are_held_out_at_a_time_and_copies_are_no_error() -> None:
    many = inputs_of([0, 2] * 60, [10, 12] * 60)
    assert many.held_out.shape == (240, 2) and many.recognised.all() and many.alike == []
    assert inputs_of([1] * 4, [3] * 4).alike == []


def test_features_are_rectified_projections_and_the_order_of_tokens_does_not_count() -> None:
    inputs = torch.tensor([[1.0, -2.0], [0.0, 0.0], [2.0, -4.0]])
    features = input_features(inputs, 7)
    assert features.shape == (3, 32) and (features >= 0).all() and features[1].tolist() == [0] * 32
    assert torch.equal(features[2], 2 * features[0]) and not torch.equal(features, input_features(inputs, 8))
    tokens = input_features(torch.tensor([[3, 5, 3], [3, 3, 5], [3, 5, 5]]), 7)
    assert torch.equal(tokens[0], tokens[1]) and not torch.equal(tokens[0], tokens[2])


def federation(out: Path, scheme: str, **changes: Any) -> fs.Run:
    tables = {"data": {"name": "digits", "clients": 12, "samples": 60}, "records": {"inputs": True}}
    return builders.run(
        out,
        **{
            **tables,
            "partition": {"scheme": scheme, "groups": 2},
            "algorithm": {"name": "oracle"},
            "rounds": 2,
            **changes,
        },
    )


@pytest.fixture(scope="module")
def turned(tmp_path_factory: pytest.TempPathFactory) -> fs.Run:
    """A run whose clusters 1 and 2 have upright images, and images upside down."""
    return federation(tmp_path_factory.mktemp("runs") / "turned", "rotation")


def npz(path: Path, turn: int, count: int = 60, side: int = 8) -> Path:
    """Digits without their classes, turned."""
    inputs = DIGITS.inputs[1200 : 1200 + count, :, :side, :side].numpy()
    np.savez(path, x=np.rot90(inputs, turn, axes=(2, 3)).copy())
    return path


def test_newcomers_are_placed_with_those_whose_inputs_are_like_theirs(turned: fs.Run, tmp_path: Path) -> None:
    paths = [npz(tmp_path / f"{turn}.npz", turn) for turn in (0, 2, 1)]
    upright, upside_down, sideways = assign(turned.folder, paths, unlabelled=True)
    assert (upright["cluster"], upside_down["cluster"], sideways["cluster"]) == (1, 2, None)
    assert upside_down["members"] == [*"6789", "10", "11"] and sideways["members"] == []
    assert upright["evidence"]["probabilities"][1] > 0.95 and not upright["warnings"] and sideways["warnings"]
    # Classes that are there are not looked at.
    labelled = tmp_path / "0.npz"
    np.savez(labelled, x=np.load(labelled)["x"], y=np.full(60, "strange"))
    assert assign(turned.folder, [labelled], unlabelled=True) == [upright]


def test_what_clients_send_are_the_means_of_their_training_inputs(turned: fs.Run) -> None:
    held = build_run(turned.experiment).client_data
    clients, means = read_input_means(turned.folder, 32)
    assert clients == list(range(12)) and means.shape == (12, 32)
    features = input_features(held.samples(held.train(7))[0], turned.experiment.seed)
    assert means[7] == pytest.approx(features.mean(dim=0).numpy(), rel=1e-5)


def test_groups_of_equal_inputs_are_refused_in_one_line(tmp_path: Path) -> None:
    run = federation(tmp_path / "run", "concept")
    with pytest.raises(RecordError, match=r"of 12 members nearest to their own cluster; .* give labels") as error:
        assign(run.folder, [npz(tmp_path / "new.npz", 0)], unlabelled=True)
    assert "\n" not in str(error.value)


def test_a_finished_run_is_given_the_description_by_resuming_it(tmp_path: Path) -> None:
    run = federation(tmp_path / "run", "rotation", records={})
    new = [npz(tmp_path / "new.npz", 2)]
    with pytest.raises(RecordError, match=r"expected inputs\.npz.*resume the run with records\.inputs = true"):
        assign(run.folder, new, unlabelled=True)
    before = (run.folder / "rounds.jsonl").read_bytes()
    fs.run(run.folder / "experiment.toml", run.folder, sets=["records.inputs=true"], resume=True, quiet=True)
    assert assign(run.folder, new, unlabelled=True)[0]["cluster"] == 2
    assert (run.folder / "rounds.jsonl").read_bytes() == before
    fs.run(run.folder / "experiment.toml", run.folder, sets=["records.inputs=false"], resume=True, quiet=True)
    assert not (run.folder / "inputs.npz").exists()


@pytest.mark.parametrize("arrays", [{}, {"means": np.zeros((2, 32))}, {"means": np.full((1, 32), np.nan)}])
def test_a_damaged_description_is_refused(arrays: dict[str, Any], tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", clients=np.arange(1), **arrays)
    with pytest.raises(RecordError, match="none that can be read"):
        read_input_means(tmp_path, 32)


@pytest.mark.parametrize(
    ("keys", "message"),
    [({"side": 7}, r"new.npz: expected samples as in training.*\(60, 1, 7, 7\)"), ({"count": 1}, "at least 2 samples")],
)
def test_samples_that_do_not_fit_are_refused(
    keys: dict[str, int], message: str, turned: fs.Run, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        assign(turned.folder, [npz(tmp_path / "new.npz", 0, **keys)], unlabelled=True)


@pytest.mark.parametrize(("clients", "message"), [(3, "found 0 of 3 members"), (2, "at least 3 clients")])
def test_clients_each_alone_are_no_groups(clients: int, message: str, tmp_path: Path) -> None:
    data = {"name": "digits", "clients": clients, "samples": 60}
    run = federation(tmp_path / "run", "rotation", data=data, partition={"scheme": "rotation", "groups": clients})
    with pytest.raises(RecordError, match=message):
        assign(run.folder, [npz(tmp_path / "new.npz", 0)], unlabelled=True)


def test_one_cluster_has_room_for_all(tmp_path: Path) -> None:
    new = [npz(tmp_path / "new.npz", 0)]
    together = federation(tmp_path / "together", "rotation", algorithm={"name": "fedavg"})
    (placed,) = assign(together.folder, new, unlabelled=True)
    assert placed["cluster"] == 0 and len(placed["members"]) == 12


@pytest.mark.parametrize("statistics", ["all", "own"])
def test_rows_without_classes_are_prepared_as_in_the_run(statistics: str, tmp_path: Path) -> None:
    """The training rows of a client, in a file of their own, have the means that this client has sent."""
    rng = np.random.default_rng(0)
    sites = np.repeat(np.arange(4), 20)
    rows = {"age": rng.normal(50, 20, 80) + sites, "pulse": rng.normal(70, 9, 80), "site": sites}
    csv.write_csv(pa.table({**rows, "label": np.arange(80) % 2}), tmp_path / "sites.csv")
    data = {"name": str(tmp_path / "sites.csv"), "clients": 4, "statistics": statistics}
    tables = {"partition": {"scheme": "natural", "column": "site"}, "data": data, "records": {"inputs": True}}
    tables |= {"algorithm": {"name": "fedavg"}, "model": None, "rounds": 1}
    run = builders.run(tmp_path / "run", **tables)
    train = builders.federation(**tables).client_data.train(3).numpy()
    csv.write_csv(pa.table({"pulse": rows["pulse"][train], "age": rows["age"][train]}), tmp_path / "new.csv")
    _, means = read_input_means(run.folder, 32)
    assert _features(run, tmp_path / "new.csv").mean(axis=0) == pytest.approx(means[3], rel=1e-4)
    (placed,) = assign(run.folder, [tmp_path / "new.csv"], unlabelled=True)
    assert placed["cluster"] == 0


def test_predict_reads_images_without_classes(turned: fs.Run, tmp_path: Path) -> None:
    header, rows = predict_file(turned, "3", npz(tmp_path / "new.npz", 0, count=5))
    assert header[0] == "prediction" and len(list(rows)) == 5
