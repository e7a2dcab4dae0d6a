"""What many short runs leave, part by part, to show that a change of code changes no result.

Bits depend on the processor and on the versions of the libraries, so both files are made on one machine:

    python tests/fingerprints.py write before.json             # at one revision
    python tests/fingerprints.py compare before.json           # at another: names what differs, exit status 1
    python tests/fingerprints.py compare before.json strata    # only runs whose names hold one of the words
    python tests/fingerprints.py compare before.json --without experiment payload  # these parts may differ
    python tests/fingerprints.py compare before.json --after after.json  # two files that are there
    python tests/fingerprints.py write before.json --jobs 2    # in two processes
    python tests/fingerprints.py list                          # the names of all runs

The runs are those of `fingerprint_runs`, some on MNIST where ``FEDSTRATA_DATA`` names the data folder, and the refusals
of `bad_inputs`. Parts are the labels of all rounds, the model files, each field of ``rounds.jsonl``, ``tree.json``,
``summary.json`` and the other records, the tables of ``experiment.toml``, and the bytes of Flower's messages. Times,
versions, and what says where the run was made, are left out. A run that ends in an error has the error as its part.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import multiprocessing
import os
import re
import sys
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# Only the folder of this script is searched for modules by itself.
sys.path.append(str(Path(__file__).parent / "flower"))

import torch

from bad_inputs import bad_inputs
from fingerprint_runs import Run, runs

Parts = dict[str, str]

VOLATILE = re.compile(r"(.+_)?seconds(_.+)?|time|versions|machine|date|memory|folder|report")
"""Names of what a second run need not have again."""

TIMES = re.compile(r"[\d.,]+ (ms|s|min|h)\b")
"""Times in a table for people."""

SHORT = 160
"""Longer values are kept as their digest."""


def steady(value: Any) -> Any:
    """A value without what a second run need not have again."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    if hasattr(value, "model_dump"):
        value = value.model_dump()
    if isinstance(value, Mapping):
        return {str(key): steady(each) for key, each in value.items() if not VOLATILE.fullmatch(str(key))}
    if isinstance(value, list | tuple):
        return [steady(each) for each in value]
    return value


def text_of(value: Any) -> str:
    """A value as a text, and long ones that are no text as their digest."""
    if isinstance(value, str):
        return value
    text = json.dumps(steady(value), default=str)
    return text if len(text) <= SHORT else f"sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def digest(paths: Sequence[Path]) -> str:
    """SHA-256 of files, in the order of their names."""
    found = hashlib.sha256()
    for path in sorted(paths):
        found.update(path.name.encode() + path.read_bytes())
    return f"sha256 {found.hexdigest()[:16]}"


def parts_of(folder: Path, secret: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The parts of a run folder.

    Args:
        folder: The folder of a run.
        secret: What stands for texts that say where it is.
    """

    def read(name: str) -> str:
        text = (folder / name).read_text()
        for path, stands in secret.items():
            text = text.replace(path, stands)
        return text

    records = [json.loads(line) for line in read("rounds.jsonl").splitlines()]
    fields = dict.fromkeys(name for record in records for name in record if not VOLATILE.fullmatch(name))
    yield "labels", text_of([record.get("labels") for record in records])
    for name in fields:
        yield f"rounds.{name}", text_of([record.get(name) for record in records])
    yield "models", digest([*folder.glob("models/*.safetensors")])
    yield "models.clients", digest([*folder.glob("models/*.json")])
    yield "tree", text_of(json.loads(read("tree.json")))
    for name, value in steady(json.loads(read("summary.json"))).items():
        yield f"summary.{name}", text_of(value)
    for name, value in steady(tomllib.loads(read("experiment.toml"))).items():
        yield f"experiment.{name}", text_of(value)
    for name in ("data.json", "metric.json"):
        if (folder / name).exists():
            yield name, text_of(json.loads(read(name)))
    for name in ("client_data.npz", "predictions.parquet"):
        if (folder / name).exists():
            yield name, digest([folder / name])
    for name in ("clients", "gaps", "matrices"):
        if (folder / name).exists():
            yield name, digest([*(folder / name).iterdir()])
    yield "files", text_of(sorted({path.relative_to(folder).parts[0] for path in folder.rglob("*")}))


def comparison_parts(folder: Path, secret: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The parts of the folder of a comparison or a sweep, those of its runs included."""
    for name, value in steady(json.loads((folder / "comparison.json").read_text())).items():
        yield f"comparison.{name}", text_of(value)
    yield "comparison.md", text_of([TIMES.sub("", (folder / "comparison.md").read_text())])
    for path in sorted(folder.glob("*/rounds.jsonl")):
        for name, text in parts_of(path.parent, secret):
            yield f"{path.parent.name}/{name}", text


def fingerprint(name: str) -> Parts:
    """The parts of the run of a name."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    run = every_run()[name]
    with TemporaryDirectory() as scratch:
        out = Path(scratch) / "run"
        secret = {str(out): "<run>", scratch: "<scratch>"}
        try:
            found = {part: text_of(value) for part, value in run(out).items()}
            if (out / "rounds.jsonl").exists():
                found |= parts_of(out, secret)
            if (out / "comparison.json").exists():
                found |= comparison_parts(out, secret)
        except Exception as error:
            text = repr(error)[:400]
            for path, stands in secret.items():
                text = text.replace(path, stands)
            return {"error": text}
    return found


def every_run() -> dict[str, Run]:
    """All runs by name."""
    return dict(runs()) | dict(bad_inputs())


def selected(words: Sequence[str]) -> list[str]:
    """The names of the runs that hold one of the words; without words those of all."""
    return [name for name in every_run() if not words or set(words) & {name, *re.findall(r"[\w-]+|\w+", name)}]


def fingerprints(words: Sequence[str], jobs: int) -> dict[str, Parts]:
    """Those of the selected runs, by name."""
    names = selected(words)
    context = multiprocessing.get_context("spawn")
    found = dict[str, Parts]()
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        made = pool.map(fingerprint, names) if jobs > 1 else map(fingerprint, names)
        for name, parts in zip(names, made, strict=True):
            found[name] = parts
            print(name, parts.get("error", "done"), file=sys.stderr, flush=True)
    return found


def without(parts: Parts, left_out: Sequence[str]) -> Parts:
    """Parts but for those that begin with one of the names, in a run of a comparison too."""
    starts = tuple(left_out)
    return {name: text for name, text in parts.items() if not starts or not name.split("/")[-1].startswith(starts)}


def differences(before: Mapping[str, Parts], after: Mapping[str, Parts], left_out: Sequence[str]) -> int:
    """Print what differs, run by run, and how often each part does; return the number of runs that differ."""
    gone = [name for name in before if name not in after]
    new = [name for name in after if name not in before]
    counts = Counter[str]()
    different = 0
    for name in before:
        if name not in after:
            continue
        old, now = without(before[name], left_out), without(after[name], left_out)
        parts = [part for part in {**old, **now} if old.get(part) != now.get(part)]
        different += bool(parts)
        counts.update(part.split("/")[-1] for part in parts)
        if parts:
            print(f"{name}: {', '.join(parts)}")
        for part in parts:
            was, is_now = old.get(part, "nothing"), now.get(part, "nothing")
            if not (was.startswith("sha256") and is_now.startswith("sha256")):
                print(f"    {part}: {was} -> {is_now}")
    for kind, names in (("are gone", gone), ("are new", new)):
        if names:
            print(f"{len(names)} runs {kind}: {', '.join(names)}")
    if counts:
        print("by part: " + ", ".join(f"{part} {count}" for part, count in counts.most_common()))
    print(f"{len(before) - len(gone)} runs compared, {different or 'none'} differ")
    return different + len(gone)


def main(args: Sequence[str] | None = None) -> int:
    """Write the fingerprints to a file, or compare them with those of a file, or list the names of the runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("write", "compare", "list"))
    parser.add_argument("file", type=Path, nargs="?", default=Path("fingerprints.json"))
    parser.add_argument("words", nargs="*")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--without", nargs="+", default=[], metavar="PART")
    parser.add_argument("--after", type=Path, metavar="FILE")
    given = parser.parse_args(args)
    if given.verb == "list":
        print("\n".join(selected(given.words)))
        return 0
    # Nothing is asked of the hub, and no terminal is there.
    os.environ |= {"HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}
    found = json.loads(given.after.read_text()) if given.after else fingerprints(given.words, given.jobs)
    if given.verb == "write":
        given.file.write_text(json.dumps(found, indent=1) + "\n")
        return 0
    before = json.loads(given.file.read_text())
    if "FEDSTRATA_DATA" not in os.environ and not given.after:
        before = {name: parts for name, parts in before.items() if not name.startswith("mnist ")}
    compared = {name: parts for name, parts in before.items() if not given.words or name in found}
    return int(bool(differences(compared, found, given.without)))


if __name__ == "__main__":
    sys.exit(main())
