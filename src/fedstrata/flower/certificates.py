"""Certificates and keys of a test federation, made by openssl and ssh-keygen; real ones come from an authority."""

from __future__ import annotations

import ipaddress
import subprocess
from collections.abc import Sequence
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from fedstrata.errors import InputError

DAYS = "365"
"""How long the certificates hold."""

CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-384", "-nodes")
"""What kind of keys they are about."""


def certify(folder: Path, host: str) -> None:
    """Make an authority and the certificate of a server.

    Args:
        folder: gets ``ca.crt``, ``ca.key``, ``server.crt`` and ``server.key``; made if need be.
        host: name or address at which nodes reach the server; ``localhost`` and 127.0.0.1 hold as well.

    Raises:
        InputError: when openssl is not there or fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    authority = ("-keyout", "ca.key", "-out", "ca.crt", "-days", DAYS, "-subj", "/CN=test federation")
    _do(("openssl", "req", "-x509", *CURVE, *authority), folder)
    with TemporaryDirectory() as scratch:
        request, extensions = Path(scratch, "server.csr"), Path(scratch, "names")
        extensions.write_text(f"subjectAltName={','.join(_names(host))}\n")
        _do(("openssl", "req", *CURVE, "-keyout", "server.key", "-out", str(request), "-subj", f"/CN={host}"), folder)
        signed = ("-in", str(request), "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-out", "server.crt")
        _do(("openssl", "x509", "-req", *signed, "-days", DAYS, "-extfile", str(extensions)), folder)


def keys(folder: Path, name: str) -> None:
    """Make the keys of a node: ``<name>`` and ``<name>.pub`` in a folder, which is made if need be.

    Raises:
        InputError: when ssh-keygen is not there or fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _do(("ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", name, "-f", name), folder)


def certify_node(folder: Path) -> None:
    """Make the certificate of a node: ``tls.crt`` and ``tls.key`` in a folder, which is made if need be.

    The certificate is its own authority. The server's proxy lets in exactly those that it has been given, and the
    node's own proxy shows it to the SuperNode as well. Its name is random: a proxy sends the names of all that it lets
    in to whoever connects.

    Raises:
        InputError: when openssl is not there or fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    named = ("-subj", f"/CN={token_hex(8)}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    signed = ("-addext", "basicConstraints=critical,CA:FALSE", "-days", DAYS)
    _do(("openssl", "req", "-x509", *CURVE, "-keyout", "tls.key", "-out", "tls.crt", *named, *signed), folder)


def read_public_keys(folder: Path) -> dict[str, str]:
    """The public keys by which the operator knows the nodes, as Flower tells them.

    Args:
        folder: of the federation; a client's key is in ``nodes/<client>/key.pub``.

    Returns:
        Client's key -> public key in hexadecimal digits, of those clients that have such a file.

    Raises:
        InputError: when a file is no public key.
    """
    return {path.parent.name: _public_key(path) for path in sorted(folder.glob("nodes/*/key.pub"))}


def _public_key(path: Path) -> str:
    try:
        key = load_ssh_public_key(path.read_bytes())
        return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).hex()
    except (ValueError, OSError, UnsupportedAlgorithm) as error:
        raise InputError(f"{path}: expected a public key as ssh-keygen writes it: {error}") from None


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
