"""Matrices to labels: similarities, gaps, splits and agreement, usable without the rest of fedstrata.

Every function takes torch tensors or numpy arrays, and gives tensors, floats or Python values. Labels are (m,)
int64, numbered by the smallest member of each group; between equals, the lowest row decides.
"""

from fedstrata.clustering.agreement import ami, ari, purity
from fedstrata.clustering.centers import kmeans
from fedstrata.clustering.classes import entropy, entropy_groups
from fedstrata.clustering.density import dbscan, hopkins, hopkins_ratio
from fedstrata.clustering.duels import advantage, duel
from fedstrata.clustering.folds import confirm_folds, confirm_newcomers, fold_likeness, fold_test, newcomer_test
from fedstrata.clustering.halves import Replication, replication
from fedstrata.clustering.hierarchy import agglomerate, bipartition, natural_cut, splits
from fedstrata.clustering.many import cluster_many
from fedstrata.clustering.patterns import centred, contrast, likeness, propose
from fedstrata.clustering.reference import reference_split, stability
from fedstrata.clustering.separation import gap, intra_bound, separable
from fedstrata.clustering.similarity import cosine, euclidean, jensen_shannon, norms, refreshed
from fedstrata.clustering.sketches import sketch
from fedstrata.clustering.subspaces import principal_angles
from fedstrata.clustering.twins import Confirmation, confirm, surest, twin_test

__all__ = [
    "Confirmation",
    "Replication",
    "advantage",
    "agglomerate",
    "ami",
    "ari",
    "bipartition",
    "centred",
    "cluster_many",
    "confirm",
    "confirm_folds",
    "confirm_newcomers",
    "contrast",
    "cosine",
    "dbscan",
    "duel",
    "entropy",
    "entropy_groups",
    "euclidean",
    "fold_likeness",
    "fold_test",
    "gap",
    "hopkins",
    "hopkins_ratio",
    "intra_bound",
    "jensen_shannon",
    "kmeans",
    "likeness",
    "natural_cut",
    "newcomer_test",
    "norms",
    "principal_angles",
    "propose",
    "purity",
    "reference_split",
    "refreshed",
    "replication",
    "separable",
    "sketch",
    "splits",
    "stability",
    "surest",
    "twin_test",
]
