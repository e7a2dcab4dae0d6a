"""Certificates and keys of a test federation, and the hash of its app, but for which its nodes run nothing.

openssl and ssh-keygen make the certificates and keys; real ones come from an authority.

A SuperNode runs whatever app the SuperLink names. So the proxy of a node lets it fetch one app alone: the one of this
hash, by which a SuperNode keeps what it has fetched, too.
"""

from __future__ import annotations

import hashlib
import subprocess
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from fedstrata.base.errors import InputError
from fedstrata.flower.federation import flower_environment

APP_HASH_FILE = "app.sha256"
"""File of the hash of the app in the folder of a federation."""


def certify(folder: Path, host: str) -> None:
    """Make an authority and the certificate of a server.

    Args:
        folder: It gets ``ca.crt``, ``ca.key``, ``server.crt`` and ``server.key``; made if need be.
        host: The name or address at which nodes reach the server; ``localhost`` and 127.0.0.1 hold as well.

    Raises:
        InputError: When openssl is not there or fails.
    """
    _make("certify.sh", folder, host, "IP" if is_address(host) else "DNS")


def make_node_keys(folder: Path) -> None:
    """Make the keys and the certificate of a node in a folder, which is made if need be.

    The keys are ``key`` and ``key.pub``, the certificate ``tls.crt`` and ``tls.key``. The certificate is its own
    authority. The server's proxy lets in exactly those that it has been given, and the node's own proxy shows it to the
    SuperNode as well.

    Raises:
        InputError: When ssh-keygen or openssl is not there or fails.
    """
    _make("node-keys.sh", folder)


def read_public_keys(folder: Path) -> dict[str, str]:
    """Read the public keys by which the operator knows the nodes, as Flower tells them.

    Args:
        folder: The folder of the federation; a client's key is in ``nodes/<client>/key.pub``.

    Returns:
        The public key in hexadecimal digits by the client's key, of those clients that have such a file.

    Raises:
        InputError: When a file is no public key.
    """
    found = dict[str, str]()
    for path in sorted(folder.glob("nodes/*/key.pub")):
        try:
            key = load_ssh_public_key(path.read_bytes())
        except (ValueError, OSError, UnsupportedAlgorithm) as error:
            raise InputError(f"{path}: expected a public key as ssh-keygen writes it: {error}") from None
        found[path.parent.name] = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).hex()
    return found


def app_hash(folder: Path) -> str:
    """Compute the hash of a federation's app, as Flower packs it: in hexadecimal digits, by which Flower names it.

    Args:
        folder: The folder of the federation; its ``app`` is there.

    Raises:
        InputError: When Flower cannot pack it.
    """
    with TemporaryDirectory() as place:
        _run(["flwr", "build", "--app", str((folder / "app").resolve())], Path(place), flower_environment(Path(place)))
        (packed,) = Path(place).glob("*.fab")
        return hashlib.sha256(packed.read_bytes()).hexdigest()


def refuse_another_app(folder: Path) -> None:
    """Refuse to start a run of an app that the nodes of a federation do not fetch.

    Raises:
        InputError: When the app is not the one that was there when the federation was made.
    """
    known = folder / APP_HASH_FILE
    if known.exists() and known.read_text(encoding="utf-8").strip() != app_hash(folder):
        raise InputError(
            f"{folder / 'app'}: expected the app that was there when the federation was made, found another, which its "
            "nodes do not fetch; undo the change, or make the federation anew by: fedstrata deploy init DIR"
        )


def is_address(host: str) -> bool:
    """Tell whether a host is given by its address and not by its name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _make(script: str, folder: Path, *words: str) -> None:
    """Run a script of the folder ``templates`` in another folder, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    _run(["/bin/sh", str(Path(__file__).parent / "templates" / script), *words], folder)


def _run(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> None:
    """Run a program in a folder."""
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        name = " ".join(Path(word).name for word in command[:2]).removeprefix("sh ")
        raise InputError(f"{name} failed in {folder}: {' '.join(done.stderr.split())[-300:]}")
