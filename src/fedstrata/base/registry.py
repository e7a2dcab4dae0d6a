"""Names that an experiment file may use, and what they stand for: the library's own, a user's, and other packages'."""

import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, TypeVar

from fedstrata.base.content_digest import content_digest
from fedstrata.base.errors import ExperimentError, FedstrataError, first_line

_Target = TypeVar("_Target")

_logger = logging.getLogger(__name__)


ONLY_HERE = "__main__:"
"""Begins the name of an object of a script or notebook, which no other process can import."""

OBJECT = "object:"
"""Begins the name of something that was given as an object, and that no name can be imported by."""

_GIVEN: dict[str, Any] = {}
"""What was given to this process as an object, and in a worker what its main process alone can import; by name."""


@dataclass(frozen=True)
class PortableObject:
    """An object that other processes get by value, as they cannot import it: it is of a script, notebook or function.

    Attributes:
        thing: The object.
        name: Its name, for messages.
    """

    thing: Any
    name: str

    def __reduce__(self) -> tuple[Any, ...]:
        """Tell a pickler to send the code itself. Only this library's own processes receive it.

        Raises:
            ExperimentError: When it refers to something that cannot be sent, such as an open file.
        """
        import cloudpickle

        try:
            return _unwrapped, (cloudpickle.dumps(self.thing), self.name)
        except Exception as error:  # what the object refers to may raise anything
            raise ExperimentError(
                f"{self.name}: expected something that can be sent to worker processes, found {first_line(error)}; "
                "move it into a module of its own, or set engine.name = 'loop'"
            ) from error


def _unwrapped(content: bytes, name: str) -> PortableObject:
    import cloudpickle

    return PortableObject(cloudpickle.loads(content), name)


def portable_objects(names: Iterable[str]) -> dict[str, PortableObject]:
    """Return those objects that only this process can import, in a form that reaches other processes.

    Args:
        names: Any names. Left out are those that other processes can import, and those that stand for nothing:
            whoever calls that says so.
    """
    found = {}
    for name in names:
        if name.startswith((ONLY_HERE, OBJECT)):
            with suppress(ValueError):
                found[name] = PortableObject(load_users_object(name), name)
    return found


def receive_objects(objects: Mapping[str, PortableObject]) -> None:
    """Let `load_users_object` find objects that another process has sent, by their names there."""
    _GIVEN.update({name: each.thing for name, each in objects.items()})


def name_of_object(thing: Any, unnamed: str = "") -> str:
    """Return the name by which an experiment refers to something that was given in Python.

    Args:
        thing: The object.
        unnamed: What a function without a name of its own, a lambda, is called.

    Returns:
        ``"package.module:attribute"``, or ``"object:digest:name"`` where that leads to something else. This process
        alone knows what it stands for. The digest tells it from other objects of its name.
    """
    path = f"{getattr(thing, '__module__', '')}:{getattr(thing, '__qualname__', '')}"
    with suppress(Exception):  # the module may raise anything
        if load_object(path) is thing:
            return path
    own = str(getattr(thing, "__name__", type(thing).__name__)).strip("<>")
    name = f"{OBJECT}{content_digest(thing)}:{unnamed if unnamed and own == 'lambda' else own}"
    # A notebook gives the same cell again and again.
    _GIVEN[name] = thing
    return name


def is_lost_object(name: str) -> bool:
    """Whether a name is that of something that was given as an object, but not in this process."""
    return name.startswith(OBJECT) and name not in _GIVEN


def load_object(path: str) -> Any:
    """Import what ``"package.module:attribute"`` stands for."""
    module, _, attribute = path.partition(":")
    return reduce(getattr, attribute.split("."), import_module(module))


def load_users_object(path: str) -> Any:
    """Import what a user means by ``"package.module:attribute"``; the current directory is searched too.

    Raises:
        ValueError: When it cannot be imported. The text says why, in one line; the cause is the error of the import.
    """
    if path in _GIVEN:
        return _GIVEN[path]
    if is_lost_object(path):
        raise ValueError("it was given as an object, which no file holds; give it again")
    # A console script, unlike `python -m`, does not search the current directory.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return load_object(path)
    except Exception as error:  # the module may raise anything
        hint = ""
        if path.startswith(ONLY_HERE):
            hint = "; what a script or notebook defines is known there alone, so move it into a module of its own"
        raise ValueError(f"{first_line(error)}{hint}") from error


def users_function(place: str, path: str, kind: type[FedstrataError] = ExperimentError) -> Callable[..., Any]:
    """Import a function of a user's own.

    Args:
        place: Where it is named, such as a key and its value, for the message.
        path: Its path, as `load_users_object` takes it.
        kind: The error where there is none.

    Raises:
        FedstrataError: When it cannot be imported, or is no function.
    """
    try:
        found = load_users_object(path)
    except ValueError as error:
        raise kind(f"{place} names no function: {error}") from error.__cause__
    if not callable(found):
        raise kind(f"{place}: expected a function, found {type(found).__name__}")
    function: Callable[..., Any] = found
    return function


class Registry(Mapping[str, _Target]):
    """A mapping from names to objects that are imported at their first use.

    Args:
        targets: What each name stands for: an object, or where it is, as ``"package.module:attribute"``.
        group: The group of entry points by which installed packages add names; empty for none. The library's own
            names come first.
    """

    def __init__(self, targets: Mapping[str, _Target | str], group: str = "") -> None:
        """Keep the targets; import nothing yet."""
        self.built_in = frozenset(targets)
        self._targets: dict[str, Any] = dict(targets)
        self._group = group

    def register(self, name: str, target: _Target | str) -> None:
        """Add a name, such as one of your own package.

        Args:
            name: The name.
            target: What it stands for, or ``"package.module:attribute"``, which is imported at its first use.

        Raises:
            ValueError: When the name stands for something else already.
        """
        if self._targets.setdefault(name, target) != target:
            raise ValueError(f"{name!r} stands for {self._targets[name]!r} already; choose another name")

    def name_of(self, thing: object) -> str | None:
        """Return the name that stands for an object; None where there is none, or its module cannot be imported."""
        for name in self:
            with suppress(ImportError, AttributeError):
                if self[name] is thing:
                    return name
        return None

    def __getitem__(self, name: str) -> _Target:
        """Import and return what `name` stands for."""
        target = self._targets[name] if name in self.built_in else self._discovered()[name]
        thing: _Target = load_object(target) if isinstance(target, str) else target
        return thing

    def __contains__(self, name: object) -> bool:
        """Tell whether a name is registered, without importing what it stands for."""
        return name in self.built_in or name in self._discovered()

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names in the order of registration."""
        return iter(self._discovered())

    def __len__(self) -> int:
        """Return the number of names."""
        return len(self._discovered())

    def _discovered(self) -> Mapping[str, Any]:
        """Return all targets, with those that installed packages bring, which are asked once."""
        group, self._group = self._group, ""
        for found in entry_points(group=group) if group else ():
            known = self._targets.setdefault(found.name, found.value)
            if known != found.value:
                _logger.warning("the entry point %r of %s is not used: %s is its name already", found, group, known)
        return self._targets
