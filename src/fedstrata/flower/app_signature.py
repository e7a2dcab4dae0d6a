"""The signature of a federation's app, without which its nodes run nothing.

A SuperNode that is started with ``--trusted-entities`` runs an app only if one of these keys has signed it. Flower 1.41
fetches signatures with apps from its own Hub and has none for an app from a folder, so that this one's is handed to the
SuperLink's database. The key is thrown away once it has signed: no other app can be signed for these nodes by anyone.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sqlite3
from pathlib import Path
from time import time
from uuid import uuid4
from warnings import catch_warnings, simplefilter

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedstrata.errors import EngineError

SIGNATURE = "app.signature.json"
"""File of the signature in the folder of a federation, beside the app: inside it would be signed too."""

DATABASE = Path("superlink", "state.db")
"""The SuperLink's database in the folder of a federation."""


def sign_app(folder: Path) -> str:
    """Sign the app of a federation by a key that is then forgotten.

    Args:
        folder: of the federation; its ``app`` is there.

    Returns:
        The text of a file for ``--trusted-entities``: the name of the key and the public key.
    """
    from flwr.cli.build import build_fab_from_disk
    from flwr.supercore.primitives.asymmetric_ed25519 import create_message_to_sign

    with catch_warnings():
        # Flower's own packing calls what its libraries have deprecated.
        simplefilter("ignore", DeprecationWarning)
        digest = hashlib.sha256(build_fab_from_disk(folder / "app"))
    key, signed_at, name = Ed25519PrivateKey.generate(), int(time()), f"fpk_{uuid4()}"
    signature = key.sign(create_message_to_sign(digest.digest(), signed_at))
    proof = {"signed_at": signed_at, "signature": base64.urlsafe_b64encode(signature).decode()}
    verifications = {name: json.dumps(proof), "valid_license": "Valid"}
    signed = {"fab": digest.hexdigest(), "verifications": verifications}
    (folder / SIGNATURE).write_text(json.dumps(signed, indent=1) + "\n", encoding="utf-8")
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    return json.dumps({name: public}) + "\n"


def hand_over_signature(folder: Path) -> None:
    """Put the signature beside the app in the SuperLink's database, from which nodes fetch both.

    Nothing happens in a federation without a signature or a database: its nodes trust any app, or none.

    Args:
        folder: of the federation.

    Raises:
        EngineError: when the app that runs is not the one that was signed.
    """
    if not (folder / SIGNATURE).exists() or not (folder / DATABASE).exists():
        return
    signed = json.loads((folder / SIGNATURE).read_text(encoding="utf-8"))
    database = sqlite3.connect(folder / DATABASE, timeout=30.0)
    try:
        with database:
            change = "UPDATE fab SET verifications = ? WHERE fab_hash = ?"
            found = database.execute(change, (json.dumps(signed["verifications"]), signed["fab"])).rowcount
    except sqlite3.Error as error:
        raise EngineError(f"expected the database of Flower 1.41's SuperLink, found {error}") from None
    finally:
        database.close()
    if not found:
        raise EngineError(
            "expected the app that was signed when the federation was made, found another, which its nodes will not "
            "run; undo the change in its folder app, or make the federation anew by: fedstrata deploy init DIR"
        )
