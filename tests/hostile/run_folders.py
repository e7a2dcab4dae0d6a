"""Hostile run folders: copies of a good one in which something is not what a run leaves behind.

Everything outside the run folder that a case needs lies in the folder ``outside`` beside it, where nothing may change.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes

import builders
from builders import change_checkpoint, seal_checkpoint
from fedstrata.records.schema import Round
from hostile.cases import sparse
from hostile.datasets import Command, deflated_zeros, raw_zip

REPORT = ("report", "run")
FIGURES = ("report", "run", "--figures", "svg")
RESUME = ("run", "--resume", "--out", "run", "--quiet")
ASSIGN = ("assign", "run", "outside/newcomer.npz")
COMPARE = ("compare", "run", "outside/other", "--out", "comparison")
"""What is done with a folder."""

HTML = "<img src=x onerror=alert(1)></script>\x1b[31m$(touch canary)"
"""A text that wants to be HTML, a script, a colour on the terminal and a command of the shell."""

GIB = 2**30


@dataclass(frozen=True)
class Case:
    """One hostile run folder.

    Attributes:
        name: What is hostile about it.
        change: Is given a good run folder, and changes it.
        commands: What is done with it, one after the other.
    """

    name: str
    change: Callable[[Path], object]
    commands: tuple[tuple[str, ...], ...] = (REPORT,)


def good_run(folder: Path) -> None:
    """Make a good run in ``run``, another one and a client's data in ``outside``, all in an empty folder."""
    layercfl = {"name": "layercfl", "eps1": 9.0, "eps2": 0.0, "min_split": 3}
    builders.run(folder / "run", algorithm=layercfl, probe={"gap": ["dcos"]})
    builders.run(folder / "outside" / "other", probe={"gap": ["dcos"]})
    for page in (folder / "run" / "report.html", folder / "outside" / "other" / "report.html"):
        page.unlink()  # four megabytes that nobody reads
    rng = np.random.default_rng(0)
    inputs, labels = rng.normal(size=(20, 1, 8, 8)).astype("float32"), np.arange(20) % 10
    np.savez(folder / "outside" / "newcomer.npz", x=inputs, y=labels)
    for name in ("canary.txt", "canary.json"):
        (folder / "outside" / name).write_text("SECRET OF ANOTHER FOLDER\n")
    for name in ("clients", "gaps", "matrices", "models", "checkpoint", "tracking", "figures", "network"):
        place = folder / "outside" / "folders" / name
        place.mkdir(parents=True)
        for entry in ("canary.txt", "00004.parquet", "00009.safetensors", "00009.sha256", "cluster-0.safetensors"):
            (place / entry).write_text("SECRET OF ANOTHER FOLDER\n")


def run_folders() -> list[Case]:
    """Every hostile run folder."""
    return [*_places(), *_folders(), *_drafts(), *_rounds(), *_fields(), *_trees(), *_arrays(), *_checkpoints()]


# What stands in the place of files and folders.


def _places() -> list[Case]:
    commands = {
        "experiment.toml": (REPORT, RESUME),
        "rounds.jsonl": (REPORT, RESUME),
        "tree.json": (REPORT,),
        "summary.json": (REPORT, COMPARE, ASSIGN),
        "metric.json": (REPORT, COMPARE),
        "report.html": (REPORT,),
        "lock": (RESUME,),
        "clients/00004.parquet": (REPORT, COMPARE),
        "gaps/00002.parquet": (REPORT,),
        "matrices/00002.npz": (REPORT,),
        "checkpoint/00004.safetensors": (RESUME,),
        "checkpoint/00004.sha256": (RESUME,),
        "models/cluster-0.safetensors": (RESUME,),
    }
    kinds: dict[str, Callable[[Path], object]] = {
        "a link to another file": _linked,
        "a link to a device without an end": lambda path: path.symlink_to("/dev/zero"),
        "a folder": Path.mkdir,
        "a pipe": os.mkfifo,
        "8 GiB without content": lambda path: sparse(path, 8 * GIB),
        "bytes that are no text": lambda path: path.write_bytes(b"\xff\xfe\x00{\x80" * 50),
    }
    return [
        Case(f"{name} is {kind}", _instead(name, make), commands[name])
        for name in commands
        for kind, make in kinds.items()
    ]


def _instead(name: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    """Put something in the place of a file or folder of a run."""

    def change(run: Path) -> None:
        path = run / name
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.parent.mkdir(exist_ok=True)
        make(path)

    return change


def _outside(path: Path) -> Path:
    """The folder beside the run folder that a path lies in."""
    return next(parent for parent in path.parents if parent.name == "run").parent / "outside"


def _linked(path: Path) -> None:
    path.symlink_to(_outside(path) / "canary.txt")


def _folders() -> list[Case]:
    commands: dict[str, tuple[tuple[str, ...], ...]] = {
        **dict.fromkeys(("clients", "gaps", "matrices", "checkpoint", "tracking"), (REPORT, RESUME)),
        "models": (RESUME,),
        "figures": (FIGURES,),
        "network": (REPORT,),
    }
    kinds: dict[str, Callable[[Path], object]] = {
        "a link": lambda path: path.symlink_to(_outside(path) / "folders" / path.name),
        "a file": lambda path: path.write_text("a file\n"),
    }
    return [
        Case(f"the folder {name} is {kind}", _instead(name, make), some)
        for name, some in commands.items()
        for kind, make in kinds.items()
    ]


def _drafts() -> list[Case]:
    """Links where files are written before they get their names, and second names of files that are appended to."""
    drafts = (
        "tree.json.draft",
        "rounds.jsonl.draft",
        "checkpoint/00004.safetensors.draft",
        "models/clients.json.draft",
    )
    pictures = ("figures/accuracy.svg", "figures/clients.svg", "figures/clusters.svg", "figures/loss.svg")

    def named_twice(path: Path) -> None:
        os.link(_outside(path) / "canary.txt", path)

    return [
        *(Case(f"{name} is a link", _instead(name, _linked), (RESUME,)) for name in drafts),
        *(Case(f"{name} is a link", _instead(name, _linked), (FIGURES,)) for name in pictures),
        *(
            Case(f"{name} has another name", _instead(name, named_twice), (REPORT, RESUME))
            for name in ("rounds.jsonl", "lock")
        ),
    ]


# Lines of rounds.jsonl.


def _rewritten(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """Change the content of a file of a run."""
    return lambda run: (run / name).write_bytes(change((run / name).read_bytes()))


def _rounds() -> list[Case]:
    def lines(name: str, change: Callable[[list[bytes]], list[bytes]]) -> Case:
        rewritten = _rewritten("rounds.jsonl", lambda content: b"".join(change(content.splitlines(keepends=True))))
        return Case(name, rewritten, (REPORT, RESUME))

    def second(name: str, old: bytes, new: bytes) -> Case:
        def change(found: list[bytes]) -> list[bytes]:
            assert old in found[1]
            return [found[0], found[1].replace(old, new, 1), *found[2:]]

        return lines(f"a line of rounds.jsonl with {name}", change)

    opening = b'{"round": 2'
    return [
        lines("rounds.jsonl without its last line", lambda found: found[:-1]),
        lines("rounds.jsonl with a last line cut short", lambda found: [*found[:-1], found[-1][:50]]),
        lines("rounds.jsonl with a line twice", lambda found: [found[0], *found]),
        lines("rounds.jsonl in another order", lambda found: found[::-1]),
        lines("rounds.jsonl with a hole", lambda found: [found[0], *found[2:]]),
        lines("rounds.jsonl of two million brackets", lambda found: [b"[" * 2_000_000]),
        lines("rounds.jsonl with a line of zeros", lambda found: [*found, bytes(10**6)]),
        second("a round of 10^12", b'"round": 2', b'"round": 1000000000000'),
        second("NaN", opening, opening + b', "acc_x": NaN'),
        second("a number beyond all floats", opening, opening + b', "acc_x": 1e999'),
        second("a number of 10,000 digits", opening, opening + b', "acc_x": ' + b"9" * 10_000),
        second("100,000 brackets", opening, opening + b', "acc_x": ' + b"[" * 100_000 + b"]" * 100_000),
        second("half of a pair of characters", opening, opening + b', "events": [{"kind": "\\ud800"}]'),
        second("the same key twice", opening, opening + b', "labels": "twice", "labels": [0]'),
    ]


GONE = object()
"""Stands for a key that is taken out of a record."""


def _changed(record: bytes, changes: dict[str, Any]) -> bytes:
    """A record in JSON with some keys changed or gone."""
    return json.dumps({k: value for k, value in (json.loads(record) | changes).items() if value is not GONE}).encode()


def _fields() -> list[Case]:
    def record(name: str, **changes: Any) -> Case:
        def change(content: bytes) -> bytes:
            first, second, *rest = content.splitlines()
            return b"\n".join([first, _changed(second, changes), *rest, b""])

        return Case(f"a round whose {name}", _rewritten("rounds.jsonl", change))

    nested = json.loads("[" * 800 + "]" * 800)
    split = {"kind": "split", "node": 0, "into": [1, 2], "layer": None, "why": ""}
    return [
        *(record(f"{name} is an object in a list", **{name: [{"a": [1]}]}) for name in Round.model_fields),
        *(record(f"{name} is missing", **{name: GONE}) for name in ("round", "labels", "events")),
        record("changed labels are a text", labels=GONE, labels_changed="0"),
        record("changed labels are no rows", labels=GONE, labels_changed=[0, 1, 2]),
        record("changed labels are 800 brackets", labels=GONE, labels_changed=nested),
        record("changed labels are of all clients there can be", labels=GONE, labels_changed=[[0, 0, 2**31 - 1]]),
        record("changed labels are 200,000 rows", labels=GONE, labels_changed=[[0, 0, 0]] * 200_000),
        record("labels are of other nodes", labels=[10**6, -1, 77, 2**31 - 1]),
        record("absent clients are 2^40", absent=[2**40]),
        record("split is into a million nodes", events=[{**split, "into": list(range(10**6))}]),
        record("event is HTML", events=[{"kind": HTML, HTML: HTML, "why": HTML}, {**split, "layer": HTML}]),
        record("metrics are named in HTML", metrics=[{"name": HTML, "value": 1.0, "layer": HTML}]),
        record("metric is 1e308", metrics=[{"name": "p", "value": 1e308, "node": 10**30}]),
    ]


# Other JSON files.


def _trees() -> list[Case]:
    def tree(name: str, *more: dict[str, Any], **changes: Any) -> Case:
        def change(content: bytes) -> bytes:
            return json.dumps([json.loads(content)[0] | changes, *more]).encode()

        return Case(f"a tree {name}", _rewritten("tree.json", change))

    def summary(name: str, **changes: Any) -> Case:
        rewritten = _rewritten("summary.json", lambda content: _changed(content, changes))
        return Case(f"a summary whose {name}", rewritten, (REPORT, COMPARE))

    child = {"id": 1, "parent": 0, "members": [], "born": 1, "split": None, "layer": None, "criteria": {}, "why": ""}
    return [
        tree("whose root is its own parent", parent=0),
        tree("whose nodes are each other's parents", child, parent=1),
        tree("whose criteria are 1e308", criteria={"cut": 1e308, "p": -1e308, "level": 1e308}),
        tree("that is HTML", why=HTML, layer=HTML, criteria={HTML: 1.0}),
        tree("that is a chain of 3000", *({**child, "id": id, "parent": id - 1} for id in range(1, 3000))),
        summary("rounds are a path", rounds="../../../etc/passwd"),
        summary("rounds are 10^15", rounds=10**15),
        summary("truth is an object", truth={"a": 1}),
        summary("names are HTML", algorithm=HTML, dataset=HTML, model=HTML, partition=HTML, versions={HTML: HTML}),
    ]


# Arrays.


def _arrays() -> list[Case]:
    def table(name: str, place: str, **columns: Any) -> Case:
        return Case(f"{place} {name}", lambda run: pq.write_table(pa.table(columns), run / place), (REPORT,))

    def archive(name: str, **arrays: Any) -> Case:
        return Case(f"matrices {name}", lambda run: np.savez(run / "matrices" / "00002.npz", **arrays), (REPORT,))

    def raw(name: str, entries: dict[str, bytes]) -> Case:
        def write(run: Path) -> None:
            with zipfile.ZipFile(run / "matrices" / "00002.npz", "w", zipfile.ZIP_DEFLATED) as file:
                for key, content in entries.items():
                    file.writestr(key, content)

        return Case(f"matrices {name}", write, (REPORT,))

    scores, n = "clients/00004.parquet", 6
    good = {"client": list(range(n)), "node": [0] * n, "samples": [5] * n, "accuracy": [0.5] * n, "loss": [0.5] * n}
    ids, key = np.arange(3), "0|dcos|all"
    return [
        table("of other columns", scores, a=[1], b=["x"]),
        table("of nothing", scores, **{name: pa.array([None], pa.int64()) for name in good}),
        table("with a client twice", scores, **{**good, "client": [0] * n}),
        table("of infinities", scores, **{**good, "accuracy": [float("inf")] * n, "loss": [float("nan")] * n}),
        table("of 4 million equal rows", scores, **{name: _equal(4 * 10**6) for name in good}),
        table("of HTML", "gaps/00002.parquet", layer=[HTML], measure=[HTML], gap=[1.0]),
        Case("clients/00004.parquet cut short", _rewritten(scores, _first_half), (REPORT, RESUME, COMPARE)),
        archive("that unpickle", **{key: np.array([Command()], dtype=object), f"{key}|clients": ids}),
        archive("of another shape", **{key: np.ones((2, 5)), f"{key}|clients": ids}),
        archive("of clients that are none", **{key: np.ones((3, 3)), f"{key}|clients": np.array([-1, 2**40, 7])}),
        archive("of infinities", **{key: np.full((3, 3), np.inf), f"{key}|clients": ids}),
        archive("of HTML", **{f"0|{HTML}|{HTML.replace('/', '')}": np.eye(3), f"0|{HTML}|clients": ids}),
        raw("of 4 GiB of zeros", {f"{key}.npy": _npy((3, 3)), f"{key}|clients.npy": _npy((2**29,)) + bytes(2**26)}),
        raw("whose header promises 2^50 numbers", {f"{key}|clients.npy": _npy((2**50,)) + bytes(100)}),
        raw("whose header is no header", {f"{key}|clients.npy": b"\x93NUMPY\x01\x00\xff\xff" + b"{" * 65535}),
        Case("matrices that unpack to 4 GiB", lambda run: _bomb(run / "matrices" / "00002.npz"), (REPORT,)),
    ]


def _equal(count: int) -> Any:
    return pa.DictionaryArray.from_arrays(np.zeros(count, dtype=np.int8), pa.array([1], pa.int64()))


def _first_half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _npy(shape: tuple[int, ...]) -> bytes:
    """The header of an array of whole numbers, without its content."""
    header = io.BytesIO()
    facts = {"descr": "<i8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, facts)
    return header.getvalue()


def _bomb(path: Path) -> None:
    """Write an archive whose member says that it holds 4 GiB, and holds one, of zeros."""
    header = _npy((2**29,))
    raw_zip(path, [("0|dcos|all|clients.npy", deflated_zeros(GIB, after=header), len(header) + GIB)])


# Checkpoints whose checksums are right.


def _checkpoints() -> list[Case]:
    def changed(name: str, change: Callable[[Path], object], commands: tuple[tuple[str, ...], ...]) -> Case:
        def change_all(run: Path) -> None:
            for path in sorted((run / "checkpoint").glob("*.safetensors")):
                change(path)

        return Case(f"checkpoints {name}", change_all, commands)

    def content(name: str, made: bytes) -> Case:
        return changed(name, lambda path: seal_checkpoint(path, made), (ASSIGN,))

    def metadata(name: str, **said: Any) -> Case:
        return changed(name, lambda path: change_checkpoint(path, **said), (RESUME,))

    def filled(name: str, tensor: str, value: float) -> Case:
        return changed(name, lambda path: fill(path, f"state.{tensor}", value), both)

    def fill(path: Path, name: str, value: float) -> None:
        change_checkpoint(path, {name: torch.full_like(load_file(path)[name], value)})

    both = (RESUME, ASSIGN)
    other_store = {"store/../../x": torch.ones(1)}
    edited = _rewritten("experiment.toml", lambda text: text.replace(b"lr = 0.2", b"lr = 0.3"))
    return [
        content("with a header of 2^60 bytes", (2**60).to_bytes(8, "little")),
        content("with a tensor beyond the end", to_bytes({"a": torch.zeros(9)})[:-36]),
        metadata("of 100,000 brackets", state="[" * 100_000),
        metadata("of another experiment", experiment={"seed": 7, "local": {"lr": 3.5}}),
        metadata("whose record is of text", record={"round": "x"}),
        filled("with models that are not finite", "models", float("nan")),
        filled("with clients of a cluster that is none", "labels", 99),
        filled("with nodes that are none", "nodes", 10**9),
        changed("with a store of other names", lambda path: change_checkpoint(path, other_store), both),
        Case("no checkpoints", lambda run: shutil.rmtree(run / "checkpoint"), both),
        Case("an experiment that was edited", edited, both),
    ]
