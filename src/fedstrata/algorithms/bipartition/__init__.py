"""Recursive bipartition: in every round each cluster is examined, and it may split in two.

Sattler, Müller, Samek, "Clustered federated learning", IEEE TNNLS 2020, Algorithms 1 to 3. LayerCFL (Algorithm 2) and
HiCFL (section IV-B) walk over the clusters in the same way; they differ in how a cluster is examined.

* `round`: which clusters are examined by which answers, the norms of their updates, and what becomes of them
* `model_stability`: how unsteadily the updates of each client turn (HiCFL alone)
"""
