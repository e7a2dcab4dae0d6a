"""Over Flower's messages, as bytes, the same bits as from the loop engine."""

from dataclasses import replace

import pytest
from in_process import Federation

import played_rounds
from builders import keys
from fedstrata.algorithms import ALGORITHMS
from personal_stage import METHODS, REFUSED, with_stage
from personal_stage import play as play_personal
from turns import same

KEYS = keys(played_rounds.KEYS, data={"clients": 6, "samples": 32})


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "centralized"])
def test_a_run_over_messages_is_the_loop_in_every_bit(made: Federation, name: str) -> None:
    """All of them but the training on the union of all data, which no network offers."""
    expected, stored = played_rounds.play(made.setup, name)
    remote, _ = made.remote(run=name)
    found, known = played_rounds.play(replace(made.setup, clients=remote), name)
    for round, (one, other) in enumerate(zip(found, expected, strict=True), 1):
        assert same((one.report, one.after), (other.report, other.after)), f"round {round}"
    # The server knows which tensors are on the devices, and nothing else of them.
    assert known.keys() == stored.keys() and not any(values.numel() for values in known.values())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["ifca", "fedtsdp", "strata"])
def test_the_personal_stage_is_the_loop_in_every_bit(made: Federation, name: str, method: str) -> None:
    if name in REFUSED.get(method, ()):
        pytest.skip("they do not go together")
    expected = play_personal(with_stage(made.setup, name, method))
    remote, _ = made.remote(run=f"{name}_{method}")
    found = play_personal(with_stage(replace(made.setup, clients=remote), name, method), remote.run)
    assert same(found.reports, expected.reports)
    assert found.stored.keys() == expected.stored.keys()
    assert not any(values.numel() for values in found.stored.values())
