"""Certificates for tests: an authority, and those it vouches for."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_NOW = datetime.datetime.now(datetime.UTC)
_DAY = datetime.timedelta(days=1)


_PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def _key(rsa_bits: int) -> _PrivateKey:
    return rsa.generate_private_key(65537, rsa_bits) if rsa_bits else ec.generate_private_key(ec.SECP256R1())


class Certified(NamedTuple):
    """A key and its certificate, as PEM."""

    key: str
    certificate: str

    def encrypted(self, password: str) -> str:
        """The key, locked."""
        loaded = serialization.load_pem_private_key(self.key.encode(), None)
        return loaded.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password.encode()),
        ).decode()

    def write(self, path: Path) -> str:
        """Key and certificate in one file."""
        path.write_text(self.key + self.certificate)
        return str(path)


class Authority:
    def __init__(self, name: str = "tests", above: Authority | None = None) -> None:
        """`above`: the one that vouches for it; None: nobody does."""
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority of {name}")])
        signer = above or self
        certificate = (
            signer._builder(self._name, self._key, _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0 if above else 1), critical=True)
            .sign(signer._key, hashes.SHA256())
        )
        self.certificate = certificate.public_bytes(serialization.Encoding.PEM).decode()

    def vouch(self, *names: tuple[x509.ObjectIdentifier, str], days: int = 1, rsa_bits: int = 0) -> Certified:
        """A certificate with these names in its subject, for localhost and 127.0.0.1. One of a negative
        number of days is over. The key is of an elliptic curve unless `rsa_bits` says how long it is."""
        key = _key(rsa_bits)
        parts = names or ((NameOID.COMMON_NAME, "localhost"),)
        subject = x509.Name([x509.NameAttribute(oid, text) for oid, text in parts])
        certificate = (
            self._builder(subject, key, days * _DAY)
            .add_extension(
                x509.SubjectAlternativeName(
                    [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
                ),
                critical=False,
            )
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        return Certified(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ).decode(),
            certificate.public_bytes(serialization.Encoding.PEM).decode(),
        )

    def write(self, path: Path) -> str:
        path.write_text(self.certificate)
        return str(path)

    def _builder(
        self, subject: x509.Name, key: _PrivateKey, life: datetime.timedelta
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(_NOW - 30 * _DAY)
            .not_valid_after(_NOW + life)
        )
