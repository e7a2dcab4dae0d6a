"""Who is Byzantine, and whose updates are replaced."""

from dataclasses import replace

import torch

from builders import plan_of, report_of, result_of, task_of
from fedstrata.core import TRAIN, Plan, Report
from fedstrata.testing import toy_problem
from fedstrata.uploads.attacks.byzantine_clients import ByzantineClients, choose_byzantine
from fedstrata.uploads.attacks.updates import ATTACKS

LAYOUT = toy_problem(4).layout
LEVELS = torch.arange(1.0, 5.0)[:, None] * torch.ones(4, LAYOUT.p)


def test_a_share_of_all_clients_or_of_the_largest_group_is_drawn() -> None:
    groups = torch.tensor([0] * 5 + [1] * 10 + [2] * 5)
    spread = choose_byzantine(20, 0.2, None, seed=3)
    assert len(spread) == 4 and spread == choose_byzantine(20, 0.2, None, seed=3) == tuple(sorted(spread))
    assert spread != choose_byzantine(20, 0.2, None, seed=4)
    inside = choose_byzantine(20, 0.4, groups, seed=3)
    assert len(inside) == 4 and set(inside) <= set(range(5, 15))
    assert len(choose_byzantine(20, 0.01, None, seed=0)) == 1  # rounded up
    assert len(choose_byzantine(100, 0.07, None, seed=0)) == 7  # although 0.07 * 100 is a little more
    assert len(choose_byzantine(100, 1e-12, None, seed=0)) == 1


def test_who_never_takes_part_is_not_drawn() -> None:
    drawn = {choose_byzantine(4, 0.25, None, seed, idle={1, 3}) for seed in range(20)}
    assert drawn == {(0,), (2,)}


def plan_and_report(round: int = 2) -> tuple[Plan, Report]:
    """Clients 0 to 3 start from models 0, 0, 1, 1, and send 1 to 4 of all layers but the first; or nothing."""
    task = task_of([[0], [0], [1], [1]], LAYOUT, upload=(False, *LAYOUT.everything[1:]))
    silent = replace(task, upload=LAYOUT.nothing)
    plan = plan_of(layout=LAYOUT, tasks={TRAIN: task, "scores": silent}, round=round)
    values = LEVELS.clone()
    values[:, LAYOUT.spans[0]] = 0.0
    return plan, Report({TRAIN: result_of(plan, values), "scores": result_of(plan, torch.zeros_like(values))})


def test_the_updates_of_byzantine_clients_are_replaced_and_no_others() -> None:
    plan, report = plan_and_report()
    found = ByzantineClients((1, 2), LAYOUT, ATTACKS["scaling"], strength=-2.0).of_report(plan, report)
    assert found.results["train"].updates.values[:, -1].tolist() == [1.0, -4.0, -6.0, 4.0]
    assert not found.results["train"].updates.values[:, LAYOUT.spans[0]].any()
    assert found.results["scores"] is report.results["scores"]


def test_of_layers_that_are_sent_as_they_are_the_difference_from_the_given_model_is_replaced() -> None:
    """Client 3 was given 10 and sends 4 of the last layer, an update of -6. Of the others it sends an update of 4."""
    plan, report = plan_and_report()
    last = LAYOUT.tensors[-1].name
    as_values = tuple(slot.name == last for slot in LAYOUT.tensors)
    task = replace(plan.tasks["train"], upload=LAYOUT.everything, upload_values=as_values)
    plan = replace(plan, models=torch.full((2, LAYOUT.p), 10.0), tasks={**plan.tasks, "train": task})
    report = report_of(plan, LEVELS)
    zero, flipped = (
        ByzantineClients((3,), LAYOUT, ATTACKS[kind]).of_report(plan, report).results["train"].updates.values
        for kind in ("zero", "sign_flip")
    )
    assert zero[3, [0, -1]].tolist() == [0.0, 10.0]
    assert flipped[3, [0, -1]].tolist() == [-4.0, 16.0]
    assert torch.equal(flipped[:3], LEVELS[:3])


def test_attackers_imitate_honest_clients_with_the_same_model() -> None:
    plan, report = plan_and_report()
    found = ByzantineClients((1, 3), LAYOUT, ATTACKS["ipm"], strength=1.0).of_report(plan, report)
    # Client 0 is the only honest one with model 0, and client 2 with model 1.
    assert found.results["train"].updates.values[:, -1].tolist() == [1.0, -1.0, 3.0, -3.0]


def test_before_their_first_round_and_without_an_attack_on_updates_they_send_what_they_train() -> None:
    plan, report = plan_and_report()
    assert ByzantineClients((1,), LAYOUT, None).of_report(plan, report) is report
    assert ByzantineClients((1,), LAYOUT, ATTACKS["zero"], from_round=3).of_report(plan, report) is report
    compared = comparison()
    liars = ByzantineClients((1,), LAYOUT, None, from_round=3, losses="for_splits")
    assert liars.of_report(*compared) is compared[1]


def test_an_honest_client_that_diverged_is_no_example() -> None:
    plan, report = plan_and_report()
    report.results["train"].updates.values[0] = torch.nan
    found = ByzantineClients((1,), LAYOUT, ATTACKS["ipm"], strength=1.0).of_report(plan, report)
    # Nobody else is left with model 0, so the attacker's own update of 2 is the mean.
    assert found.results["train"].updates.values[1, -1] == -2.0


def comparison() -> tuple[Plan, Report]:
    """Clients 0 to 2 compare model 0, twice, with 1 and 2, and upload nothing. Client 3 is given a single model."""
    plan, report = plan_and_report()
    candidates = torch.tensor([[0, 0, 1, 2]] * 3 + [[1, -1, -1, -1]])
    task = replace(plan.tasks["scores"], candidates=candidates)
    tasks = {"first": task, "second": task, "train": plan.tasks["train"]}
    losses = torch.tensor([[0.5, 0.6, 0.7, 0.8]] * 3 + [[torch.nan] * 4])
    result = replace(report.results["scores"], losses=losses)
    everything = {"first": result, "second": result, "train": report.results["train"]}
    return replace(plan, models=torch.zeros(3, LAYOUT.p), tasks=tasks), Report(everything)


def test_liars_say_that_models_of_groups_are_perfect_and_that_of_all_is_useless_or_the_opposite() -> None:
    plan, report = comparison()
    found = ByzantineClients((1, 3), LAYOUT, None, losses="for_splits").of_report(plan, report)
    assert found.results["first"].losses[1].tolist() == [1000.0, 1000.0, 0.0, 0.0]
    assert found.results["second"].losses[1].tolist() == [1000.0, 1000.0, 0.0, 0.0]
    assert bool(found.results["first"].losses[3].isnan().all())
    honest = [0, 2]
    assert torch.equal(found.results["first"].losses[honest], report.results["first"].losses[honest])
    assert found.results["train"] is report.results["train"]
    against = ByzantineClients((1,), LAYOUT, None, losses="against_splits").of_report(plan, report)
    assert against.results["second"].losses[1].tolist() == [0.0, 0.0, 1000.0, 1000.0]


def lies(**candidates: list[int]) -> list[list[float]]:
    """What a liar says in some tasks, in which clients are given these models and upload nothing."""
    tasks = {name: task_of([models] * 4, LAYOUT, upload=LAYOUT.nothing) for name, models in candidates.items()}
    plan = plan_of(layout=LAYOUT, tasks=tasks, round=2)
    nothing, losses = torch.zeros(4, LAYOUT.p), torch.tensor([[0.5, 0.6]] * 4)
    compared = [name for name, models in candidates.items() if len(models) > 1]
    report = Report({name: result_of(plan, nothing, losses=losses, task=name) for name in compared})
    found = ByzantineClients((1,), LAYOUT, None, losses="for_splits").of_report(plan, report).results
    return [found[name].losses[1].tolist() for name in compared]


def test_liars_know_the_model_of_all_where_each_model_is_measured_in_a_task_of_its_own() -> None:
    """Client 1 measures model 0 in one task and model 2 in another, each by two personal models."""
    assert lies(loss=[0, 0], own=[2, 2]) == [[1000.0, 1000.0], [0.0, 0.0]]


def test_a_personal_model_that_a_client_trains_beside_does_not_hide_which_model_is_of_all() -> None:
    """Ditto's task is given one model, here 0, and uploads nothing. The comparison is of models 1 and 2."""
    assert lies(personal=[0], loss=[1, 2]) == [[1000.0, 0.0]]


def test_updates_of_both_halves_of_the_data_have_the_same_made_up_structure() -> None:
    plan, report = plan_and_report()
    halves = {"test A of 2": plan.tasks["train"], "test B of 2": plan.tasks["train"]}
    sent = {name: report.results["train"] for name in halves}
    clients = ByzantineClients((0, 1), LAYOUT, ATTACKS["split"])
    found = clients.of_report(replace(plan, tasks=halves), Report(sent)).results
    first, second = (found[name].updates.values for name in halves)
    assert torch.equal(first, second) and torch.equal(first[0], -first[1])
