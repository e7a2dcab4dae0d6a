"""Damage the newest checkpoint of a run in many ways, and see whether the one before is taken in its place.

    python -m experiments.trust.damaged_checkpoints

Writes ``experiments/results/damaged_checkpoints.json``. Each byte of the header and of the checksum file is changed by
one bit, and so are so many random bits of the tensors. The file is cut to lengths all over it, made longer, and
exchanged for an older checkpoint and for its checksum. A case is wrong if another state than that of the checkpoint
before comes back, or none, or if nothing is said about it.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import fedstrata as fs
from fedstrata.algorithms.strata.state import StrataState
from fedstrata.engine.device import one_thread
from fedstrata.records.checkpoint import find_checkpoint

RESULT = Path(__file__).parents[1] / "results" / "damaged_checkpoints.json"
LENGTHS = 300
"""Lengths that the file is cut to."""


def flipped(content: bytes, bit: int) -> bytes:
    """A content of which one bit is changed."""
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def damages(newest: Path, older: Path, bits: int, draw: random.Random) -> Iterator[tuple[str, Path, bytes]]:
    """The kind of each damage, the file, and its content."""
    content, checksum = newest.read_bytes(), newest.with_suffix(".sha256").read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    for place in range(header):
        yield "a bit of the header", newest, flipped(content, 8 * place + draw.randrange(8))
    for place in range(len(checksum)):
        # A line end may be a space as well.
        changed = flipped(checksum, 8 * place + draw.randrange(8))
        if changed.split() != checksum.split():
            yield "a bit of the checksum", newest.with_suffix(".sha256"), changed
    for _ in range(bits):
        yield "a bit of the tensors", newest, flipped(content, draw.randrange(8 * header, 8 * len(content)))
    for length in sorted(draw.sample(range(len(content)), LENGTHS)):
        yield "a cut", newest, content[:length]
    for length in (1, 4096):
        yield "a longer file", newest, content + bytes(length)
    yield "an older checkpoint", newest, older.read_bytes()
    yield "its own checksum", newest, checksum
    yield "an older checksum", newest.with_suffix(".sha256"), older.with_suffix(".sha256").read_bytes()


def main() -> None:
    """Judge every damage, and keep the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bits", type=int, default=1000, help="random bits of the tensors")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULT, help="where the results are kept")
    given = parser.parse_args()
    cases, wrong = Counter[str](), Counter[str]()
    with TemporaryDirectory() as room, one_thread():
        experiment = {
            "rounds": 3,
            "data": {"name": "digits", "clients": 8, "samples": 40},
            "partition": {"scheme": "rotation", "groups": 2},
            "model": {"name": "mlp", "hidden": [8]},
            "algorithm": {"name": "strata"},
        }
        folder = fs.run(experiment, Path(room) / "run", quiet=True).folder / "checkpoint"
        newest, older = (folder / f"{round:05d}.safetensors" for round in (3, 2))
        expected = find_checkpoint(folder, StrataState, lambda found: "later" if found.state.round > 2 else "")
        assert expected is not None
        for kind, path, content in damages(newest, older, given.bits, random.Random(given.seed)):
            before = path.read_bytes()
            path.write_bytes(content)
            cases[kind] += 1
            try:
                found = find_checkpoint(folder, StrataState)
                sound = found is not None and torch.equal(found.state.models, expected.state.models)
                sound = sound and found is not None and found.state.round == 2 and len(found.skipped) == 1
            except Exception as error:
                print(kind, repr(error)[:200], flush=True)
                sound = False
            wrong[kind] += not sound
            path.write_bytes(before)
    kept = {
        "seed": given.seed,
        "cases": cases.total(),
        "wrong": wrong.total(),
        "kinds": {kind: {"cases": count, "wrong": wrong[kind]} for kind, count in cases.items()},
    }
    given.out.write_text(json.dumps(kept, indent=1) + "\n")
    print(json.dumps(kept))


if __name__ == "__main__":
    main()
