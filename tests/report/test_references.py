import json
from pathlib import Path

from synthetic_run import write

from fedstrata.report.page import render
from fedstrata.report.reader import read


def next_to(folder: Path, algorithm: str, accuracy: float) -> None:
    """Put a run of another algorithm next to a run."""
    other = write(folder.parent / algorithm, count=12)
    summary = json.loads((other / "summary.json").read_text())
    (other / "summary.json").write_text(json.dumps(summary | {"algorithm": algorithm, "acc_client": accuracy}))


def test_a_reference_without_readable_scores_has_its_mean_alone(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", count=12)
    next_to(folder, "fedavg", 0.5)
    for file in (tmp_path / "fedavg" / "clients").glob("*"):
        file.write_bytes(b"damaged")
    found = read(folder)
    assert found.references["fedavg"] == (0.5, {}, {})
    assert "Compared with" not in render(found)
