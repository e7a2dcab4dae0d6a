import json
from math import sqrt
from pathlib import Path

import pytest
from synthetic_run import CLIENTS, write

from fedstrata.metric_info import ACCURACY, METRIC_INFOS
from fedstrata.report.page import render
from fedstrata.report.reader import read
from fedstrata.report.references import Gain, gain, stands_out


def next_to(folder: Path, algorithm: str, accuracy: float) -> None:
    """Put a run of another algorithm next to a run."""
    other = write(folder.parent / algorithm, count=12)
    summary = json.loads((other / "summary.json").read_text())
    (other / "summary.json").write_text(json.dumps(summary | {"algorithm": algorithm, "acc_client": accuracy}))


def test_a_difference_is_clear_beyond_two_standard_errors() -> None:
    # With 100 samples, 0.9 and 0.8 are 0.05 apart by chance alone: sqrt((0.09 + 0.16) / 100).
    assert ACCURACY.standard_error(100, 0.9, 0.8) == pytest.approx(sqrt(0.0025))
    own = {0: (100, 0.9), 1: (100, 0.9), 2: (100, 0.5), 3: (10, 0.9), 4: (100, 0.9)}
    other = {0: 0.8, 1: 0.75, 2: 0.7, 3: 0.5, 5: 0.1}
    # 0: 0.10 against 0.098, better; 1: better; 2: worse; 3: 0.4 against 0.36, better; 4 and 5 are in one alone.
    assert gain(own, other, ACCURACY, {}) == Gain(better=[0, 1, 3], worse=[2], unclear=[])
    assert gain({0: (20, 0.8)}, {0: 0.75}, ACCURACY, {}) == Gain([], [], [0])


def test_the_page_says_whom_a_run_serves_better_than_one_model_and_than_training_alone(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", count=12)
    assert "clearly better off than" not in render(read(folder))
    next_to(folder, "fedavg", 0.5)
    next_to(folder, "local", 0.6)
    found = read(folder)
    assert {name: each.mean for name, each in found.references.items()} == {"fedavg": 0.5, "local": 0.6}
    page = render(found)
    # The references have the same scores as the run itself.
    for reference in ("one model for all (FedAvg)", "training alone"):
        assert f"Of {CLIENTS} clients, none clearly better off than with {reference}, none clearly worse off;" in page
    assert ">Alone</button>" in page


def test_a_reference_without_readable_scores_has_its_mean_alone(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", count=12)
    next_to(folder, "fedavg", 0.5)
    for file in (tmp_path / "fedavg" / "clients").glob("*"):
        file.write_bytes(b"damaged")
    found = read(folder)
    assert found.references["fedavg"] == (0.5, {}, {})
    assert "Compared with" not in render(found)


def test_a_client_stands_out_where_the_worst_of_so_many_would_not_be_as_bad_by_chance() -> None:
    # One of 4 right at a mean of one half: chance 5/16, for 2 clients too.
    assert not stands_out(4, 0.25, 0.5, 2, ACCURACY)
    # None of 8 right: chance 1/256, which is 0.04 for the worst of 10 and 0.08 for the worst of 20.
    assert stands_out(8, 0.0, 0.5, 10, ACCURACY) and not stands_out(8, 0.0, 0.5, 20, ACCURACY)
    assert not stands_out(8, 1.0, 0.5, 1, ACCURACY), "it is better than the mean"
    assert stands_out(1, 0.0, 1.0, 100, ACCURACY), "all others are perfect"
    assert not stands_out(100, 9.0, 1.0, 2, METRIC_INFOS["mse"]), "nobody knows what is chance"
