"""Models between the model of a cluster and the one that a client makes of it by training alone.

Wortsman et al., "Robust fine-tuning of zero-shot models", CVPR 2022.
"""

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""How far such models lie from that of the cluster. With 0, it is that model."""

MAX_EXCESS_LOSS = 1.0
"""The most by which such a model counts as worse than that of the cluster, in nats. It is not chosen in any case, and
must not hide what the others show."""
