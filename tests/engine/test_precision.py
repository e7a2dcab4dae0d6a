import torch
from small import fit_of, loop_of, plan_of, scored, updates_of
from torch import Tensor

from fedstrata.core import LocalTraining
from fedstrata.engine import Loop

_, LAYOUT, START = loop_of([12, 12])
STEP = fit_of(LAYOUT, [[0], [0]], training=LocalTraining(batch=0, lr=0.1), save_local=LAYOUT.everything)


def engine_of(precision: str) -> Loop:
    return loop_of([12, 12], precision=precision)[0]


def updates(precision: str) -> Tensor:
    return updates_of(engine_of(precision), START, STEP)


def test_bfloat16_multiplies_with_eight_bits_and_moves_weights_of_float32() -> None:
    """A step differs from that of float32 in the third digit, not in the second; what comes of it is float32."""
    exact, found = updates("float32"), updates("bfloat16")
    away = (found - exact).norm() / exact.norm()
    assert 1e-4 < away < 1e-1 and found.dtype == torch.float32
    assert not torch.equal(found, found.bfloat16().float())


def test_weights_that_moved_are_rounded_anew_in_every_step() -> None:
    """Autocast keeps what it rounded; if that were kept beyond a step, the second one would go as the first."""
    twice = fit_of(LAYOUT, [[0], [0]], training=LocalTraining(batch=0, lr=0.1, epochs=2))
    one = updates("bfloat16")
    two = updates_of(engine_of("bfloat16"), START, twice)
    again = updates_of(engine_of("bfloat16"), START + one[0], STEP)
    # A weight next to a boundary may be rounded to the other side on another processor.
    assert (two[0] - one[0] - again[0]).abs().max() < 0.1 * (two - 2 * one).abs().max()


def test_scores_and_what_clients_keep_are_float32() -> None:
    found = []
    for precision in ("float32", "bfloat16"):
        engine = engine_of(precision)
        found.append(engine.run(scored(plan_of(START[None], STEP), LAYOUT, 2)).scores["client"].loss)
        assert {values.dtype for values in engine.store.tensors().values()} == {torch.float32}
    assert torch.equal(*found)
