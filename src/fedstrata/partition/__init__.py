"""Decide which client gets which samples, and which clients truly belong together. Nothing imports torch.

A scheme is a frozen dataclass of its keys in the experiment file; `partition_samples` applies it. A new one is a class
in `grouped` or `ungrouped` and a line of `PARTITIONS` in `scheme`.
"""

from fedstrata.partition.partitioning import (
    Partition,
    hold_out,
    holdout_rng,
    partition_samples,
    with_validation,
)
from fedstrata.partition.scheme import PARTITIONS, Scheme, keys_of, scheme_from

__all__ = [
    "PARTITIONS",
    "Partition",
    "Scheme",
    "hold_out",
    "holdout_rng",
    "keys_of",
    "partition_samples",
    "scheme_from",
    "with_validation",
]
