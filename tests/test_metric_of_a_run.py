"""Runs with other metrics than accuracy, from the records to what people read."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import fedstrata as fs
from builders import keys
from fedstrata.cli import main
from fedstrata.comparison import Comparison
from fedstrata.results.assign import assign

KEYS: dict[str, Any] = keys(data=None, partition=None, model={"hidden": [4]}, local={"loss": "mse", "lr": 0.05}) | {
    "data": {"test": 0.25, "validation": 0.2, "unit": "none"}
}
SEEDS = [0, 1]
ALGORITHMS = ["fedavg", "local"]
RATES = [0.0005, 0.1]
ERROR, NEGATIVE = "mae", "test_metric_of_a_run:negative_error"
"""An error, and the metric of one's own that is the same with the other sign."""


def negative_error(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    return -float((outputs - targets).abs().mean())


def clients(seed: int = 0) -> dict[str, Any]:
    """Four clients of two groups whose numbers rise with the input, or fall: one model for all cannot be right."""
    draw = np.random.default_rng(seed)
    found = {}
    for place, name in enumerate(("Ghent", "Lyon", "Bern", "Oslo")):
        x = draw.normal(size=(60, 3)).astype("float32")
        found[name] = (x, ((-1) ** place * x.sum(1) + draw.normal(scale=0.1, size=60)).astype("float32"))
    return found


def with_metric(metric: str, algorithm: str = "fedavg") -> dict[str, Any]:
    return keys(KEYS, local={"metric": metric}, algorithm={"name": algorithm})


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, Comparison]:
    """The same comparison by an error and by its negative, of which more is better."""
    out = tmp_path_factory.mktemp("regression")
    one, other = (
        fs.compare(with_metric(name), ALGORITHMS, SEEDS, out / name, clients=clients(), quiet=True)
        for name in (ERROR, NEGATIVE)
    )
    return one, other


def test_records_hold_the_error_itself_and_the_worst_client_has_the_largest(
    pair: tuple[Comparison, Comparison],
) -> None:
    for one, other in zip(pair[0].runs, pair[1].runs, strict=True):
        assert one.summary and other.summary
        for key in ("acc_client", "acc_worst", "acc_best", "acc_validation", "acc_selected", "acc_weighted"):
            assert one.summary[key] == pytest.approx(-other.summary[key]) and one.summary[key] > 0
        for key in ("acc_best_round", "selected_round"):
            assert one.summary[key] == other.summary[key]
        last = pq.read_table(one.folder / "clients" / "00004.parquet")["accuracy"].to_pylist()
        assert one.summary["acc_worst"] == max(last) and one.clients == dict(enumerate(last))


def test_a_comparison_names_the_same_winner_with_the_same_lead(pair: tuple[Comparison, Comparison]) -> None:
    one, other = pair
    (mine,), (theirs,) = one.differences, other.differences
    assert (mine.algorithm, mine.other, mine.above, mine.clear) == ("local", "fedavg", 2, theirs.clear)
    assert mine.values == pytest.approx(theirs.values) and mine.mean > 0
    means = {row.algorithm: row.figures["acc_client"] for row in one.table}
    assert means["local"] and means["fedavg"] and means["local"].mean < means["fedavg"].mean


def test_the_comparison_is_about_the_error_and_nowhere_about_accuracy(pair: tuple[Comparison, Comparison]) -> None:
    folder = pair[0].folder
    name = pair[0].metric.name
    page, text = (folder / "comparison.html").read_text(), (folder / "comparison.md").read_text()
    for said in (page, text):
        assert "accura" not in said.lower() and "most accurate" not in said
        assert name in said and "lower is better" in said
    assert re.search(
        r"local (is better than fedavg|and fedavg cannot be told apart): local is [\d.]+ lower on average", text
    )
    assert "A curve further down and to the left is better." in page
    assert json.loads((folder / "comparison.json").read_text())["metric"]["larger_is_better"] is False


def test_the_page_is_about_the_error_and_the_worst_client_is_the_one_with_the_largest(
    pair: tuple[Comparison, Comparison],
) -> None:
    run = next(run for run in pair[0].runs if run.algorithm == "local")
    page = (run.folder / "report.html").read_text()
    name = pair[0].metric.name
    assert "accura" not in page.lower()
    assert f"<dt>{name.capitalize()}</dt>" in page and f"highest {name} of a client" in page
    assert 'aria-sort="descending"' in page and f'"text":"{name}"' in page
    rows = re.findall(r'aria-pressed="false">(\w+)</button></td>\s*<td>([\d.]+)</td>', page)
    values = [float(value) for _, value in rows]
    assert len(values) == 4 and values == sorted(values, reverse=True)
    # One model for all cannot be right for both groups.
    assert "Of 4 clients, 4 clearly better off than with one model for all (FedAvg), none clearly worse off" in page


def test_a_sweep_chooses_the_smallest_error(tmp_path: Path) -> None:
    for name in (ERROR, NEGATIVE):
        tables = with_metric(name, "local")  # which learns each client's own numbers
        swept = fs.sweep(tables, {"local.lr": RATES}, None, tmp_path / name, clients=clients(), quiet=True)
        assert swept.best == {"local.lr": 0.1}
    page = (tmp_path / ERROR / "comparison.html").read_text()
    assert "on validation data, which no client trains on, is the lowest." in page and "accura" not in page.lower()


def test_the_terminal_and_the_lists_name_the_metric(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fs.run(with_metric("rmse"), tmp_path / "runs" / "one", clients=clients())
    progress = capsys.readouterr().err
    assert "root mean squared error 1." in progress and "accura" not in progress
    assert "<td>root mean squared error, mean over clients</td>" in run._repr_html_()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["runs"])
    assert "root mean squared error" in capsys.readouterr().out
    assert run.metric == fs.load(run.folder).metric and not run.metric.larger_is_better


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A metric of the user's own of which less is better."""
    (tmp_path / "spread_metric.py").write_text(
        "import fedstrata as fs\n"
        '@fs.describe_metric("largest <error>", "in metres", larger_is_better=False, least=0.0)\n'
        "def largest(outputs, targets):\n    return float((outputs - targets).abs().max())\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "spread_metric:largest"
    sys.modules.pop("spread_metric", None)


def test_a_metric_of_ones_own_says_that_less_is_better(mine: str, tmp_path: Path) -> None:
    compared = fs.compare(with_metric(mine), ALGORITHMS, out=tmp_path / "both", clients=clients(), quiet=True)
    (difference,) = compared.differences
    means = {run.algorithm: (run.summary or {})["acc_client"] for run in compared.runs}
    assert difference.algorithm == min(means, key=means.__getitem__)
    page = (compared.runs[1].folder / "report.html").read_text()
    assert "Largest &lt;error&gt; is in metres; at least 0, lower is better." in page and "<error>" not in page
    kept = json.loads((compared.runs[0].folder / "metric.json").read_text())
    assert (kept["name"], kept["larger_is_better"]) == ("largest <error>", False)
    assert fs.load(compared.runs[0].folder).metric == compared.metric


def test_new_clients_are_scored_by_the_metric(tmp_path: Path) -> None:
    x, y = clients()["Ghent"]
    np.savez(tmp_path / "all.npz", x=np.concatenate([x] * 2), y=np.concatenate([y] * 2))
    np.savez(tmp_path / "new.npz", x=x, y=y)
    data = {"name": str(tmp_path / "all.npz"), "clients": 2, "samples": 30}
    tables = keys(with_metric("mse"), data=data, algorithm={"name": "ifca", "k": 1})
    run = fs.run(tables, tmp_path / "run", quiet=True)
    (placed,) = assign(run.folder, [tmp_path / "new.npz"])
    assert placed["mse"] >= 0 and "accuracy" not in placed
