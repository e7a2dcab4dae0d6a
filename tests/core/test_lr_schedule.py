from dataclasses import replace
from math import sqrt
from typing import get_args

import pytest

from fedstrata.core import LearningRateSchedule, LocalTraining, Schedule
from fedstrata.core.lr_schedule import USED_KEYS


def rates(schedule: LearningRateSchedule, rounds: int) -> list[float]:
    return [schedule(round) for round in range(1, rounds + 1)]


def test_a_schedule_without_keys_leaves_the_rate_as_it_is() -> None:
    assert rates(LearningRateSchedule(), 3) == rates(LearningRateSchedule(0.5, "constant"), 3) == [1.0, 1.0, 1.0]


def test_exponential_decay_multiplies_after_every_round_and_steps_after_every_period() -> None:
    assert rates(LearningRateSchedule(0.5), 4) == [1.0, 0.5, 0.25, 0.125]
    assert rates(LearningRateSchedule(0.1, "step", period=2), 5) == pytest.approx([1.0, 1.0, 0.1, 0.1, 0.01])


def test_a_cosine_falls_along_half_a_wave_to_its_floor_and_stays_there() -> None:
    found = rates(LearningRateSchedule(kind="cosine", period=4), 5)
    assert found == pytest.approx([1.0, (1 + sqrt(0.5)) / 2, 0.5, (1 - sqrt(0.5)) / 2, 0.0])
    ends = rates(LearningRateSchedule(kind="cosine", period=2, floor=0.2), 5)
    assert ends == pytest.approx([1.0, 0.6, 0.2, 0.2, 0.2])


@pytest.mark.parametrize("kind", get_args(Schedule))
def test_a_shape_depends_on_the_keys_that_it_is_said_to_use(kind: Schedule) -> None:
    schedule = LearningRateSchedule(0.5, kind, period=4)
    others = {
        "lr_decay": replace(schedule, decay=0.25),
        "schedule_rounds": replace(schedule, period=3),
        "lr_min": replace(schedule, floor=0.5),
    }
    used = {key for key, other in others.items() if rates(other, 9) != rates(schedule, 9)}
    assert used == {*USED_KEYS[kind]}


def test_a_warm_up_rises_in_equal_steps_and_the_schedule_begins_after_it() -> None:
    found = rates(LearningRateSchedule(0.5, warmup=3), 6)
    assert found == pytest.approx([0.25, 0.5, 0.75, 1.0, 0.5, 0.25])


def test_epochs_count_passes_and_steps_count_full_batches() -> None:
    epochs = LocalTraining(epochs=3, batch=5)
    assert (epochs.steps_of(12), epochs.samples_seen(12)) == (9, 36)
    steps = LocalTraining(steps=4, batch=5)
    assert (steps.steps_of(12), steps.samples_seen(12)) == (4, 20)
    assert (steps.steps_of(3), steps.samples_seen(3)) == (4, 12)
    whole = LocalTraining(steps=4, batch=0)
    assert (whole.steps_of(12), whole.samples_seen(12)) == (4, 48)


@pytest.mark.parametrize(("samples", "steps", "seen"), [(12, 6, 30), (10, 6, 30), (5, 3, 15), (3, 3, 9)])
def test_with_whole_batches_the_rest_of_an_epoch_is_left_out(samples: int, steps: int, seen: int) -> None:
    training = LocalTraining(epochs=3, batch=5, drop_last=True)
    assert (training.steps_of(samples), training.samples_seen(samples)) == (steps, seen)
    everything = replace(training, batch=0)
    assert (everything.steps_of(samples), everything.samples_seen(samples)) == (3, 3 * samples)


def test_an_algorithm_that_counts_epochs_counts_no_steps() -> None:
    training = LocalTraining(steps=7, lr=0.3)
    assert training.with_epochs(2) == LocalTraining(epochs=2, lr=0.3)
    assert training.times(3) == LocalTraining(epochs=3, steps=21, lr=0.3)
