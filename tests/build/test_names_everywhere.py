"""Clients keep their names: in every table, on the page, on the terminal and in a deployment."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

import fedstrata
from fedstrata import cli
from fedstrata.results.assign import assign
from own_data import Arrays, arrays, keys, save

SORTED = ["Bern", "Ghent", "Lyon", "Oslo"]


def tables(folder: Path, columns: Arrays | None = None) -> dict[str, Any]:
    """The tables of an experiment on four sites."""
    return keys(save(folder / "mine.npz", columns or arrays()), unit="trial")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedstrata.Run:
    """Four sites in two groups that are drawn at random; Lyon comes late."""
    folder = tmp_path_factory.mktemp("named")
    experiment = tables(folder) | {
        "rounds": 3,
        "algorithm": {"name": "random_groups", "groups": 2},
        "events": {"join": [{"round": 2, "clients": [2]}]},
    }
    return fedstrata.run(experiment, folder / "run", quiet=True)


def test_the_run_and_its_folder_map_ids_to_names(run: fedstrata.Run) -> None:
    assert list(run.names) == SORTED
    clients = json.loads((run.folder / "data.json").read_text())["clients"]
    assert [each["id"] for each in clients] == [0, 1, 2, 3]
    assert [each["name"] for each in clients] == SORTED
    assert {(each["train"], each["test"]) for each in clients} == {(40, 8)}  # whole trials of 8: 0.2 of 48 is near 8


def in_the_table(page: str, client: int, name: str) -> bool:
    """Whether the table of clients has a client by its name, and tells its number in the records."""
    return bool(
        re.search(rf'title="client {client} of the records"><button[^>]*>{re.escape(name)}</button></td>', page)
    )


def test_the_page_has_no_client_by_its_number(run: fedstrata.Run) -> None:
    text = (run.folder / "report.html").read_text()
    assert all(in_the_table(text, client, name) for client, name in enumerate(SORTED))
    assert "clients Lyon" in text  # the event: it has joined


def test_a_name_from_the_data_cannot_write_html_into_the_page(tmp_path: Path) -> None:
    columns = arrays(sites=("<b>Lyon</b>", "Ghent", "Oslo", "Bern"))
    found = fedstrata.run(tables(tmp_path, columns), tmp_path / "run", quiet=True)
    assert "<b>Lyon</b>" not in (found.folder / "report.html").read_text()


def test_the_terminal_names_the_members_and_who_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = tmp_path / "experiment.toml"
    more = {"rounds": 2, "events": {"join": [{"round": 2, "clients": [2]}]}}
    experiment.write_text(tomli_w.dumps(tables(tmp_path) | more))
    with pytest.raises(SystemExit):
        cli.main(["run", str(experiment), "--out", str(tmp_path / "run")])
    told = capsys.readouterr()
    assert "cluster 0: clients Bern, Ghent, Lyon, Oslo" in told.out
    assert "join: clients Lyon" in told.err


def test_numbers_of_a_column_are_names_too(tmp_path: Path) -> None:
    """Subject 16 is never shown as client 3."""
    columns = arrays()
    columns["site"] = np.repeat([16, 3, 7, 11], 48)
    found = fedstrata.run(tables(tmp_path, columns), tmp_path / "run", quiet=True)
    assert found.names == ("3", "7", "11", "16")
    assert in_the_table((found.folder / "report.html").read_text(), 3, "16")


def test_a_newcomer_has_the_name_of_its_file_and_the_company_of_names(run: fedstrata.Run, tmp_path: Path) -> None:
    one_site = {name: values[:48] for name, values in arrays(seed=5).items()}
    (placed,) = assign(run.folder, [save(tmp_path / "Rome.npz", one_site)])
    assert placed["client"] == "Rome"
    members = run.tree[placed["cluster"]].members
    assert placed["members"] == [SORTED[client] for client in members] and placed["members"]


def test_a_comparison_knows_the_names(tmp_path: Path) -> None:
    found = fedstrata.compare(tables(tmp_path), ["fedavg", "local"], out=tmp_path / "both", quiet=True)
    assert list(found.document.clients) == SORTED
    assert json.loads((tmp_path / "both" / "comparison.json").read_text())["clients"] == SORTED
