"""Hostile run folders: copies of a good one in which something is not what a run leaves behind.

Everything outside the run folder that a case needs lies in the folder ``outside`` beside it, where nothing may change.
"""

from __future__ import annotations

import hashlib
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
from safetensors import safe_open
from safetensors.torch import save as to_bytes

import fedstrata as fs
from hostile.datasets import deflated_zeros, raw_zip

REPORT = ("report", "run")
FIGURES = ("report", "run", "--figures", "svg")
RESUME = ("run", "--resume", "--out", "run", "--quiet")
ASSIGN = ("assign", "run", "outside/newcomer.npz")
COMPARE = ("compare", "run", "outside/other", "--out", "comparison")
"""What is done with a folder."""

EXPERIMENT = {
    "rounds": 4,
    "data": {"name": "digits", "clients": 6, "samples": 20},
    "partition": {"scheme": "rotation", "groups": 2},
    "model": {"name": "mlp", "hidden": [4]},
    "local": {"lr": 0.1, "batch": 10},
    "algorithm": {"name": "layercfl", "eps1": 9.0, "eps2": 0.0},
    "probe": {"gap": ["dcos"]},
    "engine": {"name": "loop"},
}

HTML = "<img src=x onerror=alert(1)></script>\x1b[31m$(touch canary)"
"""A text that wants to be HTML, a script, a colour on the terminal and a command of the shell."""

GIB = 2**30

FIELDS = (
    "round",
    "seconds",
    "clusters",
    "labels",
    "pending",
    "acc_client",
    "acc_weighted",
    "acc_cluster",
    "acc_worst",
    "loss",
    "ari",
    "bytes_down",
    "bytes_up",
    "cohort",
    "absent",
    "rejected",
    "events",
    "figures",
)
"""Of a line of ``rounds.jsonl``."""


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
    fs.run(EXPERIMENT, folder / "run", quiet=True)
    fs.run({**EXPERIMENT, "algorithm": {"name": "fedavg"}}, folder / "outside" / "other", quiet=True)
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
        "a link to another file": lambda path: path.symlink_to(_outside(path) / "canary.txt"),
        "a link to nothing": lambda path: path.symlink_to(_outside(path) / "new"),
        "a link to a device without an end": lambda path: path.symlink_to("/dev/zero"),
        "a folder": lambda path: path.mkdir(),
        "a pipe": lambda path: os.mkfifo(path),
        "8 GiB without content": lambda path: _sparse(path, 8 * GIB),
        "bytes that are no text": lambda path: path.write_bytes(b"\xff\xfe\x00{\x80" * 50),
    }
    return [
        Case(f"{name} is {kind}", _instead(name, make), commands[name])
        for name in commands
        for kind, make in kinds.items()
    ]


def _instead(name: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    def change(run: Path) -> None:
        path = run / name
        path.unlink(missing_ok=True)
        make(path)

    return change


def _outside(path: Path) -> Path:
    """The folder beside the run folder that a path lies in."""
    return next(parent for parent in path.parents if parent.name == "run").parent / "outside"


def _sparse(path: Path, size: int) -> None:
    path.touch()
    os.truncate(path, size)


def _folders() -> list[Case]:
    records = ("clients", "gaps", "matrices", "checkpoint")
    commands: dict[str, tuple[tuple[str, ...], ...]] = {name: (REPORT, RESUME) for name in records}
    commands |= {"models": (RESUME,), "figures": (FIGURES,), "tracking": (REPORT, RESUME), "network": (REPORT,)}

    def linked(name: str) -> Callable[[Path], object]:
        def change(run: Path) -> None:
            shutil.rmtree(run / name, ignore_errors=True)
            (run / name).symlink_to(run.parent / "outside" / "folders" / name)

        return change

    def filed(name: str) -> Callable[[Path], object]:
        def change(run: Path) -> None:
            shutil.rmtree(run / name, ignore_errors=True)
            (run / name).write_text("a file\n")

        return change

    return [
        *(Case(f"the folder {name} is a link", linked(name), some) for name, some in commands.items()),
        *(Case(f"the folder {name} is a file", filed(name), some[-1:]) for name, some in commands.items()),
    ]


def _drafts() -> list[Case]:
    """Links where files were written before they were renamed, and second names of files that are appended to."""
    names = ["report.html.partial"]
    names += [f"{name}.draft" for name in ("tree.json", "summary.json", "rounds.jsonl", "experiment.toml")]
    names += ["checkpoint/00004.safetensors.draft", "models/layout.json.draft"]

    def linked(name: str) -> Callable[[Path], object]:
        return lambda run: (run / name).symlink_to(run.parent / "outside" / "canary.txt")

    def named_twice(name: str) -> Callable[[Path], object]:
        def change(run: Path) -> None:
            (run / name).unlink(missing_ok=True)
            os.link(run.parent / "outside" / "canary.txt", run / name)

        return change

    return [
        *(Case(f"{name} is a link", linked(name), (REPORT if "report" in name else RESUME,)) for name in names),
        *(Case(f"{name} has another name", named_twice(name), (REPORT, RESUME)) for name in ("rounds.jsonl", "lock")),
        Case("the picture's place is a link", _picture_linked, (FIGURES,)),
    ]


def _picture_linked(run: Path) -> None:
    (run / "figures").mkdir()
    for name in ("accuracy", "clients", "clusters", "loss", "traffic"):
        (run / "figures" / f"{name}.svg").symlink_to(run.parent / "outside" / "canary.txt")


# Lines of rounds.jsonl.


def _rounds() -> list[Case]:
    def lines(name: str, change: Callable[[list[bytes]], list[bytes]]) -> Case:
        def write(run: Path) -> None:
            path = run / "rounds.jsonl"
            path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))

        return Case(name, write, (REPORT, RESUME))

    def second(name: str, old: bytes, new: bytes) -> Case:
        def change(found: list[bytes]) -> list[bytes]:
            assert old in found[1]
            return [found[0], found[1].replace(old, new, 1), *found[2:]]

        return lines(f"a line of rounds.jsonl with {name}", change)

    opening = b'{"round": 2'
    return [
        lines("rounds.jsonl without its last line", lambda found: found[:-1]),
        lines("rounds.jsonl without its last two lines", lambda found: found[:-2]),
        lines("rounds.jsonl with a last line cut short", lambda found: [*found[:-1], found[-1][:50]]),
        lines("rounds.jsonl with two last lines cut short", lambda found: [*found[:2], found[2][:-1], found[3][:50]]),
        lines("rounds.jsonl with a line twice", lambda found: [found[0], *found]),
        lines("rounds.jsonl with all lines twice", lambda found: found * 2),
        lines("rounds.jsonl in another order", lambda found: found[::-1]),
        lines("rounds.jsonl with a hole", lambda found: [found[0], *found[2:]]),
        lines("rounds.jsonl with an empty line", lambda found: [found[0], b"\n", *found[1:]]),
        lines("rounds.jsonl without a line", lambda found: []),
        lines("rounds.jsonl in UTF-16", lambda found: [b"".join(found).decode().encode("utf-16")]),
        lines("rounds.jsonl of two million brackets", lambda found: [b"[" * 2_000_000]),
        lines("rounds.jsonl with a line of zeros", lambda found: [*found, bytes(10**6)]),
        second("a round of 10^12", b'"round": 2', b'"round": 1000000000000'),
        second("a round of 2^31 - 1", b'"round": 2', b'"round": 2147483647'),
        second("NaN", opening, opening + b', "acc_x": NaN'),
        second("infinity", opening, opening + b', "acc_x": -Infinity'),
        second("a number beyond all floats", opening, opening + b', "acc_x": 1e999'),
        second("a number of 400 digits", opening, opening + b', "acc_x": ' + b"9" * 400),
        second("a number of 10,000 digits", opening, opening + b', "acc_x": ' + b"9" * 10_000),
        second("100,000 brackets", opening, opening + b', "acc_x": ' + b"[" * 100_000 + b"]" * 100_000),
        second("900 brackets", opening, opening + b', "events": [{"kind": ' + b"[" * 900 + b"]" * 900 + b"}]"),
        second("half of a pair of characters", opening, opening + b', "events": [{"kind": "\\ud800"}]'),
        second("the same key twice", opening, opening + b', "labels": "twice", "labels": [0]'),
    ]


def _fields() -> list[Case]:
    def record(name: str, **changes: Any) -> Case:
        def write(run: Path) -> None:
            path = run / "rounds.jsonl"
            found = path.read_text().splitlines()
            found[1] = json.dumps(json.loads(found[1]) | changes)
            path.write_text("\n".join(found) + "\n")

        return Case(f"a round whose {name}", write)

    def lacking(name: str) -> Case:
        def write(run: Path) -> None:
            path = run / "rounds.jsonl"
            found = [json.loads(line) for line in path.read_text().splitlines()]
            del found[1][name]
            path.write_text("".join(json.dumps(each) + "\n" for each in found))

        return Case(f"a round without {name}", write)

    def changed(name: str, rows: Any, key: str = "labels") -> Case:
        def write(run: Path) -> None:
            path = run / "rounds.jsonl"
            found = [json.loads(line) for line in path.read_text().splitlines()]
            del found[1][key]
            found[1][f"{key}_changed"] = rows
            path.write_text("".join(json.dumps(each) + "\n" for each in found))

        return Case(f"a round with changes of {key} that are {name}", write)

    nested: list[Any] = []
    for _ in range(800):
        nested = [nested]
    split = {"kind": "split", "node": 0, "into": [1, 2], "layer": None, "why": ""}
    return [
        *(changed(name, rows) for name, rows in (("a text", "0"), ("no rows", [0, 1, 2]), ("800 brackets", nested))),
        changed("of a client that is not there", [[0, 10**6, 10**6]]),
        changed("of all clients there can be", [[0, 0, 2**31 - 1]]),
        changed("the same client a million times", [[0, 0, 0]] * 10**6),
        changed("neither here nor there", [[2, 0, 0]], "pending"),
        *(record(f"{name} is an object in a list", **{name: [{"a": [1]}]}) for name in FIELDS),
        *(lacking(name) for name in ("round", "labels", "events")),
        record("labels are of other nodes", labels=[10**6, -1, 77, 2**31 - 1]),
        record("labels are 10^9 and negative", labels=[10**9, -5]),
        record("labels are true", labels=[True] * 6),
        record("cohort is of negative clients", cohort=[-1]),
        record("absent clients are 2^40", absent=[2**40]),
        record("split is of a node that is none", events=[{**split, "node": 99}]),
        record("split is into texts", events=[{**split, "into": ["a"]}]),
        record("split is into a million nodes", events=[{**split, "into": list(range(10**6))}]),
        record("split has no node", events=[{"kind": "split"}]),
        record("event has no kind", events=[{"why": "x"}]),
        record("event is HTML", events=[{"kind": HTML, HTML: HTML, "why": HTML}, {**split, "layer": HTML}]),
        record("metrics are named in HTML", metrics=[{"name": HTML, "value": 1.0, "layer": HTML}]),
        record(
            "metric is 1e308",
            metrics=[{"name": "p", "value": 1e308, "node": 10**30}],
        ),
        record("metrics are a thousand", metrics=[{"name": f"metric {i}", "value": float(i)} for i in range(1000)]),
        record("loss is 1e308", loss=1e308),
        record("seconds are negative", seconds=-1e300),
        record("bytes are negative", bytes_down=-(10**15)),
    ]


# Other JSON files.


def _trees() -> list[Case]:
    def tree(name: str, change: Callable[[list[dict[str, Any]]], object]) -> Case:
        def write(run: Path) -> None:
            path = run / "tree.json"
            found = json.loads(path.read_text())
            path.write_text(json.dumps(change(found)))

        return Case(f"a tree {name}", write)

    def summary(name: str, commands: tuple[tuple[str, ...], ...] = (REPORT, COMPARE), **changes: Any) -> Case:
        def write(run: Path) -> None:
            path = run / "summary.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | changes))

        return Case(f"a summary whose {name}", write, commands)

    def first(**changes: Any) -> Callable[[list[dict[str, Any]]], object]:
        return lambda nodes: [nodes[0] | changes, *nodes[1:]]

    child = {"id": 1, "parent": 0, "members": [], "born": 1, "split": None, "layer": None, "criteria": {}, "why": ""}
    return [
        tree("whose root is its own parent", first(parent=0)),
        tree("whose nodes are each other's parents", lambda nodes: [nodes[0] | {"parent": 1}, child]),
        tree("whose parent is a text", first(parent="0")),
        tree("whose ids are not places", first(id=5)),
        tree("that is an object", lambda nodes: {"id": 0}),
        tree("whose members are objects", first(members=[{}])),
        tree("whose criteria are texts", first(criteria={"p": "0.5"})),
        tree("whose criteria are 1e308", first(criteria={"cut": 1e308, "p": -1e308, "level": 1e308})),
        tree("that was born never", first(born=-5, split="x")),
        tree("that is HTML", first(why=HTML, layer=HTML, criteria={HTML: 1.0})),
        tree("that is a chain of 3000", lambda nodes: [nodes[0], *(_link(child, i) for i in range(1, 3000))]),
        summary("rounds are a path", rounds="../../../etc/passwd"),
        summary("rounds are 10^15", rounds=10**15),
        summary("accuracy is a list", acc_client=[1]),
        summary("bytes are texts", bytes_down="x", bytes_up="y"),
        summary("seconds are 1e300", seconds=1e300, seconds_training=1e300),
        summary("truth is an object", truth={"a": 1}),
        summary("truth is too short", truth=[0]),
        summary("names are HTML", algorithm=HTML, dataset=HTML, model=HTML, partition=HTML, versions={HTML: HTML}),
        summary("names are lists", algorithm=[1], dataset={}),
    ]


def _link(child: dict[str, Any], place: int) -> dict[str, Any]:
    return {**child, "id": place, "parent": place - 1}


# Arrays.


class _Unpickled:
    """Writes a file where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch canary-of-pickle",)


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
        table("of texts", scores, **{name: [HTML] for name in good}),
        table("of lists", scores, **{name: [[1]] for name in good}),
        table("of nothing", scores, **{name: pa.array([None], pa.int64()) for name in good}),
        table("of no rows", scores, **{name: pa.array([], pa.int64()) for name in good}),
        table("with a client twice", scores, **{**good, "client": [0] * n}),
        table("of infinities", scores, **{**good, "accuracy": [float("inf")] * n, "loss": [float("nan")] * n}),
        table("of 1e308", scores, **{**good, "accuracy": [1e308] * n, "loss": [-1e308] * n}),
        table("of 40 million equal rows", scores, **{name: _equal(4 * 10**7) for name in good}),
        table("of HTML", "gaps/00002.parquet", layer=[HTML], measure=[HTML], gap=[1.0]),
        table("of numbers as names", "gaps/00002.parquet", layer=[1], measure=[2], gap=["x"]),
        Case("clients/00004.parquet cut short", _cut(scores), (REPORT, RESUME, COMPARE)),
        Case("clients/00001.parquet cut short", _cut("clients/00001.parquet"), (REPORT, RESUME)),
        archive("that unpickle", **{key: np.array([_Unpickled()], dtype=object), f"{key}|clients": ids}),
        archive("of texts", **{key: np.array([["x"]]), f"{key}|clients": ids}),
        archive("of another shape", **{key: np.ones((2, 5)), f"{key}|clients": ids}),
        archive("without clients", **{key: np.ones((3, 3))}),
        archive("of clients that are none", **{key: np.ones((3, 3)), f"{key}|clients": np.array([-1, 2**40, 7])}),
        archive("of infinities", **{key: np.full((3, 3), np.inf), f"{key}|clients": ids}),
        archive("of 1e308", **{key: np.full((3, 3), 1e308), f"{key}|clients": ids}),
        archive("of no node", **{"a|b|c": np.ones((3, 3)), "a|b|c|clients": ids}),
        archive("of HTML", **{f"0|{HTML}|{HTML.replace('/', '')}": np.eye(3), f"0|{HTML}|clients": ids}),
        raw("of 4 GiB of zeros", {f"{key}.npy": _npy((3, 3)), f"{key}|clients.npy": _npy((2**29,)) + bytes(2**28)}),
        raw("whose header promises 2^50 numbers", {f"{key}|clients.npy": _npy((2**50,)) + bytes(100)}),
        raw("whose header is no header", {f"{key}|clients.npy": b"\x93NUMPY\x01\x00\xff\xff" + b"{" * 65535}),
        Case("matrices that unpack to 4 GiB", lambda run: _bomb(run / "matrices" / "00002.npz"), (REPORT,)),
    ]


def _equal(count: int) -> Any:
    return pa.DictionaryArray.from_arrays(np.zeros(count, dtype=np.int8), pa.array([1], pa.int64()))


def _cut(name: str) -> Callable[[Path], object]:
    return lambda run: os.truncate(run / name, (run / name).stat().st_size // 2)


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
    def metadata(name: str, **changes: Any) -> Case:
        return Case(f"checkpoints {name}", lambda run: _for_all(run, lambda path: _said(path, **changes)), (RESUME,))

    def tensors(name: str, change: Callable[[dict[str, torch.Tensor]], object]) -> Case:
        return Case(f"checkpoints {name}", lambda run: _for_all(run, lambda path: _with_tensors(path, change)), both)

    def content(name: str, made: bytes) -> Case:
        return Case(f"checkpoints {name}", lambda run: _for_all(run, lambda path: _seal(path, made)), (ASSIGN,))

    both = (RESUME, ASSIGN)
    return [
        content("of nothing", b""),
        content("with a header of 2^60 bytes", (2**60).to_bytes(8, "little")),
        content("with a header of brackets", (10**6).to_bytes(8, "little") + b"[" * 10**6),
        content("without metadata", to_bytes({"a": torch.ones(2)})),
        content(
            "with a tensor beyond the end", _header({"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}})
        ),
        metadata("of 100,000 brackets", state="[" * 100_000),
        metadata("of another format", format="7"),
        metadata("of another experiment", experiment='{"seed": 7, "local": {"lr": 3.5}}'),
        metadata("whose state is a text", state='"x"'),
        metadata("whose record is a list", record="[1]"),
        metadata("whose record is of text", record='{"round": "x"}'),
        metadata("whose versions are a number", versions="7"),
        tensors("with models that are not finite", lambda found: found["state.models"].fill_(float("nan"))),
        tensors("with clients of a cluster that is none", lambda found: found["state.labels"].fill_(99)),
        tensors("of fewer clients", lambda found: found.update({"state.labels": torch.zeros(2, dtype=torch.int64)})),
        tensors("with nodes that are none", lambda found: found["state.nodes"].fill_(10**9)),
        tensors("of another network", lambda found: found.update({"state.models": torch.ones(1, 3)})),
        tensors("with a store of other names", lambda found: found.update({"store/../../x": torch.ones(1)})),
        tensors("without models", lambda found: found.pop("state.models")),
        Case("checkpoints without checksums", _without_checksums, both),
        Case("no checkpoints", lambda run: shutil.rmtree(run / "checkpoint"), both),
        Case("an experiment that was edited", _edited, both),
    ]


def _for_all(run: Path, change: Callable[[Path], object]) -> None:
    for path in sorted((run / "checkpoint").glob("*.safetensors")):
        change(path)


def _seal(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.with_suffix(".sha256").write_text(f"{hashlib.sha256(content).hexdigest()} {len(content)}\n")


def _read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118 (not a dict)


def _said(path: Path, **changes: str) -> None:
    tensors, metadata = _read(path)
    _seal(path, to_bytes(tensors, metadata | changes))


def _with_tensors(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors, metadata = _read(path)
    change(tensors)
    _seal(path, to_bytes(tensors, metadata))


def _header(header: dict[str, Any]) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text


def _without_checksums(run: Path) -> None:
    for path in (run / "checkpoint").glob("*.sha256"):
        path.unlink()


def _edited(run: Path) -> None:
    path = run / "experiment.toml"
    path.write_text(path.read_text().replace("lr = 0.1", "lr = 0.2"))
