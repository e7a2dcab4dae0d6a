"""Clients clip every update and add noise to it before they send it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from builders import plan_of, report_of
from fedstrata.core import TRAIN, Layout, TensorSpec, empty_rows, rows
from fedstrata.uploads import noise as local
from fedstrata.uploads.noise import LocalNoise, NoiseSeed

LAYOUT = Layout((TensorSpec("a", "a", "linear", (2,)), TensorSpec("b", "b", "linear", (1,))))
NOISY = LocalNoise(layout=LAYOUT, clip_norm=5.0, noise_multiplier=1.0, noise_seed=NoiseSeed(3))
QUIET = replace(NOISY, noise_multiplier=0.0)


def sent(privacy: LocalNoise, *updates: list[float], upload: tuple[bool, bool] = (True, True)) -> torch.Tensor:
    """What clients 0 to m - 1 send."""
    plan = plan_of([[0]] * len(updates), LAYOUT, upload=upload)
    report = report_of(plan, torch.tensor(updates))
    return privacy.of_report(plan, report).results[TRAIN].updates.values


def test_what_is_sent_is_clipped_and_has_noise_and_nothing_else_has() -> None:
    assert sent(QUIET, [6.0, 8.0, 0.0], [1.0, 0.0, 0.0]).tolist() == [[3.0, 4.0, 0.0], [1.0, 0.0, 0.0]]
    assert sent(QUIET, [6.0, 8.0, 7.0], upload=(True, False)).tolist() == [[3.0, 4.0, 7.0]]
    assert bool((sent(NOISY, [1.0, 0.0, 0.0]) != torch.tensor([1.0, 0.0, 0.0])).all())
    assert sent(NOISY, [6.0, 8.0, 7.0], upload=(True, False))[0, 2] == 7.0


@pytest.mark.parametrize(
    "other", [NOISY, replace(NOISY, noise_seed=NoiseSeed(3, run="another"))], ids=["same", "other"]
)
def test_the_difference_of_two_uploads_has_noise_in_the_same_run_and_in_another(other: LocalNoise) -> None:
    """A device has one seed for all runs. Without this, a second run would take the noise of the first away."""
    difference = sent(NOISY, [1.0, 0.0, 0.0]) - sent(other, [0.0, 1.0, 0.0])
    assert bool(((difference - torch.tensor([[1.0, -1.0, 0.0]])).abs() > 0.01).all())


def test_clients_with_the_same_update_have_other_noise() -> None:
    first, second = sent(NOISY, [1.0, 0.0, 0.0], [1.0, 0.0, 0.0])
    assert not bool((first == second).any())


def test_rows_that_do_not_fit_into_memory_are_written_to_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    here = sent(NOISY, [1.0, 0.0, 0.0], [0.0, 1.0, 0.0])
    made = list[tuple[int, int]]()

    def recorded(m: int, p: int) -> torch.Tensor:
        made.append((m, p))
        return empty_rows(m, p)

    monkeypatch.setattr(rows, "IN_MEMORY", 0)
    monkeypatch.setattr(local, "empty_rows", recorded)
    assert torch.equal(sent(NOISY, [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]), here) and made == [(2, 3)]
