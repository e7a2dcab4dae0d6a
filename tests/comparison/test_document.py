from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import compared
from fedstrata.objective.metric_info import ACCURACY
from fedstrata.report.comparison.folder import Difference, Outcome, Row, Statistic
from fedstrata.report.comparison.words import difference_text, pair_table, result_text, table_of


def run(algorithm: str, seed: int, accuracy: float, clusters: int = 1, ari: float | None = 1.0, **more: Any) -> Outcome:
    """A run of three clients; `more` are other keys of its summary."""
    summary = {
        "acc_client": accuracy,
        "acc_worst": accuracy / 2,
        "clusters": clusters,
        "ari": ari,
        "rounds_to_partition": 2 * clusters,
        "bytes_down": 1_000_000,
        "bytes_up": 500_000,
        "seconds": 61.0,
    }
    clients = {0: accuracy, 1: 0.5, 2: 1 - accuracy}
    return Outcome(algorithm, seed, Path(f"{algorithm}-{seed}"), {**summary, **more}, clients)


def rows(outcomes: Sequence[Outcome]) -> tuple[Row, ...]:
    return compared(outcomes).table


@pytest.fixture(autouse=True)
def other_test_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """All seeds have test samples of their own."""
    monkeypatch.setattr("fedstrata.comparison.judge.Judge.overlap", 0.0)


def differences(outcomes: Sequence[Outcome]) -> tuple[Difference, ...]:
    return compared(outcomes).differences


def runs(**accuracies: dict[int, float]) -> list[Outcome]:
    """Runs whose clients are unknown."""
    found = [run(name, seed, value) for name, values in accuracies.items() for seed, value in values.items()]
    return [replace(each, clients={}) for each in found]


def test_algorithms_are_compared_with_the_same_seeds_and_the_better_one_is_named_first() -> None:
    """With seeds 1 and 2 strata is 0.25 and 0.5 above; seed 0 failed, and fedavg has no seed 3."""
    found = differences(
        [
            *runs(fedavg={0: 0.25, 1: 0.25, 2: 0.25}, strata={3: 1.0, 2: 0.75, 1: 0.5}),
            Outcome("strata", 0, Path("strata-0"), error="ValueError: no"),
        ]
    )
    assert (found[0].algorithm, found[0].other, found[0].seeds) == ("strata", "fedavg", (1, 2))
    assert (found[0].values, found[0].mean, found[0].above) == ((0.25, 0.5), 0.375, 2)


def text_of(outcomes: Sequence[Outcome]) -> str:
    found = compared(outcomes)
    return difference_text(found.differences[0], found.document)


def test_the_interval_of_two_seeds_is_that_of_the_t_distribution_with_one_degree_of_freedom() -> None:
    both = runs(fedavg={1: 0.25, 2: 0.25}, strata={1: 0.5, 2: 0.75})
    (found,) = differences(both)
    # 12.706 * (0.125 * sqrt(2)) / sqrt(2)
    assert found.effect is not None and not found.clear
    assert found.effect.high - 0.375 == pytest.approx(12.7062 * 0.125, rel=1e-4)
    assert text_of(both).startswith(
        "strata and fedavg cannot be told apart: strata is 37.5 points higher on average, and higher in 2 of 2 seeds"
    )


def test_seeds_with_the_same_difference_do_not_tell_the_noise() -> None:
    """One test sample is right in addition, with one seed as with another."""
    both = runs(cfl={0: 0.5, 1: 0.5}, ifca={0: 0.525, 1: 0.525})
    (found,) = differences(both)
    assert found.effect is None and not found.clear
    assert "how much of it is chance is unknown" in text_of(both)


def test_errors_of_rounding_are_no_difference() -> None:
    both = runs(cfl={0: 0.1 + 0.2, 1: 0.5}, ifca={0: 0.3, 1: 0.5})
    assert text_of(both) == "cfl equals ifca in 2 of 2 seeds" and not differences(both)[0].clear


def test_one_seed_has_no_spread_and_what_is_equal_is_called_so() -> None:
    found = compared(runs(cfl={4: 0.5}, ifca={4: 0.625, 5: 0.5}, fedavg={5: 0.5}))
    alone, equal = found.differences
    assert (alone.effect, alone.clear) == (None, False)
    assert difference_text(alone, found.document).startswith(
        "ifca and cfl cannot be told apart: ifca is 12.5 points higher with seed 4; one seed does not tell how much"
    )
    assert difference_text(equal, found.document) == "ifca equals fedavg in 1 of 1 seed" and not equal.clear


def said(outcomes: list[Outcome]) -> str:
    return result_text(compared(outcomes).document)


def test_the_first_sentence_names_a_winner_only_beyond_the_noise() -> None:
    assert said([Outcome("cfl", 0, Path("cfl-0"), error="ValueError: no")]) == "No run of this comparison is finished."
    assert said(runs(cfl={0: 0.5})) == "cfl: accuracy 50.0 %."
    clear = said(runs(fedavg={0: 0.25, 1: 0.25}, cfl={0: 0.375, 1: 0.375}, ifca={0: 0.5, 1: 0.51}))
    assert clear.startswith(
        "ifca is the best of 3 algorithms: accuracy 50.5 ± 0.7 %, the highest. ifca is better than cfl: ifca is 13.0 "
    )
    noisy = said(runs(fedavg={0: 0.25, 1: 0.25}, cfl={0: 0.375, 1: 0.5}, ifca={0: 0.5, 1: 0.5}))
    assert noisy.startswith("No algorithm of 3 is clearly the best: ifca has accuracy 50.0 ± 0.0 %, and cfl cannot")


def test_the_best_mean_is_not_the_best_where_another_one_is_better_with_the_same_seeds() -> None:
    """Seeds 2 and 3 lift ifca to a mean of 0.625; with seeds 0 and 1 cfl is better by a quarter."""
    text = said(runs(cfl={0: 0.5, 1: 0.51}, ifca={0: 0.25, 1: 0.25, 2: 1.0, 3: 1.0}, local={7: 0.1}))
    assert "ifca has accuracy 62.5" in text and "cfl is clearly better with the seeds that both have" in text
    assert "local has no seed in common with it" in text and "within the noise" not in text


def test_the_table_of_differences_begins_with_those_from_one_model_for_all() -> None:
    given = runs(cfl={0: 0.5, 1: 0.5}, ifca={0: 0.6875, 1: 0.6965}, local={7: 0.5}, fedavg={0: 0.5, 1: 0.5})
    table = pair_table(compared(given).document).rows
    assert [row[:2] for row in table] == [("cfl", "fedavg"), ("ifca", "fedavg"), ("ifca", "cfl")]
    assert table[0][2:] == ("0.0 points", "\N{EN DASH}", "\N{EN DASH}", "0 of 2", "equal")
    # A mean of 19.2 points, 12.706 * 0.45 of them to both sides; p = .0149, and twice that.
    assert table[1][2:] == ("19.2 points", "13.5 to 24.9 points", "0.03", "2 of 2", "better")


@given(st.lists(st.tuples(*[st.integers(0, 64)] * 3), min_size=1, max_size=4))
def test_every_pair_has_one_difference_whatever_the_order_of_the_runs(table: list[tuple[int, int, int]]) -> None:
    """Accuracies in 64ths: sums are exact."""
    found = []
    for order in permutations(range(3)):
        given = {"abc"[place]: {seed: row[place] / 64 for seed, row in enumerate(table)} for place in order}
        pairs = differences(runs(**given))
        assert len(pairs) == 3 and all(each.mean >= 0 for each in pairs)
        found.append({frozenset((each.algorithm, each.other)): (each.mean, each.effect) for each in pairs})
    assert all(each == found[0] for each in found)


def test_a_row_is_the_mean_over_seeds_with_its_spread() -> None:
    fedavg, cfl = rows(
        [run("fedavg", 0, 0.5, 1), run("cfl", 0, 0.6, 3), run("fedavg", 1, 0.7, 1), run("cfl", 1, 0.8, 4)]
    )
    assert (fedavg.algorithm, fedavg.seeds, fedavg.failed) == ("fedavg", (0, 1), ())
    accuracy = cfl.figures["acc_client"]
    assert accuracy is not None
    assert (round(accuracy.mean, 6), accuracy.least, accuracy.most) == (0.7, 0.6, 0.8)
    assert round(accuracy.spread or 0, 6) == 0.141421  # sqrt((0.01 + 0.01) / 1)
    assert table_of([fedavg, cfl], ACCURACY, "algorithm").rows[1] == (
        "cfl",
        "2",
        "70.0 ± 14.1 %",
        "35.0 ± 7.1 %",
        "3.5 (3 to 4)",
        "1.000 ± 0.000",
        "7.0 (6 to 8)",
        "1.5 MB",
        "1 min 1 s",
    )


def test_what_failed_or_is_not_known_leaves_no_number() -> None:
    failed = Outcome("hicfl", 1, Path("hicfl-1"), error="ZeroDivisionError: division by zero")
    (row,) = rows([run("hicfl", 0, 0.5, 2, ari=None), failed])
    assert (row.seeds, row.failed, row.figures["ari"]) == ((0, 1), (1,), None)
    assert row.figures["clusters"] == Statistic(2, None, 2, 2)
    (cells,) = table_of([row], ACCURACY, "algorithm").rows
    assert cells[1:6] == ("1 of 2, others failed", "50.0 %", "25.0 %", "2", "\N{EN DASH}")
    nothing = table_of(rows([failed]), ACCURACY, "algorithm")
    assert nothing.rows[0][2:] == ("\N{EN DASH}",) * (len(nothing.titles) - 2)


def test_bytes_and_seconds_of_a_row_are_with_those_of_the_personal_stage() -> None:
    stage = {"method": "finetune", "seconds": 9.0, "bytes_down": 400.0, "bytes_up": 0.0}
    (row,) = rows([run("cfl", 0, 0.5, personal=stage)])
    seconds, sent = row.figures["seconds"], row.figures["bytes"]
    assert seconds is not None and sent is not None
    assert seconds.mean == 70.0 and sent.mean == 1_500_400
