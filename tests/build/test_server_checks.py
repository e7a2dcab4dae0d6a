"""The key server.checks: Strata checks updates by default, any other algorithm that sends updates where it says so."""

from pathlib import Path
from typing import Any

import pytest

from builders import federation, keys, run
from fedstrata.base.errors import ExperimentError
from fedstrata.uploads.checks.update_checks import Checks

KEYS = keys(
    rounds=6,
    data={"samples": 48},
    partition={"scheme": "rotation", "groups": 1},
    local={"lr": 0.3, "batch": 16},
)


@pytest.mark.parametrize(
    ("name", "tables", "names"),
    [
        ("strata", {}, ("directions", "norms")),
        ("strata", {"server": {"checks": ["norms"]}}, ("norms",)),
        ("strata", {"server": {"checks": []}}, None),
        ("strata", {"privacy": {"kind": "central", "noise_multiplier": 1.0}}, None),
        ("cfl", {}, None),
        ("cfl", {"server": {"checks": ["directions"]}}, ("directions",)),
    ],
)
def test_what_is_checked(name: str, tables: dict[str, Any], names: tuple[str, ...] | None) -> None:
    checks = federation(KEYS, algorithm={"name": name}, **tables).server.problem.checks
    assert checks == (None if names is None else Checks(names))  # type: ignore[arg-type]  # names of checks


def test_with_central_noise_no_client_changes_how_another_one_counts() -> None:
    with pytest.raises(ExperimentError, match=r"expected \[\] with privacy.kind = 'central'"):
        federation(KEYS, privacy={"kind": "central", "noise_multiplier": 1.0}, server={"checks": ["norms"]})


def test_a_run_of_fedavg_leaves_flipped_signs_out_and_a_resumed_one_knows_whose_they_were(tmp_path: Path) -> None:
    tables = keys(KEYS, attack={"kind": "sign_flip", "share": 0.2}, server={"checks": ["directions"]})
    whole = run(tmp_path / "whole", tables)
    attackers = whole.summary["attack"]["clients"]
    found = [event for record in whole.rounds for event in record["events"] if event["kind"] == "reversed"]
    assert found and all(event["clients"] == attackers for event in found)
    run(tmp_path / "half", tables, rounds=3)
    half = run(tmp_path / "half", tables, resume=True)
    assert [record["events"] for record in half.rounds] == [record["events"] for record in whole.rounds]
    assert half.summary["acc_client"] == whole.summary["acc_client"]
