"""The thresholds that were tried: every committed trial is one that the command makes."""

from __future__ import annotations

import json
import tomllib

import pytest
from experiments.papers.tuning import EXPERIMENTS, SEED, TRIED, variants


@pytest.mark.parametrize("federation", TRIED)
def test_the_committed_trials_are_those_of_the_command(federation: str) -> None:
    trials = json.loads((EXPERIMENTS / "results" / f"tuning_{federation}.json").read_text())
    assert {trial["seed"] for trial in trials} == {SEED}
    assert {trial["variant"] for trial in trials} == set(variants(federation))


@pytest.mark.parametrize("federation", TRIED)
def test_the_comparison_has_a_pair_that_was_tried(federation: str) -> None:
    keys = tomllib.loads((EXPERIMENTS / "strata" / f"compare_{federation}.toml").read_text())["algorithms"]
    for algorithm, pairs in TRIED[federation].items():
        assert (keys[algorithm]["eps1"], keys[algorithm]["eps2"]) in pairs
