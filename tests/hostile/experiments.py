"""Hostile experiment files: what is not a file, not TOML, too large, too deep or absurd."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fedstrata.algorithms import ALGORITHMS
from hostile.cases import Case

HUGE = 10**15

BASE = {
    "rounds": "1",
    "data.clients": "4",
    "data.samples": "8",
    "engine.name": "'loop'",
    "algorithm.name": "'fedavg'",
}
"""A valid experiment that ends after a moment."""

QUICK = tuple(f"--set={key}={value}" for key, value in BASE.items())

WHOLE_KEYS = (
    "rounds",
    "data.clients",
    "data.samples",
    "data.public",
    "local.epochs",
    "local.batch",
    "engine.workers",
    "seed",
)


def experiments() -> list[Case]:
    """Every hostile experiment."""
    return [
        *_places(),
        *_encodings(),
        *_grammar(),
        *_numbers(),
        *_names_of_keys(),
        *_strings(),
        *_data_names(),
        *_lists(),
        *_partitions(),
        *_models(),
        *_algorithms(),
        *_options(),
    ]


def _text(name: str, content: str | bytes, names: str = "", *, accepted: bool = False) -> Case:
    """An experiment file of some content."""

    def command(folder: Path) -> list[str]:
        file = folder / "hostile.toml"
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return ["run", "../hostile.toml", *(QUICK if accepted else ())]

    return Case(name, command, names, accepted)


def _sets(name: str, *pairs: str, names: str = "", accepted: bool = False) -> Case:
    """The experiment that the library carries, with some keys replaced."""

    def command(folder: Path) -> list[str]:
        return ["run", *(QUICK if accepted else ()), *(f"--set={pair}" for pair in pairs)]

    return Case(name, command, names, accepted)


def _keys(name: str, keys: dict[str, str], names: str = "", *, accepted: bool = False, imports: str = "") -> Case:
    """A valid experiment file but for some keys; a table that is given whole replaces all keys of `BASE` in it."""
    kept = {key: value for key, value in BASE.items() if key.split(".")[0] not in keys}
    lines = [f"{key} = {value}" for key, value in {**kept, **keys}.items()]
    made = _text(name, "\n".join(lines), names, accepted=accepted)
    return replace(made, imports=(imports,) if imports else ())


def _place(name: str, make: Callable[[Path], object], names: str = "") -> Case:
    """Something else than a file at the path of the experiment."""

    def command(folder: Path) -> list[str]:
        made = make(folder / "hostile.toml")
        return ["run", str(made) if isinstance(made, str) else "../hostile.toml"]

    return Case(name, command, names)


def _places() -> list[Case]:
    def bind(path: Path) -> None:
        # A path of a socket may have 108 characters; one that is relative is shorter.
        before = Path.cwd()
        os.chdir(path.parent)
        try:
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(path.name)
        finally:
            os.chdir(before)

    def linked_fifo(path: Path) -> None:
        os.mkfifo(path.with_name("fifo"))
        path.symlink_to("fifo")

    def sparse(path: Path) -> None:
        with path.open("wb") as file:
            file.truncate(20 * 2**30)

    def unreadable(path: Path) -> None:
        # Who runs the tests as root may read it, and then meets a wrong key.
        path.write_text("rounds = 0")
        path.chmod(0)

    def dangling(path: Path) -> None:
        path.symlink_to("nothing")

    def loop(path: Path) -> None:
        path.symlink_to(path.name)

    return [
        _place("a fifo without a writer", lambda path: os.mkfifo(path)),
        _place("a link to a fifo", linked_fifo),
        _place("a socket", bind),
        _place("a folder", lambda path: path.mkdir()),
        _place("a link to itself", loop),
        _place("a link to nothing", dangling),
        _place("a sparse file of 20 GiB", sparse),
        _place("a file that nobody may read", unreadable),
        _place("/dev/zero", lambda path: "/dev/zero"),
        _place("/dev/urandom", lambda path: "/dev/urandom"),
        _place("/dev/null", lambda path: "/dev/null"),
        _place("/proc/self/mem", lambda path: "/proc/self/mem"),
        _place("/dev/stdin", lambda path: "/dev/stdin"),
        _place("a path of 5,000 characters", lambda path: "a" * 5000 + ".toml"),
        _place("a path of 5,000 folders", lambda path: "a/" * 5000 + "a.toml"),
        _place("a path with a NUL", lambda path: "a\0b.toml"),
        _place("a path with a line break", lambda path: "a\nfedstrata: all is well\nb.toml"),
        _place("a path that colours the terminal", lambda path: "\x1b[31mred\x1b[0m.toml"),
        _place("a path that is not UTF-8", lambda path: "\udcff.toml"),
        _place("a home that nobody has", lambda path: "~nobody-of-this-name/a.toml"),
    ]


def _encodings() -> list[Case]:
    return [
        _text("a mark of the byte order", b"\xef\xbb\xbfseed = 3\n", accepted=True),
        _text("two marks of the byte order", b"\xef\xbb\xbf\xef\xbb\xbfseed = 3\n"),
        _text("UTF-16", "seed = 3\n".encode("utf-16")),
        _text("latin-1", "# café\nseed = 3\n".encode("latin-1"), "line 1"),
        _text("a surrogate in UTF-8", b'data.name = "\xed\xa0\x80"\n', "UTF-8"),
        _text("a NUL", b"seed = 3\0\n"),
        _text("nothing but NULs", bytes(5000)),
        _text("lines that end as on old Macs", b"seed = 3\rrounds = 2\r"),
        _text("lines that end as on Windows", b"seed = 3\r\n", accepted=True),
        _text("no bytes at all", b"", accepted=True),
        _text("a gzip file", b"\x1f\x8b\x08\x00" + os.urandom(200)),
        _text("a lone surrogate as an escape", 'data.name = "\\ud800"'),
        _text("a character beyond Unicode", 'data.name = "\\UFFFFFFFF"'),
    ]


def _grammar() -> list[Case]:
    deep = 100_000
    return [
        _text("lists, 100,000 deep", "x = " + "[" * deep + "]" * deep),
        _text("lists, 100,000 deep and never closed", "x = " + "[" * deep),
        _text("tables, 10,000 deep", "x = " + "{a = " * 10_000 + "1" + "}" * 10_000),
        _text("a key of 100,000 parts", ".".join("a" * deep) + " = 1"),
        _text("a table of 100,000 parts", "[" + ".".join("a" * deep) + "]"),
        _text("20,000 keys", "\n".join(f"k{i} = 1" for i in range(20_000)), "unknown key"),
        _text("20,000 tables", "\n".join(f"[t{i}]" for i in range(20_000)), "unknown key"),
        _text("1,000 tables, each inside the one before", "\n".join(f"[a{'.a' * i}]" for i in range(1000))),
        _text("20,000 tables of a list", "[[events.join]]\n" * 20_000, "events.join"),
        _text("a file of 8 MB", "# " + "x" * 8_000_000 + "\nseed = 1", "bytes"),
        _text("a string of 60 MB", 'data.name = "' + "x" * 60_000_000 + '"', "bytes"),
        _text("a string that never ends", 'data.name = """' + "x" * 500_000),
        _text("a comment that colours the terminal", "# \x1b[31m\nseed = 1"),
        _text("the same key twice", "seed = 1\nseed = 2", "line 2"),
        _text("the same table twice", "[data]\nclients = 4\n[data]\nclients = 5", "line 3"),
        _text("a key that becomes a table", "data = 3\n[data]\nclients = 4", "line 2"),
        _text("a list where a table stands", "[[data]]\nclients = 4", "data"),
        _text("a list of lists where a table stands", "data = [[1]]", "data"),
        _text("YAML", "seed: 3\ndata: !!python/object/apply:os.system ['true']"),
        _text("JSON", '{"seed": 3}'),
    ]


def _numbers() -> list[Case]:
    ones = "0x" + "f" * 9000
    return [
        *[_keys(f"{key} = 10**15", {key: str(HUGE)}, key) for key in WHOLE_KEYS if key != "seed"],
        *[_keys(f"{key} = 2**64", {key: str(2**64)}, key) for key in WHOLE_KEYS if key != "seed"],
        _keys("seed = 2**128", {"seed": str(2**128)}, "seed"),
        _keys("a seed of 19 digits", {"seed": str(10**18)}, "seed"),
        _keys("a seed of 18 digits", {"seed": str(10**18 - 1)}, accepted=True),
        _keys("clients = 1e9", {"data.clients": "1e9"}, "data.clients"),
        _keys("clients = 1,000,000,000", {"data.clients": "1_000_000_000"}, "data.clients"),
        _keys("1,000,000 clients of 1,797 digits", {"data.clients": "1_000_000", "data.samples": "0"}, "data.clients"),
        _keys("100,000 clients of 1,797 digits", {"data.clients": "100_000"}, "data.clients"),
        _keys(
            "1,000,000 clients by a draw of sizes",
            {
                "data.clients": "1_000_000",
                "data.samples": "0",
                "partition": "{scheme = 'dirichlet', alpha = 0.1}",
            },
            "data.clients",
        ),
        _keys("1,000,000 samples of 1,797 digits", {"data.samples": "1_000_000"}, "data.samples"),
        _keys("1,000,000 public samples of 1,797 digits", {"data.public": "1_000_000"}, "data.public"),
        _keys("a seed of 4,500 digits", {"seed": "9" * 4500}, "digits"),
        _keys("a seed of 4,000 digits", {"seed": "9" * 4000}, "seed"),
        _keys("a seed of 100,000 hexadecimal digits", {"seed": "0x" + "f" * 100_000}, "seed"),
        _keys("a number of rounds of 100,000 hexadecimal digits", {"rounds": "0x" + "f" * 100_000}, "rounds"),
        _keys("a huge number for a key that is unknown", {"partition": f"{{scheme = 'iid', x = {ones}}}"}, "partition"),
        _keys("a huge number as the name of a scheme", {"partition.scheme": ones}, "partition.scheme"),
        _keys(
            "a huge number of groups", {"partition": f"{{scheme = 'rotation', groups = {ones}}}"}, "partition.groups"
        ),
        _keys("a huge number as an option of a model", {"model.hidden": f"[{ones}]"}, "model.hidden"),
        _keys("a huge number for an algorithm", {"algorithm": f"{{name = 'ifca', k = {ones}}}"}, "algorithm.k"),
        _keys("a step of 1e300", {"local.lr": "1e300"}, "local.lr"),
        _keys("a step of 1e400", {"local.lr": "1e400"}, "local.lr"),
        _keys("the smallest step", {"local.lr": "5e-324"}, accepted=True),
        _keys("nearly all data held out", {"data.test": "0.9999999999999999"}, "data.clients"),
        _keys("nearly no data held out", {"data.test": "5e-324"}, accepted=True),
        _keys("nearly nobody takes part", {"cohort.fraction": "5e-324"}, accepted=True),
        _keys("nearly nobody answers", {"cohort.dropout": "0.9999999999999999"}, "cohort.dropout"),
        _keys("a date for every number", {"seed": "2020-01-01", "rounds": "07:32:00"}, "seed"),
        _keys("a truth value for a number", {"rounds": "true"}, "rounds"),
    ]


def _names_of_keys() -> list[Case]:
    cases = [
        _text("a key without characters", '"" = 1', "unknown key"),
        _text("a key of spaces", '"   " = 1', "unknown key"),
        _text("a key with a dot", '"data.clients" = 1', "unknown key"),
        _text("a key that turns the text around", '"\u202eatad" = 1', "unknown key"),
        _text("a key that colours the terminal", '"\\u001b[31m" = 1', "unknown key"),
        _text("a key of line breaks", '"a\\nfedstrata: all is well\\n" = 1', "unknown key"),
        _text("a key of 500,000 characters", "k" * 500_000 + " = 1", "unknown key"),
        _text("a key of 500,000 characters in a table", "[data]\n" + "clients" * 70_000 + " = 1", "unknown key"),
        _text("a scheme of 500,000 characters", "partition.scheme = '" + "rotation" * 60_000 + "'", "partition"),
        _text("an algorithm of 500,000 characters", "algorithm.name = '" + "fedavg" * 80_000 + "'", "algorithm.name"),
        _text("a model of 500,000 characters", "model.name = '" + "mlp" * 150_000 + "'", "model.name"),
        _text(
            "a key of a scheme of 500,000 characters", "partition.scheme = 'iid'\npartition." + "g" * 500_000 + " = 1"
        ),
        _text(
            "10,000 other algorithms",
            "data = {clients = 4, samples = 8}\n" + "\n".join(f"[algorithms.a{i}]" for i in range(10_000)),
            "algorithms.a0",
        ),
    ]
    for key in ("model_config", "model_fields", "__class__", "__init__", "__pydantic_extra__", "model_extra", "copy"):
        cases += [
            _keys(f"the key {key} of Python", {key: "1"}, key),
            _keys(f"the key {key} of Python in a table", {f"data.{key}": "1"}, f"data.{key}"),
            _keys(f"the option {key} of Python", {f"model.{key}": "1"}, f"model.{key}"),
        ]
    for key in ("self", "kind", "name_", "__class__", "plan", "init"):
        cases.append(_keys(f"the key {key} of an algorithm", {f"algorithm.{key}": "1"}, f"algorithm.{key}"))
    for key in ("shape", "classes", "seed", "self"):
        cases.append(_keys(f"the option {key} of a model", {f"model.{key}": "1"}, f"model.{key}"))
    return cases


def _strings() -> list[Case]:
    long = f"'{'x' * 900_000}'"
    stars = "'" + "*a" * 40 + "b'"
    return [
        _keys("900,000 characters for a word", {"engine.name": long}, "engine.name"),
        _keys("900,000 characters for a column", {"data.unit": long}, "data.unit"),
        _keys("900,000 characters for a factory", {"model.name": f"{long[:-1]}:x'"}, "model.name"),
        _keys("900,000 characters for a layer", {"algorithm": f"{{name = 'layercfl', layers = {long}}}"}, "algorithm"),
        _keys(
            "a pattern that takes long", {"algorithm": f"{{name = 'layercfl', layers = {stars}}}"}, "algorithm.layers"
        ),
        _keys("a column that is not there", {"data.unit": "'subject'"}, "subject"),
        _keys("a column that colours the terminal", {"data.unit": '"\\u001b[31m"'}, "column"),
        _keys("formatting in a value", {"data.unit": "'{0.__class__} %s %n'"}, "column"),
    ]


def _data_names() -> list[Case]:
    names = {
        "a NUL in the name": "a\\u0000b",
        "a NUL in the name of a file": "a\\u0000b.npz",
        "900,000 characters": "a" * 900_000,
        "a path of 400,000 folders": "a/" * 400_000,
        "the home of nobody": "~nobody-of-this-name",
        "the home of nobody, a file": "~nobody-of-this-name/a.npz",
        "the root of the file system": "/",
        "the devices": "/dev",
        "the processes": "/proc",
        "a device": "/dev/zero",
        "a file that is no data": "/etc/passwd",
        "the folder above": "../../../../../../../../..",
        "a pattern": "*",
        "a pattern of many": "**/**/**/**",
        "a web address": "http://localhost:9/a.npz",
        "a program": "$(touch gone)`touch gone`",
        "what colours the terminal": "\\u001b[31mred",
        "line breaks": "a\\nfedstrata: all is well\\nb",
        "a hub id that leaves": "a/..",
        "half a character": "\\u00e9\\u0301" * 100,
    }
    cases = [_keys(f"data: {name}", {"data.name": f'"{value}"'}, "data.name") for name, value in names.items()]
    cases += [
        _keys("data root of nobody", {"data": "{name = 'mnist', root = '~nobody-of-this-name'}"}, "data"),
        _keys("data root with a NUL", {"data": '{name = "mnist", root = "a\\u0000b"}'}, "data"),
        _keys("data root of 900,000 characters", {"data": f"{{name = 'mnist', root = '{'a' * 900_000}'}}"}, "data"),
    ]
    return cases


def _lists() -> list[Case]:
    many = "[" + "1," * 100_000 + "]"
    layers = "[" + "'x'," * 50_000 + "]"
    labels = "[" + "[1]," * 50_000 + "]"
    event = "[{round = 2, clients = %s}]"
    joins = f"[{{round = 1, clients = {many}}}]"
    far = "9223372036854775808"
    return [
        _keys("a client that joins 100,000 times", {"events.join": joins}, accepted=True),
        _keys("a list for a number", {"seed": many}, "seed"),
        _keys("100,000 options", {"model.hidden": many}, "model.hidden"),
        _keys("10,000 hidden layers", {"model.hidden": "[" + "1," * 10_000 + "]"}, "model.hidden"),
        _keys("20,000 measures", {"probe.gap": "[" + "'cos'," * 20_000 + "]"}, "probe.gap"),
        _keys("100,000 groups", {"partition": f"{{scheme = 'rotation', sizes = {many}}}"}, "partition.sizes"),
        _keys("50,000 sets of classes", {"partition": f"{{scheme = 'label_groups', labels = {labels}}}"}, "labels"),
        _keys("50,000 layers", {"algorithm": f"{{name = 'layercfl', layers = {layers}}}"}, "algorithm.layers"),
        _keys("a client that joins after the end", {"events.join": f"[{{round = {far}, clients = [1]}}]"}, "events"),
        _keys("a client that is not there", {"rounds": "2", "events.leave": event % f"[{far}]"}, "events"),
        _keys(
            "data of nobody",
            {
                "rounds": "2",
                "events.change": "[{round = 2, client = 1, takes_data_of = 10**13}]".replace("10**13", str(10**13)),
            },
            "events",
        ),
        _keys("everybody joins later", {"rounds": "2", "events.join": event % "[0, 1, 2, 3]"}, "events"),
        _keys("everybody leaves", {"rounds": "2", "events.leave": event % "[0, 1, 2, 3]"}, "events"),
    ]


def _partitions() -> list[Case]:
    deep = "{scheme = 'rotation', groups = 2, inside = " * 2000 + "{scheme = 'iid'}" + "}" * 2000
    tables = "\n".join(f"[partition{'.inside' * i}]\nscheme = 'rotation'\ngroups = 1" for i in range(300))
    possible = {
        "alpha of nearly 0 over clients": "scheme = 'dirichlet', alpha = 5e-324",
        "alpha of nearly 0 over classes": "scheme = 'dirichlet', alpha = 5e-324, over = 'classes'",
    }
    schemes = {
        "groups = 10**15": "scheme = 'rotation', groups = 1_000_000_000_000_000",
        "groups of 10**15 by label": "scheme = 'majority', groups = 1_000_000_000_000_000, share = 0.5",
        "concepts = 10**15": "scheme = 'concept', groups = 1_000_000_000_000_000",
        "a group of 2**64 clients": "scheme = 'rotation', sizes = [18446744073709551616]",
        "groups that sum to 2**64": "scheme = 'rotation', sizes = [9223372036854775808, 9223372036854775808]",
        "a class of 2**70": "scheme = 'label_groups', labels = [[1180591620717411303424]]",
        "shards = 10**15": "scheme = 'shards', per_client = 1_000_000_000_000_000",
        "shards = 2**64": "scheme = 'shards', per_client = 18446744073709551616",
        "alpha of 1e300": "scheme = 'dirichlet', alpha = 1e300",
        "a column of 900,000 characters": f"scheme = 'natural', column = '{'x' * 900_000}'",
        "a number inside": "scheme = 'rotation', groups = 2, inside = 3",
        "a list inside": f"scheme = 'rotation', groups = 2, inside = [{'1,' * 20_000}]",
        "500,000 characters inside": f"scheme = 'rotation', groups = 2, inside = '{'x' * 500_000}'",
        "a group twice inside": "scheme = 'rotation', groups = 2, inside = {scheme = 'rotation', groups = 2}",
    }
    return [
        *[_keys(f"partition: {name}", {"partition": f"{{{keys}}}"}, "partition") for name, keys in schemes.items()],
        *[_keys(f"partition: {name}", {"partition": f"{{{keys}}}"}, accepted=True) for name, keys in possible.items()],
        _keys("partition: alpha of nearly 0 in sizes", {"partition": "{scheme = 'quantity', alpha = 5e-324}"}, "alpha"),
        _keys("partition: each inside another, 2,000 deep", {"partition": deep}, "levels"),
        _text("partition: each inside another, 300 tables deep", tables, "levels"),
    ]


def _models() -> list[Case]:
    layers = {
        "10**9 units": "[1_000_000_000]",
        "10**15 units": "[1_000_000_000_000_000]",
        "2**64 units": "[18446744073709551616]",
        "two layers of 100,000 units": "[100_000, 100_000]",
        "fifty layers of 30,000 units": "[" + "30_000," * 50 + "]",
        "units that are nested lists": "[[[[1]]]]",
        "units that are a table": "{a = 1}",
        "units in words": "['all']",
        "half a unit": "[0.5]",
    }
    cases = [_keys(f"model: {name}", {"model.hidden": units}, "model.hidden") for name, units in layers.items()]
    for width in ("1e9", "1e300", "nan", "inf", "-1.0", "1e-300"):
        model = f"{{name = 'resnet18', width = {width}}}"
        possible = width == "1e-300"
        named = "" if possible else "model.width"
        cases.append(_keys(f"model: width {width}", {"model": model}, named, accepted=possible))
    factories = (
        ":",
        "a:",
        ":b",
        "a b:c",
        "..:x",
        "os:system",
        "os:path",
        "builtins:print",
        "builtins:exec",
        "sys:exit",
    )
    for factory in (*factories, "json:loads", "torch.nn:Linear", "no_such_package:x", "fedstrata:run", "a\\u0000b:c"):
        module = factory.partition(":")[0].replace("\\u0000", "\0")
        cases.append(_keys(f"model: factory {factory}", {"model.name": f'"{factory}"'}, "model", imports=module))
    return cases


def _algorithms() -> list[Case]:
    cases = []
    for name in ALGORITHMS:
        for key, field in ALGORITHMS[name].__pydantic_fields__.items():  # type: ignore[attr-defined]  # a dataclass
            shown = field.alias or key
            if "int" in str(field.annotation):
                algorithm = f"{{name = '{name}', {shown} = {HUGE}}}"
                cases.append(_keys(f"{name}: {shown} = 10**15", {"algorithm": algorithm}, f"algorithm.{shown}"))
    million = {"algorithm": "{name = 'ifca', k = 1_000_000}", "model.hidden": "[512]"}
    return [
        *cases,
        _keys("a million models", million, "algorithm.k"),
        _keys("a weight of 1e300", {"algorithm": "{name = 'fedprox', mu = 1e300}"}, "algorithm.mu"),
        _keys("keys of another algorithm", {"algorithms.ifca.k": str(HUGE)}, "algorithms.ifca.k"),
    ]


def _options() -> list[Case]:
    def many(folder: Path) -> list[str]:
        return ["run", *(f"--set=x{i}=1" for i in range(20_000))]

    def seeds(text: str) -> Callable[[Path], list[str]]:
        return lambda folder: ["compare", "--algorithms", "fedavg", "--seeds", text]

    def algorithms(text: str) -> Callable[[Path], list[str]]:
        return lambda folder: ["compare", "--algorithms", text]

    return [
        _sets("--set without a value", "seed", names="--set"),
        _sets("--set without a key", "=1", names="--set"),
        _sets("--set of dots", "...=1", names="--set"),
        _sets("--set of a key of 50,000 parts", ".".join("a" * 50_000) + "=1"),
        _sets("--set of 120,000 characters", "data.name=" + "x" * 120_000, names="data.name"),
        _sets("--set of lists, 50,000 deep", "seed=" + "[" * 50_000 + "]" * 50_000, names="seed"),
        _sets("--set of 100,000 hexadecimal digits", "seed=0x" + "f" * 100_000, names="seed"),
        _sets("--set of 10**15 clients", f"data.clients={HUGE}", names="data.clients"),
        _sets("--set of two lines", "seed=1\nrounds=2", names="seed"),
        _sets("--set of a NUL", "data.name=a\0b", names="data.name"),
        _sets("--set of what is not UTF-8", "data.name=\udcff", names="data.name"),
        _sets("--set of what colours the terminal", "data.name=\x1b[31mred", names="data.name"),
        _sets("--set of a table that is a number", "seed.a.b=1", names="seed"),
        _sets("--set of a model's seed", "model.seed=1", names="model.seed"),
        _sets("--set of an exploding model", "model.hidden=[1000000000]", names="model"),
        Case("--set, 20,000 times", many, "--set"),
        Case("seeds of 100,000 digits", seeds("9" * 100_000), "--seeds"),
        Case("a seed of 2**128", seeds(str(2**128)), "seed"),
        Case("seeds of 19 digits", seeds(str(10**18)), "seed"),
        Case("20,000 seeds", seeds(",".join(map(str, range(20_000)))), "--seeds"),
        Case("seeds in words", seeds("zero," * 20_000), "--seeds"),
        Case("algorithms without names", algorithms("," * 100_000), "--algorithms"),
        Case("an algorithm of 100,000 characters", algorithms("fedavg" * 17_000), "--algorithms"),
    ]
