import json
import re
from pathlib import Path
from typing import Any

import pytest
from experiments.strata.comparisons import (
    COMPARED,
    compared,
    identical,
)
from experiments.tools import outcomes
from experiments.tools.outcomes import MISSING, acted, beside, lower_than, paired, spread
from experiments.tools.tables import TABLES, filled


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of results with nothing in it yet."""
    monkeypatch.setattr(outcomes, "RESULTS", tmp_path)
    return tmp_path


def write(folder: Path, experiment: str, *runs: dict[str, Any]) -> None:
    (folder / f"{experiment}.json").write_text(json.dumps(runs))


def run(variant: str, seed: int, accuracies: list[float], clusters: int = 1, **more: Any) -> dict[str, Any]:
    mean = sum(accuracies) / len(accuracies)
    return {
        "variant": variant,
        "seed": seed,
        "acc_client": mean,
        "acc_worst": min(accuracies),
        "clusters": clusters,
        "ari": 1.0,
        "rounds_to_partition": 1,
        "clients": {str(client): accuracy for client, accuracy in enumerate(accuracies)},
        "curves": {"clusters": [clusters] * 20, "acc_client": [0.1, 0.2, 0.3]},
        "events": [],
        **more,
    }


def rows(table: str) -> list[list[str]]:
    """The cells of a table without its head."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_clients_that_lose_are_counted_over_the_seeds_that_both_have() -> None:
    own = [run("cfl", 0, [0.5, 0.9]), run("cfl", 1, [0.6, 0.6]), run("cfl", 2, [0.1, 0.1])]
    fedavg = [run("fedavg", 0, [0.6, 0.8]), run("fedavg", 1, [0.6, 0.7])]
    assert lower_than(own, fedavg) == "2 of 4"  # client 0 of seed 0, client 1 of seed 1; a tie is no loss


def test_results_without_the_accuracy_of_every_client_are_not_compared() -> None:
    old = run("fedavg", 0, [0.5])
    del old["clients"]
    assert lower_than([run("cfl", 0, [0.4])], [old]) == MISSING
    assert lower_than([old], [run("fedavg", 0, [0.9])]) == MISSING


def test_a_run_is_held_against_another_of_the_same_data_and_rounds(folder: Path) -> None:
    write(folder, "e", run("fedavg", 0, [0.1]), run("fedavg+rounds=50", 0, [0.2]), run("fedavg+rounds=50", 1, [0.3]))
    found = beside("e", "cfl:auto+algorithm.trigger=stability+rounds=50", "fedavg")
    assert [other["acc_client"] for other in found] == [0.2, 0.3]


def test_identical_clients_are_compared_with_fedavg_on_the_same_seeds(folder: Path) -> None:
    write(
        folder,
        "iid_mnist",
        run("hicfl", 0, [0.5, 0.7], clusters=2),
        run("hicfl", 1, [0.6, 0.6]),
        run("hicfl+algorithm.rho=0.5", 0, [0.8, 0.8]),
        run("fedavg", 0, [0.6, 0.6]),
        run("fedavg", 1, [0.6, 0.6]),
        run("fedavg", 2, [0.0, 0.0]),
        run("local", 0, [0.4, 0.8]),
    )
    plain, other = rows(identical("hicfl"))
    assert plain[:7] == ["HiCFL", "2", *["1 in 1, 2 in 1"] * 4, "1 of 2"]
    assert plain[7:] == ["0.600 ± 0.000", "+0.000 (+0.000 to +0.000)", "1 of 4", "1 of 2"]
    assert other[0] == "HiCFL, `rho=0.5`" and other[-2:] == ["0 of 2", "0 of 2"]
    names = {row[0]: row[-1] for row in rows(identical())}
    assert names["CFL"] == MISSING and "FedAvg" not in names


def test_a_comparison_names_what_is_missing_and_leaves_a_method_against_itself_out(folder: Path) -> None:
    write(
        folder,
        "compare_usc_had",
        run("adacfl", 0, [0.9, 0.5], clusters=2, ari=None),
        run("adacfl", 1, [0.8, 0.4], ari=None),
        run("fedavg", 0, [0.6, 0.6]),
        run("fedavg", 1, [0.6, 0.4]),
    )
    fedavg, own, missing = rows(compared("compare_usc_had"))
    assert fedavg == ["FedAvg", "2", "0.550 ± 0.071", "-", "0.500", *["-"] * 4, MISSING]
    # 0.7 - 0.6 and 0.6 - 0.5 on the same seeds; clients 1 of seed 0 lose against 0.6.
    figures = ["2", "0.650 ± 0.071", "+0.100 (+0.100 to +0.100)", "0.450", "1 of 2", "2, 1", "-", "1 of 4", MISSING]
    assert own == ["AdaCFL", *figures]
    assert missing[0].startswith("local training, fine-tuning") and missing[2] == MISSING


def test_a_mean_has_its_standard_deviation_over_seeds() -> None:
    runs = [run("cfl", seed, [value]) for seed, value in enumerate((0.4, 0.5, 0.6))]
    assert [spread(some, "acc_client") for some in (runs, runs[:1], [])] == ["0.500 ± 0.100", "0.400", MISSING]


def test_methods_are_compared_seed_by_seed_with_a_t_interval() -> None:
    own = [run("cfl", seed, [value]) for seed, value in enumerate((0.61, 0.72, 0.83, 0.9))]
    plain = [run("fedavg", seed, [value]) for seed, value in enumerate((0.60, 0.70, 0.80))]
    found = paired(own, plain)
    # Differences 0.01, 0.02, 0.03: mean 0.02, standard error 0.01 / sqrt(3), and t of two degrees of freedom 4.3027.
    assert found is not None and found.seeds == 3
    assert (found.mean, found.low, found.high) == pytest.approx((0.02, 0.02 - 0.024841, 0.02 + 0.024841), abs=1e-6)
    assert str(found) == "+0.020 (-0.005 to +0.045)" and found.direction == "not resolved"


def test_one_seed_has_no_interval_and_no_common_seed_no_difference() -> None:
    one = paired([run("cfl", 0, [0.6])], [run("fedavg", 0, [0.5])])
    assert str(one) == "+0.100 (one seed)" and one is not None and one.direction == "not resolved"
    assert paired([run("cfl", 0, [0.6])], [run("fedavg", 1, [0.5])]) is None


def test_a_difference_has_a_direction_only_outside_the_noise() -> None:
    plain = [run("fedavg", seed, [0.5]) for seed in range(3)]
    apart = paired([run("cfl", seed, [value]) for seed, value in enumerate((0.60, 0.61, 0.62))], plain)
    below = paired([run("cfl", seed, [value]) for seed, value in enumerate((0.40, 0.41, 0.42))], plain)
    assert apart is not None and apart.direction == "higher"
    assert below is not None and below.direction == "lower"


def test_a_method_acted_when_it_ever_had_more_than_one_cluster() -> None:
    merged = run("hicfl", 0, [0.5], clusters=1, curves={"clusters": [1, 2, 1]})
    assert acted([merged, run("hicfl", 1, [0.5])]) == "1 of 2"
    assert acted([]) == MISSING


DERIVED = ("compared", "against", "cost", "shares", "tolerated", "cluster", "gpu", "heart", "defaults")
"""What is never missing, or has a word for which of several."""

WORDS = (
    "against strata",
    "shares mean",
    "tolerated mnist",
    "cluster shipped",
    "iid hicfl",
    "heart pooled",
    "defaults cfl",
)
GPU = ("counts", "times", "whole", "measured", "limits")
SHOWN = [*WORDS, *(f"gpu {word}" for word in GPU), *(f"compared {name}" for name in COMPARED)]


@pytest.mark.parametrize("name", [*(name for name in TABLES if name not in DERIVED), *SHOWN])
def test_nothing_is_made_up_where_nothing_was_run(folder: Path, name: str) -> None:
    shown = filled(f"before\n<!-- table {name} -->\nof old\n<!-- end -->\nafter\n")
    assert shown.startswith(f"before\n<!-- table {name} -->\n| ") and shown.endswith("|\n<!-- end -->\nafter\n")
    assert MISSING in shown and "of old" not in shown
    # The first column says what a row is about, with the values of keys.
    figures = [cell for row in rows(shown.partition("-->\n")[2].partition("<!--")[0]) for cell in row[1:]]
    assert not any(re.search(r"\d\.\d\d", cell) for cell in figures)
