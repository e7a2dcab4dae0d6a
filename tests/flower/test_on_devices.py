"""What only a simulation can do is refused at the user's own terminal, before a federation is made or asked."""

from pathlib import Path
from typing import Any

import pytest

from builders import DIGITS, keys
from fedstrata.base.errors import ExperimentError
from fedstrata.flower.deploy import init, run_on_federation
from fedstrata.flower.federation import FEDERATION_FILE

pytest.importorskip("flwr")

KEYS: dict[str, Any] = {**DIGITS, "rounds": 2}

ONLY_SIMULATED: list[tuple[dict[str, Any], str]] = [
    ({"algorithm": {"name": "centralized"}}, "expected one whose clients keep their data"),
    ({"events": {"change": [{"round": 2, "client": 0, "takes_data_of": 1}]}}, r"events\.change: expected none"),
    ({"attack": {"kind": "zero"}}, r"attack\.kind: expected 'none' \(on real devices"),
    ({"data": {"validation": 0.2}}, r"data\.validation: expected 0, .*on real devices"),
    (
        {"privacy": {"kind": "central", "noise_multiplier": 1.0}, "cohort": {"fraction": 0.5}},
        r"cohort\.sampling: expected 'poisson' with privacy\.kind = 'central' \(on real devices",
    ),
    ({"cohort": {"sampling": "size"}}, r"cohort\.sampling: expected 'uniform' or 'poisson', .*list cohort\.weights"),
    ({"report": {"baseline": True}}, r"report\.baseline: expected false, .*on real devices"),
]


@pytest.mark.parametrize(("changes", "message"), ONLY_SIMULATED)
def test_no_federation_is_made_or_asked_for_what_only_a_simulation_can_do(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    with pytest.raises(ExperimentError, match=message):
        init(home, keys(KEYS, **changes))
    assert not home.exists()
    home.mkdir()
    (home / FEDERATION_FILE).touch()
    with pytest.raises(ExperimentError, match=message):
        run_on_federation(keys(KEYS, **changes), home, tmp_path / "run")
    assert sorted(tmp_path.rglob("*")) == [home, home / FEDERATION_FILE]
