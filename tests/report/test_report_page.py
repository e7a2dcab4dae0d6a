import json
import re
import shutil
import subprocess
import sys
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast

import pytest
from filelock import FileLock
from synthetic_run import (
    EXPERIMENT,
    changed,
    edit_rounds,
    every_round,
    figures_of,
    name_all,
    text_of,
    write,
)

from fedstrata.base.errors import RecordError
from fedstrata.data.location import PREFIX
from fedstrata.records.schema import Round
from fedstrata.report import build, catalogue, follow
from fedstrata.report.clusters import Clusters
from fedstrata.report.page import independence_assumption, result_sentence, tiles, title
from fedstrata.report.reader import RunRecords, read
from fedstrata.report.summary import summary_rows
from fedstrata.report.words import ClientNames

SECTIONS = ("metric", "clusters", "decisions", "layers", "clients", "cost", "events", "experiment")
EVIL = '<img src=x onerror="alert(1)"></script><b>&'


def page(folder: Path) -> str:
    return text_of(build(folder))


class Tags(HTMLParser):
    """Collects the tags, and fails where one is closed that is not open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize(
    ("algorithm", "unit", "texts"),
    [
        (
            {"compares": "auto", "alpha": 0.05},
            "",
            ("Splits are tested on disjoint halves", "(alpha = 0.05)", "single samples"),
        ),
        ({"layers": "auto"}, "trial", ("The compared layer is chosen on disjoint halves", "They differ in trial")),
        ({"layers": "conv2"}, "", ("",)),
    ],
)
def test_the_page_says_what_was_assumed_about_the_samples(
    records: RunRecords, algorithm: dict[str, Any], unit: str, texts: tuple[str, ...]
) -> None:
    said = independence_assumption(replace(records, settings={"algorithm": algorithm, "data": {"unit": unit}}))
    assert all(text in said for text in texts) and bool(said) == bool(texts[0])


def test_every_tag_is_closed_and_every_figure_has_its_place(folder: Path) -> None:
    tags = Tags()
    text = page(folder)
    tags.feed(text)
    assert tags.open == []
    ids = [str(attributes["id"]) for _, attributes in tags.seen if attributes.get("class") == "plot"]
    assert sorted([*figures_of(text), "matrix", "client-curve"]) == sorted(ids)
    named = [attributes["id"] for _, attributes in tags.seen if "id" in attributes]
    assert len(named) == len(set(named))
    links = {str(attributes["href"])[1:] for tag, attributes in tags.seen if tag == "a"}
    assert links == {f"of-{name}" for name in SECTIONS} <= set(named)


def test_the_page_holds_the_experiment_letter_by_letter_and_how_to_make_it_again(folder: Path) -> None:
    text = page(folder)
    assert EXPERIMENT.replace('"', "&#34;") in text
    assert "fedstrata run experiment.toml --out again" in text
    assert "torch <b>2.13.0</b>" in text


def test_a_deployed_run_is_made_again_on_its_network(folder: Path) -> None:
    (folder / "network").mkdir()
    text = page(folder)
    assert "fedstrata deploy run experiment.toml" in text
    assert "fedstrata run experiment.toml" not in text


def test_the_same_records_give_the_same_bytes_wherever_they_lie(folder: Path, tmp_path: Path) -> None:
    first = build(folder).read_bytes()
    assert build(Path(shutil.copytree(folder, tmp_path / "moved"))).read_bytes() == first
    assert not list(folder.glob("*.partial"))


def test_nothing_is_fetched_and_only_the_two_scripts_of_the_page_may_run(folder: Path) -> None:
    text = build(folder).read_text(encoding="utf-8")
    tags = Tags()
    tags.feed(text)
    assert not [link for _, attributes in tags.seen for name, link in attributes.items() if name == "src"]
    links = [attributes["href"] or "" for _, attributes in tags.seen if "href" in attributes]
    assert all(link.startswith("#") for link in links)
    assert "@import" not in page(folder)
    assert "url(" not in page(folder)
    policy = next(str(a["content"]) for _, a in tags.seen if a.get("http-equiv") == "Content-Security-Policy")
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert len(scripts) == 2
    for script in scripts:
        assert b64encode(sha256(script.encode()).digest()).decode() in policy
    assert "default-src 'none'" in policy


def test_names_that_hold_html_are_shown_and_do_not_become_html(folder: Path) -> None:
    name_all(folder, EVIL)
    text = page(folder)
    tags = Tags()
    tags.feed(text)
    assert "img" not in {tag for tag, _ in tags.seen}
    assert not [name for _, attributes in tags.seen for name in attributes if name.startswith("on")]
    assert tags.open == []
    assert "&lt;img src=x onerror=&#34;alert(1)&#34;&gt;&lt;/script&gt;&lt;b&gt;&amp; on" in text
    # In a figure plotly reads HTML once more, after JSON has been read.
    assert "<img" not in json.dumps(figures_of(text))


def test_a_run_without_a_finished_round_has_a_page(folder: Path) -> None:
    (folder / "summary.json").unlink()
    (folder / "rounds.jsonl").write_text('{"round"', encoding="utf-8")
    text = page(folder)
    assert "No round is recorded yet." in text
    assert "round 1 is missing from this page" in text
    (folder / "rounds.jsonl").write_text("", encoding="utf-8")
    assert "is missing from this page" not in page(folder)


def test_the_worst_client_comes_first_and_one_without_scores_last(folder: Path) -> None:
    edit_rounds(folder, lambda line: {"labels": [0] * 21})
    text = page(folder)
    rows = re.findall(r"<tr>\s*<td><button[^>]*>(\d+)</button></td>\s*<td>[^<]*</td>\s*<td><span", text)
    assert (rows[0], rows[-1]) == ("11", "20")


def test_a_client_that_is_not_in_the_federation_has_no_node(folder: Path) -> None:
    edit_rounds(folder, lambda line: {"labels": [-1, *[3] * 19], "pending": []})
    text = page(folder)
    assert "19 clients in 4 clusters" in text
    row = re.search(r"(?s)>0</button></td>.*?</tr>", text)
    assert row and "</span>none" in row[0]


def test_the_report_imports_neither_torch_nor_what_trains() -> None:
    ask = "import sys, fedstrata.report; print([m for m in sys.modules if m.split('.')[0] in ('torch', 'fedstrata')])"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    loaded = set(re.findall(r"'([\w.]+)'", done.stdout))
    packages = {name.split(".")[1] for name in loaded if name.startswith("fedstrata.")}
    # The table of client measures is in clustering, which imports torch at its first use.
    assert packages == {"base", "clustering", "objective", "records", "report"}
    assert "torch" not in loaded


def result(records: RunRecords) -> str:
    return result_sentence(Clusters(records))


def test_data_that_a_program_gave_have_no_digest_in_the_title(records: RunRecords) -> None:
    mine = {"algorithm": {"name": "layercfl"}, "data": {"name": f"{PREFIX}55f7577046c8a7a1"}}
    assert title(replace(records, settings=mine)) == "layercfl on data in memory"


def test_the_sentence_says_what_is_known(tmp_path: Path) -> None:
    records = read(write(tmp_path / "run", count=8, finished=False))
    assert "(1 pending)" in result(records)
    unplanned = every_round(replace(records, settings={}), acc_worst=None, ari=None, pending=[])
    said = r"After 8 rounds, 20 clients are in 4 clusters; accuracy \d\d\.\d % on average\."
    assert re.fullmatch(said, result(unplanned))
    silent = every_round(unplanned, acc_client=None)
    assert result(silent) == "After 8 rounds, 20 clients are in 4 clusters."
    assert title(unplanned) == "run"
    lone = every_round(replace(silent, rounds=silent.rounds[:1]), labels=[0])
    assert result(lone) == "After 1 round, 1 client is in 1 cluster."


def test_the_page_of_an_algorithm_without_clusters_does_not_name_them(records: RunRecords) -> None:
    root = changed(records.tree[0], split=None, why="", layer=None, criteria={})
    alone = every_round(replace(records, tree=(root,)), clusters=1, labels=[0] * 20)
    assert result(alone) == "20 clients; accuracy 79.5 % on average, worst client 72.2 %."
    assert {"ARI", "Purity", "By cluster"}.isdisjoint(name for name, *_ in tiles(Clusters(alone)))
    assert result(replace(alone, summary=None)).startswith("After 12 of 30 rounds, 20 clients; accuracy")
    decided = replace(alone, tree=(changed(root, why="no clients differ"),))
    assert "in 1 cluster" in result(decided), "an algorithm that says why it did not split does cluster"


def test_a_new_measure_of_a_round_needs_only_its_words(records: RunRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    spread = {"title": "Spread", "meaning": "lower is fairer"}
    monkeypatch.setitem(cast(dict[str, Any], catalogue.WORDS["tile"]), "spread", spread)
    for value, shown in ((0.125, [("Spread", "0.125", "lower is fairer")]), (None, []), ([1], [])):
        last = Round.model_validate(records.rounds[-1].model_dump() | {"spread": value})
        found = tiles(Clusters(replace(records, rounds=(*records.rounds[:-1], last))))
        assert [tile for tile in found if tile[0] == "Spread"] == shown


def test_clients_that_attack_and_privacy_have_a_tile_and_rows_of_the_summary(records: RunRecords) -> None:
    """They decide what the other numbers mean, and stood in the summary alone."""
    assert records.summary is not None
    attack = {"clients": [0, 8], "acc_honest": 0.875, "acc_honest_worst": 0.75}
    privacy = {"epsilon": 7.996, "delta": 1e-5, "not_covered": ["which client is in which cluster"]}
    known = {**records.summary.model_dump(), "attack": attack, "privacy": privacy}
    summary = type(records.summary).model_validate(known)
    shown = {name: (figure, text) for name, figure, text in tiles(Clusters(replace(records, summary=summary)))}
    assert shown["Honest clients"][0] == "87.5 %" and "2 clients do: 0, 8. All other" in shown["Honest clients"][1]
    assert shown["Epsilon"][0] == "7.996" and "at delta 1e-05" in shown["Epsilon"][1]
    assert shown["Epsilon"][1].endswith("Not covered: which client is in which cluster")
    rows = {key: value for key, value, _ in summary_rows(summary.model_dump(), records.metric)}
    named = summary_rows(summary.model_dump(), records.metric, ClientNames(tuple("abcdefghij")))
    assert "a, i" in {value for key, value, _ in named if key == "attack.clients"}
    assert rows["attack.clients"] == "0, 8" and rows["attack.acc_honest_worst"] == "75.0 %"
    assert rows["privacy.epsilon"] == "7.996"
    assert "Honest clients" not in {name for name, *_ in tiles(Clusters(records))}


def test_of_many_clients_the_table_has_the_worst(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everyone = page(folder)
    monkeypatch.setattr("fedstrata.report.page.MOST_ROWS", 5)
    some = page(folder)
    assert "The table has the worst 5 of 20 clients" in some and "The table has" not in everyone
    table = re.compile(r'<table class="sortable">.*?<tbody>(.*?)</tbody>', re.DOTALL)
    rows = [re.findall("(?s)<tr>.*?</tr>", found[1]) for text in (some, everyone) if (found := table.search(text))]
    assert rows[0] == rows[1][:5] and len(rows[1]) == 20


def test_a_page_that_follows_a_run_is_made_after_every_round_until_the_run_is_finished(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", count=3, finished=False)
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").unlink()
    lock = FileLock(folder / "lock", thread_local=False)
    lock.acquire()  # as the run does; only the last page asks for it
    written = iter([lines[0], lines[0], lines[0] + lines[1] + lines[2][:9], "".join(lines)])

    def wait() -> None:
        (folder / "rounds.jsonl").write_text(text := next(written))
        if text == "".join(lines):
            (folder / "summary.json").write_text("{}")
            lock.release()

    said: list[tuple[str, str]] = []

    def say(line: str) -> None:
        lead = re.findall(r'class="lead">([^.]*)', (folder / "report.html").read_text())[0]
        said.append((line.removeprefix(str(folder / "report.html")), lead[:13]))

    follow(folder, wait, say)
    assert said == [
        (": 1 round", "After 1 of 30"),
        (": 2 rounds", "After 2 of 30"),
        (": the run is finished", "20 clients in"),
    ]
    with pytest.raises(RecordError, match=r"holds no experiment\.toml"):
        follow(tmp_path, lambda: None, say)
