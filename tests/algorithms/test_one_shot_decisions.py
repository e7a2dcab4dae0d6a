"""Every decision that an algorithm takes has a sentence, made of its kind, its layer and its values."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedstrata.algorithms.adacfl import AdaCFL
from fedstrata.algorithms.baselines import Oracle, RandomGroups
from fedstrata.algorithms.fedclust import FedClust
from fedstrata.algorithms.fedtsdp import FedTSDP
from fedstrata.algorithms.fesem import FeSEM
from fedstrata.algorithms.fl_hc import FLHC
from fedstrata.algorithms.ifca import IFCA
from fedstrata.core import Algorithm, Problem
from fedstrata.report.catalogue import sentence
from fedstrata.testing import play, toy_problem
from recorded import decision_of

POINTS = torch.tensor([[0.0], [0.1], [4.0], [4.1]]) * torch.ones(4, 6)
"""Two pairs of clients."""


def problem() -> Problem:
    """Four clients in two true groups, and a server whose samples tell the pairs apart."""

    def predict(models: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        scores = torch.stack([models[:, 0], -models[:, 0]], dim=1)
        return scores.softmax(dim=1)[:, None].expand(-1, len(inputs), -1)

    return replace(toy_problem(4, truth=[0, 0, 1, 1]), public=torch.zeros(10, 1), predict=predict)


CASES: list[tuple[Algorithm[Any], str, list[str]]] = [
    (Oracle(), "true_groups_given", []),
    (RandomGroups(groups=2), "random_groups_given", []),
    (IFCA(k=3), "k_given", ["3"]),
    (FLHC(round=3), "too_few_answers", ["4 of 4", "round 3"]),
    (FLHC(round=1), "agglomerative_clustering", ["2 groups", "4 clients", "cut at"]),
    (FLHC(round=1, cut=100.0), "agglomerative_clustering", ["1 groups", "cut at 100"]),
    (FeSEM(k=2), "k_means", ["4", "2 groups"]),
    (AdaCFL(precluster=False), "clustering_in_preclusters", ["4 clients", "1 pre-cluster", "2 clusters"]),
    (FedTSDP(threshold=1.0), "hopkins_not_above_threshold", ["1"]),
    (FedTSDP(threshold=0.0), "hopkins_above_threshold", ["2 groups", "predictions and weights"]),
    (FedTSDP(threshold=0.0, radius1=1.0), "hopkins_above_threshold", ["2 groups", "1 by predictions alone"]),
]


@pytest.mark.parametrize(("algorithm", "kind", "parts"), CASES)
def test_a_decision_of_a_round_has_a_sentence_with_its_numbers(
    algorithm: Algorithm[Any], kind: str, parts: list[str]
) -> None:
    state, _ = play(algorithm, problem(), [POINTS])
    decision = decision_of(state)
    assert decision.kind == kind
    words = sentence(decision.kind, decision.layer, decision.values)
    assert all(part in words for part in parts), words


def test_clients_that_have_not_sent_what_is_compared_are_counted() -> None:
    state, _ = play(FedClust(quorum=1.0), problem(), [POINTS], cohorts=[[0, 2]])
    assert "2 of 4" in sentence("too_few_signatures", None, decision_of(state).values)


def test_a_newcomer_that_founds_a_cluster_is_named_with_its_distance() -> None:
    values = {"client": 7.0, "distance": 6.1, "epsilon": 1.8}
    words = sentence("newcomer_beyond_epsilon", None, values)
    assert "client 7" in words and "6.1" in words and "1.8" in words
