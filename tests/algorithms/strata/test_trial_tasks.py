"""What members are asked in a trial, and how their answers are read."""

from dataclasses import replace

import pytest
import torch
from test_trial import APART, FOUR, four_groups, trial_of

from builders import answer, plan_of
from fedstrata.algorithms.strata.trial import Trial
from fedstrata.algorithms.strata.trial_tasks import add_group_task, add_trial_tasks, group_updates, with_answers
from fedstrata.core import TRAIN, LocalTraining, Plan, Report
from fedstrata.testing import toy_layout

LAYOUT = toy_layout(conv=2, linear=1)
ALL = torch.ones(10, dtype=torch.bool)
GROUPS, SIDES, OWN, LOSSES = "groups", "trial sides", "trial own", "trial losses"


def unanswered(trial: Trial, *clients: int) -> Trial:
    """The trial in which only some clients have not answered; all, if none is named."""
    losses = trial.losses.clone()
    samples = trial.samples.clone()
    which = list(clients or range(len(losses)))
    losses[which] = torch.nan
    samples[which] = 0.0
    return replace(trial, losses=losses, samples=samples)


def plan(labels: list[int]) -> Plan:
    return plan_of([[label] for label in labels], LAYOUT, models=torch.zeros(max(labels) + 1, 3))


def asked(trial: Trial, clients: int = 8) -> Plan:
    """The plan of a round in which everyone is asked; the trial's models come after the two of the clusters."""
    labels = torch.zeros(clients, dtype=torch.int64)
    before = replace(plan([0] * clients), models=torch.zeros(2, 3))
    return add_trial_tasks(before, LAYOUT, labels, {0: trial})


def test_members_of_some_clusters_also_train_twice_as_long_on_half_a() -> None:
    before = plan([0, 0, 1, 2])
    before = replace(before, tasks={TRAIN: replace(before.tasks[TRAIN], training=LocalTraining(epochs=3))})
    labels = torch.tensor([0, 0, 1, 2])
    task = add_group_task(before, labels, [0, 2], samples=1000).tasks[GROUPS]
    assert task.candidates.tolist() == [[0], [0], [-1], [2]]
    assert (task.fold, task.stream, task.training.epochs) == ("A", "groups", 6)
    assert add_group_task(before, labels, [], samples=1000) is before


@pytest.mark.parametrize(("samples", "epochs"), [(1000, 2), (500, 2), (400, 3), (200, 5), (199, 5), (98, 10), (1, 10)])
def test_where_half_a_is_few_steps_a_client_goes_through_it_more_often(samples: int, epochs: int) -> None:
    """Batches of 50: half of 400 is four steps, and ten are wanted."""
    before = plan([0])
    assert before.tasks[TRAIN].training.batch == 50
    task = add_group_task(before, torch.zeros(1, dtype=torch.int64), [0], samples).tasks[GROUPS]
    assert task.training.epochs == epochs


def test_groups_are_made_of_members_whose_half_has_eight_samples() -> None:
    sent = answer([3, 1, 0, 2], torch.arange(12.0).reshape(4, 3), sizes=[8, 7, 20, 8])
    members = torch.tensor([True, True, False, True])
    updates = group_updates(Report({GROUPS: sent}), members)
    assert updates.clients.tolist() == [0, 3] and updates.values[:, 0].tolist() == [6, 0]


def test_members_judge_models_on_half_b_and_nobody_trains() -> None:
    made = asked(unanswered(trial_of(APART)))
    assert list(made.tasks) == [TRAIN, LOSSES]
    task = made.tasks[LOSSES]
    assert (task.fold, task.selection_fold, task.continues) == ("B", "B", "")
    assert not any(task.trainable) and not any(task.upload)
    assert task.candidates.tolist() == [[2, 3, 4]] * 8 and len(made.models) == 2 + 3 + 1


def test_who_has_answered_is_not_asked_again_and_who_made_no_groups_first_chooses_a_side_on_half_a() -> None:
    made = asked(unanswered(trial_of(four_groups(True, True), FOUR), 5, 6, 7), clients=9)
    assert list(made.tasks) == [TRAIN, SIDES, LOSSES]
    sides, task = made.tasks[SIDES], made.tasks[LOSSES]
    assert (sides.fold, sides.selection_fold) == ("A", "A") and not any(sides.trainable)
    everything = list(range(2, 9))
    assert [row for row in sides.candidates.tolist() if row[0] >= 0] == [everything]
    assert sides.candidates[8].tolist() == task.candidates[8].tolist() == everything
    assert task.candidates[:5].eq(-1).all() and task.candidates[5, :5].tolist() == [2, 3, 4, 7, 8]


def test_two_clusters_may_have_trials_at_once_and_others_are_asked_nothing() -> None:
    labels = [0, 0, 1, 1, 2]
    first, second = unanswered(trial_of(APART)), unanswered(trial_of(APART))
    second = replace(second, clients=torch.arange(2, 10))
    made = add_trial_tasks(plan(labels), LAYOUT, torch.tensor(labels), {0: first, 1: second})
    assert made.tasks[LOSSES].candidates.tolist() == [[3, 4, 5]] * 2 + [[7, 8, 9]] * 2 + [[-1, -1, -1]]
    assert len(made.models) == 3 + 4 + 4


def test_with_personal_models_members_train_by_themselves_and_judge_the_models_between() -> None:
    trial = trial_of(torch.full((8, 3, 5), torch.nan), confirmed=(1, 2))
    made = asked(trial)
    own, task = made.tasks[OWN], made.tasks[LOSSES]
    assert list(made.tasks) == [TRAIN, OWN, LOSSES]
    assert (own.fold, own.candidates.unique().tolist()) == ("A", [5]) and all(own.trainable) and not any(own.upload)
    assert (task.fold, task.continues) == ("B", OWN) and not any(task.trainable)
    assert task.candidates[0].tolist() == [2] * 5 + [3] * 5 and task.candidates[7].tolist() == [2] * 5 + [4] * 5
    assert task.shares is not None and task.shares[0].tolist() == [0, 0.25, 0.5, 0.75, 1] * 2


def test_who_joins_a_personal_trial_chooses_a_side_by_all_models_and_judges_those_of_confirmed_splits() -> None:
    trial = trial_of(torch.ones(8, 7, 5), FOUR, confirmed=(1, 2))
    made = asked(trial, clients=9)
    assert made.tasks[SIDES].candidates[8].tolist() == [2, 3, 4, 5, 6, 7, 8]
    assert made.tasks[LOSSES].candidates[8].tolist() == [2] * 5 + [3] * 5 + [4] * 5
    losses = [float(place) for place in range(15)]
    after = read(trial, trial_sides=([8], [[0.0, 2, 1, 0, 0, 4, 3]], 8), trial_losses=([8], [losses], 8))
    assert after.groups.inside[:, 8].nonzero().flatten().tolist() == [0, 2, 6]
    assert after.losses[8, :3].flatten().tolist() == losses and after.losses[8, 3:].isnan().all()


def test_where_everyone_has_answered_a_personal_trial_asks_nobody() -> None:
    trial = trial_of(torch.ones(8, 3, 5), confirmed=(1, 2))
    made = asked(trial)
    assert made.tasks[LOSSES].candidates.unique().tolist() == [-1] and OWN not in made.tasks


def read(trial: Trial, members: torch.Tensor = ALL, **answers: tuple[list[int], list[list[float]], int]) -> Trial:
    """A trial with answers to tasks: the clients, their losses, and how many samples they have."""
    results = {
        name.replace("_", " "): answer(
            clients, torch.zeros(len(clients), 3), None, [size] * len(clients), torch.tensor(losses)
        )
        for name, (clients, losses, size) in answers.items()
    }
    return with_answers(trial, Report(results), members)


def test_answers_are_stored_by_client_and_by_the_models_that_were_asked_for() -> None:
    trial = unanswered(trial_of(four_groups(True, True), FOUR))
    after = read(trial, trial_losses=([7, 0], [[1.0, 2, 3, 4, 5], [6.0, 7, 8, 9, 10]], 8))
    assert after.answered.tolist() == [True] + [False] * 6 + [True]
    assert after.samples.tolist() == [8] + [0] * 6 + [8]
    assert after.losses[0, :, 0].nan_to_num(-1).tolist() == [6, 7, 8, 9, 10, -1, -1]
    assert after.losses[7, :, 0].nan_to_num(-1).tolist() == [1, 2, 3, -1, -1, 4, 5]


def test_a_loss_that_is_not_finite_or_huge_counts_as_a_huge_one() -> None:
    after = read(unanswered(trial_of(APART)), trial_losses=([0], [[torch.nan, 1e30, torch.inf]], 8))
    assert after.losses[0, :, 0].tolist() == pytest.approx([1e30] * 3)


def test_a_client_with_fewer_than_eight_samples_in_a_half_does_not_answer() -> None:
    after = read(unanswered(trial_of(APART)), trial_losses=([0], [[1.0, 1.0, 1.0]], 7))
    assert not after.answered.any()


def test_the_first_answer_of_a_client_stays() -> None:
    after = read(unanswered(trial_of(APART), 1), trial_losses=([0, 1], [[5.0] * 3, [5.0] * 3], 8))
    assert after.losses[0, :, 0].tolist() == pytest.approx(APART[0]) and after.losses[1, :, 0].tolist() == [5, 5, 5]


def test_who_leaves_the_cluster_leaves_the_trial() -> None:
    members = ALL.clone()
    members[[0, 5]] = False
    after = read(unanswered(trial_of(APART)), members, trial_losses=([0, 1], [[5.0] * 3, [6.0] * 3], 8))
    assert after.clients.tolist() == [1, 2, 3, 4, 6, 7] and after.answered.tolist() == [True] + [False] * 5


def test_who_was_absent_chooses_a_side_by_half_a_and_judges_by_half_b() -> None:
    trial = unanswered(trial_of(APART))
    side, loss = [[0.0, 2.0, 1.0]], [[1.0, 0.5, 0.7]]  # half B would say the other side
    after = read(trial, trial_sides=([9], side, 8), trial_losses=([9], loss, 8))
    assert after.clients.tolist() == [*range(8), 9] and after.groups.inside[:, 8].tolist() == [True, False, True]
    assert after.losses[8, :, 0].tolist() == pytest.approx(loss[0])
    few = read(trial, trial_sides=([9], side, 7), trial_losses=([9], loss, 8))
    assert len(few.clients) == 8
