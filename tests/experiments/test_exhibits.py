import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from experiments.papers import running
from experiments.papers.catalogue import EXHIBITS, PAPERS, chosen
from experiments.papers.command import main
from experiments.papers.exhibit import (
    CANNOT_BE_RUN,
    DOES_NOT_HOLD,
    HOLDS,
    IN_PART,
    NOT_COMPARABLE,
    Exhibit,
    Measured,
    Setting,
    judged,
)
from experiments.papers.layercfl import first_separation
from experiments.papers.measures import (
    contrast,
    dip,
    final,
    first_round,
    mean_of_rounds,
    mean_over_layers,
    normalised_contrast,
    overlap,
    round_of_final_accuracy,
    round_of_groups,
    round_of_purity,
    round_of_settling,
    round_of_stability,
    rounds_to_recover,
    smooth,
    within_and_across,
)
from experiments.papers.page import PAGE, page_text
from experiments.papers.rivals import other
from experiments.papers.run_folder import RunFolder

from fedstrata.config import load_experiment

THREE_SEEDS = Measured.of({0: {"a": 1.0, "b": 2.0}, 1: {"a": 3.0, "b": 2.0}, 2: {"a": 2.0, "b": 5.0}})
"""Means 2 and 3; a is below b with seeds 0 and 2."""


def folder(path: Path, rounds: list[dict[str, Any]], summary: Mapping[str, Any] | None = None) -> RunFolder:
    """A run folder with some records."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "rounds.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rounds))
    (path / "summary.json").write_text(json.dumps({"clusters": 1, **(summary or {})}))
    return RunFolder(path)


def test_all_exhibits_of_the_papers_are_there() -> None:
    # 47 figures and tables; Figure 1 of AdaCFL has two panels, and a headline number of LayerCFL is in none of them.
    assert len(EXHIBITS) == 49
    letters = {"layercfl": "L", "adacfl": "A", "hicfl": "H", "fedtsdp": "T"}
    assert set(letters) == set(PAPERS)
    assert all(name.startswith(letters[exhibit.paper]) for name, exhibit in EXHIBITS.items())


@pytest.mark.parametrize("exhibit", EXHIBITS.values(), ids=lambda each: each.id)
def test_an_exhibit_is_either_measured_and_judged_or_says_what_it_waits_for(exhibit: Exhibit) -> None:
    can_be_run = exhibit.measure is not None
    assert can_be_run == (exhibit.conditions is not None) == bool(exhibit.settings) == (not exhibit.waits)


@pytest.mark.parametrize("exhibit", chosen(["all"], None), ids=lambda each: each.id)
def test_the_settings_of_an_exhibit_are_valid_experiments(exhibit: Exhibit) -> None:
    for setting in exhibit.settings.values():
        experiment = load_experiment(setting.path, setting.sets, find_data=False)
        experiment.algorithm_of()
        experiment.scheme.check(clients=experiment.data.clients, classes=10)


def test_a_setting_has_another_folder_as_soon_as_something_differs() -> None:
    setting = Setting("weights")
    names = {setting.name, setting.but("rounds=2").name, setting.but("rounds=3").name, Setting("adacfl").name}
    assert len(names) == 4
    assert setting.but("rounds=2").name == Setting("weights", ("rounds=2",)).name


def test_another_algorithm_starts_from_its_own_keys_but_keeps_the_rest() -> None:
    changed = other(Setting("weights", ("rounds=2", "algorithm.epsilon=0.1")), "cfl", "gamma=0.5")
    assert changed.sets == ("rounds=2", "algorithm.name=cfl", "algorithm.gamma=0.5")


def test_mean_and_spread_over_seeds() -> None:
    assert (THREE_SEEDS.mean("a"), THREE_SEEDS.spread("a")) == (2.0, 1.0)
    assert THREE_SEEDS.spread("b") == pytest.approx(3**0.5)  # (1 + 1 + 4) / 2
    assert Measured.of({0: {"a": 1.0}}).spread("a") is None


def test_a_lead_inside_the_noise_is_not_resolved() -> None:
    assert THREE_SEEDS.resolved("a")  # 2.0 against 1 / sqrt(3)
    assert not Measured.of({0: {"a": 6.0}, 1: {"a": -4.0}, 2: {"a": 1.0}}).resolved("a")  # 1.0 against 5 / sqrt(3)
    assert not Measured.of({0: {"a": 6.0}}).resolved("a")


def test_a_seed_without_a_number_leaves_no_mean_and_holds_nothing() -> None:
    found = Measured.of({0: {"a": 1.0, "b": 2.0}, 1: {"a": None, "b": 2.0}})
    assert found.mean("a") is None
    assert not found.less("a", "b") and not found.below("a", 9) and not found.above("a", 0)
    assert not found.below("nowhere", 1)


def test_a_comparison_holds_in_the_mean_and_for_two_of_three_seeds() -> None:
    assert THREE_SEEDS.less("a", "b")  # 2 < 3, and with seeds 0 and 2
    assert not THREE_SEEDS.less("b", "a", by=-1.0)  # 3 < 2 + 1 is false
    assert THREE_SEEDS.less("b", "a", by=-1.5)  # 3 < 3.5, 2 < 2.5 and 2 < 4.5, but not 5 < 3.5
    assert not THREE_SEEDS.less("a", "b", by=1.0)  # 2 < 3 - 1 is false
    assert THREE_SEEDS.below("a", 2.5) and not THREE_SEEDS.above("b", 2.0)  # 3 > 2, but with seed 2 alone


def test_a_round_that_never_comes_is_after_all_others() -> None:
    found = Measured.of({0: {"a": 9.0, "b": None}, 1: {"a": 3.0, "b": 4.0}, 2: {"a": None, "b": 1.0}})
    assert found.earlier("a", "b") and not found.earlier("b", "a") and not found.earlier("nowhere", "b")


def test_a_verdict_follows_from_the_parts_of_the_claim() -> None:
    assert judged({"x": True, "y": True}).kind == HOLDS
    assert judged({"x": True, "y": False}).kind == IN_PART
    assert judged({"x": False, "y": False}).kind == DOES_NOT_HOLD
    assert judged({"x": True}, obstacle="Nothing was split.").kind == NOT_COMPARABLE
    assert judged({"x": True, "y": False}).why == "Not so here: y."


def test_an_exhibit_that_cannot_be_run_says_so_and_why() -> None:
    nothing = Measured((), {})
    assert EXHIBITS["H-F15"].verdict(nothing).kind == CANNOT_BE_RUN
    assert EXHIBITS["T-T6"].verdict(nothing).kind == CANNOT_BE_RUN and "SVHN" in EXHIBITS["T-T6"].verdict(nothing).why


def test_a_method_that_never_finds_the_groups_is_the_slower_one() -> None:
    exhibit = EXHIBITS["H-T5"]
    runs = ["N2 MTCFL", "N2 with stability"]
    found = {f"{run} {what}": 9.0 for run in runs for what in ("rounds", "accuracy", "clusters")}
    found |= {f"{run} rounds": 5.0 for run in runs if "stability" in run}
    verdicts = [
        exhibit.verdict(Measured.of({0: {**found, **never}}))
        for never in ({}, {"N2 MTCFL rounds": None}, {"N2 with stability rounds": None})
    ]
    sooner = "N2: with stability it finds the groups in fewer rounds"
    assert [(each.kind, each.conditions[sooner]) for each in verdicts] == [
        (HOLDS, True),
        (IN_PART, True),
        (IN_PART, False),
    ]


def test_the_round_of_the_final_accuracy_is_the_first_that_is_half_a_point_away() -> None:
    assert round_of_final_accuracy([0.1, 0.796, 0.7, 0.8]) == 2
    assert round_of_final_accuracy([0.1, 0.794, 0.7, 0.8]) == 4
    assert final([0.1, None]) is None


def test_the_round_of_the_groups_is_the_first_whose_clusters_are_the_groups(tmp_path: Path) -> None:
    assert round_of_groups(folder(tmp_path / "a", [{"ari": each} for each in (0.0, 0.4, 1.0, 0.7)])) == 3
    assert round_of_groups(folder(tmp_path / "b", [{"ari": each} for each in (None, 0.99)])) is None
    assert round_of_purity(folder(tmp_path / "c", [{"purity": each} for each in (0.5, 1.0)])) == 2


def test_a_layer_is_stable_from_the_first_round_below_epsilon(tmp_path: Path) -> None:
    curves = {"conv": [0.9, 0.4, 0.2], "linear": [0.5, 0.05, 0.3]}
    metric = {"name": "max_stability", "node": None}
    rounds = [
        {"metrics": [{**metric, "value": curve[n], "layer": layer} for layer, curve in curves.items()]}
        for n in range(3)
    ]
    run = folder(tmp_path, rounds)
    assert run.layers("max_stability") == ["conv", "linear"]
    assert run.metric("max_stability", "linear") == [0.5, 0.05, 0.3]
    assert round_of_stability(run, 0.3) == 2 and round_of_stability(run, 0.01) is None
    assert mean_over_layers(run, "max_stability") == pytest.approx([0.7, 0.225, 0.25])


def test_a_curve_settles_when_it_stays_within_a_tenth_of_its_range() -> None:
    assert smooth([1.0, 2.0, 6.0], width=2) == [1.0, 1.5, 4.0]
    # Means of up to five values: 2, 1.5, 1.33, 1.25, 1.2, 1, 1. A tenth of the range is 0.1.
    assert round_of_settling([2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]) == 6
    assert round_of_settling([None, None, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]) == 8
    assert round_of_settling([3.0, 3.0]) == 1


def test_first_round_skips_rounds_without_a_value() -> None:
    assert first_round([None, 0.5, 0.1], lambda value: value < 0.3) == 3
    assert first_round([None], lambda value: True) is None


def test_a_dip_is_measured_against_the_round_before_the_event() -> None:
    curve = [0.90, 0.80, 0.86, 0.896]
    assert dip([*curve], at=2) == pytest.approx(10)
    assert rounds_to_recover([*curve], at=2) == 2  # 0.896 is within half a point of 0.90
    assert rounds_to_recover([0.9, 0.8], at=2) is None


def test_the_contrast_is_the_mean_within_groups_less_the_mean_across() -> None:
    matrix = np.array([[1.0, 0.8, 0.1], [0.8, 1.0, 0.3], [0.1, 0.3, 1.0]])
    assert within_and_across(matrix, [0, 0, 1]) == pytest.approx((0.8, 0.2))  # (0.1 + 0.3) / 2
    assert contrast(matrix, [0, 0, 1]) == pytest.approx(0.6)


def test_the_normalised_contrast_does_not_depend_on_the_unit() -> None:
    similarity = np.array([[1, 0.8, 0.2], [0.8, 1, 0.2], [0.2, 0.2, 1]])
    spread = np.std([0.8, 0.2, 0.2])
    assert normalised_contrast(similarity, [0, 0, 1]) == pytest.approx(0.6 / spread)
    assert normalised_contrast(1000 * similarity, [0, 0, 1]) == pytest.approx(0.6 / spread)
    assert normalised_contrast(np.ones((3, 3)), [0, 0, 1]) == 0


def test_the_overlap_of_unstable_weights_is_the_mean_jaccard_index_of_the_clients() -> None:
    # The first client has one place of three in common, the second both.
    assert overlap(np.array([[0, 2], [1, 3]]), np.array([[2, 5], [1, 3]])) == pytest.approx((1 / 3 + 1) / 2)
    assert mean_of_rounds([None, 1.0, 3.0, 9.0], 1, 4) == 2.0 and mean_of_rounds([None, 1.0], 1, 2) is None


def test_the_round_of_a_gap_that_never_comes_is_the_one_after_the_last() -> None:
    assert first_separation([-0.2, -0.1, 0.3, -0.1]) == 3
    assert first_separation([-0.2, None]) == 3


def test_gaps_and_matrices_are_read_from_the_files_of_a_run(tmp_path: Path) -> None:
    run = folder(tmp_path, [{}])
    for name in ("gaps", "matrices"):
        (tmp_path / name).mkdir()
    gaps = [{"layer": "conv1", "measure": "dcos", "gap": 0.25}, {"layer": "conv1", "measure": "l2", "gap": 7.0}]
    pq.write_table(pa.Table.from_pylist(gaps), tmp_path / "gaps" / "00001.parquet")
    matrix = np.array([[0.0, 5.0], [6.0, 0.0]])
    arrays = {"0|js|predictions": matrix, "0|js|predictions|clients": np.array([4, 2])}
    np.savez(tmp_path / "matrices" / "00001.npz", allow_pickle=False, **arrays)
    assert run.gap(1, "conv1") == 0.25
    assert run.matrix(1, "js", "predictions").tolist() == [[0.0, 6.0], [5.0, 0.0]]  # client 2 first


def with_gaps(path: Path, gaps: Mapping[tuple[str, str], list[float]]) -> RunFolder:
    """A run folder with Gaps, one a round of each layer and measure."""
    (path / "gaps").mkdir(parents=True)
    length = len(next(iter(gaps.values())))
    for n in range(length):
        rows = [{"layer": layer, "measure": name, "gap": curve[n]} for (layer, name), curve in gaps.items()]
        pq.write_table(pa.Table.from_pylist(rows), path / "gaps" / f"{n + 1:05}.parquet")
    return folder(path, [{"round": n + 1, "loss": 1.0} for n in range(length)])


def test_the_gaps_of_layers_are_those_of_the_updates_in_figures_5_and_8(tmp_path: Path) -> None:
    """By the updates of the last round, convolutions have -0.2, -0.1 to 1.0, and linear layers -0.1, 0.1 and 0.3.

    By the weights it is the other way round: 0, which does not separate, and 0.9.
    """
    gaps = {(f"conv{n}", "dcos"): [0.0] * 4 + [0.1, (n - 3) / 10] for n in range(1, 14)}
    gaps |= {(f"linear{n}", "dcos"): [0.0] * 4 + [-0.1, 0.2 * n - 0.3] for n in range(1, 4)}
    gaps |= {(layer, "cos"): [0.9 * layer.startswith("linear")] * 6 for layer, _ in list(gaps)}
    figures = [EXHIBITS["L-F5"], EXHIBITS["L-F8"]]
    found = [each.measure({"one": with_gaps(tmp_path / each.id, gaps)}) for each in figures if each.measure]
    expected = {
        "dcos: median Gap of convolutions": 0.4,
        "dcos: median Gap of linear layers": 0.1,
        "dcos: convolutions that separate, %": 100 * 10 / 13,
        "dcos: linear layers that separate, %": 100 * 2 / 3,
        "dcos, round 5: linear layers that separate, %": 0.0,
        "cos: convolutions that separate, %": 0.0,
    }
    assert [{name: each[name] for name in expected} for each in found] == [pytest.approx(expected)] * 2
    verdicts = [each.verdict(Measured.of({0: found[0]})) for each in figures]
    assert [list(each.conditions.values()) for each in verdicts] == [[True, True], [False, True]]


def test_blue_is_the_cosine_of_all_layers_in_figure_11(tmp_path: Path) -> None:
    """Of four rounds, dcos has a Gap above 0 in three, cosP in two, as 0 is not above, and dcosP in one."""
    curves = {("all", "dcos"): [0.1, 0.2, -0.1, 0.1], ("linear1", "cos"): [0.0, 0.1, 0.1, -0.2]}
    curves |= {("linear1", "dcos"): [-0.1, -0.1, -0.1, 0.5], ("all", "cos"): [0.1] * 4}
    figure = EXHIBITS["L-F11"]
    assert figure.measure and figure.conditions
    found = figure.measure({name: with_gaps(tmp_path / name, curves) for name in figure.settings})
    assert found == {
        f"{name} {each}": rounds
        for name in figure.settings
        for each, rounds in (("dcos", 3.0), ("cosP", 2.0), ("dcosP", 1.0))
    }
    assert list(figure.conditions(Measured.of({0: found})).values()) == [True, True, True]
    orange = {name: 4.0 if name.endswith("cosP") and "dcosP" not in name else value for name, value in found.items()}
    assert list(figure.conditions(Measured.of({0: orange})).values()) == [False, True, True]


def exhibit(settings: Mapping[str, Setting]) -> Exhibit:
    """An exhibit that measures how many rounds there were."""
    return Exhibit(
        id="X-T1",
        paper="hicfl",
        claim="There is one round.",
        settings=settings,
        measure=lambda runs: {name: float(len(run.rounds)) for name, run in runs.items()},
        conditions=lambda found: {"one round": found.mean("a") == 1},
    )


def test_the_command_says_why_an_exhibit_cannot_be_run_and_refuses_unknown_ones(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["H-F15", "--seeds", "0", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().err.startswith("H-F15: The recordings are not public.")
    for wrong in (["H-F99"], []):
        with pytest.raises(SystemExit):
            main(wrong)
    assert main(["--list", "--paper", "adacfl"]) == 0
    assert "A-T4" in capsys.readouterr().out and not list(tmp_path.iterdir())


def test_results_of_seeds_are_gathered_until_the_settings_change(tmp_path: Path) -> None:
    first, second = exhibit({"a": Setting("weights")}), exhibit({"a": Setting("weights", ("rounds=2",))})
    for which, seed in ((first, 2), (first, 0)):
        running.keep(which, seed, {"measured": {"a": 1.0}, "hours": 0.0}, tmp_path)
    kept = json.loads((tmp_path / "X-T1.json").read_text())
    assert list(kept["seeds"]) == ["0", "2"] and kept["verdict"]["kind"] == HOLDS
    assert kept["command"] == "python -m experiments.papers.reproduce X-T1 --seeds 0,2"
    assert running.keep(second, 1, {"measured": {"a": 2.0}, "hours": 0.0}, tmp_path).kind == DOES_NOT_HOLD
    assert list(json.loads((tmp_path / "X-T1.json").read_text())["seeds"]) == ["1"]


def test_an_exhibit_is_run_once_and_its_finished_run_is_kept(tmp_path: Path) -> None:
    digits = ("data.name=digits", "data.samples=10", "model.name=mlp", "model.hidden=[4]")
    which = exhibit({"a": Setting("weights", digits)})
    out, results = tmp_path / "runs", tmp_path / "results"
    assert not running.finished(which, 3, out)
    assert running.reproduce(which, 3, out, results).kind == HOLDS
    made = running.folder_of(which.settings["a"], 3, out) / "summary.json"
    before = made.stat().st_mtime_ns
    assert running.finished(which, 3, out)
    assert running.reproduce(which, 3, out, results).kind == HOLDS and made.stat().st_mtime_ns == before
    kept = json.loads((results / "X-T1.json").read_text())["seeds"]["3"]
    assert kept["measured"] == {"a": 1.0} and "torch" in kept["versions"] and kept["hours"] > 0
    assert RunFolder(made.parent).weights() == {"linear1": 256, "linear2": 40}


def test_the_page_has_a_section_for_every_exhibit_and_the_papers_figure_beside_ours(tmp_path: Path) -> None:
    for seed, count in ((0, 33500.0), (1, 33500.0)):
        result = {"measured": {"MNIST-CNN": count}, "hours": 0.5, "machine": "2 cores", "source": "0abc123"}
        running.keep(EXHIBITS["H-T1"], seed, result, tmp_path)
    page = page_text(tmp_path)
    sections = dict(part.split(": ", 1) for part in page.split("\n### ")[1:])
    assert list(sections) == list(EXHIBITS)
    assert all(f"\n| [{name}](#{name.lower()}-" in page for name in EXHIBITS)
    shown = sections["H-T1"]
    assert (
        "| MNIST-CNN | 33500 | 33500 ± 0 |" in shown and "**Verdict: holds in part.**" in shown and " | no |" in shown
    )
    assert "1.0 hours (2 cores)" in shown


def test_the_page_and_the_verdicts_are_those_of_the_committed_results() -> None:
    for path in running.RESULTS.glob("*.json"):
        kept = json.loads(path.read_text())
        verdict = EXHIBITS[path.stem].verdict(running.measured(kept["seeds"]))
        assert kept["verdict"] == {"kind": verdict.kind, "why": verdict.why, "conditions": dict(verdict.conditions)}, (
            path.stem
        )
    assert PAGE.read_text() == page_text(running.RESULTS), "run python -m experiments.papers.reproduce --page"
