import json
from pathlib import Path
from typing import Any

import pytest
from experiments.strata import proofs
from experiments.tools import outcomes
from experiments.tools.outcomes import MISSING


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(outcomes, "RESULTS", tmp_path)
    return tmp_path


def run(variant: str, seed: int, accuracy: float, ari: float = 1.0, **more: Any) -> dict[str, Any]:
    clients = {"0": accuracy}
    return {"variant": variant, "seed": seed, "acc_client": accuracy, "ari": ari, "clients": clients, **more}


def rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def write(folder: Path, name: str, held: Any) -> None:
    (folder / f"{name}.json").write_text(json.dumps(held))


def test_what_strata_finds_stands_between_fedavg_and_the_oracle(folder: Path) -> None:
    on = proofs.GROUPED[0][0]
    found = [
        run(f"strata+{on}", 0, 0.9, rounds_to_partition=3),
        run(f"strata+{on}", 1, 0.7, 0.5, rounds_to_partition=6),
    ]
    others = [run(f"{name}+{on}", seed, value) for name, value in (("fedavg", 0.6), ("oracle", 1.0)) for seed in (0, 1)]
    write(folder, "strata_mnist", [*found, *others])
    first, second = rows(proofs.grouped())[:2]
    # (0.8 - 0.6) / (1.0 - 0.6)
    assert first[2:6] == ["2", "0.750", "1 of 2", "4.5 (3 to 6)"]
    # Differences 0.3 and 0.1: their standard error is 0.1, and t of one degree of freedom 12.7062.
    assert first[6:10] == ["0.600 ± 0.000", "0.800 ± 0.141", "1.000 ± 0.000", "+0.200 (-1.071 to +1.471)"]
    assert first[10:] == ["50 %", "0 of 2"]
    assert second[2:] == ["", MISSING, *[""] * 8]


def test_where_nothing_is_known_of_the_ends_there_is_no_way(folder: Path) -> None:
    on = proofs.GROUPED[0][0]
    own = run(f"strata+{on}", 0, 0.9, rounds_to_partition=None)
    write(folder, "strata_mnist", [own])
    assert rows(proofs.grouped())[0][5:] == ["never", MISSING, "0.900", MISSING, MISSING, MISSING, MISSING]
    write(folder, "strata_mnist", [own, run(f"fedavg+{on}", 0, 0.9), run(f"oracle+{on}", 0, 0.9)])
    assert rows(proofs.grouped())[0][10] == "-"


def test_alike_clients_are_counted_by_clusters(folder: Path) -> None:
    write(
        folder, "strata_mnist", [run(f"strata+{proofs.ALIKE}", seed, 0.5, clusters=1 + seed // 2) for seed in range(3)]
    )
    assert rows(proofs.alike())[:2] == [["MNIST", "3", "1 in 2, 2 in 1"], ["Fashion-MNIST", "", MISSING]]


def test_wrong_splits_come_with_their_interval(folder: Path) -> None:
    trials = [[2, 0.01, 0.025], [4, 0.5, 0.008]]
    runs = [{"seed": seed, "splits": {"strata 0.05": 4} if seed == 0 else {}, "trials": trials} for seed in range(10)]
    write(folder, "null_strata", {"equal": {"runs": runs}})
    found = rows(proofs.wrong())
    # Clopper and Pearson: 1 of 10 is 0.0025 to 0.4450, 0 of 10 up to 1 - 0.025 ** 0.1; 10 of 20 is 0.272 to 0.728.
    never, once = "0.000 (0.000 to 0.308)", "0.100 (0.003 to 0.445)"
    assert found[0][1:] == ["10", never, once, never, "20", "0.500 (0.272 to 0.728)"]
    assert found[1][1:] == ["", MISSING, MISSING, MISSING, "", MISSING]


def test_rows_of_the_null_study_name_the_keys_that_decide(folder: Path) -> None:
    write(
        folder,
        "null_papers",
        {"few": {"runs": [{"seed": seed, "splits": {"hicfl": 9}, "trials": []} for seed in (0, 1)]}},
    )
    found = {row[0]: row[1:] for row in rows(proofs.others())}
    paper = "HiCFL: epsilon = auto, xi = auto, rho = 0.8"
    assert found[paper][:5] == [*[MISSING] * 4, "2 of 2"]
    assert "CFL: eps1 = 0.4, eps2 = 1.6, gamma = 0.0, linkage = complete, first = 21, min_split = 3" in found
    assert "CFL, timed by stability: members = each, epsilon = auto, xi = auto, rho = 0.8, gamma = 0.5" in found
    assert len(found) == len(proofs.OTHERS_ALIKE)


def test_power_counts_what_was_found_and_what_was_torn(folder: Path) -> None:
    runs = [{"round": 2, "torn": 0}, {"round": 4, "torn": 2}, {"round": None, "torn": None}]
    never = {"runs": runs[2:]}
    write(folder, "power_federations", {"groups of 10, 10": {"runs": runs}, "lone": never})
    assert rows(proofs.power()) == [
        ["groups of 10, 10", "3", "2 of 3", "3", "1 of 2"],
        ["lone", "1", "0 of 1", "-", "0 of 0"],
    ]


def test_costs_follow_from_the_calendar() -> None:
    fifty = next(row for row in rows(proofs.cost()) if row[0] == "50")
    assert fifty == ["50", "8", "16 %", "13 %"]  # rounds 2, 4, 6, 9, 13, 19, 28, 42
