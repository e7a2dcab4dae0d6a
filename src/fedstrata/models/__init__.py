"""The networks by name, and their tensors as the columns of one row.

Importing this package does not import torch; resolving an entry of `MODELS` does.
"""

from fedstrata.models.registry import (
    MODELS,
    NetworkMaker,
    NetworkShape,
    fits_outputs,
    make,
    make_network,
    portable,
    side,
)
from fedstrata.models.rows import (
    arrays_of_row,
    known_outputs,
    layout_of,
    layout_of_arrays,
    light_copy,
    load_row,
    row_of,
    row_of_arrays,
)

__all__ = [
    "MODELS",
    "NetworkMaker",
    "NetworkShape",
    "arrays_of_row",
    "fits_outputs",
    "known_outputs",
    "layout_of",
    "layout_of_arrays",
    "light_copy",
    "load_row",
    "make",
    "make_network",
    "portable",
    "row_of",
    "row_of_arrays",
    "side",
]
