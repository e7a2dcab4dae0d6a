"""Inputs that are refused, and how: the exit status and the first line of standard error of each.

Most are commands of the command line, given in this process in an empty folder. The folder above holds what they name:
an experiment file, data, and the folders of finished runs. Some are calls of the Python interface, whose error is kept.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np

import fedstrata as fs
from fedstrata.cli import main

Parts = dict[str, Any]


def _lines(name: str) -> list[str]:
    """The lines of a file beside this one but for comments."""
    text = (Path(__file__).parent / name).read_text()
    return [line for line in text.splitlines() if not line.startswith("#")]


EXPERIMENTS = (
    *_lines("wrong_experiments.txt"),
    "'a' = {}\n\"b\\nc\\u2028d\" = 3",
    "k" * 5000 + " = 1",
    "[[data]]\nclients = 4",
    "seed = 0x" + "f" * 200,
    "attack = {kind = 'merge'}\npartition.scheme = 'iid'",
    "privacy = {kind = 'central', noise_multiplier = 1}\nalgorithm = 'pacfl'",
    "privacy = {kind = 'central', noise_multiplier = 1}\nserver.aggregation = 'median'",
    "privacy = {kind = 'central', noise_multiplier = 1}\nalgorithm = 'local'",
    "personal = {method = 'ditto'}\nalgorithm = 'local'",
    "data.clients = 3\npartition = {scheme = 'rotation', groups = 4}",
    "rouns = 3\nseed = -1\ndata.test = 2",
    "seed = 1\nseed = 2",
    "x = " + "[" * 200 + "]" * 200,
    "\0",
    "seed = 1\nrounds = [1,\n2",
    "seed = 1\nname = '\udcff'",
    f"seed = {'9' * 5000}",
    f"seed = {'[' * 100_000}",
)
"""Texts of experiment files. A surrogate stands for a byte that is no UTF-8."""

COMMANDS = (
    *_lines("wrong_commands.txt"),
    f"run {'x' * 5000}",
    f"run --set local.lr={'9' * 5000}",
    "run --set 'data.name=\"a\nb\"'",
)
"""Command lines."""

GOOD = """
rounds = 2
data = {name = "digits", clients = 4, samples = 20}
partition = {scheme = "rotation", groups = 2}
model = {name = "mlp", hidden = [4]}
algorithm = "fedavg"
engine.name = "loop"
"""

ROWS = 48
HEADER = "site,dose,age,label"


def _csv(row: Callable[[int], str], header: str = HEADER) -> str:
    """The text of a CSV file."""
    return "\n".join([header, *map(row, range(ROWS))]) + "\n"


def _row(place: int) -> str:
    return f"{'abcd'[place % 4]},{place * 7 % 11}.5,{place},{place // 4 % 2}"


TABLES: Mapping[str, tuple[str | bytes, str]] = {
    "empty": ("", ""),
    "a header alone": (HEADER + "\n", ""),
    "a missing number": (_csv(lambda place: _row(place).replace(".5", "") if place else "a,,0,0"), ""),
    "nan": (_csv(lambda place: _row(place) if place else "a,nan,0,0"), ""),
    "infinite": (_csv(lambda place: _row(place) if place else "a,inf,0,0"), ""),
    "a text among numbers": (_csv(lambda place: _row(place) if place != 9 else "a,none,0,0"), ""),
    "a missing class": (_csv(lambda place: _row(place) if place else "a,1,0,"), ""),
    "a missing site": (_csv(lambda place: _row(place) if place else ",1,0,0"), ""),
    "a short row": (_csv(lambda place: _row(place) if place != 5 else "a,1"), ""),
    "a long row": (_csv(lambda place: _row(place) + (",1" if place == 5 else "")), ""),
    "no label": (_csv(_row, "site,dose,age,outcome"), ""),
    "two labels": (_csv(_row, "site,dose,class,label"), ""),
    "a column twice": (_csv(_row, "site,dose,dose,label"), ""),
    "no such label": (_csv(_row), "data.label=outcome"),
    "no such input": (_csv(_row), "data.inputs=['weight']"),
    "the label as input": (_csv(_row), "data.inputs=['label']"),
    "no such unit": (_csv(_row), "data.unit=patient"),
    "no such client column": (_csv(_row), "partition={scheme='natural',column='hospital'}"),
    "too many clients": (_csv(_row), "data.clients=9"),
    "one class": (_csv(lambda place: _row(place)[:-1] + "1"), ""),
    "numbers as classes": (_csv(lambda place: _row(place)[:-1] + f"{place}.25"), ""),
    "no features": (_csv(lambda place: f"{'abcd'[place % 4]},{place // 4 % 2}", "site,label"), ""),
    "an unknown split": (_csv(lambda place: _row(place) + ",dev", HEADER + ",split"), ""),
    "all for testing": (_csv(lambda place: _row(place) + ",test", HEADER + ",split"), ""),
    "a client with one row": (_csv(lambda place: _row(place).replace("d", "a") if place != 3 else _row(place)), ""),
    "one unit per client": (_csv(_row), "data.unit=site"),
    "NULs": (bytes(5000), ""),
    "UTF-16": (_csv(_row).encode("utf-16"), ""),
    "latin-1": (_csv(_row, "site,dose,\u00e2ge,label").encode("latin-1"), ""),
    "windows of a table": (_csv(_row), "data.window=4"),
}
"""Texts of CSV files, with a change of the experiment."""

X = np.arange(ROWS * 3, dtype=np.float32).reshape(ROWS, 3) % 7
Y = np.arange(ROWS) // 4 % 2
SITE = np.array([*"abcd"] * (ROWS // 4))
ARRAYS: Mapping[str, Mapping[str, Any]] = {
    "no y": {"x": X, "site": SITE},
    "no x": {"y": Y, "site": SITE},
    "no site": {"x": X, "y": Y},
    "fewer y": {"x": X, "y": Y[:-1], "site": SITE},
    "fewer sites": {"x": X, "y": Y, "site": SITE[:-1]},
    "nan": {"x": np.where(X == 3, np.nan, X), "y": Y, "site": SITE},
    "complex": {"x": X + 1j, "y": Y, "site": SITE},
    "texts": {"x": X.astype(str), "y": Y, "site": SITE},
    "objects": {"x": X, "y": Y.astype(object), "site": SITE},
    "negative classes": {"x": X, "y": Y - 1, "site": SITE},
    "huge classes": {"x": X, "y": Y * 10**9, "site": SITE},
    "half classes": {"x": X, "y": Y + 0.5, "site": SITE},
    "classes in rows": {"x": X, "y": np.stack([Y, Y], axis=1), "site": SITE},
    "nothing": {"x": X[:0], "y": Y[:0], "site": SITE[:0]},
    "no columns": {"x": X[:, :0], "y": Y, "site": SITE},
    "a scalar": {"x": np.float32(3), "y": Y, "site": SITE},
    "test of another shape": {"x": X, "y": Y, "site": SITE, "x_test": X[:, :2], "y_test": Y, "site_test": SITE},
    "test without y": {"x": X, "y": Y, "site": SITE, "x_test": X},
    "test without site": {"x": X, "y": Y, "site": SITE, "x_test": X, "y_test": Y},
}
"""Arrays of ``.npz`` files."""

BYTES: Mapping[str, tuple[str, bytes]] = {
    "an archive of one byte": ("mine.npz", b"P"),
    "an archive of NULs": ("mine.npz", bytes(3000)),
    "a cut archive": ("mine.npz", b"PK\x03\x04" + bytes(40)),
    "a table of one byte": ("mine.parquet", b"P"),
    "a table without an end": ("mine.parquet", b"PAR1" + bytes(100)),
    "a workbook": ("mine.xlsx", b"PK\x03\x04"),
    "a folder of texts": ("mine/readme.txt", b"nothing"),
    "a picture of no pixels": ("mine/cat/1.png", b"\x89PNG\r\n\x1a\n"),
    "a folder of one test": ("mine/test.csv", _csv(_row).encode()),
}
"""Other files."""


def _clients(**changed: Any) -> dict[str, Any]:
    """Two clients of a program, with changes."""
    return {"a": (X, Y), "b": (X, Y), **changed}


CALLS: Mapping[str, Callable[[], Any]] = {
    "no clients": lambda: fs.run(clients={}),
    "a number as clients": lambda: fs.run(clients=3),  # type: ignore[arg-type]
    "clients without y": lambda: fs.run(clients={"a": X, "b": X}),
    "a client of another shape": lambda: fs.run(clients=_clients(b=(X[:, :2], Y)), model="mlp"),
    "a client with fewer y": lambda: fs.run(clients=_clients(b=(X, Y[:-1])), model="mlp"),
    "a client with nan": lambda: fs.run(clients=_clients(b=(X * np.nan, Y)), model="mlp"),
    "a client without samples": lambda: fs.run(clients=_clients(b=(X[:0], Y[:0])), model="mlp"),
    "a client with texts": lambda: fs.run(clients=_clients(b=(X.astype(str), Y)), model="mlp"),
    "clients of other targets": lambda: fs.run(clients=_clients(b=(X, Y + 0.5)), model="mlp"),
    "an algorithm that is a number": lambda: fs.run(clients=_clients(), model="mlp", algorithm=3),  # type: ignore[arg-type]
    "an unknown algorithm": lambda: fs.run(clients=_clients(), model="mlp", algorithm="cfll"),
    "a network that is a number": lambda: fs.run(clients=_clients(), model=3),  # type: ignore[arg-type]
    "an unknown loss": lambda: fs.run(clients=_clients(), model="mlp", loss="mce"),
    "an unknown metric": lambda: fs.run(clients=_clients(), model="mlp", metric="acuracy"),
    "a function that is no loss": lambda: fs.run(
        clients=_clients(), model="mlp", loss=lambda outputs, targets: "low", rounds=1
    ),
    "rounds that are none": lambda: fs.run(clients=_clients(), model="mlp", rounds=0),
    "a dict with an unknown key": lambda: fs.run({"rouns": 3}),
    "a source that is a number": lambda: fs.run(3),  # type: ignore[arg-type]
    "changes that are a text": lambda: fs.run(sets="seed=1"),
    "no algorithms": lambda: fs.compare(None, []),
    "algorithms twice": lambda: fs.compare(None, ["cfl", "cfl"]),
    "seeds that are texts": lambda: fs.compare(None, "cfl", ["a"]),  # type: ignore[list-item]
    "a grid of one value": lambda: fs.sweep(None, {"local.lr": 0.1}),  # type: ignore[dict-item]
    "a grid of an unknown key": lambda: fs.sweep(None, {"local.rate": [0.1]}),
    "nothing to load": lambda: fs.load("nowhere"),
    "a client that is not there": lambda: fs.load("../done").model("nobody"),
    "inputs of another shape": lambda: fs.load("../done").predict("0", X),
    "nobody to assign": lambda: fs.assign("../done", []),
}
"""Calls of the Python interface."""


@cache
def _finished() -> TemporaryDirectory[str]:
    """The folder with what commands name."""
    made = TemporaryDirectory(prefix="fingerprints")
    folder = Path(made.name)
    (folder / "good.toml").write_text(GOOD)
    np.savez(folder / "good.npz", x=np.zeros((20, 1, 8, 8), np.float32), y=np.arange(20) % 10)
    np.savez(folder / "flat.npz", x=X, y=Y)
    fs.run(folder / "good.toml", folder / "done", quiet=True)
    for name in ("damaged", "no-rounds", "strange-tree"):
        shutil.copytree(folder / "done", folder / name)
    damaged = folder / "damaged"
    for path in [*damaged.glob("checkpoint/*"), *damaged.glob("models/*"), damaged / "rounds.jsonl"]:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    (folder / "no-rounds" / "rounds.jsonl").unlink()
    (folder / "strange-tree" / "tree.json").write_text(json.dumps([{"id": "x"}]))
    return made


def _refused(act: Callable[[], object]) -> Parts:
    """How an act ends in an empty folder, and what it leaves there."""
    folder = Path(_finished().name) / "here"
    folder.mkdir()
    out, err = io.StringIO(), io.StringIO()
    status: object = "no exit"
    try:
        with chdir(folder), redirect_stdout(out), redirect_stderr(err), patch.dict("os.environ"):
            os.environ.pop("FEDSTRATA_DATA", None)
            act()
    except SystemExit as end:
        status = end.code or 0
    except Exception as error:
        status = type(error).__name__
        err.write(" ".join(str(error).split()))
    left = sorted(path.name for path in folder.iterdir())
    shutil.rmtree(folder)
    lines = err.getvalue().replace(str(folder.parent), "<folder>").splitlines() or [""]
    # Whoever is refused is told one line.
    told = lines[0] if status != 2 else "\n".join(lines)
    return {"status": str(status), "stderr": told, "left": left}


def _command(line: str, _: Path) -> Parts:
    return _refused(partial(main, shlex.split(line)))


def _experiment(text: str, _: Path) -> Parts:
    file = Path(_finished().name) / "wrong.toml"
    file.write_bytes(text.encode(errors="surrogateescape"))
    return _refused(partial(main, ["run", "../wrong.toml", "--quiet"]))


def _data(write: Callable[[Path], object], name: str, change: str, _: Path) -> Parts:
    """A run on data that lie beside the folder, with a client for each value of the column `site`."""
    top = Path(_finished().name)
    shutil.rmtree(top / "data", ignore_errors=True)
    file = top / "data" / name
    file.parent.mkdir(parents=True)
    write(file)
    sets = {"rounds": "1", "algorithm": "fedavg", "partition": "{scheme='natural',column='site'}", "model": "mlp"}
    sets |= {"data.name": f"../data/{name.split('/')[0]}", "engine.name": "loop"}
    pairs = [f"--set={key}={value}" for key, value in sets.items()] + ([f"--set={change}"] if change else [])
    return _refused(partial(main, ["run", "--quiet", *pairs]))


def _call(call: Callable[[], object], _: Path) -> Parts:
    return _refused(call)


def bad_inputs() -> Iterator[tuple[str, Callable[[Path], Parts]]]:
    """Every input: its name, and what gives it and returns the status and the first line of standard error."""
    for text in EXPERIMENTS:
        name = text if len(text) < 100 else f"{text[:60]}... of {len(text)} characters"
        yield f"bad experiment {name!r}", partial(_experiment, text)
    for line in COMMANDS:
        name = line if len(line) < 100 else f"{line[:60]}... of {len(line)} characters"
        yield f"bad command {name!r}", partial(_command, line)
    for name, (content, change) in TABLES.items():
        data = content.encode() if isinstance(content, str) else content
        yield f"bad table {name}", partial(_data, partial(_write, data), "mine.csv", change)
    for name, arrays in ARRAYS.items():
        yield f"bad arrays {name}", partial(_data, partial(_save, arrays), "mine.npz", "")
    for name, (file, data) in BYTES.items():
        yield f"bad file {name}", partial(_data, partial(_write, data), file, "")
    for name, call in CALLS.items():
        yield f"bad call {name}", partial(_call, call)


def _write(data: bytes, path: Path) -> None:
    path.write_bytes(data)


def _save(arrays: Mapping[str, Any], path: Path) -> None:
    np.savez(path, **arrays)
