"""The committed runs: one of every algorithm that clusters clients, and some that do not."""

import re
import shutil
from pathlib import Path

import pytest
from experiments.tools.small_runs import LEFT_OUT, RUNS, make
from synthetic_run import text_of

from fedstrata.report import build
from fedstrata.report.reader import read

FOLDER = Path(__file__).parent / "runs"
UNCLUSTERED = {"centralized", "ditto", "fedavg"}
KB = 1000


def test_every_committed_run_is_one_that_the_script_makes_and_the_other_way_round() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_small_and_holds_records_alone(name: str) -> None:
    files = [path for path in (FOLDER / name).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 100 * KB
    assert not [path for path in files if path.name in LEFT_OUT or path.suffix == ".safetensors"]


@pytest.mark.parametrize("name", RUNS)
def test_the_page_of_a_run_says_how_many_clusters_there_are(name: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FOLDER / name, tmp_path / name))
    records = read(folder)
    assert records.notes == ()
    text = text_of(build(folder))
    assert records.last is not None
    clients = sum(label >= 0 for label in records.last.labels)
    assert (f"{clients} clients in {records.last.clusters} clusters" in text) == (name not in UNCLUSTERED)
    words = re.sub(r"(?s)<style>.*?</style>|<script.*?</script>|<pre.*?</pre>", "", text)
    assert bool(re.search(r"\b(clusters?|ARI|nodes?)\b", words)) == (name not in UNCLUSTERED)


def test_the_fedavg_reference_is_known_where_its_run_is_next_to_a_run() -> None:
    assert read(FOLDER / "cfl").references["fedavg"].mean == read(FOLDER / "fedavg").final("acc_client")
    assert "fedavg" not in read(FOLDER / "layercfl").references, "another share of its clients was away"


def test_a_run_can_be_made_again(tmp_path: Path) -> None:
    make("oracle", tmp_path / "oracle")
    again, kept = read(tmp_path / "oracle"), read(FOLDER / "oracle")
    assert again.experiment == kept.experiment
    assert [each.labels for each in again.rounds] == [each.labels for each in kept.rounds]
    assert again.final("acc_client") == pytest.approx(kept.final("acc_client"), abs=0.02)
