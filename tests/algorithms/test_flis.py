import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from baseline_federation import experiment, federation, metrics_of, train

from builders import layout_with
from fedstrata.algorithms.flis import FLIS, disagreement, resolution
from fedstrata.base.errors import ContractError
from fedstrata.build.build import build_run
from fedstrata.build.run_setup import RunSetup
from fedstrata.clustering import silhouette_cut
from fedstrata.config import load_experiment
from fedstrata.core import Problem, Report
from fedstrata.testing import Scripted, play, toy_problem

LINE = layout_with({"fc.weight": 1})


def problem(clients: int = 4) -> Problem:
    """A model is one number; a public sample is of class 1 if it lies below that number."""

    def predict(models: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        above = (models > inputs).float()
        return torch.stack([1 - above, above], dim=2)

    return replace(toy_problem(clients, LINE), public=torch.tensor([0.5, 1.5, 2.5, 3.5]), predict=predict)


def public(**keys: Any) -> RunSetup:
    """The small real federation, with public samples on the server."""
    wanted = experiment("flis", {"epochs": 5}, **keys)
    wanted["data"]["public"] = 60
    return build_run(load_experiment(wanted))


FOUR = torch.tensor([[1.0], [1.2], [4.0], [4.5]])
"""Models that see 1, 1, 4 and 4 of the public samples below them."""


def test_the_similarity_is_the_share_of_samples_on_which_two_models_agree() -> None:
    classes = torch.tensor([[0.0, 0, 1, 1], [0, 0, 1, 0], [1, 1, 0, 0], [0, 0, 1, 1]])
    one_hot = torch.nn.functional.one_hot(classes.long()).flatten(1).double()
    norms = one_hot.norm(dim=1)
    assert torch.allclose(disagreement(classes).deg2rad().cos(), one_hot @ one_hot.T / norms / norms[:, None])
    assert disagreement(classes)[0].tolist() == pytest.approx([0, math.degrees(math.acos(0.75)), 90, 0])


def test_first_models_are_grouped_by_their_predictions_and_averaged_in_their_groups() -> None:
    state, diagnostics = play(FLIS(cut=30.0), problem(), [FOUR])
    assert state.labels.tolist() == [0, 0, 1, 1]
    assert state.models[:, 0].tolist() == pytest.approx([1.1, 4.25])
    matrix = diagnostics[0].matrices[0]
    assert (matrix.layer, matrix.measure) == ("predictions", "angle")
    assert matrix.values[0, 2] == pytest.approx(math.degrees(math.acos(0.25)))  # they agree on 0.5 alone
    state, _ = play(FLIS(cut=30.0), problem(), [FOUR, -FOUR])
    assert state.models[:, 0].tolist() == pytest.approx([0, 0], abs=1e-6)


def test_a_latecomer_joins_those_who_predict_alike() -> None:
    state, _ = play(FLIS(cut=30.0), problem(), [FOUR], cohorts=[[0, 1, 2]])
    assert state.labels.tolist() == [0, 0, 1, -1] and state.models[1, 0] == 4.0
    # Client 3 trains the common start, not the cluster's model: 0 + 4.5 is like client 2's first model.
    state, diagnostics = play(FLIS(cut=30.0), problem(), [FOUR, FOUR], cohorts=[[0, 1, 2], [3]])
    assert state.labels.tolist() == [0, 0, 1, 1]
    assert state.models[1, 0] == 4.0 and metrics_of(diagnostics[1])["left_out"] == 0


def test_first_models_are_gathered_until_enough_are_there_and_old_ones_move_nothing() -> None:
    algorithm = FLIS(cut=30.0, quorum=1.0)
    state, diagnostics = play(algorithm, problem(), [FOUR, FOUR], cohorts=[[0, 2], [1, 3]])
    assert state.labels.tolist() == [0, 0, 1, 1] and diagnostics[0].events == ()
    assert state.models[:, 0].tolist() == pytest.approx([1.2, 4.5])  # clients 1 and 3 alone are fresh


def test_a_finished_run_places_clients_by_their_first_models() -> None:
    algorithm, given = FLIS(cut=30.0), problem()
    state, _ = play(algorithm, given, [FOUR], cohorts=[[0, 1, 2]])
    plan = algorithm.plan(given, state, torch.tensor([3]))
    report = Scripted([FOUR]).run(plan)
    assert algorithm.assign(given, state, report).tolist() == [0, 0, 1, 1]
    nobody = torch.zeros(1, dtype=torch.bool)
    empty = Report({name: result.only(nobody[: len(result.sizes)]) for name, result in report.results.items()})
    assert algorithm.assign(given, state, empty).tolist() == [0, 0, 1, -1]


@pytest.mark.parametrize("samples", [60, 400])
def test_clients_of_one_distribution_stay_together_however_much_they_agree(samples: int) -> None:
    """Each client errs on a sample by itself, as often as this sample is hard: of 60 samples on one or on two.

    Without a resolution, most IID federations were cut in pieces.
    """
    draw, broken = torch.Generator().manual_seed(0), {"resolution": 0, "none": 0}
    for _ in range(100):
        hard = 0.04 * torch.rand(samples, generator=draw)
        classes = (torch.rand(12, samples, generator=draw) < hard) * torch.randint(1, 9, (12, samples), generator=draw)
        distance = disagreement(classes)
        broken["resolution"] += silhouette_cut(distance, resolution=resolution(samples)) < math.inf
        broken["none"] += silhouette_cut(distance) < math.inf
    assert broken["resolution"] == 0 and (broken["none"] > 50 or samples == 400)


def test_the_answer_on_a_single_sample_tells_nobody_apart() -> None:
    """Ten samples; the models differ from one another on one or on two of them: 25.8 and 36.9 degrees."""
    assert resolution(10) == pytest.approx(4 * math.degrees(math.acos(0.9))) and resolution(0) == 360
    given = replace(problem(), public=torch.arange(10) + 0.5)
    state, _ = play(FLIS(), given, [torch.tensor([[3.0], [4.0], [6.0], [6.0]])])
    assert state.labels.tolist() == [0, 0, 0, 0] and state.clustered == 1


def test_an_engine_that_predicts_is_needed_but_not_before_samples_are_read() -> None:
    FLIS().init(replace(toy_problem(4), public=torch.empty(0)))  # as when an experiment is rehearsed without data
    blind = replace(problem(), predict=None)
    with pytest.raises(ContractError, match="an engine that predicts"):
        play(FLIS(), blind, [FOUR])


def test_with_one_cluster_it_is_fedavg_bit_for_bit() -> None:
    ours, _, scores = train(public(cut=90.0))
    plain, _, expected = train(federation("fedavg", {"epochs": 5}))
    assert torch.equal(ours.models, plain.models) and torch.equal(scores["client"].loss, expected["client"].loss)
