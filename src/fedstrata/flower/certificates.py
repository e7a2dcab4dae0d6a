"""Certificates and keys of a test federation, made by openssl and ssh-keygen; real ones come from an authority."""

from __future__ import annotations

import ipaddress
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from fedstrata.errors import InputError

DAYS = "365"
"""How long the certificates hold."""


def certify(folder: Path, host: str) -> None:
    """Make an authority and the certificate of a server.

    Args:
        folder: gets ``ca.crt``, ``ca.key``, ``server.crt`` and ``server.key``; made if need be.
        host: name or address at which nodes reach the server; ``localhost`` and 127.0.0.1 hold as well.

    Raises:
        InputError: when openssl is not there or fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-384", "-nodes")
    authority = ("-keyout", "ca.key", "-out", "ca.crt", "-days", DAYS, "-subj", "/CN=test federation")
    _do(("openssl", "req", "-x509", *curve, *authority), folder)
    with TemporaryDirectory() as scratch:
        request, extensions = Path(scratch, "server.csr"), Path(scratch, "names")
        extensions.write_text(f"subjectAltName={','.join(_names(host))}\n")
        _do(("openssl", "req", *curve, "-keyout", "server.key", "-out", str(request), "-subj", f"/CN={host}"), folder)
        signed = ("-in", str(request), "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-out", "server.crt")
        _do(("openssl", "x509", "-req", *signed, "-days", DAYS, "-extfile", str(extensions)), folder)


def keys(folder: Path, name: str) -> None:
    """Make the keys of a node: ``<name>`` and ``<name>.pub`` in a folder, which is made if need be.

    Raises:
        InputError: when ssh-keygen is not there or fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _do(("ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", name, "-f", name), folder)


def _names(host: str) -> list[str]:
    names = ["DNS:localhost", "IP:127.0.0.1"]
    try:
        own = f"IP:{ipaddress.ip_address(host)}"
    except ValueError:
        own = f"DNS:{host}"
    return names if own in names else [*names, own]


def _do(command: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise InputError(f"expected the program {command[0]}, found none; install it") from None
    if done.returncode:
        said = " ".join(done.stderr.split())[-300:]
        raise InputError(f"{' '.join(command[:2])} failed in {folder}: {said}")
