import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments.strata.championship import FEDERATIONS, METHODS, packed
from experiments.strata.rank_picture import PICTURE, picture
from experiments.strata.rankings import (
    COMPETITORS,
    championship,
    competitors_ranks,
    critical_difference,
    entered,
    played,
    ranks,
    share_worse,
    with_cluster_models,
)
from experiments.tools import outcomes

NAMES = list(FEDERATIONS)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of results with nothing in it yet."""
    monkeypatch.setattr(outcomes, "RESULTS", tmp_path)
    (tmp_path / "championship").mkdir()
    return tmp_path / "championship"


def run(method: str, seed: int, right: Sequence[int], **more: Any) -> dict[str, Any]:
    """A run with so many right ones of 20 test samples for each client, the first ones."""
    accuracies = [count / 20 for count in right]
    return {
        "variant": method,
        "seed": seed,
        "acc_client": sum(accuracies) / len(accuracies),
        "epochs": 20.0,
        "passes": 0.0,
        "right": {str(client): packed(np.arange(20) < count) for client, count in enumerate(right)},
        **more,
    }


def write(folder: Path, federation: str, seeds: Sequence[int], changed: Mapping[str, Mapping[str, Any]]) -> None:
    """All methods with 10 right ones of each of two clients, but for those that have other results."""
    runs = [{**run(method, seed, [10, 10]), **changed.get(method, {})} for method in METHODS for seed in seeds]
    (folder / f"{federation}.json").write_text(json.dumps(runs))


def rows(text: str) -> dict[str, list[str]]:
    """The cells of each row, by the first one."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    return {first: cells for first, *cells in lines}


def test_the_highest_accuracy_has_rank_1_and_equal_ones_share_their_ranks() -> None:
    found = ranks([{"a": 0.9, "b": 0.8, "c": 0.8, "d": 0.1}, {"a": 0.5, "b": None, "c": 0.7, "d": 0.6}])
    # On the first, b and c share the ranks 2 and 3; on the second, b refused and is last.
    assert found == {"a": [1.0, 3.0], "b": [2.5, 4.0], "c": [2.5, 1.0], "d": [4.0, 2.0]}


@pytest.mark.parametrize(("methods", "quantile"), [(2, 1.960), (5, 2.728), (10, 3.164)])
def test_the_critical_difference_is_that_of_the_published_table(methods: int, quantile: float) -> None:
    """Demsar 2006, Table 5a: the difference is q sqrt(k (k + 1) / (6 N))."""
    expected = quantile * (methods * (methods + 1) / (6 * 14)) ** 0.5
    assert critical_difference(methods, 14) == pytest.approx(expected, rel=1e-3)


def test_clients_are_clearly_worse_where_chance_does_not_explain_it() -> None:
    own, other = [run("strata", 0, [10, 10, 10])], [run("local", 0, [16, 15, 4])]
    # Of the first client 6 samples are lost and none gained, p = 2 / 64; of the second 5, p = 2 / 32; the third gains.
    assert share_worse(own, other) == (1, 3)
    assert share_worse(own, [run("local", 1, [20, 20, 20])]) is None  # another seed


def test_a_personal_model_is_compared_with_that_of_its_cluster() -> None:
    own = {**run("strata_best", 0, [10, 10, 10]), "right_cluster": run("strata", 0, [16, 15, 4])["right"]}
    assert share_worse([own], with_cluster_models([own])) == (1, 3)
    assert share_worse([own], with_cluster_models([run("strata", 0, [10, 10, 10])])) is None  # a run without


def test_ranks_and_regrets_are_means_over_federations(folder: Path) -> None:
    high, low = run("local", 0, [20, 20]), run("local", 0, [12, 12])
    write(folder, NAMES[0], [0], {"fedper": {**high, "variant": "fedper"}})
    write(folder, NAMES[1], [0], {"fedper": {**low, "variant": "fedper"}, "ditto_1": {**high, "variant": "ditto_1"}})
    found = rows(championship())
    # FedPer has 1.0 and 0.6, where the best have 1.0 and 1.0: regrets 0 and 0.4.
    assert found["FedPer"][:5] == ["2", "1.5", "0.200", "0.400", "1 of 2"]
    # All others have 0.5. On the first federation 24 share the ranks 2 to 25, on the second 23 the ranks 3 to 25.
    assert len(COMPETITORS) == 25
    assert found["FedAvg"][:5] == ["2", "13.8", "0.500", "0.500", "0 of 2"]  # (13.5 + 14) / 2 = 13.75
    assert found["Ditto, lambda 1"][:5] == ["2", "7.2", "0.250", "0.500", "1 of 2"]  # (13.5 + 1) / 2 = 7.25
    assert next(iter(found)) == "FedPer"
    # The true groups are no competitors.
    assert found["oracle (the true groups)"][1] == "-"


def test_shares_of_clients_are_means_over_federations(folder: Path) -> None:
    better = {**run("local", 0, [20, 10]), "variant": "local"}
    write(folder, NAMES[0], [0], {"local": better})
    write(folder, NAMES[1], [0], {"fedavg": {**run("fedavg", 0, [20, 20]), "epochs": 20.0}})
    found = rows(championship())
    # One of two clients is worse than alone on the first federation, and none on the second.
    assert found["Strata"][5:8] == ["25.0 %", "50.0 %", "-"]
    assert found["fine-tuning, 3 epochs"][5:8] == ["25.0 %", "50.0 %", "50.0 %"]
    assert found["local training"][5] == "-" and found["FedAvg"][6] == "-"


def test_a_method_that_refuses_is_last_and_has_no_regret_there(folder: Path) -> None:
    refusal = {"variant": "fedtsdp", "seed": 0, "refused": "no public samples"}
    write(folder, NAMES[0], [0], {})
    runs = [refusal if method == "fedtsdp" else run(method, 0, [10, 10]) for method in METHODS]
    (folder / f"{NAMES[1]}.json").write_text(json.dumps(runs))
    found = rows(championship())
    assert found["FedTSDP"][:3] == ["1", "19.0", "0.000"]  # (13 + 25) / 2
    assert rows(entered())["federations that a method refused"] == ["FedTSDP 1"]


def test_only_seeds_that_every_method_has_count(folder: Path) -> None:
    write(folder, NAMES[0], [0, 2], {})
    path = folder / f"{NAMES[0]}.json"
    path.write_text(json.dumps([*json.loads(path.read_text()), run("local", 1, [20, 20])]))
    (found,) = played()
    assert found.seeds == (0, 2) and found.accuracy("local") == 0.5
    told = rows(entered())
    assert told["federations that are complete"] == [f"1 of {len(FEDERATIONS)}"]
    assert told["seeds of a federation"] == ["2"] and told["runs"] == [str(2 * len(METHODS))]


def test_the_picture_is_that_of_the_results() -> None:
    assert PICTURE.read_text() == picture(competitors_ranks(played())), "run experiments/tools/tables.py"
