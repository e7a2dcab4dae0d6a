"""The folder of a federation with the app for Flower, and the scripts and proxies of each machine.

Flower serves three interfaces on one port: Fleet for the nodes, Control for the operator, Runtime for Flower's own
programs. Control asks for no credentials. So the SuperLink listens on 127.0.0.1 alone. By ``templates/server.conf``,
nginx forwards the methods of the Fleet API that a registered node needs, to those who show the certificate of a node.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from math import ceil, prod
from pathlib import Path
from typing import Any

import tomli_w
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fedstrata.core import Layout
from fedstrata.flower.credentials import APP_HASH_FILE, app_hash, certify, is_address, make_node_keys
from fedstrata.flower.payload import PIECE_BYTES
from fedstrata.flower.requests import RunConfig

_METHODS = (
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "pull-object",
    "confirm-message-received",
)
"""The methods of Flower's Fleet API with small requests, but the one that fetches the app.

The operator alone registers nodes, never the port.
"""

PROXY_FOLDER = "proxy"
"""The folder of the proxy's files, in that of the federation."""

_UPDATES = 16
"""The number of updates of a whole model in one reply for which there is room; no algorithm here asks for more."""

_OVERHEAD_BYTES = 64 * 2**10
"""The largest number of bytes of what a request has beside an array's own."""

_LIST_BYTES = 16 * 2**10
"""The largest number of bytes of a request that brings no array, beside the list of objects that it announces."""

_OBJECT_BYTES = _OVERHEAD_BYTES + PIECE_BYTES
"""The largest number of bytes of a request that brings an object of a reply, whatever the network."""

_KEY_CHARACTERS = 60
"""The largest number of characters of a client's name in its key."""

_REFERENCE_BYTES = 80
"""The largest number of bytes of one entry in the list of objects that a reply announces."""

_BODY_LIMIT = re.compile(r"client_max_body_size (\d+);")


def scaffold(folder: Path, clients: Sequence[str], host: str, port: int) -> None:
    """Write all of a federation but its file, its data and the limits of its proxy.

    A SuperNode can show no certificate: its HTTP client is made with an authority and nothing else. So
    it speaks to a proxy on its own machine, which shows the node's certificate to the server.

    Args:
        folder: The folder of the federation, which exists.
        clients: The keys of the clients; the folder of each, ``nodes/<key>``, can be copied to its machine as it is.
        host: The name or address at which nodes reach the server.
        port: The port of the server; those after it are for programs on one machine to talk to each other.
    """
    superlink = port + 1
    shared = {
        "port": port,
        "superlink": superlink,
        # An address of IPv6 has brackets before a port.
        "address": f"[{host}]" if ":" in host else host,
        # nginx compares the server's name with names alone; the test authority signs for localhost as well.
        "name": "localhost" if is_address(host) else host,
        "object_bytes": _OBJECT_BYTES,
        "methods": _METHODS,
    }
    certify(folder / "certificates", host)
    # The app is fedstrata itself; Flower wants a folder that says so.
    _render("app.toml", folder / "app/pyproject.toml", version=version("fedstrata"))
    _write(folder / "app/LICENSE", "fedstrata is licensed under the Apache License, Version 2.0.\n")
    app = app_hash(folder)
    _write(folder / APP_HASH_FILE, f"{app}\n")
    # The operator's commands go past the proxy, which forwards none of them.
    connection = {
        "address": f"127.0.0.1:{superlink}",
        "root-certificates": str((folder / "certificates/ca.crt").resolve()),
    }
    _write(folder / "cli/config.toml", tomli_w.dumps({"superlink": {"default": "here", "here": connection}}))
    _render("server.conf", folder / PROXY_FOLDER / "nginx.conf", **shared)
    _render("fleet.conf", folder / PROXY_FOLDER / "fleet.conf", **shared)
    _render("superlink.sh", folder / "superlink.sh", proxy=PROXY_FOLDER, **shared)
    _render("register.sh", folder / "register.sh", clients=clients)
    for place, client in enumerate(clients):
        node = folder / "nodes" / client
        forward = port + 2 + 2 * place
        make_node_keys(node)
        _write(node / "ca.crt", (folder / "certificates/ca.crt").read_text())
        _render("node.conf", node / "nginx.conf", forward=forward, app=app, **shared)
        _render("start.sh", node / "start.sh", proxy=".", client=client, forward=forward)


def node_keys(names: Sequence[str]) -> tuple[str, ...]:
    """Return a key for each client that is safe as the name of a folder and in a script.

    Letters, digits, dots, dashes and underscores of its name are kept. A client whose name is its number, or has
    nothing to keep, is ``site-<number>``. Equal keys get a number behind them.
    """
    keys: list[str] = []
    for client, name in enumerate(names):
        kept = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:_KEY_CHARACTERS]
        key = f"site-{client}" if not kept or name == str(client) else kept
        # File systems may take two cases of a letter for one.
        taken = {other.casefold() for other in keys}
        while key.casefold() in taken:
            key = f"{key}-{client}"
        keys.append(key)
    return tuple(keys)


def fit_proxy(home: Path, layout: Layout, config: RunConfig) -> None:
    """Let replies about a network, whose sizes are known before they come, through the proxy of a federation.

    The limits of the proxy never fall: another run may still need them. A proxy that is up reads its files again.

    Args:
        home: The folder of the federation.
        layout: The layout of the network.
        config: The config of the run.
    """
    stats = [4 * count for count in config.stat_sizes.values()]
    arrays = [4 * prod(spec.shape) for spec in layout.tensors] * _UPDATES + stats
    if config.compression != "none":
        # All tensors of an update are side by side. No compression takes more bytes, in at most two arrays.
        arrays += [4 * layout.p] * 2 * _UPDATES
    # An array is one object beside those of its pieces; records and the message are objects as well.
    objects = sum(1 + ceil(size / PIECE_BYTES) for size in arrays) + 4 * _UPDATES
    limits = {
        # A request that announces a reply by the list of its objects, or that asks for something.
        "list.conf": _LIST_BYTES + _REFERENCE_BYTES * objects,
        # A request that brings an object of a reply.
        "object.conf": min(_OVERHEAD_BYTES + max(arrays), _OBJECT_BYTES),
    }
    folder = home / PROXY_FOLDER
    changed = False
    for name, needed in limits.items():
        path = folder / name
        found = _BODY_LIMIT.search(path.read_text(encoding="utf-8")) if path.exists() else None
        if found is None or int(found[1]) < needed:
            # The body stays in memory: a proxy that root starts could write no file into a private folder.
            path.write_text(f"client_max_body_size {needed};\nclient_body_buffer_size {needed};\n", encoding="utf-8")
            changed = True
    if changed and (process := _running(folder / "nginx.pid")):
        # nginx reads its files again; requests in progress are answered first.
        os.kill(process, signal.SIGHUP)


def _running(path: Path) -> int:
    """Find the process of a proxy that is up, or 0: the number in the file of a killed one may be another's."""
    if not path.exists() or not (number := path.read_text().strip()).isdigit():
        return 0
    found = subprocess.run(["ps", "-o", "command=", "-p", number], capture_output=True, text=True, check=False)
    return int(number) if "nginx" in found.stdout else 0


def _render(template: str, path: Path, **values: Any) -> None:
    """Write a file by a template in the folder ``templates``; a script can be started."""
    # Nothing is escaped: these are no pages, and the operator's own words fill them.
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    _write(path, environment.get_template(template).render(**values))
    if path.suffix == ".sh":
        path.chmod(0o755)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
