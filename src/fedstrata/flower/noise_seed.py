"""The secret seed of the noise of differential privacy: whoever knows it can take the noise away."""

from __future__ import annotations

import re
from pathlib import Path
from secrets import token_hex

from fedstrata.base.errors import RecordError
from fedstrata.base.files import read_file, replace_file


def secret_seed(path: Path) -> int:
    """The seed in a file. It is drawn and written first where there is none, so that a resumed run has the same noise.

    Raises:
        RecordError: When the file holds something else.
    """
    try:
        found = read_file(path, limit=100).decode(errors="replace")
    except FileNotFoundError:
        found = token_hex(16)
        replace_file(path, found.encode(), private=True)
    if re.fullmatch(r"[0-9a-f]{1,32}", found) is None:
        raise RecordError(f"{path}: expected at most 32 hexadecimal digits, found something else; restore the file")
    return int(found, 16)
