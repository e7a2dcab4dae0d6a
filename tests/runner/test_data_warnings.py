from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w
import torch
from own_data import SITES, Arrays, arrays, as_test, keys, save, without

import fedstrata
from fedstrata import cli
from fedstrata.config import load_experiment
from fedstrata.errors import DataError, PartitionError
from fedstrata.records.final_scores import last_scores
from fedstrata.report import build
from fedstrata.runner.build import build_run
from fedstrata.runner.run import run_experiment
from fedstrata.runner.run_setup import RunSetup
from fedstrata.runner.scan import scan_experiment


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "mine.npz"


def built(file: Path, columns: Arrays, **data: object) -> RunSetup:
    save(file, columns)
    return build_run(load_experiment(keys(file, **data)))


# One client per value of a column


def test_natural_has_a_client_for_each_value_unless_told_otherwise(file: Path) -> None:
    many = tuple(f"person {number:02d}" for number in range(30))
    setup = built(file, arrays(sites=many), unit="trial")
    assert (setup.server.problem.clients, setup.names, setup.warnings) == (30, many, ())


def test_clients_that_are_left_out_are_named(file: Path) -> None:
    setup = built(file, arrays(), clients=2, unit="trial")
    assert setup.names == ("Bern", "Ghent")
    (warning,) = setup.warnings
    assert "4 values" in warning and "Lyon, Oslo" in warning


def test_samples_of_no_client_are_refused(file: Path) -> None:
    columns = arrays()
    columns["site"][5:8] = ""
    with pytest.raises(PartitionError, match="3 samples have no value"):
        built(file, columns)
    numbered = columns | {"site": np.where(columns["site"] == "", np.nan, 1.0)}
    with pytest.raises(PartitionError, match="3 samples have no value"):
        built(file, numbered, clients=1)


def test_a_column_of_clients_that_is_not_there_is_refused_with_those_that_are(file: Path) -> None:
    save(file, arrays())
    experiment = keys(file) | {"partition": {"scheme": "natural", "column": "hospital"}}
    with pytest.raises(DataError, match=r"partition.column = 'hospital': .* has site, trial"):
        build_run(load_experiment(experiment))


def test_one_name_written_in_two_ways_is_noticed(file: Path) -> None:
    columns = arrays(sites=("Lyon", "lyon ", "Oslo", "Bern"))
    (warning,) = built(file, columns, unit="trial").warnings
    assert "'Lyon', 'lyon '" in warning


def test_one_class_written_in_two_ways_is_noticed_but_letters_may_differ_in_case(file: Path) -> None:
    columns = arrays()
    columns["y"] = np.array(["yes", "yes ", "no"])[np.arange(len(columns["y"])) % 3]
    (warning,) = built(file, columns, unit="trial").warnings
    assert "classes 'yes', 'yes '" in warning
    columns["y"] = np.array(["a", "A", "b"])[np.arange(len(columns["y"])) % 3]
    assert built(file, columns, unit="trial").warnings == ()


# Units of dependence


def test_a_column_that_looks_like_a_unit_is_named_with_the_key_that_settles_it(file: Path) -> None:
    (warning,) = built(file, arrays()).warnings
    assert "'trial'" in warning and "data.unit = 'trial'" in warning and "24 values" in warning


def test_a_unit_that_is_set_or_denied_needs_no_warning(file: Path) -> None:
    assert built(file, arrays(), unit="trial").warnings == ()
    denied = built(file, arrays(), unit="none")
    assert denied.warnings == () and denied.client_data.unit is None


def test_samples_of_no_unit_are_refused(file: Path) -> None:
    """They would count as one unit: a client with many of them would train on few samples."""
    columns = arrays()
    numbers = columns["trial"].astype(float)
    numbers[5:8] = np.nan
    with pytest.raises(DataError, match=r"data.unit = 'trial': 3 samples of .* have no value in it"):
        built(file, columns | {"trial": numbers}, unit="trial")
    texts = columns["trial"].astype(str)
    texts[5:9] = ""
    with pytest.raises(DataError, match=r"4 samples of .* have no value in it"):
        built(file, columns | {"trial": texts}, unit="trial")
    assert built(file, columns | {"trial": texts}, unit="none").warnings == ()


def test_of_several_units_the_coarsest_is_recommended(file: Path) -> None:
    columns = arrays()
    (warning,) = built(file, columns | {"patientID": columns["trial"] // 2}).warnings
    assert "'patientID' and 'trial'" in warning and "data.unit = 'patientID'" in warning


@pytest.mark.parametrize("name", ["temperature", "retrial", "site"])
def test_columns_of_another_name_are_no_units(file: Path, name: str) -> None:
    columns = arrays()
    renamed = without(columns, "trial") | {name: columns["site" if name == "site" else "trial"]}
    assert built(file, renamed).warnings == ()


def test_a_column_with_one_value_per_client_or_per_sample_is_no_unit_inside_a_client(file: Path) -> None:
    columns = without(arrays(), "trial")
    subject = {"subject": columns["site"], "record": np.arange(len(columns["y"]))}
    assert built(file, columns | subject).warnings == ()


def windows(step: int) -> Arrays:
    """Windows of 16 readings of one long noisy signal."""
    signal = np.random.default_rng(3).normal(size=16 * 192).astype(np.float32)
    x = np.stack([signal[start : start + 16] for start in range(0, 192 * step, step)])
    return without(arrays(), "trial") | {"x": x[:, None]}


def motion(folder: Path, rows: list[dict[str, object]], **data: object) -> tuple[str, ...]:
    """The warnings about recordings of a user's own, of which each subject is a client."""
    pq.write_table(pa.Table.from_pylist(rows), folder / "motion.parquet")
    keys = {
        "data": {"name": str(folder / "motion.parquet"), "window": 8, **data},
        "partition": {"scheme": "natural", "column": "subject"},
        "model": {"name": "mlp"},
        "engine": {"name": "loop"},
    }
    return build_run(load_experiment(keys)).warnings


def takes(readings: int = 24) -> list[dict[str, object]]:
    """Five trials of two activities of three subjects."""
    rng = np.random.default_rng(0)
    return [
        {"subject": who, "activity": what, "trial": trial, "signal": rng.normal(size=(readings, 2)).tolist()}
        for who in ("Ada", "Bo", "Cy")
        for what in ("run", "walk")
        for trial in range(5)
    ]


def test_recordings_need_no_word_about_units_but_of_coarser_ones(tmp_path: Path) -> None:
    """The trial is the unit of recordings by default; sessions hold several trials."""
    rows = takes()
    sessions = [row | {"session": int(str(row["trial"])) // 2} for row in rows]
    assert motion(tmp_path, rows) == ()
    (warning,) = motion(tmp_path, sessions)
    assert "'session'" in warning and "Set data.unit = 'session'" in warning
    assert motion(tmp_path, sessions, unit="trial") == ()


def test_recordings_that_are_too_short_are_counted(tmp_path: Path) -> None:
    rows = takes()
    rows[3]["signal"] = [[0.0, 1.0]] * 7
    (warning,) = motion(tmp_path, rows)
    assert warning.startswith("1 of 30 recordings") and "nothing is left" not in warning
    assert motion(tmp_path, rows) == (warning,), "the copy in the cache tells it, too"


def test_a_subject_whose_recordings_are_all_too_short_is_named(tmp_path: Path) -> None:
    rows = [row | ({"signal": [[0.0, 1.0]] * 7} if row["subject"] == "Bo" else {}) for row in takes()]
    with pytest.raises(PartitionError, match=r"10 of 30 recordings .* nothing is left of subject Bo"):
        motion(tmp_path, rows)
    (warning,) = motion(tmp_path, rows, clients=2)
    assert "nothing is left of subject Bo" in warning


def test_windows_that_overlap_are_noticed_where_no_column_tells_of_them(file: Path) -> None:
    (warning,) = built(file, windows(step=8)).warnings
    assert "overlap" in warning and "data.unit" in warning
    assert built(file, windows(step=16)).warnings == ()


def test_rows_that_resemble_the_rows_before_them_are_noticed(file: Path) -> None:
    """Measurements that drift are like those before, and rows that are sorted by class are not."""
    rng = np.random.default_rng(0)
    columns = without(arrays(), "trial")
    noise = rng.normal(size=(len(columns["y"]), 3)).astype(np.float32)
    drift = noise.copy()
    for row in range(1, len(drift)):
        drift[row] += 0.9 * drift[row - 1]
    (warning,) = built(file, columns | {"x": drift}).warnings
    assert "resemble the rows before them" in warning and "correlation is 0.7" in warning
    assert built(file, columns | {"x": drift}, unit="none").warnings == ()
    by_class = np.sort(columns["y"])
    assert built(file, columns | {"y": by_class, "x": noise + 5 * by_class[:, None].astype(np.float32)}).warnings == ()


def test_a_constant_signal_overlaps_with_nothing(file: Path) -> None:
    flat = windows(step=16)
    noise = np.arange(192, dtype=np.float32)[:, None, None]
    # Every window is constant, so each equals itself at every shift; that no two are equal is not the point here.
    assert built(file, flat | {"x": np.zeros_like(flat["x"]) + noise}).warnings == ()


def test_the_warning_is_in_the_run_on_the_page_in_the_folder_and_in_a_scan(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(file, arrays())
    experiment = load_experiment(keys(file))
    run = run_experiment(experiment, tmp_path / "run")
    build(tmp_path / "run")
    assert "data.unit = 'trial'" in capsys.readouterr().err.replace("\n", " ")
    assert "data.unit = &#39;trial&#39;" in (tmp_path / "run" / "report.html").read_text()
    assert "data.unit = 'trial'" in (tmp_path / "run" / "data.json").read_text()
    assert run.warnings == build_run(experiment).warnings
    lines: list[str] = []
    scan_experiment(experiment, 2, warn=lines.append)
    assert "data.unit = 'trial'" in lines[0]


def test_a_quiet_command_still_warns_at_its_end(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(file, arrays())
    experiment = tmp_path / "experiment.toml"
    experiment.write_text(tomli_w.dumps(keys(file)))
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", str(experiment), "--quiet", "--out", str(tmp_path / "run")])
    assert ended.value.code in (0, None)
    assert "data.unit = 'trial'" in capsys.readouterr().err


def recordings_of_classes(classes: int) -> Arrays:
    """Six trials for each site, of so many classes in turn."""
    columns = arrays()
    columns["y"] = columns["trial"] % classes
    return columns


def test_clients_that_are_not_tested_on_some_classes_are_told_the_share_that_is_enough(file: Path) -> None:
    """Three classes of two trials each: a fifth of six trials is one."""
    columns = recordings_of_classes(3)
    (warning,) = built(file, columns, unit="trial").warnings
    assert warning.startswith("4 of 4 clients (Bern, Ghent, Lyon, Oslo)") and "data.test = 0.5" in warning
    setup = built(file, columns, unit="trial", test=0.5)
    assert setup.warnings == ()
    held = setup.client_data
    for client in range(4):
        assert held.samples(held.test(client))[1].bincount().tolist() == [8, 8, 8]


def test_clients_that_are_tested_on_a_class_of_one_unit_are_told(file: Path) -> None:
    """Six classes of one trial each: one must be tested, nobody can train on it, and no share can do better."""
    setup = built(file, recordings_of_classes(6), unit="trial")
    (warning,) = setup.warnings
    assert warning.startswith(
        "4 of 4 clients (Bern, Ghent, Lyon, Oslo) are tested on classes that they do not train on"
    )
    assert [len(setup.client_data.test(client)) for client in range(4)] == [8] * 4


def test_no_share_is_recommended_that_is_set_already(file: Path) -> None:
    """The first sample of each unit is of a class that two units have: half of the units may miss it."""
    columns = arrays()
    for trial in np.unique(columns["trial"]):
        columns["y"][np.flatnonzero(columns["trial"] == trial)[0]] = 2 + trial % 6 // 2
    told = {share: built(file, columns, unit="trial", test=share).warnings for share in (0.2, 0.5)}
    assert "Set data.test = 0.5" in told[0.2][0] and "Raise data.test" in told[0.5][0]


# Test samples of the data set's own


def test_own_test_arrays_are_those_of_the_clients_that_they_name(file: Path) -> None:
    train, test = arrays(), arrays(seed=1)
    test["trial"] += 100
    # Only half of the test samples, in another order.
    shuffled = {name: values[::-2] for name, values in test.items()}
    setup = built(file, train | as_test(shuffled), unit="trial")
    (warning,) = setup.warnings
    assert "no client is tested on 1 of the classes" in warning  # those of every second row are of the other class
    held = setup.client_data
    assert [len(held.train(client)) for client in range(4)] == [48] * 4
    inputs, _ = held.samples(held.test(setup.names.index("Ghent")))
    raw = shuffled["x"][shuffled["site"] == "Ghent"]
    mean, std = train["x"].mean(axis=0), train["x"].std(axis=0)
    assert np.allclose(inputs.numpy(), (raw - mean) / std, atol=1e-4)


def test_classes_on_one_side_of_the_users_split_are_told(file: Path) -> None:
    """Class 1 has samples for testing alone, class 0 some on both sides; then the other way round."""
    columns = without(arrays(), "trial")
    labels = columns["y"] % 2
    within = np.arange(len(labels)) % 4
    for testing, message in (
        ((labels == 1) | (within == 0), "of classes that no client trains on (1)"),
        ((labels == 0) & (within == 0), "no client is tested on 1 of the classes that clients train on (1)"),
    ):
        split = np.where(testing, "test", "train")
        setup = built(file, columns | {"y": labels, "split": split}, unit="none")
        assert any(message in warning for warning in setup.warnings), setup.warnings


def test_a_split_column_divides_the_samples_as_it_says(file: Path) -> None:
    columns = without(arrays(), "trial")
    split = np.where(np.arange(len(columns["y"])) % 4 == 3, "test", "train")
    setup = built(file, columns | {"split": split})
    held = setup.client_data
    assert [len(held.train(client)) for client in range(4)] == [36] * 4
    assert [len(held.test(client)) for client in range(4)] == [12] * 4


def test_a_split_column_with_other_values_is_refused(file: Path) -> None:
    columns = arrays()
    with pytest.raises(DataError, match="'split' holds 'val'; expected train or test"):
        built(file, columns | {"split": np.where(columns["y"] == 1, "val", "train")})


def test_test_samples_without_the_column_of_the_clients_are_refused(file: Path) -> None:
    with pytest.raises(DataError, match="no column 'site'"):
        built(file, arrays() | as_test(without(arrays(seed=1), "site")), unit="none")


def test_a_client_without_test_samples_is_refused_by_its_name(file: Path) -> None:
    test = arrays(seed=1)
    there = {name: values[test["site"] != "Oslo"] for name, values in test.items()}
    with pytest.raises(PartitionError, match="client Oslo has no test samples"):
        built(file, arrays() | as_test(there), unit="none")


def test_without_a_column_of_clients_own_test_samples_follow_the_classes_of_the_training_samples(file: Path) -> None:
    save(file, without(arrays(), "site", "trial") | as_test(without(arrays(seed=1), "site", "trial")))
    groups = {"scheme": "label_groups", "labels": [[0], [1]]}
    experiment = load_experiment(keys(file, clients=4) | {"partition": groups})
    assert experiment.data.test == "own"
    held = build_run(experiment).client_data
    for client, label in enumerate([0, 0, 1, 1]):
        _, labels = held.samples(held.test(client))
        assert labels.tolist() == [label] * 48


def test_own_test_samples_that_a_share_leaves_unused_are_told(file: Path) -> None:
    (warning,) = built(file, arrays() | as_test(arrays(seed=1)), unit="trial", test=0.25).warnings
    assert "not used" in warning and "data.test = 'own'" in warning


def test_units_on_both_sides_of_the_users_split_are_told(file: Path) -> None:
    (warning,) = built(file, arrays() | as_test(arrays(seed=1)), unit="trial").warnings
    assert "24 values of data.unit = 'trial'" in warning


@pytest.mark.parametrize("scheme", ["iid", "natural"])
def test_held_out_units_that_other_clients_train_on_are_told(file: Path, scheme: str) -> None:
    """Whoever is tested on a unit shares models with a client that trains on samples of the same unit."""
    columns = arrays()
    save(file, columns | {"trial": np.arange(len(columns["y"])) % 10})  # each trial has samples of all sites
    partition = {"scheme": "iid"} if scheme == "iid" else {"scheme": "natural", "column": "site"}
    setup = build_run(load_experiment(keys(file, unit="trial", clients=4) | {"partition": partition}))
    assert any("of other clients as well" in warning for warning in setup.warnings)


def test_test_samples_of_a_client_without_training_samples_are_counted(file: Path) -> None:
    test = without(arrays(seed=1, sites=(*SITES, "Rome")), "trial")
    (warning,) = built(file, without(arrays(), "trial") | as_test(test)).warnings
    assert "48 of the 240 test samples" in warning


def test_a_client_whose_r2_is_unknown_is_named_and_the_others_count(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3)).astype(np.float32)
    y = x.sum(axis=1)
    clients = {"Ghent": (x, y), "Lyon": (x[:4] + 1, y[:4]), "Oslo": (x + 2, y)}
    sets = ["local.loss=mse", "rounds=1", "engine.name=loop"]
    run = fedstrata.run(clients=clients, model="mlp", algorithm="fedavg", sets=sets, out=tmp_path / "run", quiet=True)
    (warning,) = run.warnings
    assert "1 of 3 clients (Lyon) are unknown" in warning and "set local.metric = 'rmse'" in warning
    scores = {client: value for client, (_, value) in last_scores(run.folder).items()}
    assert scores.keys() == {0, 2}
    assert run.summary["acc_client"] == pytest.approx(sum(scores.values()) / 2)
    assert run.summary["acc_worst"] == min(scores.values())
    rmse = [*sets, "local.metric=rmse"]
    other = fedstrata.run(clients=clients, model="mlp", algorithm="fedavg", sets=rmse, out=tmp_path / "b", quiet=True)
    assert other.warnings == () and last_scores(other.folder).keys() == {0, 1, 2}


def test_copies_of_training_samples_among_the_test_samples_are_counted(file: Path) -> None:
    train, test = without(arrays(), "trial"), without(arrays(seed=1), "trial")
    test["x"][:10] = train["x"][:10]
    (warning,) = built(file, train | as_test(test)).warnings
    assert "10 of 192 test samples equal a training sample" in warning


def noisy_copies() -> Arrays:
    """Three noisy copies of each of 16 samples of each site, of 12 features; ``source`` tells which."""
    rng = np.random.default_rng(5)
    columns = without(arrays(), "trial")
    source = np.concatenate([16 * site + rng.permutation(48) // 3 for site in range(4)])
    x = rng.normal(size=(64, 12))[source] + 0.1 * rng.normal(size=(192, 12))
    return columns | {"x": x.astype(np.float32), "y": source % 2, "source": source}


def test_noisy_copies_of_each_sample_are_noticed_unless_a_unit_keeps_them_together(file: Path) -> None:
    columns = noisy_copies()
    (warning,) = built(file, columns).warnings
    assert "2 others of the same client" in warning and "data.unit is not set" in warning
    assert any(f"client {site}" in warning for site in SITES)
    assert built(file, columns, unit="source").warnings == ()
    assert built(file, columns, unit="none").warnings == ()
    numbered = columns | {"number": np.arange(192)}
    (warning,) = built(file, numbered, unit="number").warnings
    assert "data.unit = 'number' does not keep them together" in warning


def test_samples_of_known_data_sets_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedstrata.runner.data_warnings.near_copies", lambda *_: pytest.fail("they were compared"))
    assert build_run(load_experiment({"data": {"name": "digits", "clients": 4}})).warnings == ()


def test_a_comparison_warns_once_for_all_of_its_runs(file: Path, tmp_path: Path) -> None:
    save(file, arrays())
    compared = fedstrata.compare(keys(file), ["fedavg", "local"], out=tmp_path / "both", quiet=True)
    assert len([line for line in compared.warnings if "data.unit = 'trial'" in line]) == 1
    assert "data.unit = &#39;trial&#39;" in (tmp_path / "both" / "comparison.html").read_text()


def test_a_metric_that_is_a_number_for_nobody_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def nothing(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        return float("nan")

    keys = {"rounds": 1, "data": {"clients": 2, "samples": 20}, "engine": {"name": "loop"}}
    run = fedstrata.run(keys, tmp_path / "run", metric=nothing)
    assert run.summary["acc_client"] is None
    assert "WARNING: the nothing of no client is a number after the last round" in capsys.readouterr().err
