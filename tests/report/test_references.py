import json
from math import sqrt
from pathlib import Path

import pytest
from synthetic_run import CLIENTS, write

from fedstrata.metric_info import ACCURACY
from fedstrata.report.page import render
from fedstrata.report.reader import read
from fedstrata.report.references import Gain, gain


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
    assert gain(own, other, ACCURACY) == Gain(better=[0, 1, 3], worse=[2], unclear=[])
    assert gain({0: (20, 0.8)}, {0: 0.75}, ACCURACY) == Gain([], [], [0])


def test_the_page_says_whom_a_run_serves_better_than_one_model_and_than_training_alone(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", count=12)
    assert "Compared with" not in render(read(folder))
    next_to(folder, "fedavg", 0.5)
    next_to(folder, "local", 0.6)
    found = read(folder)
    assert {name: each.mean for name, each in found.references.items()} == {"fedavg": 0.5, "local": 0.6}
    page = render(found)
    # The references have the same scores as the run itself.
    assert (
        f"Compared with one model for all (FedAvg): of {CLIENTS} clients, 0 clearly better off and 0 clearly worse off;"
        in page
    )
    assert f"Compared with training alone: of {CLIENTS} clients, 0 clearly better off and 0 clearly worse off;" in page
    assert ">Alone</button>" in page


def test_a_reference_without_readable_scores_has_its_mean_alone(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", count=12)
    next_to(folder, "fedavg", 0.5)
    for file in (tmp_path / "fedavg" / "clients").glob("*"):
        file.write_bytes(b"damaged")
    found = read(folder)
    assert found.references["fedavg"] == (0.5, {})
    assert "Compared with" not in render(found)
