"""What the code says about its own keys, in words: docstrings, types, defaults and bounds."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

import fedstrata.base.limits
from experiments.tools.outcomes import table
from fedstrata.algorithms import ALGORITHMS

FACTS = Path(__file__).parents[2] / "docs" / "methods" / "algorithms" / "facts.toml"
PAPERS = FACTS.with_name("papers.toml")
KINDS = {bool: "true or false", int: "whole number", float: "number", str: "text"}
AUTO = "auto"
SELECTED = ("layers", "personal")
"""Keys that name layers."""

REQUIRED = object()
"""The default of a key that has none."""


@dataclass(frozen=True)
class Key:
    """One key of an experiment file.

    Attributes:
        name: as in the file.
        kind: its annotation.
        default: `REQUIRED` where there is none; None where the key may be left out.
        sentence: what it is.
    """

    name: str
    kind: Any
    default: Any
    sentence: str


@cache
def facts() -> dict[str, dict[str, Any]]:
    """What every algorithm needs, sends and decides, and how it treats who is absent or new; by name."""
    told: dict[str, dict[str, Any]] = tomllib.loads(FACTS.read_text(encoding="utf-8"))
    return told


@cache
def papers() -> dict[str, dict[str, list[str]]]:
    """What the paper of an algorithm leaves open, and what differs from it; by name, of those that tests compare."""
    told: dict[str, dict[str, list[str]]] = tomllib.loads(PAPERS.read_text(encoding="utf-8"))
    return told


def clustering() -> list[str]:
    """The algorithms that look for clusters."""
    return [name for name, told in facts().items() if told["decides"] != "nothing"]


def title_of(name: str) -> str:
    """What an algorithm is called: what its docstring says before the colon, if that is a name."""
    called, colon, _ = paragraphs(ALGORITHMS[name].__doc__)[0].partition(":")
    return called if colon and len(called.split()) <= 2 else ALGORITHMS[name].__name__


def paragraphs(text: str | None) -> list[str]:
    """The paragraphs of a docstring before its first section, in Markdown."""
    prose = re.split(r"\n\n(?:Attributes|Args):\n", inspect.cleandoc(text or ""))[0]
    return [wrapped(_marked(" ".join(block.split()))) for block in prose.split("\n\n")]


def sentences(text: str | None, section: str = "Attributes") -> dict[str, str]:
    """The entries of a section of a docstring, by name."""
    found = re.search(rf"\n{section}:\n(.*?)(?:\n\n|\Z)", inspect.cleandoc(text or ""), re.DOTALL)
    entries = re.findall(r"^    (\w+): (.*(?:\n     +.*)*)", found[1] if found else "", re.MULTILINE)
    return {name: _marked(" ".join(entry.split())) for name, entry in entries}


def keys_of(kind: Any) -> list[Key]:
    """The keys that a dataclass, a table of the file or a factory of networks has."""
    hints = get_type_hints(kind, include_extras=True)
    if inspect.isfunction(kind):
        told = sentences(kind.__doc__, "Args")
        options = [p for p in inspect.signature(kind).parameters.values() if p.kind is p.KEYWORD_ONLY]
        return [Key(p.name, hints[p.name], p.default, told[p.name]) for p in options]
    # A key that several classes have is described where it is declared.
    told = {name: entry for base in reversed(kind.__mro__) for name, entry in sentences(base.__doc__).items()}
    table_of_file = isinstance(kind, type) and issubclass(kind, BaseModel)
    defaults = kind.model_fields if table_of_file else {field.name: field.default for field in fields(kind)}
    return [_key(name, getattr(info, "alias", None) or name, hints, info, told) for name, info in defaults.items()]


def _key(name: str, shown: str, hints: dict[str, Any], info: Any, told: dict[str, str]) -> Key:
    default = info.get_default(call_default_factory=True) if isinstance(info, FieldInfo) else info
    return Key(shown, hints[name], REQUIRED if default in (MISSING, PydanticUndefined) else default, told[name])


def limits() -> list[tuple[str, str]]:
    """What is limited, and to what; of every limit, in the order of their file."""
    body = ast.parse(inspect.getsource(fedstrata.base.limits)).body
    found = []
    for made, said in pairwise(body):
        told = said.value.value if isinstance(said, ast.Expr) and isinstance(said.value, ast.Constant) else None
        if isinstance(made, ast.Assign) and isinstance(made.targets[0], ast.Name) and isinstance(told, str):
            found.append((told.removesuffix("."), _limit(getattr(fedstrata.base.limits, made.targets[0].id))))
    return found


def _limit(value: object) -> str:
    """A limit as a table shows it."""
    if isinstance(value, dict):
        return ", ".join(f"`{name}` {most:,}" for name, most in value.items())
    if isinstance(value, tuple):
        return ", ".join(value)
    return f"{value:,}" if isinstance(value, int) and value < 10**15 else f"{value:.2g}"


def values_of(kind: Any) -> str:
    """What a key may be, in words: its types with their bounds, and the words that it takes."""
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    said = [_allowed(part) for part in parts if part is not NoneType]
    # "auto" stands in place of any other value, so it comes last.
    return ", or ".join(sorted(dict.fromkeys(said), key=lambda one: one == _quoted(AUTO)))


def _allowed(part: Any) -> str:
    """One of the types of a key, with what it allows."""
    inner, *bounds = get_args(part) if get_origin(part) is Annotated else (part,)
    if get_origin(inner) is Literal:
        return _choice(get_args(inner))
    return ", ".join(filter(None, (_type(inner), _bounds(bounds))))


def _choice(words: Sequence[str]) -> str:
    """Words of which a key is one."""
    *first, last = map(_quoted, words)
    return f"{', '.join(first)} or {last}" if first else last


def _quoted(word: str) -> str:
    """A word as the file has it."""
    return f'`"{word}"`'


def _element(kind: Any) -> Any:
    """What a list is of; None for what is no list."""
    if get_origin(kind) not in (list, tuple):
        return None
    element = get_args(kind)[0]
    return get_args(element)[0] if get_origin(element) is Annotated else element


def _type(kind: Any) -> str:
    element = _element(kind)
    if element is None:
        return KINDS.get(kind, "table")
    if get_origin(element) is Literal:
        return f"list of {_choice(get_args(element))}"
    return f"list of {KINDS[element]}s" if element in KINDS else "list of lists"


def _bounds(bounds: Sequence[Any]) -> str:
    """What numbers are allowed."""
    said = []
    for name, words in (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below")):
        values = [value for bound in bounds if (value := getattr(bound, name, None)) is not None]
        said += [f"{words} {_number(value)}" for value in values]
    return ", ".join(said)


def _number(value: float) -> str:
    """A bound; the largest number of many digits as a power of ten."""
    digits = len(str(value)) if isinstance(value, int) else 0
    return f"10^{digits} - 1" if digits > 10 and value == 10**digits - 1 else f"{value:,.10g}"


def key_table(keys: list[Key]) -> str:
    """Every key: what it may be, its default, and what it is."""
    rows = []
    for key in sorted(keys, key=lambda key: key.name == "inside"):
        values = values_of(key.kind)
        if key.name in SELECTED:
            auto = values.endswith(_quoted(AUTO)) or "; auto is" in key.sentence
            values = "selector or list of selectors" + (f", or {_quoted(AUTO)}" if auto else "")
        default = "required" if key.default is REQUIRED else _value(key.default)
        rows.append((f"`{key.name}`", values, default, key.sentence.replace("|", "\\|")))
    return table("key | values | default | meaning", rows)


def _value(value: Any) -> str:
    """A default as the file has it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{list(value) if isinstance(value, tuple) else value}`"


def wrapped(text: str) -> str:
    """A paragraph in lines."""
    return fill(text, width=120, break_long_words=False, break_on_hyphens=False)


def _marked(text: str) -> str:
    """The code in a docstring as Markdown has it."""
    return text.replace("``", "`")
