"""What each measure, metric and client measure of a page means, with its unit and which values are good."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fedstrata.clustering.client_measures import CLIENT_MEASURES
from fedstrata.objective.metric_info import MetricInfo
from fedstrata.report.words import capital

COMPARED_BY: Mapping[str, str] = {
    **{name: measure.about for name, measure in CLIENT_MEASURES.items()},
    "js": "Jensen-Shannon divergence of the predictions, in nats; 0 means equal predictions",
    "angle": "Angle between the predictions, in degrees; 0 means equal predictions",
    "smallest angle": "Smallest angle between the data's subspaces, in degrees; 0 means a shared direction",
    "mean angle": "Mean angle between the data's subspaces, in degrees; 0 means equal subspaces",
    "likeness": "Cosine similarity of the updates without their common part, over all folds of the data",
}
"""What clients are compared by in matrices and gaps, with its unit and range."""


SIMILARITIES = (*(name for name, measure in CLIENT_MEASURES.items() if measure.larger_is_closer), "likeness")
"""Client measures of which a larger value means that clients are closer."""


COMPARABLE = tuple(name for name, measure in CLIENT_MEASURES.items() if measure.fixed_scale)
"""Client measures whose values mean the same in every round, so that all matrices share one colour scale."""


METRICS: Mapping[str, str] = {
    "stability": "Change of direction of a layer's updates from round to round, 0 to 2. Stable is below the threshold.",
    "weights_used": "Share of the weights that stability is computed from, from 0 to 1.",
    "mean_norm": "Norm of the mean update of a node's clients. Training has converged where it is below the threshold.",
    "max_norm": "Largest norm of an update in a node. Above the threshold, the node may hold several groups.",
    "hopkins": "Hopkins statistic of the predictions: 0.5 without clusters, near 1 with clear ones; see threshold.",
    "shared_layers": "Number of layers that the clients of a cluster share; the others are personal.",
    "personal_layers": "Number of layers that stay on each client; 0 is FedAvg.",
    "triggers": "Number of clusterings so far.",
    "groups_first": "Number of groups that the first stage found.",
    "radius1": "Radius of the first stage, in nats of Jensen-Shannon divergence.",
    "radius2": "Largest radius of the second stage, a distance of models.",
    "chosen": "Number of models that at least one client chose.",
    "moved": "Number of clients that changed their cluster.",
    "left_out": "Number of updates that were not averaged: they started from another cluster's model, or their cluster "
    "had fewer than privacy.min_cluster. 0 is usual.",
    "p": "p-value of the test: how often chance alone gives such a result. A split needs p at most the level.",
    "level": "Significance level of this test; the tests of a cluster share alpha.",
    "floor": "Smallest p-value that two clear groups of so many clients are sure to reach.",
    "z": "Test statistic in standard deviations of chance: about 0 for clients of one group.",
    "contrast": "Mean similarity inside the two proposed clusters minus that between them. Larger is clearer.",
    "gain": "Decrease of the mean loss by a model for each group, in nats. A split needs more than 0.",
    "eps1": "Threshold for mean_norm.",
    "eps2": "Threshold for max_norm.",
    "cross_max": "Largest cosine similarity between the two proposed clusters. Lower is a clearer split.",
    "cross_mean": "Mean cosine similarity between the two proposed clusters. Lower is a clearer split.",
    "bound": "sqrt((1 - cross_max) / 2). A split needs more than gamma.",
    "gamma": "Threshold for the bound.",
    "max_stability": "Largest stability of a client, from 0 to 2. Lower is more stable.",
    "epsilon": "Threshold for stability, or for the distance of a new client.",
    "ratio": "mean_norm divided by max_norm, from 0 to 1. It is compared with rho.",
    "rho": "Threshold for the ratio.",
    "reference": "The most stable client, around which the node is split.",
    "bipartition_accuracy": "Share of a node's clients that a bipartition would put on the right side. 1 is best.",
    "smaller_side": "Number of clients on the smaller side of that bipartition; 0 if all are on one side.",
    "cut": "Distance up to which clusters merge, in the unit of the compared matrix; of cosines it is 1 - cosine.",
    "groups": "Number of clusters that were found.",
    "clients": "Number of clients that were clustered.",
    "distance": "Distance of a new client to the nearest cluster. It joins where this is at most epsilon.",
    "threshold": "Threshold for the Hopkins statistic.",
}
"""The metrics of the rounds and the values of the decisions, with their units, in the order of the charts."""


THRESHOLDS = {
    "stability": "epsilon",
    "max_stability": "epsilon",
    "mean_norm": "eps1",
    "max_norm": "eps2",
    "hopkins": "threshold",
}
"""The hyper-parameter that a metric is compared with."""


def metric_words(metric: MetricInfo) -> dict[str, str]:
    """Return the words that texts about a metric hold in braces."""
    return {
        "metric": metric.name,
        "Metric": capital(metric.name),
        "scale": metric.scale,
        "better": metric.better,
        "worst": metric.worst,
    }


class Tile(NamedTuple):
    """A number at the top of the page.

    Attributes:
        title: What it is called. In this and in the meaning, ``{metric}`` stands for the name of the run's metric,
            ``{Metric}`` for the same with a capital, ``{scale}`` for its values, and ``{better}`` and ``{worst}`` for
            "higher" and "lowest", or "lower" and "highest" of an error.
        meaning: What it is, and which values are good.
        of_clusters: Whether it is about clusters, and is left out in a run without them.
        of_metric: Whether the number is a value of the run's metric, and is shown as one.
    """

    title: str
    meaning: str
    of_clusters: bool = False
    of_metric: bool = False

    def about(self, metric: MetricInfo) -> Tile:
        """Return the tile of a run with a metric."""
        words = metric_words(metric)
        return self._replace(title=self.title.format_map(words), meaning=self.meaning.format_map(words))


TILES: Mapping[str, Tile] = {
    "acc_client": Tile("{Metric}", "mean over clients, each on its own test data; {scale}", of_metric=True),
    "acc_worst": Tile("Worst client", "{worst} {metric} of a client; good is close to the mean", of_metric=True),
    "acc_weighted": Tile("By samples", "{metric}, mean weighted by test samples; {better} is better", of_metric=True),
    "acc_shared": Tile(
        "Without personal models",
        "{metric} with the models that clients would use without the personal stage; the mean should be {better}",
        of_metric=True,
    ),
    "acc_cluster": Tile(
        "By cluster",
        "{metric}, mean over the clusters, each weighted by test samples; {better} is better",
        of_clusters=True,
        of_metric=True,
    ),
    "acc_validation": Tile(
        "Validation", "{metric} on samples for validation, mean over clients; {better} is better", of_metric=True
    ),
    "ari": Tile("ARI", "agreement with the ground truth: 1 is the same partition, 0 is chance", of_clusters=True),
    "purity": Tile(
        "Purity",
        "share of clients in the commonest true group of their cluster; 1 is best, and usual for tiny clusters",
        of_clusters=True,
    ),
}
"""The measures of `fedstrata.records.measures` that the page shows at its top, by their names in the records.

A new measure is a value in the record of a round, and an entry here.
"""


REFERENCE_TILES: Mapping[str, Tile] = {
    "fedavg": Tile(
        "FedAvg baseline",
        "{metric} with one model for all, mean over the same clients; this run's should be {better}",
        of_metric=True,
    ),
    "local": Tile(
        "Training alone",
        "{metric} when every client trains alone, mean over the same clients; this run's should be {better}",
        of_metric=True,
    ),
}


OTHER_USE = "{metric} with this model, mean over clients; {better} is better"
"""What the tile of a further way to use the models says."""


MEASURES: Mapping[str, str] = {
    "acc_client": "{metric}, mean over clients",
    "acc_weighted": "{metric}, mean weighted by test samples",
    "acc_cluster": "{metric} of each cluster weighted by test samples, mean over clusters",
    "acc_worst": "{metric} of the worst client",
    "acc_best": "{metric} of the best round, chosen by test samples",
    "acc_validation": "{metric} on validation data, mean over clients",
    "acc_shared": "{metric} without the personal stage, mean over clients",
    "acc_selected": "{metric} of the round that validation data select",
    "target": "{metric} to reach, mean over clients",
    "baseline_acc_client": "{metric} of FedAvg, mean over clients",
    "baseline_acc_worst": "{metric} of FedAvg's worst client",
}
"""What the values of a summary are that are values of the run's metric."""
