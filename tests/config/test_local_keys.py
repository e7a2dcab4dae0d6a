import pytest

from fedstrata.build.problem import schedule_of, training_of
from fedstrata.config import Experiment, load_experiment
from fedstrata.config.tables import LocalTable
from fedstrata.core import LocalTraining


def experiment(rounds: int = 50, **keys: object) -> Experiment:
    return load_experiment({"rounds": rounds, "local": keys})


def local(rounds: int = 50, **keys: object) -> LocalTable:
    return experiment(rounds, **keys).local


def test_a_decay_alone_is_exponential_and_without_one_the_rate_is_constant() -> None:
    assert local(lr_decay=0.9).schedule == "exponential"
    assert local().schedule == "constant"
    schedule = schedule_of(experiment(lr_decay=0.9))
    assert [schedule(round) for round in (1, 2, 50)] == [1, 0.9, 0.9**49]


def test_a_cosine_ends_at_the_rate_that_was_asked_for() -> None:
    schedule = schedule_of(experiment(11, schedule="cosine", lr=0.1, lr_min=0.02, schedule_rounds=10))
    assert [0.1 * schedule(round) for round in (1, 6, 11)] == pytest.approx([0.1, 0.06, 0.02])


def test_every_key_of_training_reaches_the_clients() -> None:
    keys = {"optimizer": "adamw", "lr": 0.1, "weight_decay": 0.2, "clip_norm": 3.0, "steps": 4, "batch": 5}
    assert training_of(local(**keys)) == LocalTraining(**keys)  # type: ignore[arg-type]  # the keys are mixed


def test_a_cosine_that_ends_early_goes_on_with_a_rate_above_zero() -> None:
    assert local(50, schedule="cosine", schedule_rounds=30, lr_min=0.001).schedule_rounds == 30
    assert local(50, schedule="cosine", schedule_rounds=50).lr_min == 0


def test_a_cosine_falls_over_all_rounds_after_the_warm_up_and_no_number_of_them_is_written_down() -> None:
    assert schedule_of(experiment(50, schedule="cosine", warmup_rounds=5)).period == 45
    assert local(50, schedule="cosine", warmup_rounds=5).schedule_rounds == 0
