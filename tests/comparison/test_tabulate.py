import json
from pathlib import Path
from typing import Any

import pytest
from comparing import KEYS

import fedstrata as fs
from fedstrata.comparison import tabulate
from fedstrata.errors import RecordError


@pytest.fixture(autouse=True)
def without_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedstrata.report.build", lambda folder: None)


def run(name: str, algorithm: dict[str, Any], **changes: Any) -> Path:
    keys = {**KEYS, "rounds": 1, "algorithms": {}, "algorithm": algorithm, **changes}
    return fs.run(keys, name, quiet=True).folder


def test_finished_runs_give_the_same_table_as_their_comparison(tmp_path: Path) -> None:
    both = fs.compare(KEYS, ["fedavg", "ifca"], [0, 1], "both", sets=["rounds=2"], quiet=True)
    table = tabulate([run.folder for run in both.runs])
    assert table.folder == Path("runs/compare") and tabulate([both.runs[0].folder]).folder == Path("runs/compare-2")
    assert (table.table, table.experiment, table.jobs) == (both.table, both.experiment, None)
    content = json.loads((table.folder / "comparison.json").read_text())
    assert [each["folder"] for each in content["runs"]][:2] == ["../../both/fedavg-0", "../../both/ifca-0"]
    assert content["runs"][3]["clients"].keys() == {str(client) for client in range(8)}
    assert content["experiment"]["rounds"] == 2 and content["jobs"] is None
    written = (both.folder / "comparison.md").read_text(encoding="utf-8")
    assert "8 clients, partition rotation, network mlp, 2 rounds, seeds 0, 1." in written and str(both.jobs) in written
    assert "jobs" not in (table.folder / "comparison.md").read_text(encoding="utf-8")


def test_runs_of_one_algorithm_are_told_apart_by_their_keys() -> None:
    folders = [run("a", {"name": "ifca", "k": 2}), run("b", {"name": "ifca", "k": 3}), run("c", {"name": "fedavg"})]
    assert [row.algorithm for row in tabulate(folders).table] == ["ifca k=2", "ifca k=3", "fedavg"]


def test_what_cannot_be_compared_is_refused() -> None:
    first = run("first", {"name": "fedavg"})
    again, other = run("again", {"name": "fedavg"}), run("other", {"name": "fedavg"}, seed=1, local={"lr": 0.2})
    with pytest.raises(RecordError, match="found fedavg with seed 0 in first and in again; leave one out"):
        tabulate([first, again])
    with pytest.raises(RecordError, match="found another 'local' in other than in first"):
        tabulate([first, other])
    (again / "summary.json").unlink()
    with pytest.raises(RecordError, match=r"expected a finished run in again, found no summary\.json"):
        tabulate([again])
    (other / "clients" / "00001.parquet").unlink()
    with pytest.raises(RecordError, match=r"expected the scores of the clients in other/clients/00001\.parquet"):
        tabulate([other])
    with pytest.raises(RecordError, match=r"expected a run folder at runs, found no experiment\.toml"):
        tabulate([Path("runs")])
    Path("keys").mkdir()
    Path("keys", "experiment.toml").write_text('[algorithm]\nname = "cfl"\n')
    with pytest.raises(RecordError, match=r"expected a finished run in keys, found no summary\.json"):
        tabulate([first, Path("keys")])
    with pytest.raises(RecordError, match="'first': expected a new or empty run folder"):
        tabulate([first], first)
    assert not Path("runs").exists()
