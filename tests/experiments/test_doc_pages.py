import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import pages
import pytest
from annotated_types import Ge, Interval
from comparisons import ALIKE, COMPARED, SCOUTED
from descriptions import REQUIRED, clustering, facts, key_table, keys_of, paragraphs, sentences, words
from tables import ROOT, documents, filled

from fedstrata.algorithms import ALGORITHMS
from fedstrata.config.tables import Data, Experiment
from fedstrata.models import MODELS
from fedstrata.partition import PARTITIONS

EXPERIMENTS = ROOT / "experiments"


def test_every_page_says_what_the_code_says() -> None:
    for path, text in pages.pages().items():
        assert path.exists() and path.read_text() == text, f"run experiments/pages.py: {path.name} is out of date"


def test_no_page_is_left_of_an_algorithm_that_is_gone() -> None:
    assert set((ROOT / "docs" / "algorithms").glob("*.md")) <= set(pages.pages())
    assert set(facts()) == set(ALGORITHMS)


def test_the_tables_of_the_documentation_are_those_of_the_results() -> None:
    for path in documents():
        assert filled(path.read_text()) == path.read_text(), f"run experiments/tables.py: {path.name} is out of date"


def test_writing_the_pages_changes_none_that_is_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    monkeypatch.setattr(pages, "pages", lambda: {page: "made anew"})
    monkeypatch.setattr(pages, "fill", lambda: None)
    pages.main()
    assert page.read_text() == "made anew"


def test_an_algorithm_without_facts_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "ALGORITHMS", {"novel": ALGORITHMS["fedavg"]})
    with pytest.raises(SystemExit, match=r"facts.toml: expected what novel needs"):
        pages.pages()


def test_algorithms_that_look_for_clusters_are_told_from_the_others() -> None:
    assert {"cfl", "layercfl", "ifca", "fesem"} <= set(clustering())
    assert not {"fedavg", "local", "oracle", "random_groups", "ditto"} & set(clustering())


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (bool, ("true or false", "", False)),
        (str | None, ("text", "", False)),
        (Annotated[float, Interval(ge=0, lt=1)] | Literal["auto"], ("number", "at least 0, below 1", True)),
        (Annotated[int, Ge(2)] | Literal["many"], ("whole number or word", "at least 2; `many`", False)),
        (Literal["one", "two", "auto"], ("word", "`one`, `two`", True)),
        (tuple[Literal["cos", "l2"], ...], ("list of words", "`cos`, `l2`", False)),
        (tuple[Annotated[int, Ge(0)], ...], ("list of whole numbers", "", False)),
        (tuple[tuple[int, ...], ...], ("list of lists", "", False)),
        (Data, ("table", "", False)),
    ],
)
def test_types_are_told_in_words(kind: Any, expected: tuple[str, str, bool]) -> None:
    assert words(kind) == expected


def test_keys_come_with_their_alias_default_and_sentence() -> None:
    by_name = {key.name: key for key in keys_of(ALGORITHMS["ifca"])}
    assert by_name["init"].default == "random" and "start" not in by_name
    assert next(key for key in keys_of(MODELS["tsdp_cnn"])).default == "once"
    assert keys_of(Data)[0].sentence.startswith("A known data set")


def test_a_default_is_shown_as_the_file_has_it() -> None:
    rows = {line.split("|")[1].strip(): line.split("|")[3].strip() for line in key_table(keys_of(Data)).splitlines()}
    assert rows["`name`"] == '`"digits"`' and rows["`test`"] == "`0.2`" and rows["`root`"] == ""
    (probe,) = keys_of(Experiment.model_fields["probe"].annotation)
    assert "| `[]` |" in key_table([probe])
    (column,) = keys_of(PARTITIONS["natural"])
    assert column.default is REQUIRED and "| none: required |" in key_table([column])


def test_a_selector_takes_auto_where_its_sentence_says_so() -> None:
    layers = [
        next(key for key in keys_of(ALGORITHMS[name]) if key.name == "layers") for name in ("layercfl", "fedclust")
    ]
    shown = [key_table([key]).splitlines()[-1].split(" | ") for key in layers]
    assert [(row[1], row[4].strip()) for row in shown] == [
        ("selector or list of selectors", "yes"),
        ("selector or list of selectors", ""),
    ]


def test_docstrings_become_paragraphs_and_sentences() -> None:
    text = """Say it.

    More ``code``
    on two lines.

    Attributes:
        one: its sentence,
            on two lines.
        two: |x|.
    """
    assert paragraphs(text) == ["Say it.", "More `code` on two lines."]
    assert sentences(text) == {"one": "its sentence, on two lines.", "two": "|x|."}


def test_every_experiment_of_a_table_is_there_with_its_algorithms() -> None:
    named = {name for wanted in COMPARED.values() for name, _ in wanted.data} | {name for name, _ in SCOUTED} | {ALIKE}
    for name in named:
        assert (EXPERIMENTS / f"{name}.toml").exists(), name
    for wanted in COMPARED.values():
        assert all(variant.split("+")[0] in ALGORITHMS for variant, _ in wanted.methods)


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_experiment_is_one_and_says_how_it_is_run(path: Path) -> None:
    text = path.read_text()
    experiment = Experiment.model_validate(tomllib.loads(text))
    experiment.algorithm_of()
    experiment.scheme.check(clients=experiment.data.clients, classes=12)
    assert f"python experiments/study.py experiments/{path.name}" in text
