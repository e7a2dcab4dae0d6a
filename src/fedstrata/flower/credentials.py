"""Certificates and keys of a test federation, and the signature of its app, without which its nodes run nothing.

openssl and ssh-keygen make the certificates and keys; real ones come from an authority.

A SuperNode that is started with ``--trusted-entities`` runs an app only if one of these keys has signed it. Flower 1.41
fetches signatures with apps from its own Hub and has none for an app from a folder, so that this one's is handed to the
SuperLink's database. The key is thrown away once it has signed: no other app can be signed for these nodes by anyone.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sqlite3
import subprocess
from contextlib import closing
from ipaddress import ip_address
from pathlib import Path
from time import time
from uuid import uuid4
from warnings import catch_warnings, simplefilter

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from fedstrata.base.errors import EngineError, InputError

_SIGNATURE_FILE = "app.signature.json"
"""File of the signature in the folder of a federation, beside the app: inside it would be signed too."""

_DATABASE = Path("superlink", "state.db")
"""The SuperLink's database in the folder of a federation."""


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


def sign_app(folder: Path) -> str:
    """Sign the app of a federation by a key that is then forgotten.

    Args:
        folder: The folder of the federation; its ``app`` is there.

    Returns:
        The text of a file for ``--trusted-entities``: the name of the key and the public key.
    """
    from flwr.cli.build import build_fab_from_disk
    from flwr.supercore.primitives.asymmetric_ed25519 import create_message_to_sign

    with catch_warnings():
        # Flower's own packing calls what its libraries have deprecated.
        simplefilter("ignore", DeprecationWarning)
        digest = hashlib.sha256(build_fab_from_disk(folder / "app"))
    key = Ed25519PrivateKey.generate()
    signed_at = int(time())
    name = f"fpk_{uuid4()}"
    signature = key.sign(create_message_to_sign(digest.digest(), signed_at))
    proof = {"signed_at": signed_at, "signature": base64.urlsafe_b64encode(signature).decode()}
    verifications = {name: json.dumps(proof), "valid_license": "Valid"}
    signed = {"fab": digest.hexdigest(), "verifications": verifications}
    (folder / _SIGNATURE_FILE).write_text(json.dumps(signed, indent=1) + "\n", encoding="utf-8")
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    return json.dumps({name: public}) + "\n"


def hand_over_signature(folder: Path) -> None:
    """Put the signature beside the app in the SuperLink's database, from which nodes fetch both.

    Nothing happens in a federation without a signature or a database: its nodes trust any app, or none.

    Args:
        folder: The folder of the federation.

    Raises:
        EngineError: When the app that runs is not the one that was signed.
    """
    if not (folder / _SIGNATURE_FILE).exists() or not (folder / _DATABASE).exists():
        return
    signed = json.loads((folder / _SIGNATURE_FILE).read_text(encoding="utf-8"))
    change = "UPDATE fab SET verifications = ? WHERE fab_hash = ?"
    try:
        with closing(sqlite3.connect(folder / _DATABASE, timeout=30.0)) as database, database:
            found = database.execute(change, (json.dumps(signed["verifications"]), signed["fab"])).rowcount
    except sqlite3.Error as error:
        raise EngineError(f"expected the database of Flower 1.41's SuperLink, found {error}") from None
    if not found:
        raise EngineError(
            "expected the app that was signed when the federation was made, found another, which its nodes will not "
            "run; undo the change in its folder app, or make the federation anew by: fedstrata deploy init DIR"
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
    command = ["/bin/sh", str(Path(__file__).parent / "templates" / script), *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"{script} failed in {folder}: {' '.join(done.stderr.split())[-300:]}")
