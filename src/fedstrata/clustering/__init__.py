"""Matrices to labels: similarities, gaps, splits and agreement, usable without the rest of fedstrata.

Every function takes torch tensors or numpy arrays, and gives tensors, floats or Python values. Labels are (m,) int64,
numbered by the smallest member of each group; between equals, the lowest row decides.

How alike clients are: `similarity`, `client_measures`, and `patterns` of similarities. Groups from a matrix of pairs:
`hierarchy` and `density`; around means: `means`.

Whether groups are real: `split_half`, by `permutations`. How good groups are: `separation`, and `agreement` with
others. `arrays` has what every function accepts, and `groups` statistics by group.
"""

from fedstrata.clustering.agreement import ari, purity
from fedstrata.clustering.client_measures import (
    CLIENT_MEASURES,
    ClientMeasure,
    ClientMeasureName,
    entropy,
    principal_angles,
)
from fedstrata.clustering.density import dbscan, hopkins, hopkins_ratio
from fedstrata.clustering.hierarchy import agglomerate, bipartition, silhouette_cut, splits
from fedstrata.clustering.means import kmeans
from fedstrata.clustering.patterns import centred, likeness
from fedstrata.clustering.permutations import PermutationResult, not_tested, smallest_sure_p
from fedstrata.clustering.separation import gap, reference_split, theorem_1_bound
from fedstrata.clustering.similarity import (
    cosine,
    euclidean,
    in_views,
    jensen_shannon,
    manhattan,
    norms,
    stability,
)
from fedstrata.clustering.split_half import (
    Replication,
    contrast,
    fold_test,
    propose,
    replication,
    split_half_test,
)

__all__ = [
    "CLIENT_MEASURES",
    "ClientMeasure",
    "ClientMeasureName",
    "PermutationResult",
    "Replication",
    "agglomerate",
    "ari",
    "bipartition",
    "centred",
    "contrast",
    "cosine",
    "dbscan",
    "entropy",
    "euclidean",
    "fold_test",
    "gap",
    "hopkins",
    "hopkins_ratio",
    "in_views",
    "jensen_shannon",
    "kmeans",
    "likeness",
    "manhattan",
    "norms",
    "not_tested",
    "principal_angles",
    "propose",
    "purity",
    "reference_split",
    "replication",
    "silhouette_cut",
    "smallest_sure_p",
    "split_half_test",
    "splits",
    "stability",
    "theorem_1_bound",
]
