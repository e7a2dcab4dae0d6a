"""Matrices to labels: similarities, gaps, splits and agreement, usable without the rest of fedstrata.

Every function takes torch tensors or numpy arrays, and gives tensors, floats or Python values. Labels are (m,) int64,
numbered by the smallest member of each group; between equals, the lowest row decides.

How alike clients are: `similarity`, `subspaces`, `client_measures`, and `patterns` of similarities. Groups from a
matrix of pairs: `hierarchy`, `density`, `centers`; without one: `many`, and `classes` by the classes that clients hold.

Whether groups are real: `split_half` and `newcomers`, by `permutations`, `error_rates`, and `replication` without a
test. How good groups are: `separation`, and `agreement` with others. `arrays` has what every function accepts,
and `groups` statistics by group.
"""

from fedstrata.clustering.agreement import ami, ari, bipartition_accuracy, purity
from fedstrata.clustering.centers import kmeans
from fedstrata.clustering.classes import entropy
from fedstrata.clustering.client_measures import CLIENT_MEASURES, ClientMeasure, ClientMeasureName
from fedstrata.clustering.density import dbscan, hopkins, hopkins_ratio
from fedstrata.clustering.error_rates import error_rate_test
from fedstrata.clustering.hierarchy import agglomerate, bipartition, natural_cut, splits
from fedstrata.clustering.many import cluster_many, sketch
from fedstrata.clustering.newcomers import newcomer_test
from fedstrata.clustering.patterns import centred, likeness
from fedstrata.clustering.permutations import PermutationResult, not_tested, smallest_sure_p
from fedstrata.clustering.replication import Replication, replication
from fedstrata.clustering.separation import gap, intra_bound, reference_split, separable
from fedstrata.clustering.similarity import (
    cosine,
    euclidean,
    jensen_shannon,
    manhattan,
    norms,
    stability,
    unusable_updates,
)
from fedstrata.clustering.split_half import contrast, fold_test, propose, split_half_test
from fedstrata.clustering.subspaces import principal_angles

__all__ = [
    "CLIENT_MEASURES",
    "ClientMeasure",
    "ClientMeasureName",
    "PermutationResult",
    "Replication",
    "agglomerate",
    "ami",
    "ari",
    "bipartition",
    "bipartition_accuracy",
    "centred",
    "cluster_many",
    "contrast",
    "cosine",
    "dbscan",
    "entropy",
    "error_rate_test",
    "euclidean",
    "fold_test",
    "gap",
    "hopkins",
    "hopkins_ratio",
    "intra_bound",
    "jensen_shannon",
    "kmeans",
    "likeness",
    "manhattan",
    "natural_cut",
    "newcomer_test",
    "norms",
    "not_tested",
    "principal_angles",
    "propose",
    "purity",
    "reference_split",
    "replication",
    "separable",
    "sketch",
    "smallest_sure_p",
    "split_half_test",
    "splits",
    "stability",
    "unusable_updates",
]
