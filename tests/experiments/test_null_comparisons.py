import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from experiments.tools.outcomes import MISSING
from experiments.trust import null_comparisons
from experiments.trust.null_comparisons import ANOTHER, STUDIES, GivenGroups, judged

from fedstrata import core
from fedstrata.build.build import build_run
from fedstrata.config import load_experiment
from fedstrata.data.memory import Clients


def few_patients(number: int) -> Clients:
    rng = np.random.default_rng(number)
    return {name: (rng.normal(size=(60, 3)).astype(np.float32), np.arange(60) % 2) for name in "ab"}


@pytest.mark.parametrize("name", STUDIES)
def test_a_comparison_has_a_score_of_each_method_and_seed_and_repeats(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = replace(STUDIES[name], seeds=2, keys={**STUDIES[name].keys, "rounds": 1})
    if name == "natural":
        study = replace(study, clients=few_patients)
    monkeypatch.setattr(null_comparisons, "STUDIES", {name: study})
    found = null_comparisons.compared(name, 3)
    assert found["seed"] == 3 and 0 < found["overlap"] < 1
    assert set(found["scores"]) == set(study.methods(3))
    assert all(len(scores) == 2 and 0 < min(scores) <= max(scores) <= 1 for scores in found["scores"].values())
    assert found["scores"]["one"] != found["scores"]["other"]
    assert null_comparisons.compared(name, 3) == found


def test_both_groupings_have_three_clients_a_group_and_are_not_the_same() -> None:
    for number in range(20):
        methods = null_comparisons.grouped(number).values()
        groups, others, worse = ([*each.groups] for each in methods if isinstance(each, GivenGroups))
        assert others == worse and sum(groups) == sum(others) == 3
        assert others != groups and others != [1 - group for group in groups]


def test_another_start_changes_the_first_model_and_the_batches_and_few_rows_are_a_limit() -> None:
    keys = {"data": {"clients": 3, "samples": 20}, "algorithm": {"name": "fedavg"}, "engine": {"name": "loop"}}
    problem = build_run(load_experiment(keys)).server.problem
    one, other = GivenGroups((0, 1, 0)), GivenGroups((0, 1, 0), rows=5, start=ANOTHER)
    first, second = (each.init(problem) for each in (one, other))
    assert first.labels.tolist() == second.labels.tolist() == [0, 1, 0]
    assert torch.equal(first.models[0], problem.fresh(0)) and not torch.equal(first.models, second.models)
    plans = [each.plan(problem, first, torch.arange(3)) for each in (one, other)]
    assert [plan.seed for plan in plans] == [problem.seed, problem.seed + ANOTHER]
    limits = [plan.tasks[core.TRAIN].max_samples for plan in plans]
    assert limits[0] is None and limits[1] is not None and limits[1].tolist() == [5, 5, 5]


def test_overlap_is_the_mean_over_pairs_of_seeds() -> None:
    # Of two rows each: one shared, none shared, one shared.
    assert null_comparisons.overlap([{1, 2}, {2, 3}, {3, 4}]) == pytest.approx((0.5 + 0 + 0.5) / 3)


def test_a_difference_far_from_0_is_judged_to_be_one_in_both_directions_and_noise_is_not() -> None:
    assert judged([0.10, 0.11, 0.12], overlap=0.0) and judged([-0.10, -0.11, -0.12], overlap=0.0)
    assert not judged([0.10, -0.11, 0.02], overlap=0.0)


def test_the_table_is_made_of_the_kept_scores(tmp_path: Path) -> None:
    zeros = [0.5] * 5
    scores = [[0.60, 0.61, 0.62, 0.61, 0.60], [0.40, 0.39, 0.38, 0.39, 0.40], [0.6, 0.4, 0.5, 0.4, 0.6]]
    runs = [
        {"seed": number, "overlap": 0.1, "scores": {"one": one, "other": zeros, "worse": zeros}}
        for number, one in enumerate(scores)
    ]
    path = tmp_path / "null_comparisons.json"
    path.write_text(json.dumps({"another_start": {"runs": runs}}))
    lines = null_comparisons.null_comparisons(path).splitlines()
    (row,) = (line for line in lines if "equally good, other rows" in line)
    # Mean differences of 0.108, -0.108 and 0: the sentence appears once in each direction.
    cells = ["5", "0.10", "3", "0.667 (0.208 to 0.939)", "1", "1", "+0.0000"]
    assert [cell.strip() for cell in row.strip("|").split("|")][1:] == cells
    assert sum(MISSING in line for line in lines) == 5
