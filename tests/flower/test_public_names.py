"""The library takes from Flower what its reference of the API names, and nothing that it may change at any time."""

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from flwr.serverapp.strategy import FedAvg

import fedstrata
from fedstrata.flower import Clustered

SOURCES = sorted(Path(fedstrata.__file__).parent.rglob("*.py"))

MODULES = ("flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy", "flwr.simulation")
"""The modules of Flower's reference, each with the names that it has."""

FROM_FLOWER = ("app", "client_app", "context", "grid", "message", "metadata", "node", "server_app")
"""The names that objects of Flower have in this library. Nothing of theirs that begins with an underscore is read."""


def private_names(source: str) -> Iterator[str]:
    """What some code takes from Flower that is not in its reference."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (
                each.name for each in node.names if each.name.split(".")[0] == "flwr" and each.name not in MODULES
            )
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flwr":
            for each in node.names:
                if node.module not in MODULES or each.name not in import_module(str(node.module)).__all__:
                    yield f"{node.module}.{each.name}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # As the argument of `import_module`, or the place of a patch.
            if node.value.startswith("flwr.") and " " not in node.value and node.value not in MODULES:
                yield node.value
        elif isinstance(node, ast.Attribute):
            owners = {each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)}
            owners |= {each.attr for each in ast.walk(node.value) if isinstance(each, ast.Attribute)}
            if node.attr.startswith("_") and owners & {*FROM_FLOWER}:
                yield ast.unparse(node)


def test_nothing_private_of_flower_is_used() -> None:
    found = {path.name: list(private_names(path.read_text(encoding="utf-8"))) for path in SOURCES}
    assert {name: names for name, names in found.items() if names} == {}


def test_no_private_name_of_flowers_strategy_is_taken_or_replaced() -> None:
    own = {name for name in vars(Clustered) if name.startswith("_") and not name.startswith("__")}
    assert own & {*dir(FedAvg)} <= {"_abc_impl"}


@pytest.mark.parametrize(
    "source",
    [
        "import flwr.proto",
        "import flwr.supercore.run as run",
        "from flwr.common import ndarrays_to_parameters",
        "from flwr.app import make_message",
        "from flwr.app.message import Message",
        "import_module('flwr.supercore.run')",
        "self.grid._runtime_client.PullMessages(request)",
        "grid._run",
        "message.metadata.__dict__['_message_id'] = id",
    ],
)
def test_a_private_name_is_found(source: str) -> None:
    assert list(private_names(source)) != []


@pytest.mark.parametrize(
    "source",
    ["import flwr.serverapp", "from flwr.app import Message, RecordDict", "grid.pull_messages([id])", "'flwr'"],
)
def test_a_public_name_is_none(source: str) -> None:
    assert list(private_names(source)) == []
