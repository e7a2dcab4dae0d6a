"""The configuration of nginx, which is all of a federation that other machines can reach.

Flower 1.41 serves three interfaces on one port: Fleet for the nodes, Control for the operator, Runtime for Flower's own
programs. Control asks for no credentials. So the SuperLink listens on 127.0.0.1 alone, and nginx forwards the methods
of the Fleet API that a registered node needs, to those who show the certificate of a node.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from dataclasses import dataclass
from ipaddress import ip_address
from math import ceil, prod
from pathlib import Path

from fedstrata.core import Layout
from fedstrata.flower.payload import CHUNK
from fedstrata.flower.protocol import RunConfig

FOLDER = "proxy"
"""The folder of the proxy's files, in that of the federation."""

METHODS = (
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "get-fab",
    "pull-object",
    "confirm-message-received",
)
"""The methods of Flower's Fleet API with small requests. The operator alone registers nodes, never the port."""

UPDATES = 16
"""The number of updates of a whole model in one reply for which there is room; no algorithm here asks for more."""

HEADERS = 64 * 2**10
"""The bytes of what a request has beside an array's own, at most."""

REFERENCE = 128
"""The bytes of one entry in the list of objects that a reply announces, at most."""


LIMIT = re.compile(r"client_max_body_size (\d+);")


@dataclass(frozen=True)
class BodyLimits:
    """How many bytes the body of a request to the proxy may have.

    Attributes:
        list: The bytes of one that announces a reply by the list of its objects, or asks for something.
        object: The bytes of one that brings an object of a reply.
    """

    list: int
    object: int


def limits_of(layout: Layout, config: RunConfig) -> BodyLimits:
    """The limits for replies about one network, whose sizes are known before they come."""
    stats = [4 * count for count in config.stat_sizes.values()]
    arrays = [4 * prod(slot.shape) for slot in layout.tensors] * UPDATES + stats
    # An array is one object beside those of its pieces; records and the message are objects as well.
    objects = sum(1 + ceil(size / CHUNK) for size in arrays) + 4 * UPDATES
    return BodyLimits(HEADERS + REFERENCE * objects, HEADERS + min(max(arrays), CHUNK))


def raise_limits(home: Path, limits: BodyLimits) -> None:
    """Raise a federation's limits to those of another network, and tell a proxy that is up.

    Limits never fall: another run may still need them.

    Args:
        home: The folder of the federation.
        limits: The limits to hold at least.
    """
    folder = home / FOLDER
    changed = False
    for path, needed in ((folder / "list.conf", limits.list), (folder / "object.conf", limits.object)):
        found = LIMIT.search(path.read_text(encoding="utf-8")) if path.exists() else None
        if found is None or int(found[1]) < needed:
            # The body stays in memory: a proxy that root starts could write no file into a private folder.
            path.write_text(f"client_max_body_size {needed};\nclient_body_buffer_size {needed};\n", encoding="utf-8")
            changed = True
    if changed and (process := _running(folder / "nginx.pid")):
        # nginx reads its files again; requests in progress are answered first.
        os.kill(process, signal.SIGHUP)


def _running(path: Path) -> int:
    """The process of a proxy that is up, or 0: one that was killed leaves its file, and its number may be another's."""
    if not path.exists() or not (number := path.read_text().strip()).isdigit():
        return 0
    found = subprocess.run(["ps", "-o", "command=", "-p", number], capture_output=True, text=True, check=False)
    return int(number) if "nginx" in found.stdout else 0


def server_configuration(host: str, port: int) -> str:
    """The configuration of the proxy on the server, ``nginx.conf`` in the folder `FOLDER`.

    Args:
        host: The name or address at which nodes reach the server.
        port: The port at which they reach it.
    """
    listen = f"{_address(host)}:{port}"
    return f"""# Everything of this federation that another machine can reach. Paths are relative to this file's folder.
pid nginx.pid;
error_log stderr;
worker_processes 1;
events {{ worker_connections 1024; }}
http {{
{COMMON}
    # What was refused, for the operator; nginx escapes what it writes there.
    map $status $refused {{ ~^4 1; default 0; }}
    access_log refused.log combined if=$refused;
    limit_conn_zone $ssl_client_fingerprint zone=nodes:1m;

    server {{
        listen {listen} ssl;
        ssl_protocols TLSv1.2 TLSv1.3;
        ssl_certificate ../certificates/server.crt;
        ssl_certificate_key ../certificates/server.key;
        # Nobody but the nodes whose certificates superlink.sh has put together.
        ssl_client_certificate nodes.crt;
        ssl_verify_client on;
        ssl_verify_depth 1;
        limit_conn nodes 8;

        # The path is compared after nginx has cleaned it, and what is forwarded is made of the match alone.
        location ~ ^/v1/fleet/({"|".join(METHODS)})$ {{
            include list.conf;
            include fleet.conf;
        }}
        location ~ ^/v1/fleet/(push-object)$ {{
            include object.conf;
            include fleet.conf;
        }}
        location / {{ return 404; }}
    }}
}}
"""


def fleet_configuration(superlink: int) -> str:
    """What is common to the methods that are forwarded, ``fleet.conf`` beside ``nginx.conf``.

    Args:
        superlink: The port of the SuperLink on 127.0.0.1.
    """
    return f"""if ($request_method != POST) {{ return 404; }}
proxy_pass https://127.0.0.1:{superlink}/v1/fleet/$1;
proxy_http_version 1.1;
proxy_set_header X-Forwarded-For $remote_addr;
proxy_set_header X-Forwarded-Proto https;
proxy_ssl_trusted_certificate ../certificates/ca.crt;
proxy_ssl_verify on;
proxy_ssl_name localhost;
"""


def node_configuration(host: str, port: int, own: int) -> str:
    """The configuration of a node's own proxy, ``nginx.conf`` in the node's folder.

    A SuperNode of Flower 1.41 can show no certificate: its HTTP client is made with an authority and nothing else. So
    it speaks to this proxy on its own machine, which shows the node's certificate to the server.

    Args:
        host: The name or address of the server.
        port: The port of the server's proxy.
        own: The port of this proxy on 127.0.0.1.
    """
    # nginx compares the server's name with names alone; the test authority signs for localhost as well.
    name = "localhost" if _is_address(host) else host
    return f"""# Shows this node's certificate to the server. Paths are relative to this file's folder.
pid nginx.pid;
error_log stderr;
worker_processes 1;
events {{ worker_connections 64; }}
http {{
{COMMON}
    access_log off;
    server {{
        listen 127.0.0.1:{own} ssl;
        ssl_protocols TLSv1.2 TLSv1.3;
        ssl_certificate tls.crt;
        ssl_certificate_key tls.key;
        client_max_body_size 0;
        client_body_buffer_size {CHUNK + HEADERS};
        location / {{
            proxy_pass https://{_address(host)}:{port};
            proxy_http_version 1.1;
            proxy_ssl_certificate tls.crt;
            proxy_ssl_certificate_key tls.key;
            proxy_ssl_trusted_certificate ca.crt;
            proxy_ssl_verify on;
            proxy_ssl_name {name};
            proxy_ssl_server_name on;
        }}
    }}
}}
"""


COMMON = """    server_tokens off;
    # Answers pass through memory alone.
    proxy_max_temp_file_size 0;
    client_body_temp_path temporary;
    proxy_temp_path temporary;
    fastcgi_temp_path temporary;
    uwsgi_temp_path temporary;
    scgi_temp_path temporary;"""
"""What a server's and a node's proxy have in common. nginx insists on the five folders, which stay empty."""


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _address(host: str) -> str:
    """A host as it stands before a port: an address of IPv6 has brackets."""
    return f"[{host}]" if ":" in host else host
