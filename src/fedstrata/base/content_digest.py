"""A digest of what an object does and holds, by which two objects of the same name are told apart.

Networks, losses and metrics can be given in Python as objects, which no file can name. Two such objects with the same
content have the same digest, in other processes as well. Pickles have not: they depend on addresses and on what else
the process has made.
"""

from __future__ import annotations

import dis
import hashlib
import sys
from collections.abc import Iterator, Mapping
from functools import partial, reduce
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

_CHARACTERS = 12
"""The characters of a digest: 48 bits, too many for two of a user's objects to have the same by chance."""

_NOT_CONTENT = frozenset({"__dict__", "__weakref__", "__doc__", "__firstlineno__", "__static_attributes__"})
"""Attributes of a class that say nothing about what it does, or only where it is in a file."""


def content_digest(thing: Any) -> str:
    """Return the digest of an object: its type, its attributes, and the code that no other process can import.

    What can be imported is known by its name. Code is known by its bytecode, the values that it uses and the global
    names of its module that it refers to, and not by its place in a file.
    """
    found = hashlib.sha256()
    for part in _parts(thing, {}):
        # With its length, so that no two sequences of parts look alike.
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.hexdigest()[:_CHARACTERS]


def _parts(thing: Any, seen: dict[int, tuple[int, Any]]) -> Iterator[bytes]:
    """Yield the content of an object, part by part.

    Args:
        thing: The object.
        seen: What is known already, by its id, each with its place; it is kept, so that no other object gets its id.
    """
    yield type(thing).__qualname__.encode()
    if thing is None or isinstance(thing, bool | int | float | complex | str | bytes):
        yield repr(thing).encode()
    elif path := _import_path(thing):
        yield path.encode()
    elif numbers := _numbers(thing):
        yield from numbers
    elif id(thing) in seen:
        yield str(seen[id(thing)][0]).encode()
    elif isinstance(thing, set | frozenset):
        # Their order is another one in each process.
        yield from sorted(content_digest(item).encode() for item in thing)
    else:
        seen[id(thing)] = len(seen), thing
        for inner in _inside(thing):
            yield from _parts(inner, seen)


def _import_path(thing: Any) -> str:
    """Return the name by which any process can import a module, function or class; empty where there is none."""
    if isinstance(thing, ModuleType):
        return thing.__name__
    module = getattr(thing, "__module__", None)
    name = getattr(thing, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return ""
    try:
        found = reduce(getattr, name.split("."), sys.modules[module])
    except (KeyError, AttributeError):
        return ""
    return f"{module}:{name}" if found is thing else ""


def _numbers(thing: Any) -> tuple[bytes, ...]:
    """Return the type, the shape and the numbers of an array or a tensor; nothing of other objects."""
    torch = sys.modules.get("torch")
    numpy = sys.modules.get("numpy")
    if torch is not None and isinstance(thing, torch.Tensor):
        kind = f"{thing.dtype} {thing.layout} {thing.requires_grad}".encode()
        if torch.nn.parameter.is_lazy(thing) or thing.layout != torch.strided:
            return (kind,)
        values = thing.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        return kind, repr(tuple(thing.shape)).encode(), values.tobytes()
    if numpy is not None and isinstance(thing, numpy.ndarray | numpy.generic) and not thing.dtype.hasobject:
        return str(thing.dtype).encode(), repr(thing.shape).encode(), thing.tobytes()
    return ()


def _inside(thing: Any) -> Iterator[Any]:
    """Yield the objects that make up another one."""
    if isinstance(thing, list | tuple):
        yield from thing
    elif isinstance(thing, Mapping):
        for key, value in thing.items():
            yield key
            yield value
    elif isinstance(thing, CodeType):
        yield from (thing.co_code, thing.co_names, thing.co_consts, thing.co_freevars, thing.co_cellvars)
    elif isinstance(thing, FunctionType):
        yield from (thing.__code__, thing.__defaults__, thing.__kwdefaults__, vars(thing))
        yield from (cell.cell_contents for cell in thing.__closure__ or () if _is_filled(cell))
        known = thing.__globals__
        yield {name: known[name] for name in _global_names(thing.__code__) if name in known}
    elif isinstance(thing, MethodType):
        yield from (thing.__func__, thing.__self__)
    elif isinstance(thing, staticmethod | classmethod):
        yield thing.__func__
    elif isinstance(thing, property):
        yield from (thing.fget, thing.fset, thing.fdel)
    elif isinstance(thing, partial):
        yield from (thing.func, thing.args, thing.keywords)
    elif isinstance(thing, type):
        yield from (thing.__qualname__, thing.__bases__)
        yield {name: value for name, value in vars(thing).items() if name not in _NOT_CONTENT}
    else:
        yield type(thing)
        yield _attributes(thing)


def _attributes(thing: Any) -> dict[str, Any]:
    """Return the attributes of an object; objects of other languages have none."""
    found = getattr(thing, "__dict__", {})
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(thing, torch.nn.Module):
        return dict(found)
    kept = dict[str, Any]()
    for name, value in found.items():
        # Whoever uses a network sets its mode. Hooks are numbered over all networks of a process.
        if name == "training" or isinstance(value, torch.utils.hooks.RemovableHandle):
            continue
        kept[name] = list(value.values()) if "_hooks" in name and isinstance(value, Mapping) else value
    return kept


def _is_filled(cell: Any) -> bool:
    """Return whether a variable of a closure has a value yet."""
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _global_names(code: CodeType) -> tuple[str, ...]:
    """Return the names that code, with the functions inside of it, looks up in its module."""
    own = (step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL")
    inner = (name for part in code.co_consts if isinstance(part, CodeType) for name in _global_names(part))
    return tuple(dict.fromkeys([*own, *inner]))
