from pathlib import Path

from fedstrata.comparison.table import Outcome, markdown, rows
from fedstrata.report.comparison import TITLES, Statistic, cells


def run(algorithm: str, seed: int, accuracy: float, clusters: int, ari: float | None = 1.0) -> Outcome:
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
    return Outcome(algorithm, seed, Path(f"{algorithm}-{seed}"), summary, clients)


def test_a_row_is_the_mean_over_seeds_with_its_spread() -> None:
    fedavg, cfl = rows(
        [run("fedavg", 0, 0.5, 1), run("cfl", 0, 0.6, 3), run("fedavg", 1, 0.7, 1), run("cfl", 1, 0.8, 4)]
    )
    assert (fedavg.algorithm, fedavg.seeds, fedavg.failed) == ("fedavg", (0, 1), ())
    accuracy = cfl.figures["acc_client"]
    assert accuracy is not None
    assert (round(accuracy.mean, 6), accuracy.least, accuracy.most) == (0.7, 0.6, 0.8)
    assert round(accuracy.spread or 0, 6) == 0.141421  # sqrt((0.01 + 0.01) / 1)
    assert cells(cfl) == (
        "cfl",
        "2",
        "0.700 ± 0.141",
        "0.350 ± 0.071",
        "3.5 (3 to 4)",
        "1.000 ± 0.000",
        "7.0 (6 to 8)",
        "1.5 MB",
        "1 min 1 s",
        "2 of 6",
    )


def test_clients_with_a_lower_accuracy_than_with_fedavg_are_counted() -> None:
    """Client 2 of each seed has 0.4 with fedavg and 0.3 with ifca; seed 1 of fedavg was not run."""
    fedavg, ifca = rows([run("fedavg", 0, 0.6, 1), run("ifca", 0, 0.7, 2), run("ifca", 1, 0.1, 2)])
    assert (ifca.lower_than_fedavg, ifca.clients) == (1, 3)
    assert (fedavg.lower_than_fedavg, fedavg.clients) == (None, 0)
    assert rows([run("ifca", 0, 0.7, 2)])[0].lower_than_fedavg is None


def test_what_failed_or_is_not_known_leaves_no_number() -> None:
    failed = Outcome("hicfl", 1, Path("hicfl-1"), error="ZeroDivisionError: division by zero")
    (row,) = rows([run("hicfl", 0, 0.5, 2, ari=None), failed])
    assert (row.seeds, row.failed, row.figures["ari"]) == ((0, 1), (1,), None)
    assert row.figures["clusters"] == Statistic(2, None, 2, 2)
    assert cells(row)[1:6] == ("1, 1 failed", "0.500", "0.250", "2", "\N{EN DASH}")
    assert cells(rows([failed])[0])[2:] == ("\N{EN DASH}",) * (len(TITLES) - 2)


def test_the_table_is_markdown() -> None:
    lines = markdown(rows([run("fedavg", 0, 0.5, 1)])).splitlines()
    assert lines[0].startswith("| algorithm | seeds | accuracy | worst client | clusters | ARI |")
    assert lines[1] == "|" + " --- |" * len(TITLES)
    assert lines[2].startswith("| fedavg | 1 | 0.500 | 0.250 | 1 | 1.000 | 2 | 1.5 MB | 1 min 1 s |")
