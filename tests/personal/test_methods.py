"""The personal methods by numbers that a reader can redo, and their runs from the file to the export."""

from pathlib import Path
from typing import Any

import pytest
import torch

import fedstrata
from builders import answer, keys, layout_with, problem
from fedstrata.algorithms.tuning import SHARES
from fedstrata.base.errors import ExperimentError
from fedstrata.config import load_experiment
from fedstrata.core import LocalTraining, Report
from fedstrata.personal import LastModels
from fedstrata.personal.best import choose, cohort_weight, gains_over_untuned, keeps_tuning, with_all_samples
from fedstrata.personal.finetune import tuned_mask
from fedstrata.personal.stage import tuning_tasks

LAYOUT = layout_with({"conv.weight": 2, "norm.weight": 1, "fc.weight": 2})
KEYS: dict[str, Any] = keys(rounds=2, local={"batch": 8}, algorithm={"name": "oracle"})


def test_the_learning_rate_of_a_tuning_falls_linearly_and_each_epoch_goes_on_from_the_last() -> None:
    training = LocalTraining(epochs=4, lr=0.3)
    first = torch.zeros(2, 1, dtype=torch.int64)
    last = LastModels(
        round=9,
        clients=torch.arange(2),
        models=torch.zeros(1, 5),
        candidates=first,
        load_local=LAYOUT.nothing,
        nodes=torch.zeros(1, dtype=torch.int64),
    )
    tasks = tuning_tasks(problem(2, LAYOUT, training=training), last, "tuning", 3, LAYOUT.everything, fold="A")
    assert list(tasks) == ["tuning-A-1", "tuning-A-2", "tuning-A-3"]
    assert [round(task.training.lr, 6) for task in tasks.values()] == [0.3, 0.2, 0.1]
    assert [task.continues for task in tasks.values()] == ["", "tuning-A-1", "tuning-A-2"]
    assert {(task.fold, task.training.epochs) for task in tasks.values()} == {("A", 1)}
    assert not any(any((*task.upload, *task.save_local)) for task in tasks.values())


def test_all_layers_are_all_tensors_and_a_layer_brings_its_normalisation() -> None:
    assert tuned_mask(LAYOUT, "all") == (True, True, True)
    assert tuned_mask(LAYOUT, "conv") == (True, True, False)
    assert tuned_mask(LAYOUT, ["head"]) == (False, False, True)


def gains(*clients: tuple[list[float], list[float]]) -> torch.Tensor:
    """The gains of each option on half B and on half A by their losses in nats, for each client, (2, m, c)."""
    return gains_over_untuned(torch.tensor(clients, dtype=torch.float64).transpose(0, 1), in_nats=True)


EQUAL = torch.full((2, 4), 10.0, dtype=torch.float64)


def test_alone_a_client_takes_what_is_best_on_both_halves_together() -> None:
    # The gains of option 1 are .2 and 0, of option 2 .3 and -.2: the means are .1 and .05.
    found = gains(([1.0, 0.8, 0.7], [1.0, 1.0, 1.2]))
    assert choose(found, EQUAL[:, :1], torch.zeros(1)).tolist() == [1]
    # Had the first half nine of ten samples: .18 and .25.
    sizes = torch.tensor([[9.0], [1.0]], dtype=torch.float64)
    assert choose(found, sizes, torch.zeros(1)).tolist() == [2]


def test_what_is_as_good_as_no_tuning_is_not_chosen() -> None:
    assert choose(gains(([1.0, 1.0], [1.0, 1.0])), EQUAL[:, :1], torch.zeros(1)).tolist() == [0]


def test_more_is_kept_of_what_twice_the_samples_tuned() -> None:
    # Own variance 3, noise 2 with all samples and 4 with half of them: 3 / 7, and 3 / 5.
    assert with_all_samples(3 / 7) == pytest.approx(3 / 5)
    assert [with_all_samples(share) for share in (0.0, 1.0)] == [0.0, 1.0]


def test_a_model_that_diverged_is_never_chosen() -> None:
    found = gains(([1.0, float("nan"), 0.9], [1.0, float("inf"), 0.9]))
    assert choose(found, EQUAL[:, :1], torch.zeros(1)).tolist() == [2]


def test_the_unit_of_squared_errors_does_not_matter() -> None:
    """Tuned on one half the loss falls by a tenth, tuned on the other it doubles: no tuning is best in any unit."""
    by_unit = torch.tensor([[[100.0, 110, 125, 150, 200]], [[100.0, 98, 96, 93, 90]]], dtype=torch.float64)
    for unit in (1.0, 1e-3, 1e6):
        found = gains_over_untuned(by_unit * unit, in_nats=False)
        assert choose(found, EQUAL[:, :1], torch.zeros(1)).tolist() == [0]
    diverged = torch.tensor([[[2.0, 1.5, 1e9]], [[2.0, torch.inf, torch.nan]]], dtype=torch.float64)
    assert gains_over_untuned(diverged, in_nats=False).tolist() == [[[0, 0.5, -2]], [[0, -2, -2]]]


def test_who_fits_its_own_data_worse_after_tuning_keeps_nothing_of_it() -> None:
    """The first client's loss falls, the second one's is no number, the third one's grows."""
    losses = torch.tensor([[1.0, 0.5], [1.0, torch.nan], [1.0, 1.5]])
    done = answer(range(3), torch.zeros(3, 5), losses=losses)
    assert keeps_tuning(Report({"tuning-kept": done}), "tuning-kept") == {0: True, 1: False, 2: False}
    assert keeps_tuning(Report({}), "tuning-kept") == {}


def test_clients_that_differ_on_both_halves_alike_choose_for_themselves() -> None:
    one, other = [1.0, 0.5], [1.0, 1.5]
    found = gains((one, one), (one, one), (other, other), (other, other))
    weight = cohort_weight(found, EQUAL)
    assert weight.tolist() == [0.0] * 4
    assert choose(found, EQUAL, weight).tolist() == [1, 1, 0, 0]


def test_clients_whose_halves_contradict_each_other_choose_alike() -> None:
    one, other = [1.0, 0.5], [1.0, 1.1]
    # Each client gains .5 on one half and loses .1 on the other: .2 in the mean, which is also the mean of all.
    found = gains((one, other), (other, one), (one, other), (other, one))
    assert cohort_weight(found, EQUAL).tolist() == pytest.approx([1.0] * 4)
    # A client of the same kind that loses .01 is told by the others that it gains.
    worse = found.clone()
    worse[:, 0, 1] -= 0.21
    weight = cohort_weight(worse, EQUAL)
    assert bool((weight > 0.9).all())
    assert choose(worse, EQUAL, torch.zeros(4)).tolist() == [0, 1, 1, 1]
    assert choose(worse, EQUAL, weight).tolist() == [1, 1, 1, 1]


def test_the_weight_of_the_cohort_is_the_share_of_the_noise() -> None:
    # Gains of two halves: (.6, .2), (.2, .6), (-.6, -.2), (-.2, -.6). Their means are .4, .4, -.4, -.4, half their
    # differences .2. With 20 samples each, the noise of a mean is .04; .16 in all, so that .12 is how clients differ.
    halves = [(0.6, 0.2), (0.2, 0.6), (-0.6, -0.2), (-0.2, -0.6)]
    found = gains(*(([1.0, 1 - one], [1.0, 1 - other]) for one, other in halves))
    # Of the two options the first one, which is no tuning, has neither.
    assert cohort_weight(found, EQUAL).tolist() == pytest.approx([0.25] * 4)


def test_who_has_no_held_out_samples_chooses_as_the_others() -> None:
    one = [1.0, 0.5]
    found = gains((one, one), (one, one), (one, one), ([0.0, 0.0], [0.0, 0.0]))
    sizes = EQUAL.clone()
    sizes[:, 3] = 0
    weight = cohort_weight(found, sizes)
    assert weight[3] == 1 and choose(found, sizes, weight).tolist() == [1, 1, 1, 1]
    assert SHARES[0] == 0


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"method": "bets"}, "personal.method = 'bets'"),
        ({"method": "best", "epoch": 3}, "personal.epoch: unknown key"),
        ({"method": "none", "epochs": 3}, "personal.epochs: expected no key"),
        ({"method": "finetune", "epochs": 0}, "personal.epochs = 0"),
    ],
)
def test_a_wrong_key_is_refused_in_one_line(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ExperimentError, match=message) as caught:
        load_experiment({**KEYS, "personal": table})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "table",
    [{"method": "finetune"}, {"method": "finetune", "layers": "head"}, {"method": "ditto"}, {"method": "best"}],
    ids=["finetune", "head", "ditto", "best"],
)
def test_a_run_says_what_each_client_gained_and_its_models_are_taken_home(
    table: dict[str, Any], tmp_path: Path
) -> None:
    run = fedstrata.run({**KEYS, "personal": table}, tmp_path / "run", quiet=True)
    told = run.summary["personal"]
    assert told["method"] == table["method"] and [each["client"] for each in told["clients"]] == list(range(6))
    means = {key: sum(each[key] for each in told["clients"]) / 6 for key in ("accuracy", "accuracy_shared")}
    assert means["accuracy"] == pytest.approx(run.summary["acc_client"])
    assert means["accuracy_shared"] == pytest.approx(run.summary["acc_shared"])
    plain = fedstrata.run(KEYS, tmp_path / "plain", quiet=True)
    assert run.summary["acc_shared"] == plain.summary["acc_client"]
    # The models in the run folder are those that were scored.
    kept = {each["client"]: each.get("share", 1.0) for each in told["clients"]}
    assert all(bool(run.model_of(client).personal) == (kept[client] > 0) for client in range(6))
    if "layers" in table:
        head, base = (each.network.state_dict() for each in (run.model(0), run.cluster_model(run.labels["0"])))
        assert {name for name in base if not torch.equal(head[name], base[name])} == {"linear2.weight", "linear2.bias"}
    assert len(fedstrata.export(run, tmp_path / "models")) > 2


def test_best_without_a_prior_is_chosen_by_each_client_alone(tmp_path: Path) -> None:
    table = {"method": "best", "prior": "none"}
    run = fedstrata.run({**KEYS, "rounds": 1, "personal": table}, tmp_path / "run", quiet=True)
    choices = run.summary["personal"]["clients"]
    assert len(choices) == KEYS["data"]["clients"] > 2
    assert all(0 <= each["share"] <= 1 for each in choices)
