"""Hostile experiments: no files, no TOML, too large, too deep or absurd. There is a case for each kind of danger."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedstrata.algorithms import ALGORITHMS
from hostile.cases import Case, places

HUGE = 10**15
MANY = f"[{'1,' * 100_000}]"
WORDS = "[" + "'cos'," * 50_000 + "]"
HEXADECIMAL = "0x" + "f" * 100_000

BASE = {
    "rounds": "1",
    "data.clients": "4",
    "data.samples": "8",
    "engine.name": "'loop'",
    "algorithm.name": "'fedavg'",
}
"""A valid experiment that ends after a moment."""

PATHS = {
    "/dev/zero": "/dev/zero",
    "/proc/self/mem": "/proc/self/mem",
    "a path of 5,000 folders": "a/" * 5000 + "a.toml",
    "a path with a NUL": "a\0b.toml",
    "a path with a line break": "a\nfedstrata: all is well\nb.toml",
    "a path that colours the terminal": "\x1b[31mred\x1b[0m.toml",
    "a path that is not UTF-8": "\udcff.toml",
    "a home that nobody has": "~nobody-of-this-name/a.toml",
}
"""What is given as the path of an experiment."""

FILES: dict[str, tuple[str | bytes, str]] = {
    "two marks of the byte order": (b"\xef\xbb\xbf\xef\xbb\xbfseed = 3\n", ""),
    "UTF-16": ("seed = 3\n".encode("utf-16"), ""),
    "latin-1": ("# café\nseed = 3\n".encode("latin-1"), "line 1"),
    "NULs": (bytes(5000), ""),
    "a gzip file": (b"\x1f\x8b\x08\x00" + os.urandom(200), ""),
    "a lone surrogate as an escape": ('data.name = "\\ud800"', ""),
    "lists, 100,000 deep": (f"x = {'[' * 100_000}{']' * 100_000}", ""),
    "tables, 10,000 deep": ("x = " + "{a = " * 10_000 + "1" + "}" * 10_000, ""),
    "a table of 100,000 parts": (f"[{'.'.join('a' * 100_000)}]", ""),
    "1,000 tables, each inside the one before": ("\n".join(f"[a{'.a' * i}]" for i in range(1000)), ""),
    "300 partitions, each inside another": (
        "\n".join(f"[partition{'.inside' * i}]\nscheme = 'rotation'\ngroups = 1" for i in range(300)),
        "dots",
    ),
    "20,000 keys": ("\n".join(f"k{i} = 1" for i in range(20_000)), "unknown key"),
    "20,000 tables of a list": ("[[events.join]]\n" * 20_000, "events.join"),
    "10,000 other algorithms": ("\n".join(f"[algorithms.a{i}]" for i in range(10_000)), "algorithms.a0"),
    "a string of 60 MB": (f'data.name = "{"x" * 60_000_000}"', "bytes"),
    "a string that never ends": ('data.name = """' + "x" * 500_000, ""),
    "YAML with a program": ("seed: 3\ndata: !!python/object/apply:os.system ['true']", ""),
    "a key that turns the text around": ('"\u202eatad" = 1', "unknown key"),
    "a key of line breaks": ('"a\\nfedstrata: all is well\\n" = 1', "unknown key"),
    "a key of 500,000 characters": ("k" * 500_000 + " = 1", "unknown key"),
    "a key of 500,000 characters in a table": (f"[data]\n{'clients' * 70_000} = 1", "unknown key"),
    "a key of a scheme of 500,000 characters": (
        f"partition.scheme = 'iid'\npartition.{'g' * 500_000} = 1",
        "partition",
    ),
}
"""The content of a file, and what the line about it has."""

KEYS: list[tuple[str, Any]] = [
    *((key, HUGE) for key in ("rounds", "data.clients", "data.samples", "data.public", "local.epochs", "local.batch")),
    ("engine.workers", 2**64),
    ("seed", 10**18),
    ("seed", HEXADECIMAL),
    ("seed", MANY),
    ("seed", "2020-01-01"),
    ("data.clients", "100_000"),
    ("data.samples", "1_000_000"),
    ("data.public", "1_000_000"),
    ("local.lr", "1e400"),
    ("partition.scheme", HEXADECIMAL),
    ("partition", f"{{scheme = 'iid', x = {HEXADECIMAL}}}"),
    ("partition", f"{{scheme = 'majority', groups = {HUGE}, share = 0.5}}"),
    ("partition", f"{{scheme = 'rotation', sizes = [{2**63}, {2**63}]}}"),
    ("partition", f"{{scheme = 'rotation', sizes = {MANY}}}"),
    ("partition", f"{{scheme = 'label_groups', labels = [[{2**70}]]}}"),
    ("partition", f"{{scheme = 'label_groups', labels = [{'[1],' * 50_000}]}}"),
    ("partition", "{scheme = 'dirichlet', alpha = 1e300}"),
    ("partition", f"{{scheme = 'natural', column = '{'x' * 900_000}'}}"),
    ("model.hidden", "[1_000_000_000]"),
    ("model.hidden", f"[{HEXADECIMAL}]"),
    ("model.hidden", f"[{'30_000,' * 50}]"),
    ("model.hidden", MANY),
    ("model.hidden", "[[[[1]]]]"),
    ("model", "{name = 'resnet18', width = 1e300}"),
    ("model", "{name = 'resnet18', width = nan}"),
    ("algorithm", "{name = 'ifca', k = 1_000_000}"),
    ("algorithm", "{name = 'fedprox', mu = 1e300}"),
    ("algorithm", f"{{name = 'layercfl', layers = '{'*a' * 40}b'}}"),
    ("algorithm", f"{{name = 'layercfl', layers = {WORDS}}}"),
    ("algorithms.ifca.k", HUGE),
    ("engine.name", f"'{'x' * 900_000}'"),
    ("probe.gap", WORDS),
    ("events.join", f"[{{round = {2**63}, clients = [1]}}]"),
    ("data", "{name = 'mnist', root = '~nobody-of-this-name'}"),
    ("data", '{name = "mnist", root = "a\\u0000b"}'),
    *((key, 1) for key in ("model_config", "__class__", "__pydantic_extra__", "copy")),
    *((f"data.{key}", 1) for key in ("model_fields", "__init__", "model_extra")),
    *((f"model.{key}", 1) for key in ("__class__", "model_config", "shape", "classes", "seed", "self")),
    *((f"algorithm.{key}", 1) for key in ("self", "kind", "__class__", "plan", "init")),
]
"""A key that is wrong, and its value as TOML."""

TOLD_OTHERWISE = [
    ("seed", "9" * 4500, "digits"),
    ("data.test", "0.9999999999999999", "data.clients"),
    ("data.unit", f"'{'x' * 900_000}'", "column"),
    ("data.unit", '"\\u001b[31m"', "column"),
    ("data.unit", "'{0.__class__} %s %n'", "column"),
    ("partition", "{scheme = 'quantity', alpha = 5e-324}", "alpha"),
    ("events.leave", "[{round = 1, clients = [0, 1, 2, 3]}]", "events"),
    ("events.join", f"[{{round = 1, clients = {MANY}}}]", "events"),
]
"""A key and its value, and what the line about it has in the place of the key."""

DATA_NAMES = (
    "a\\u0000b.npz",
    "a/" * 400_000,
    "~nobody-of-this-name/a.npz",
    "/",
    "/proc/self",
    "/dev/zero",
    "/etc/passwd",
    "**/**/**/**",
    "http://localhost:9/a.npz",
    "$(touch gone)`touch gone`",
    "\\u001b[31mred",
    "a\\nfedstrata: all is well\\nb",
    "a/..",
)
"""Values of ``data.name``."""

FACTORIES = (
    ":",
    "a:",
    "..:x",
    "os:system",
    "builtins:exec",
    "sys:exit",
    "torch.nn:Linear",
    "fedstrata:run",
    "no_such:x",
)
"""Values of ``model.name``: modules that may be looked for, and functions that must not be called."""

COMMANDS: dict[str, tuple[list[str], str]] = {
    "--set of a key of 50,000 parts": (["run", f"--set={'.'.join('a' * 50_000)}=1"], "--set"),
    "--set of lists, 50,000 deep": (["run", f"--set=seed={'[' * 50_000}{']' * 50_000}"], "seed"),
    "--set of two lines": (["run", "--set=seed=1\nrounds=2"], "seed"),
    "--set of what is not UTF-8": (["run", "--set=data.name=\udcff"], "data.name"),
    "--set, 20,000 times": (["run", *(f"--set=x{i}=1" for i in range(20_000))], "unknown key"),
    "seeds of 100,000 digits": (["compare", "--algorithms", "fedavg", "--seeds", "9" * 100_000], "--seeds"),
    "20,000 seeds": (["compare", "--algorithms", "fedavg", "--seeds", ",".join(map(str, range(20_000)))], "--seeds"),
    "algorithms without names": (["compare", "--algorithms", "," * 100_000], "--algorithms"),
    "an algorithm of 100,000 characters": (["compare", "--algorithms", "fedavg" * 17_000], "algorithm.name"),
}
"""The arguments of a command, and what the line about them has."""

VALID: dict[str, Any] = {
    "a mark of the byte order": b"\xef\xbb\xbfseed = 3\n",
    "lines that end as on Windows": b"seed = 3\r\n",
    "no bytes at all": b"",
    "a seed of 18 digits": {"seed": 10**18 - 1},
    "the smallest step": {"local.lr": "5e-324"},
    "nearly nobody takes part": {"cohort.fraction": "5e-324"},
    "nearly everyone drops out": {"cohort.dropout": "0.9999999999999999"},
    "alpha of nearly 0": {"partition": "{scheme = 'dirichlet', alpha = 5e-324}"},
}
"""What looks hostile and is valid: the content of a file, or keys and values."""


def experiments() -> list[Case]:
    """Every hostile experiment."""
    keys = [*((key, str(value), key) for key, value in KEYS), *TOLD_OTHERWISE]
    for name in ALGORITHMS:
        for key, field in ALGORITHMS[name].__pydantic_fields__.items():  # type: ignore[attr-defined]  # a dataclass
            if "int" in str(field.annotation):
                shown = field.alias or key
                keys.append(("algorithm", f"{{name = '{name}', {shown} = {HUGE}}}", f"algorithm.{shown}"))
    keys += [("data.name", f'"{name}"', "data.name") for name in DATA_NAMES]
    return [
        *(Case(f"no file: {name}", _at(make)) for name, make in places().items()),
        *(Case(name, _given(["run", path])) for name, path in PATHS.items()),
        *(Case(name, _file(content), names) for name, (content, names) in FILES.items()),
        *(
            Case(f"{i}: {key} = {value:.40}", _file(_with(key, value)), names)
            for i, (key, value, names) in enumerate(keys)
        ),
        *(
            Case(f"factory {name}", _file(_with("model.name", f"'{name}'")), "model", imports=(name.partition(":")[0],))
            for name in FACTORIES
        ),
        *(Case(name, _given(args), names) for name, (args, names) in COMMANDS.items()),
        *(Case(f"possible: {name}", _quick(made), accepted=True) for name, made in VALID.items()),
    ]


def _given(arguments: list[str]) -> Callable[[Path], list[str]]:
    """A command that needs no file."""
    return lambda folder: arguments


def _at(make: Callable[[Path], object]) -> Callable[[Path], list[str]]:
    """A command on something else than a file."""

    def command(folder: Path) -> list[str]:
        make(folder / "hostile.toml")
        return ["run", "../hostile.toml"]

    return command


def _file(content: str | bytes) -> Callable[[Path], list[str]]:
    """A command on a file of some content."""
    return _at(lambda path: path.write_bytes(content if isinstance(content, bytes) else content.encode()))


def _with(key: str, value: object) -> str:
    """A valid experiment but for a key; a table that is given whole replaces all keys of `BASE` in it."""
    kept = {name: text for name, text in BASE.items() if name.partition(".")[0] != key}
    return "\n".join(f"{name} = {text}" for name, text in {**kept, key: value}.items())


def _quick(made: bytes | dict[str, Any]) -> Callable[[Path], list[str]]:
    """A command on a valid experiment."""
    ((key, value),) = made.items() if isinstance(made, dict) else [("rounds", 1)]
    command = _file(made if isinstance(made, bytes) else _with(key, value))
    sets = [f"--set={name}={text}" for name, text in BASE.items()] if isinstance(made, bytes) else []
    return lambda folder: [*command(folder), *sets]
