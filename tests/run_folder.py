"""What a run has left in its folder."""

import json
from pathlib import Path


def left(folder: Path) -> object:
    """What a run has left: every byte of models, tree and clients, and its records but for their seconds."""
    files = [*folder.glob("models/*"), *folder.glob("clients/*"), *folder.glob("matrices/*"), folder / "tree.json"]
    records = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    timeless = [{key: value for key, value in each.items() if "seconds" not in key} for each in records]
    return {path.relative_to(folder): path.read_bytes() for path in sorted(files)}, timeless
