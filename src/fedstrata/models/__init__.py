"""Networks by name, and their tensors as the columns of one row.

Importing this package does not import torch; resolving an entry of `MODELS` does.
"""

from fedstrata.models.registry import MODELS, check, make, options, side
from fedstrata.models.rows import flatten, layout_of, load_row

__all__ = ["MODELS", "check", "flatten", "layout_of", "load_row", "make", "options", "side"]
