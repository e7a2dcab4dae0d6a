"""Certificates with something wrong about them: their time is over, has not come, or they are another host's.

All times are so far away that no clock matters.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import NameOID

HERE = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class Fault:
    """What is wrong with a certificate.

    Attributes:
        years: The first year in which it holds, and the first in which it does not.
        names: The hosts that it is for.
        said: What nginx says that meets it.
        found: What OpenSSL says to Python.
    """

    years: tuple[int, int]
    names: tuple[str, ...]
    said: str
    found: str


FAULTS = {
    "expired": Fault((2001, 2002), HERE, "certificate has expired", "certificate has expired"),
    "of the future": Fault((2900, 2901), HERE, "certificate is not yet valid", "certificate is not yet valid"),
    "of another host": Fault((2001, 2901), ("other.example",), "does not match", "Hostname mismatch|mismatch"),
}
SOUND = Fault((2001, 2901), HERE, "", "")


def write_certificate(folder: Path, name: str, fault: Fault, authority: Path | None = None) -> None:
    """Write a certificate and its key.

    Args:
        folder: The folder of the files.
        name: The name of the files, ``<name>.crt`` and ``<name>.key``.
        fault: When and for whom it holds.
        authority: The folder of ``ca.crt`` and ``ca.key``, which sign it; None where it signs itself.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    subject = issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, fault.names[0])])
    signer: Any = key
    if authority is not None:
        issuer = x509.load_pem_x509_certificate((authority / "ca.crt").read_bytes()).subject
        signer = load_pem_private_key((authority / "ca.key").read_bytes(), None)
    hosts = [x509.IPAddress(ip_address(each)) if each[0].isdigit() else x509.DNSName(each) for each in fault.names]
    first, end = (datetime(year, 1, 1, tzinfo=UTC) for year in fault.years)
    made = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number(), first, end)
    made = made.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    (folder / f"{name}.crt").write_bytes(made.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM))
    content = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / f"{name}.key").write_bytes(content)
