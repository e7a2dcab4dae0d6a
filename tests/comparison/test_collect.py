import html
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from comparing import KEYS

import fedstrata as fs
from builders import compared
from fedstrata.base.errors import RecordError
from fedstrata.comparison.collect import read_outcome
from fedstrata.comparison.document import write_comparison
from fedstrata.config import choose_all, dumps
from fedstrata.report.reader import read


@pytest.fixture(autouse=True)
def without_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedstrata.report.build", lambda folder: None)


def run(name: str, algorithm: dict[str, Any], **changes: Any) -> Path:
    keys = {**KEYS, "rounds": 1, "algorithms": {}, "algorithm": algorithm, **changes}
    return fs.run(keys, name, quiet=True).folder


def test_what_is_written_of_a_comparison(tmp_path: Path) -> None:
    both = fs.compare(KEYS, ["fedavg", "ifca"], [0, 1], "both", sets=["rounds=2"], quiet=True)
    content = json.loads((both.folder / "comparison.json").read_text())
    assert [each["folder"] for each in content["runs"]][:2] == ["fedavg-0", "ifca-0"]
    assert content["runs"][3]["clients"].keys() == {str(client) for client in range(8)}
    assert content["experiment"]["rounds"] == 2
    (lead,) = content["differences"]
    assert lead["seeds"] == [0, 1] and lead["effect"]["by"] == pytest.approx(sum(lead["values"]) / 2)
    assert content["overlap"] < 0.2 and not content["same_clients"] and not content["sites"]
    written = (both.folder / "comparison.md").read_text(encoding="utf-8")
    assert f"- {lead['algorithm']} and {lead['other']} cannot be told apart: " in written
    assert "8 clients, partition rotation, network mlp, 2 rounds, seeds 0, 1." in written and str(both.jobs) in written
    assert "| fedavg | 2 | " in written and "|" + " --- |" * 9 in written


def test_runs_on_other_samples_are_no_reference_of_each_other() -> None:
    """The files have changed between two runs, and the experiment has not."""
    rng = np.random.default_rng(0)
    own = {"data": {"name": "visits.npz", "clients": 4}, "partition": {"scheme": "iid"}, "model": {"name": "mlp"}}
    for number, algorithm in enumerate(("fedavg", "local", "ifca")):
        if number != 1:
            np.savez("visits.npz", x=rng.random((40, 2), dtype=np.float32), y=np.arange(40) % 2)
        run(f"runs/{algorithm}", {"name": algorithm}, **own)
    assert list(read(Path("runs/local")).references) == ["fedavg"]
    assert read(Path("runs/ifca")).references == {}


def damage(path: Path, content: str | dict[str, Any]) -> None:
    """Another content of a file, or other values for some keys of one in JSON."""
    changed = content if isinstance(content, str) else json.dumps(json.loads(path.read_text()) | content)
    path.write_text(changed)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("summary.json", '{"rounds', "expected a finished run"),
        ("summary.json", {"rounds": "four"}, "expected a finished run, found: rounds: "),
        ("summary.json", {"seconds": float("inf")}, "expected a finished run, found: "),
        ("clients/00001.parquet", "PAR1", "expected the last score of at least one client"),
    ],
)
def test_a_damaged_run_is_refused_and_named(name: str, content: str | dict[str, Any], why: str) -> None:
    broken = run("broken", {"name": "fedavg"})
    damage(broken / name, content)
    with pytest.raises(RecordError, match=why) as refused:
        read_outcome("fedavg", 0, broken)
    assert "broken" in str(refused.value)


def write_scores(folder: Path, accuracies: list[float]) -> None:
    """Other scores of the last round."""
    zeros = [0] * len(accuracies)
    scores = {"client": list(range(len(accuracies))), "node": zeros, "samples": zeros, "accuracy": accuracies}
    pq.write_table(pa.table({**scores, "loss": zeros}), folder / "clients" / "00001.parquet")


def test_a_client_of_unknown_score_is_left_out_of_the_comparison_and_the_others_are_compared() -> None:
    one = run("one", {"name": "fedavg"})
    write_scores(one, [0.5, float("nan"), 0.25])
    assert read_outcome("fedavg", 0, one).clients == {0: 0.5, 2: 0.25}


def test_a_run_without_any_known_score_is_refused_with_advice_that_helps() -> None:
    unknown = run("unknown", {"name": "fedavg"})
    write_scores(unknown, [float("nan")])
    with pytest.raises(RecordError, match=r"unknown.* found none that is known.* local\.metric"):
        read_outcome("fedavg", 0, unknown)


def test_the_page_says_how_to_make_the_comparison_again() -> None:
    both = fs.compare(KEYS, ["fedavg", "ifca"], [0, 1], "both", sets=["rounds=1"], quiet=True)
    page = (both.folder / "comparison.html").read_text(encoding="utf-8")
    command, text = (html.unescape(part) for part in re.findall(r"<pre.*?><code>(.*?)</code></pre>", page, re.DOTALL))
    assert command == "fedstrata compare experiment.toml --algorithms fedavg,ifca --seeds 0,1 --out again"
    Path("experiment.toml").write_text(text, encoding="utf-8")
    experiments, _ = choose_all("experiment.toml", ["fedavg", "ifca"], [0, 1], out="again")
    for experiment, run in zip(experiments, both.runs, strict=True):
        made = tomllib.loads((run.folder / "experiment.toml").read_text())
        again = tomllib.loads(dumps(experiment))
        for keys in (made, again):
            del keys["engine"]
            keys.pop("algorithms", None)  # of the others
        assert again == made


def test_runs_on_other_samples_than_those_before_count_as_failed_in_a_comparison_that_goes_on(tmp_path: Path) -> None:
    """Someone has put other numbers into the file in the meantime."""

    def write(seed: int) -> None:
        draw = np.random.default_rng(seed)
        table = pa.table({"client": ["a", "b"] * 40, "size": draw.normal(size=80), "y": [0, 0, 1, 1] * 20})
        pq.write_table(table, tmp_path / "all.parquet")

    data = {"name": str(tmp_path / "all.parquet")}
    keys = {"rounds": 1, "data": data, "model": {"name": "mlp"}, "engine": {"name": "loop"}}
    write(0)
    assert not fs.compare(keys, ["fedavg"], [0], "both", quiet=True).troubles
    write(1)
    again = fs.compare(keys, ["fedavg", "local"], [0], "both", resume=True, quiet=True)
    assert [bool(run.summary) for run in again.runs] == [True, False]
    (trouble,) = again.troubles
    assert trouble.startswith("local with seed 0 failed: ") and "expected runs on the same data" in trouble


def test_a_bar_in_a_label_is_not_the_end_of_a_cell() -> None:
    outcome = read_outcome("left|right", 0, run("a", {"name": "fedavg"}))
    table = write_comparison(compared([outcome], Path("both")))
    written = (table.folder / "comparison.md").read_text(encoding="utf-8")
    assert "| left&#124;right | 1 |" in written
