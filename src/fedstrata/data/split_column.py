"""The column that says which samples are for testing."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.base.errors import RowError
from fedstrata.base.quoting import shown
from fedstrata.data.column_roles import SPLIT_COLUMN
from fedstrata.data.dataset import SPLITS


def is_test(values: NDArray[Any], name: str) -> NDArray[np.bool_]:
    """Read a column ``split``: whether each sample is for testing, (samples,).

    Args:
        values: The column, (samples,).
        name: Where the column comes from, for the message.

    Raises:
        RowError: When a value is not "train" or "test".
    """
    texts = np.array(["" if value is None else str(value) for value in values.tolist()])
    strange = [text for text in np.unique(texts).tolist() if text not in SPLITS]
    if strange:
        raise RowError(
            name,
            int(np.flatnonzero(texts == strange[0])[0]),
            f"of column {SPLIT_COLUMN!r} holds {shown(strange[0])}; expected train or test in every row; give other "
            "samples another file, or the column another name",
        )
    found: NDArray[np.bool_] = texts == "test"
    return found
