import subprocess
import sys
from typing import Any

import pytest
import torch

from fedstrata import cli
from fedstrata.algorithms.parts.proof.hearings import Hearing
from fedstrata.algorithms.parts.recursive.bootstrap import disagreement, pair, twins
from fedstrata.algorithms.parts.scout.finding import Finding, View
from fedstrata.algorithms.parts.scout.look import LEVEL, conclude, due, level_of, twinned
from fedstrata.algorithms.parts.scout.sighting import Sighting, bias_of, forget, see, unseen, views, watching
from fedstrata.config import load
from fedstrata.core import Layout, Plan, Report, Result, Rows, TensorSpec, fedavg_plan, initial_state
from fedstrata.runner.scan import scout
from fedstrata.testing import toy_problem

WIDTH = 30
LAYOUT = Layout(
    (
        TensorSpec("conv.weight", "conv", "conv", (WIDTH,)),
        TensorSpec("norm.weight", "norm", "norm", (2,)),
        TensorSpec("fc.weight", "fc", "linear", (WIDTH,)),
        TensorSpec("fc.bias", "fc", "linear", (WIDTH,)),
    )
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def signal(n: int, groups: int, seed: int) -> torch.Tensor:
    """Directions that the members of a group share, (n, WIDTH)."""
    return torch.randn(groups, WIDTH, generator=seeded(seed))[torch.arange(n) % groups]


def half(n: int, conv: Any = 0.0, weight: Any = 0.0, bias: Any = 0.0, seed: int = 1) -> torch.Tensor:
    """Updates (n, p): what is given, and noise of its own."""
    noise = torch.randn(n, LAYOUT.p, generator=seeded(seed))
    for layer, added in (("conv", conv), ("fc.weight", weight), ("fc.bias", bias)):
        noise[:, LAYOUT.columns(LAYOUT.select(layer))] += added
    return noise


def answer(*updates: torch.Tensor, clients: list[int] | None = None) -> Report:
    """A report with a result for each of some updates (n, p), from all or some clients; folds come after the first."""
    ids = torch.tensor(range(len(updates[0])) if clients is None else clients, dtype=torch.int64)
    nothing = torch.zeros_like(ids)
    sizes = [200, *(200 // (len(updates) - 1) for _ in updates[1:])]
    return Report(
        tuple(
            Result(Rows(ids, rows[ids]), nothing, torch.full_like(ids, size), nothing[:, None] / 0)
            for rows, size in zip(updates, sizes, strict=True)
        )
    )


def hear(n: int, folds: int = 2) -> list[Hearing]:
    return [Hearing(0, torch.arange(n), folds)]


def sighting_of(n: int, rounds: int = 1, folds: int = 2, **given: Any) -> Sighting:
    sighting = unseen(LAYOUT, n)
    for round in range(rounds):
        parts = [half(n, seed=10 * round + seed, **given) for seed in range(1, folds + 1)]
        report = answer(torch.stack(parts).sum(dim=0), *parts)
        sighting = see(LAYOUT, sighting, report, hear(n, folds), done=1)
    return sighting


def test_twins_train_on_the_two_halves_from_the_model_that_the_client_was_given() -> None:
    problem = toy_problem(4, LAYOUT)
    plan = twins(fedavg_plan(problem, initial_state(problem), torch.arange(4)), LAYOUT.select("conv"))
    assert [(task.fold, task.stream) for task in plan.tasks] == [("all", "train"), ("A", "A"), ("B", "B")]
    assert plan.tasks[1].upload == LAYOUT.select("conv") and plan.tasks[1].trainable == LAYOUT.everything
    assert all(torch.equal(task.candidates, plan.tasks[0].candidates) for task in plan.tasks)


def test_twins_are_the_second_and_third_result_whatever_comes_after() -> None:
    updates = [torch.full((4, LAYOUT.p), float(place)) for place in range(5)]
    first, second = pair(answer(*updates))
    assert float(first.values[0, 0]) == 1.0 and float(second.values[0, 0]) == 2.0


def test_twins_that_disagree_say_how_far_a_client_stands_from_its_distribution() -> None:
    first, second = torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    assert disagreement(first, second) == pytest.approx(1.0)  # |(1, -1)| / |(1, 1)|, and |(0, 1)| / |(2, 1)|


def test_the_views_are_every_layer_all_of_them_and_the_last_bias() -> None:
    looks = views(LAYOUT)
    assert list(looks) == ["conv", "fc", "all", "fc.bias"]
    assert [len(columns) for columns in looks.values()] == [WIDTH, 2 * WIDTH, 3 * WIDTH, WIDTH]
    alone = Layout((TensorSpec("fc.weight", "fc", "linear", (3,)),))
    assert list(views(alone)) == ["fc"] and bias_of(alone) is None
    assert bias_of(Layout((TensorSpec("c.weight", "c", "conv", (3,)), TensorSpec("c.bias", "c", "conv", (3,))))) is None


def test_a_round_tells_what_folds_show_what_all_have_in_common_and_who_has_how_many_samples() -> None:
    a = torch.zeros(6, LAYOUT.p)
    for columns in views(LAYOUT).values():
        a[:, columns[0]], a[torch.arange(6), columns[1]] = 3.0, torch.tensor([4.0, 4, 4, -4, -4, -4])
    report = answer(2 * a, a, a)
    sighting = see(LAYOUT, unseen(LAYOUT, 6), report, hear(6), done=1)
    sighting = see(LAYOUT, sighting, report, hear(6), done=1)
    # Cosines: 2 of 5 others at 1, 3 at (9 - 16) / 25.
    assert sighting.common[0].item() / sighting.rounds == pytest.approx((2 + 3 * -7 / 25) / 5)
    assert sighting.rounds == 2 and sighting.sizes.tolist() == [200] * 6
    assert sighting.longest[0].item() == pytest.approx(10.0)
    assert sighting.layers is not None and sighting.layers.alike.shape == (3, 12, 12)
    assert sighting.bias is not None and sighting.bias.alike.shape == (1, 12, 12)
    assert bool((sighting.layers.seen == 2).all())


def test_without_folds_the_longest_update_and_the_sizes_are_remembered() -> None:
    sighting = see(LAYOUT, unseen(LAYOUT, 4), answer(half(4)), [], done=1)
    assert sighting.layers is None and float(sighting.longest[0]) > 0 and sighting.sizes.tolist() == [200] * 4
    nobody = see(LAYOUT, sighting, answer(half(4), clients=[]), [], done=1)
    assert torch.equal(nobody.longest, sighting.longest)
    alone = see(LAYOUT, sighting, answer(*[half(4)] * 3, clients=[0, 1, 2]), hear(4), done=1)
    assert alone.layers is None and alone.rounds == 0  # three show nothing about each other


def test_what_clients_showed_is_forgotten_with_their_data() -> None:
    sighting = forget(sighting_of(6), torch.tensor([False, True, False, False, False, False]))
    assert sighting.sizes.tolist() == [200, 0, 200, 200, 200, 200]
    assert sighting.layers is not None and sighting.layers.clients.tolist() == [0, 2, 3, 4, 5]
    assert sighting.bias is not None and sighting.bias.clients.tolist() == [0, 2, 3, 4, 5]
    nothing = unseen(LAYOUT, 0)
    assert forget(nothing, torch.zeros(3, dtype=torch.bool)) is nothing


def test_nobody_trains_on_folds_before_sample_counts_are_known() -> None:
    problem = toy_problem(20, LAYOUT)
    blank = unseen(LAYOUT, 20)
    assert watching(problem, initial_state(problem), blank, LEVEL) == ()
    known = see(LAYOUT, blank, answer(half(20)), [], done=1)
    (found,) = watching(problem, initial_state(problem), known, LEVEL)
    assert found.clients.tolist() == list(range(20)) and found.folds == 2


def test_groups_in_one_layer_are_found_there() -> None:
    found = conclude(LAYOUT, sighting_of(20, 2, conv=signal(20, 4, 7)), seeded())
    assert found.layer == "conv" and found.of("conv").correlation > 0.8 and found.of("conv").p == found.p == 0.001
    assert found.of("fc").p > 0.1 and found.stands == 1.0 and found.kind == "other"
    assert (found.clients, found.rounds) == (20, 2)
    assert found.sentence.startswith("conv separates the clients most clearly: ")
    assert "100% of repeats" in found.sentence and "other than of class frequencies" in found.sentence


def test_a_bias_that_replicates_suggests_label_skew_but_is_never_chosen() -> None:
    found = conclude(LAYOUT, sighting_of(20, conv=signal(20, 1, 3), bias=2 * signal(20, 4, 7)), seeded())
    assert found.layer == "fc" and found.kind == "labels"
    assert found.of("fc.bias").correlation > found.of("fc").correlation
    assert "fc.bias, which sees little but how often each class occurs, replicates at 0.9" in found.sentence
    assert "label skew" in found.sentence


def test_of_layers_that_replicate_alike_the_one_where_updates_have_least_in_common_is_chosen() -> None:
    shared = 10 * signal(20, 1, 3)
    both = conclude(LAYOUT, sighting_of(20, conv=9 * signal(20, 2, 7) + shared, weight=9 * signal(20, 2, 8)), seeded())
    assert both.of("conv").correlation > 0.98 and both.of("fc").correlation > 0.98
    assert both.of("fc").common < both.of("conv").common and both.layer == "fc"


def test_noise_alone_is_no_separation() -> None:
    found = [conclude(LAYOUT, sighting_of(12), seeded(seed)) for seed in range(3)]
    assert all(each.layer is None and each.kind is None for each in found)
    assert found[0].sentence.startswith("no separation: ")
    assert found[0].sentence.endswith("; skew too weak to be seen with 12 clients in 1 round may still be there")


def test_clients_alike_in_all_but_noise_levels_are_no_separation() -> None:
    levels, shared = torch.linspace(1.0, 3.0, 16)[:, None], 3 * signal(16, 1, 3)
    common = half(1, conv=shared[:1], weight=shared[:1], seed=0)
    a, b = (levels * half(16, seed=seed) + common for seed in (1, 2))
    sighting = see(LAYOUT, unseen(LAYOUT, 16), answer(a + b, a, b), hear(16), done=1)
    assert conclude(LAYOUT, sighting, seeded()).layer is None


def test_four_folds_tell_few_clients_apart() -> None:
    found = conclude(LAYOUT, sighting_of(6, folds=4, conv=signal(6, 2, 7)), seeded())
    assert found.layer == "conv" and found.clients == 6 and found.of("conv").correlation > 0.8


def test_a_bias_alone_names_no_layer_but_is_told() -> None:
    layers = View("conv", 0.1, 0.01, 0.3, 0.4), View("fc", 0.2, 0.01, 0.3, 0.1), View("fc.bias", 0.3, 0.1, 0.3, 0.001)
    found = Finding(None, layers, "fc.bias", 20, 3, LEVEL, p=0.2)
    assert (
        "at best in fc, correlation 0.20; p = 0.2 for the best of all layers, where 0.02 would count" in found.sentence
    )
    assert found.sentence.endswith("and fc.bias alone does replicate: classes may occur unequally often")


def test_too_few_clients_are_not_judged() -> None:
    nothing = conclude(LAYOUT, unseen(LAYOUT, 4), seeded())
    assert nothing.layer is None and nothing.views == () and nothing.rounds == 0
    assert nothing.sentence.endswith("by: 0 clients have the 48 samples that two folds need, too few for a test")
    found = conclude(LAYOUT, sighting_of(8, conv=signal(8, 2, 7)), seeded())
    assert (found.layer, found.views, found.clients, found.rounds) == (None, (), 8, 1)
    assert found.sentence == "nothing to tell by: 8 members reach p = 0.029 at best, above the level 0.02"


def test_a_last_layer_without_a_bias_says_nothing_about_the_kind_of_skew() -> None:
    view = View("conv", 0.5, 0.1, 0.3, 0.001)
    found = Finding("conv", (view,), None, 20, 3, LEVEL, p=0.001, stands=0.95)
    assert found.kind is None
    assert found.sentence.endswith(
        "95% of repeats without some of the clients choose it too; what kind of skew it is was not measured, as the "
        "last layer has no bias"
    )
    slots = Layout(LAYOUT.tensors[:3])
    a, b = (half(20, seed=seed, conv=signal(20, 4, 7))[:, : slots.p] for seed in (1, 2))
    sighting = see(slots, unseen(slots, 20), answer(a + b, a, b), hear(20), done=1)
    again = conclude(slots, sighting, seeded())
    assert (
        sighting.bias is None and again.layer == "conv" and [view.name for view in again.views] == ["conv", "fc", "all"]
    )


def test_looks_come_ever_more_rarely_and_spend_the_level_together() -> None:
    assert [round for round in range(1, 30) if twinned(round)] == [1, 2, 3, 4, 5, 6, 10, 11, 12, 22, 23, 24]
    levels = {round: level_of(round) for round in range(1, 200) if due(round)}
    assert list(levels) == [3, 6, 12, 24, 48, 96, 192]
    assert levels[3] == pytest.approx(LEVEL / 2) and levels[6] == pytest.approx(LEVEL / 6)
    assert sum(levels.values()) == pytest.approx(LEVEL * 7 / 8)


def test_what_is_seen_is_the_same_whatever_the_order_of_the_rows() -> None:
    report = answer(half(12, seed=3), half(12, seed=1), half(12, seed=2))
    order = torch.randperm(12, generator=seeded())
    mixed = Report(tuple(result.only(order) for result in report.results))
    once, again = (see(LAYOUT, unseen(LAYOUT, 12), each, hear(12), done=1) for each in (report, mixed))
    assert once.layers is not None and again.layers is not None
    assert torch.equal(once.layers.alike, again.layers.alike) and torch.equal(once.common, again.common)


def digits(scheme: str, **keys: Any) -> dict[str, Any]:
    return {
        "data": {"name": "digits", "clients": 16, "samples": 70},
        "partition": {"scheme": scheme, **keys},
        "local": {"lr": 0.1, "batch": 10},
        "algorithm": {"name": "oracle"},
    }


@pytest.mark.parametrize(
    ("scheme", "keys", "layer", "kind"),
    [
        ("rotation", {"groups": 4}, "linear1", "other"),
        ("label_groups", {"labels": [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]}, "linear2", "labels"),
        ("iid", {}, None, None),
    ],
)
def test_the_digits_are_told_apart(scheme: str, keys: dict[str, Any], layer: str | None, kind: str | None) -> None:
    lines: list[str] = []
    found = scout(load(digits(scheme, **keys)), 3, lines.append)
    assert (found.layer, found.kind) == (layer, kind) and found.clients == 16 and found.rounds == 2
    assert lines == ["round 1/3", "round 2/3", "round 3/3"]


def test_who_takes_part_is_as_in_the_experiment() -> None:
    experiment = load(digits("rotation", groups=4) | {"cohort": {"fraction": 0.75, "dropout": 0.25}})
    found = scout(experiment, 3)
    assert found.clients < 12 and found.rounds <= 2


def status(*args: str) -> object:
    with pytest.raises(SystemExit) as caught:
        cli.main(args)
    return caught.value.code or 0


def test_the_command_prints_a_table_and_a_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[data]\nclients = 12\nsamples = 70\n[local]\nlr = 0.1\n[partition]\nscheme = 'iid'\n")
    assert status("scout", str(file), "--rounds", "2") == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == ["layer", "linear1", "linear2", "all", "linear2.bias"]
    assert lines[0].split() == ["layer", "correlation", "apart", "common", "p"]
    assert lines[-1].startswith("no separation: ") and err == "round 1/2\nround 2/2\n"
    assert status("scout", str(file), "--set", "data.clients=4", "--quiet") == 0
    told = "nothing to tell by: 4 clients have the 48 samples that two folds need, too few for a test\n"
    assert capsys.readouterr() == (told, "")


def test_a_wrong_experiment_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert status("scout", "nowhere.toml") == 2
    assert status("scout", "--set", "data.clients=0") == 2
    assert status("scout", "--rounds", "1") == 2
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_a_wrong_experiment_is_found_before_torch_is_imported() -> None:
    code = """
import sys
from fedstrata import cli
try:
    cli.main(["scout", "--set", "local.lr=-1"])
except SystemExit as stop:
    assert stop.code == 2 and "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_plan_of_the_scout_is_fedavgs() -> None:
    """The trunk is FedAvg's: twins change no model."""
    problem = toy_problem(3, LAYOUT)
    plan = fedavg_plan(problem, initial_state(problem), torch.arange(3))
    assert isinstance(plan, Plan) and twins(plan, LAYOUT.everything).tasks[0] == plan.tasks[0]


def test_the_embedded_federation_is_large_enough_to_be_scouted() -> None:
    assert scout(load()).layer is not None
