import json
from pathlib import Path
from typing import Any

import pytest
from experiments.speed.instructions import NATIVE, WAYS, known
from experiments.tools import repeat
from experiments.tools.repeat import EQUAL, TOLERANCES, Committed, cheapest, deviations

from fedstrata.config import load_experiment

CHEAPEST = cheapest(3)


def result(**changes: Any) -> dict[str, Any]:
    """A result of two rounds."""
    curves = {"clusters": [1, 2], "ari": [None, 1.0], "acc_client": [0.5, 0.8], "loss": [1.5, 0.75]}
    made = {"seconds": 3.0, "machine": {"processor": "a"}, "versions": {"torch": "2"}}
    return {"variant": "strata", "seed": 0, "acc_client": 0.8, "curves": curves, **made, **changes}


@pytest.mark.parametrize("committed", CHEAPEST, ids=lambda each: each.title)
def test_a_committed_result_repeats(committed: Committed) -> None:
    assert deviations(committed.result, committed.again()) == []


def test_the_three_cheapest_results_need_no_data_from_elsewhere() -> None:
    assert len(CHEAPEST) == 3
    assert {load_experiment(each.experiment).data.name for each in CHEAPEST} == {"digits"}


def test_on_the_same_machine_every_digit_counts_but_not_the_seconds() -> None:
    assert deviations(result(), result(seconds=9.0)) == []
    assert deviations(result(), result(acc_client=0.800001)) == ["acc_client was 0.8, is 0.800001"]
    later = {**result()["curves"], "loss": [1.500001, 0.75]}
    assert deviations(result(), result(curves=later)) == ["curves.loss.0 was 1.5, is 1.500001"]
    assert deviations(result(), result(clients={"0": 0.5})) == ["clients.0 was None, is 0.5"]


@pytest.mark.parametrize("changed", [{"machine": {"processor": "b"}}, {"versions": {"torch": "3"}}])
def test_elsewhere_the_end_of_the_curves_is_compared_within_the_tolerance(changed: dict[str, Any]) -> None:
    near = {**result()["curves"], "acc_client": [0.1, 0.8 + 0.9 * TOLERANCES["acc_client"]]}
    assert deviations(result(), result(curves=near, **changed)) == []
    far = {**result()["curves"], "loss": [1.5, 0.75 + 1.1 * TOLERANCES["loss"]], "clusters": [1, 3]}
    assert [each.split()[0] for each in deviations(result(), result(curves=far, **changed))] == ["clusters", "loss"]


def test_the_cheapest_are_of_different_variants_and_tell_their_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [result(seed=0), result(seed=1, seconds=2.0), result(variant="fedavg", seconds=9.0)]
    unknown = {**result(variant="ifca", seconds=0.1), "machine": {}}
    (tmp_path / "digits_rotation.json").write_text(json.dumps([*runs, unknown]))
    (tmp_path / "no_study.json").write_text(json.dumps({"equal": []}))
    monkeypatch.setattr(repeat, "RESULTS", tmp_path)
    assert [(each.result["variant"], each.result["seed"]) for each in cheapest(3)] == [("strata", 1), ("fedavg", 0)]


def test_the_tolerance_is_what_other_instructions_made_of_the_same_runs() -> None:
    """It is twice what was measured at least; clusters and ARI were the same in every round."""
    cases = known()["cases"]
    digits = {case: ways for case, ways in cases.items() if case.startswith("digits")}
    assert len(digits) == 3 and all(set(ways) == set(WAYS) for ways in digits.values())
    for case, ways in digits.items():
        native = ways[NATIVE]
        for way, found in ways.items():
            for key in EQUAL:
                assert found[key] == native[key], f"{case}, {way}"
            for key, most in TOLERANCES.items():
                assert abs(found[key][-1] - native[key][-1]) <= most / 2, f"{case}, {way}"


def test_a_run_repeats_in_every_bit_on_one_machine_with_any_number_of_threads() -> None:
    for case, ways in known()["cases"].items():
        digests = {ways[way]["models"] for way in (NATIVE, "once more", "two threads") if way in ways}
        assert len(digests) == 1, case
