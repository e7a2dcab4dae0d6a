import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from synthetic_comparison import GAINS, compare, compare_folders, run
from synthetic_run import edit, edit_rounds, figures_of, text_of

from builders import compared
from fedstrata.base.errors import RecordError
from fedstrata.comparison import Comparison
from fedstrata.comparison.document import write_comparison
from fedstrata.report.comparison.folder import JobCount, Outcome, Statistic
from fedstrata.report.comparison.page import build_comparison

EVIL = '<img src=x onerror="window.ran=1"></script><b>&'


def again(both: Comparison, *more: Outcome, folder: Path, **others: Any) -> Comparison:
    """The comparison with further runs, in another folder."""
    return compared([*both.runs, *more], folder, both.document.experiment, **others)


@pytest.fixture
def both(tmp_path: Path) -> Comparison:
    return compare(tmp_path)


def page(folder: Path) -> str:
    return text_of(build_comparison(folder))


class Texts(HTMLParser):
    """What a reader sees of the tables, row by row, and where links lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.links: list[str | None] = []
        self._open = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._open = True
        if tag == "a":
            self.links.append(dict(attrs)["href"])

    def handle_endtag(self, tag: str) -> None:
        self._open = self._open and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._open:
            self.rows[-1][-1] += data.strip()


def test_the_curves_are_means_with_a_band_from_the_lowest_seed_to_the_highest(both: Comparison) -> None:
    drawn = figures_of(page(both.folder))
    assert list(drawn) == ["accuracy", "clusters", "accuracy-by-bytes"]
    low, high, *others = drawn["accuracy"]["data"][4:]
    assert [trace["name"] for trace in others] == ["fedavg", "cfl", "strata"]
    assert low["y"] == [0.311, 0.322, 0.333, 0.344, 0.355]
    assert high["y"] == [0.32, 0.34, 0.36, 0.38, 0.4]
    assert others[2]["y"] == [0.3155, 0.331, 0.3465, 0.362, 0.3775]
    assert others[2]["x"] == [1, 2, 3, 4, 5]
    assert drawn["clusters"]["data"][-1]["y"] == [1, 1, 1, 2, 2]
    colours = [trace["line"]["color"] for trace in others]
    assert len(set(colours)) == 3
    for plot in drawn.values():
        assert [trace["line"]["color"] for trace in plot["data"][-3:]] == colours


def test_bytes_are_summed_over_the_rounds(both: Comparison) -> None:
    """Both ways 9.6 MB a round."""
    drawn = figures_of(page(both.folder))
    paid = drawn["accuracy-by-bytes"]["data"][-1]
    assert paid["x"] == [9.6e6, 19.2e6, 28.8e6, 38.4e6, 48e6]
    assert paid["y"] == drawn["accuracy"]["data"][-1]["y"]
    assert paid["customdata"] == [1, 2, 3, 4, 5] and "strata, round %{customdata}" in paid["hovertemplate"]


def test_the_same_records_give_the_same_bytes(both: Comparison) -> None:
    first = (both.folder / "comparison.html").read_bytes()
    assert build_comparison(both.folder).read_bytes() == first
    assert sorted(path.name for path in both.folder.iterdir()) == [
        "comparison.html",
        "comparison.json",
        "comparison.md",
        "lock",
    ]


def test_runs_that_failed_are_named_with_the_reason(tmp_path: Path) -> None:
    good = compare_folders([run(tmp_path / "fedavg-0", "fedavg", 0)], tmp_path / "good")
    failed = Outcome("ditto", 0, tmp_path / "ditto-0", error="IndexError: list index out of range")
    jobs = JobCount(40, 10)
    told = write_comparison(again(good, failed, folder=tmp_path / "failed", jobs=jobs))
    text = page(told.folder)
    assert Texts(text).rows[-1] == ["ditto, seed 0", "failed: IndexError: list index out of range"]
    assert "No experiment.toml of ditto can be read, so this page is without its keys." in text
    assert "Equal local jobs were done once: trained 10 of 40 jobs; 25 %." in text
    assert "fedstrata compare experiment.toml --algorithms fedavg,ditto --seeds 0 --out again" in text
    assert "<h2>Differences" not in text


def test_runs_that_diverged_are_named_at_the_top(both: Comparison) -> None:
    """The terminal said so, and the page called the least bad of them the best."""
    assert "diverged" not in page(both.folder)
    file = both.folder / "comparison.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    content["runs"][0]["summary"] |= {"diverged": {"rounds": [2, 3], "clients": 4}, "rejected": 8, "rounds": 5}
    edit(file, **content)
    before_results = page(both.folder).partition("Results")[0]
    assert "fedavg with seed 0: training diverged in 2 of 5 rounds (rounds 2, 3); lower local.lr" in before_results
    assert "fedavg with seed 0: 8 answers were rejected" in before_results
    for each in content["runs"]:
        each["summary"] |= {"diverged": {"rounds": [2], "clients": 4}, "rejected": 8, "rounds": 5}
    edit(file, runs=content["runs"] * 2)
    assert "There are 12 more such warnings on pages of runs." in page(both.folder)


def test_a_comparison_of_which_every_run_failed_has_a_page_too(tmp_path: Path) -> None:
    failed = Outcome("ditto", 0, tmp_path / "ditto-0", error="IndexError: list index out of range")
    experiment = {"data": {"name": "digits", "clients": 20}, "partition": {"scheme": "iid"}, "model": {"name": "mlp"}}
    write_comparison(compared([failed], tmp_path / "all", {"rounds": 2, **experiment}, jobs=JobCount(0, 0)))
    text = page(tmp_path / "all")
    assert "No run of this comparison is finished." in text and "1 algorithm on digits" in text
    assert "<h2>Charts" not in text and figures_of(text) == {}


def test_a_run_whose_rounds_are_damaged_is_missing_from_the_charts_only(both: Comparison) -> None:
    whole = {run.folder.name: (run.folder / "rounds.jsonl") for run in both.runs}
    lines = whole["cfl-0"].read_text(encoding="utf-8").splitlines(keepends=True)
    whole["cfl-0"].write_text("".join(lines[:2] + lines[3:]), encoding="utf-8")
    whole["cfl-1"].write_text("".join(lines[:4]) + lines[4][:30], encoding="utf-8")
    whole["strata-0"].write_text("no\n" + "".join(lines), encoding="utf-8")
    whole["fedavg-0"].write_text("", encoding="utf-8")
    whole["fedavg-1"].write_text("", encoding="utf-8")
    text = html.unescape(page(both.folder))
    assert re.search("The charts are without cfl with seed 0: ../cfl-0: line 3 of rounds.jsonl is of round 4", text)
    assert "cfl with seed 1: The last line of rounds.jsonl is cut off" in text
    assert re.search("The charts are without strata with seed 0: .*line 1 of rounds.jsonl: ", text)
    curves = figures_of(text)["accuracy"]["data"]
    assert [(curve["name"], curve["x"]) for curve in curves] == [("cfl", [1, 2, 3, 4]), ("strata", [1, 2, 3, 4, 5])]
    assert Texts(text).rows[2][:3] == ["cfl", "2", "35.2 ± 0.4 %"]


def test_a_figure_that_is_not_known_leaves_a_hole(both: Comparison) -> None:
    edit_rounds(both.runs[0].folder, lambda line: {"acc_client": None} if line["round"] == 2 else {})
    assert figures_of(page(both.folder))["accuracy"]["data"][-3]["y"] == [0.3005, None, 0.3015, 0.302, 0.3025]


def test_html_in_any_name_is_escaped(both: Comparison) -> None:
    file = both.folder / "comparison.json"
    text = file.read_text(encoding="utf-8").replace('"strata"', json.dumps(EVIL))
    file.write_text(text.replace('"../strata-0"', json.dumps(f"java:{EVIL}")), encoding="utf-8")
    content = json.loads(file.read_text(encoding="utf-8"))
    content["experiment"]["data"]["name"] = EVIL
    content["left_out"] = [{"folder": EVIL, "why": EVIL}]
    content["runs"][0] |= {"summary": None, "error": EVIL}
    edit(file, **content)
    text = page(both.folder)
    assert "<img" not in text and text.count("</script>") == 5
    assert "&lt;img src=x" in text
    assert figures_of(text)["accuracy"]["data"][-1]["name"].startswith("&lt;img")
    assert "java%3A%3Cimg" in text


def test_what_is_no_comparison_is_refused_in_one_line(tmp_path: Path, both: Comparison) -> None:
    with pytest.raises(RecordError, match=r"holds no comparison\.json; name the folder of a finished `fedstrata compa"):
        build_comparison(tmp_path)
    file = both.folder / "comparison.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    del content["differences"]
    file.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(RecordError, match=r"comparison\.json is damaged or .* \(differences: field required\)"):
        build_comparison(both.folder)


def test_a_comparison_names_the_attackers_and_has_the_scores_of_the_honest_clients(tmp_path: Path) -> None:
    folders = [run(tmp_path / f"{name}-{seed}", name, seed) for seed in (0, 1) for name in GAINS]
    for folder in folders:
        attackers = [1, 2, 3] if folder.name.endswith("0") else [0, 4]
        edit(folder / "summary.json", attack={"clients": attackers, "acc_honest": 0.75})
        file = folder / "experiment.toml"
        file.write_text(file.read_text() + '\n[attack]\nkind = "sign_flip"\nshare = 0.4\n')
    attacked = compare_folders(folders, tmp_path / "both")
    assert all(row.figures["acc_honest"] == Statistic(0.75, 0.0, 0.75, 0.75) for row in attacked.table)
    told = page(attacked.folder)
    assert "sign_flip by clients 1\N{EN DASH}3 with seed 0; clients 0, 4 with seed 1. All figures" in told
    assert "honest clients</th>" in told and told.count("<td>75.0 ± 0.0 %</td>") == len(GAINS)


def test_an_algorithm_without_a_finished_run_is_not_called_equal(both: Comparison) -> None:
    failed = Outcome("ditto", 0, both.folder / "ditto-0", error="ValueError: no")
    write_comparison(again(both, failed, folder=both.folder))
    text = page(both.folder)
    assert "no finished run with the same seed: ditto" in text
    assert not re.search(r"no clear difference: [^;.]*ditto", text)
