"""The folder of a federation: the app for Flower, and a script for each machine."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import tomli_w

from fedstrata.flower.certificates import certify, keys

QUIET = "export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1"
"""Flower's programs call nobody outside."""


def scaffold(folder: Path, clients: Sequence[str], host: str, port: int) -> None:
    """Write all of a federation but its file and its data.

    Args:
        folder: of the federation, which exists.
        clients: their keys; the folder of each, ``nodes/<key>``, can be copied to its machine as it is.
        host: name or address at which nodes reach the server.
        port: of the server; those after it are the nodes' own, which no other machine needs to reach.
    """
    certify(folder / "certificates", host)
    _app(folder / "app")
    connection = {"address": f"{host}:{port}", "root-certificates": str((folder / "certificates/ca.crt").resolve())}
    _write(folder / "cli/config.toml", tomli_w.dumps({"superlink": {"default": "here", "here": connection}}))
    _script(folder / "superlink.sh", _superlink(host, port))
    register = [f"flwr supernode register nodes/{client}/key.pub here --name {client}" for client in clients]
    _script(folder / "register.sh", ["export FLWR_HOME=$PWD/cli", *register])
    for place, client in enumerate(clients):
        node = folder / "nodes" / client
        keys(node, "key")
        _write(node / "ca.crt", (folder / "certificates/ca.crt").read_text())
        _script(node / "start.sh", _node(client, host, port, port + 1 + place))


def _app(folder: Path) -> None:
    """The app is fedstrata itself; Flower wants a folder that says so."""
    project = {
        "name": "fedstrata-app",
        "version": version("fedstrata"),
        "description": "Clustered federated learning by fedstrata.",
        "license": {"file": "LICENSE"},
        "dependencies": ["flwr>=1.41.0", "fedstrata"],
    }
    components = {"serverapp": "fedstrata.flower.server_app:app", "clientapp": "fedstrata.flower.client_app:app"}
    config = {"experiment": "", "federation": "", "out": "", "resume": False}
    app = {"publisher": "fedstrata", "components": components, "config": config}
    _write(folder / "pyproject.toml", tomli_w.dumps({"project": project, "tool": {"flwr": {"app": app}}}))
    _write(folder / "LICENSE", "fedstrata is licensed under the Apache License, Version 2.0.\n")


def _superlink(host: str, port: int) -> list[str]:
    return [
        "mkdir -p superlink",
        "export FLWR_HOME=$PWD/superlink",
        f"exec flower-superlink --host {host} --port {port} --database superlink/state.db \\",
        "  --ssl-ca-certfile certificates/ca.crt --ssl-certfile certificates/server.crt \\",
        "  --ssl-keyfile certificates/server.key --enable-supernode-auth \\",
        "  --disable-runtime-dependency-installation",
    ]


def _node(client: str, host: str, port: int, own: int) -> list[str]:
    return [
        "mkdir -p home state",
        "export FLWR_HOME=$PWD/home",
        "# For about a minute after a crash the SuperLink still takes the old node for alive and refuses its key.",
        f"until flower-supernode --superlink {host}:{port} --host 127.0.0.1 --port {own} \\",
        "  --root-certificates ca.crt --auth-supernode-private-key key \\",
        f'  --node-config "client-key=\\"{client}\\" data=\\"$PWD/data.npz\\" state-dir=\\"$PWD/state\\""',
        "do sleep 10; done",
    ]


def _script(path: Path, lines: Sequence[str]) -> None:
    _write(path, "\n".join(["#!/bin/sh", "set -e", 'cd "$(dirname "$0")"', QUIET, *lines]) + "\n")
    path.chmod(0o755)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
