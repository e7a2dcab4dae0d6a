import json
from pathlib import Path

from synthetic_run import CLIENTS, write

from fedstrata.report.page import render
from fedstrata.report.reader import read


def next_to(folder: Path, algorithm: str, accuracy: float) -> None:
    """Put a run of another algorithm next to a run."""
    other = write(folder.parent / algorithm, count=12)
    summary = json.loads((other / "summary.json").read_text())
    (other / "summary.json").write_text(json.dumps(summary | {"algorithm": algorithm, "acc_client": accuracy}))


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
        assert f"Of {CLIENTS} clients, none clearly better off than with {reference}, none clearly worse off," in page
    assert ">Alone</button>" in page


def test_a_reference_without_readable_scores_has_its_mean_alone(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", count=12)
    next_to(folder, "fedavg", 0.5)
    for file in (tmp_path / "fedavg" / "clients").glob("*"):
        file.write_bytes(b"damaged")
    found = read(folder)
    assert found.references["fedavg"] == (0.5, {}, {})
    assert "Compared with" not in render(found)
