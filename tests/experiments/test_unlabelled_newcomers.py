import pytest
from experiments.strata.federations import RESULTS, read
from experiments.tools.outcomes import MISSING
from experiments.trust.unlabelled_newcomers import CASES, NEWCOMERS, newcomers


@pytest.mark.parametrize("case", CASES)
def test_newcomers_are_placed_as_by_labels_and_refused_where_concepts_differ(case: str) -> None:
    held = read(RESULTS / "unlabelled_newcomers.json")[case]
    assert held["keys"] == CASES[case] and [run["seed"] for run in held["runs"]] == [1, 2]
    for run in held["runs"]:
        if "concept" in case:
            assert run["refused"] == NEWCOMERS
        else:
            assert run["alike"] >= 0.95 * NEWCOMERS


def test_the_table_has_all_federations() -> None:
    assert MISSING not in newcomers() and all(case in newcomers() for case in CASES)
