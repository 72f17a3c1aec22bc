"""Certificates of an authority, a server and clients for tests, as PEM files in a folder."""

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_BEGIN = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
_END = dt.datetime(2120, 1, 1, tzinfo=dt.UTC)


class Authority:
    """Signs certificates. `path` is the file of the authority's certificate, for trust stores."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        made = self._builder(self._name, self._key).add_extension(constraints, critical=True)
        self._certificate = made.sign(self._key, hashes.SHA256())
        self.path = folder / f"{name}.pem"
        self.path.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        made = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name)
        made = made.public_key(key.public_key()).serial_number(x509.random_serial_number())
        return made.not_valid_before(_BEGIN).not_valid_after(_END)

    def issue(self, name: str, *, unit: str | None = None, password: str | None = None) -> Path:
        """Write a new key and its certificate for 127.0.0.1 to one file; return the file's path."""
        key = ec.generate_private_key(ec.SECP256R1())
        parts = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
        if unit is not None:
            parts.insert(0, x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit))
        here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        made = self._builder(x509.Name(parts), key).add_extension(here, critical=False)
        certificate = made.sign(self._key, hashes.SHA256())
        locked: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            locked = serialization.BestAvailableEncryption(password.encode())
        form = serialization.PrivateFormat.PKCS8
        pem = key.private_bytes(serialization.Encoding.PEM, form, locked)
        path = self._folder / f"{name}.pem"
        path.write_bytes(pem + certificate.public_bytes(serialization.Encoding.PEM))
        return path
