"""Brokers with a second door: TLS and SCRAM-SHA-512, the same certificate and the same user on both.

The first listener stays open, for the harness. Keys are of ECDSA on P-256.
"""

import hashlib
import os

from conformance.parts import PartMissing
from conformance.server import Server, free_port
from conformance.target import Penstock

from benchmarks import brokers
from penstock.cli.certificates import new_authority, new_certificate
from penstock.client import Client
from penstock.wire.api.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialUpsertion,
)

KEY = "secured"
USER, PASSWORD = "bench", "not-a-secret"
ITERATIONS = 4096
SCRAM_SHA_512 = 2
MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


class Secured(Server):
    """What both have."""

    door: str

    def settle(self) -> dict[str, str]:
        """Write certificates, choose the address, and give the settings."""
        self.door = f"{self.host}:{free_port()}"
        key, certificate = new_authority()
        self.authority = self.folder / "ca.pem"
        self.authority.write_bytes(certificate)
        keys = self.folder / "broker.pem"
        keys.write_bytes(new_certificate("bench", {"localhost", "127.0.0.1"}, key, certificate))
        keys.chmod(0o600)
        return {
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURED:SASL_SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(keys),
            "listener.name.secured.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.secured.scram-sha-512.sasl.jaas.config": f"{MODULE} required;",
        }

    @property
    def login(self) -> list[str]:
        return [f"--ca={self.authority}", f"--login={USER}:{PASSWORD}"]

    def add_user(self) -> None:
        salt = os.urandom(16)
        row = ScramCredentialUpsertion(
            name=USER,
            mechanism=SCRAM_SHA_512,
            iterations=ITERATIONS,
            salt=salt,
            salted_password=hashlib.pbkdf2_hmac("sha512", PASSWORD.encode(), salt, ITERATIONS),
        )
        with Client(self.bootstrap) as client:
            request = AlterUserScramCredentialsRequest(upsertions=[row])
            answer = client.any().ask(request, AlterUserScramCredentialsResponse)
            assert not any(one.error_code for one in answer.results), answer


class SecuredPenstock(Penstock, Secured):
    def __init__(self) -> None:
        super().__init__()
        self.settings = self.settle() | {
            "listeners": f"PLAINTEXT://{self.bootstrap},SECURED://{self.door}",
            "inter.broker.listener.name": "PLAINTEXT",
        }

    def command(self) -> list[str]:
        program, start, _listen, _address, *rest = super().command()
        return [program, start, *rest]


class SecuredKafka(brokers.MeasuredKafka, Secured):
    def __init__(self) -> None:
        super().__init__()
        self.extra |= self.settle()

    def prepare(self) -> None:
        controller = f"{self.host}:{free_port()}"
        self.extra |= {
            "listeners": f"PLAINTEXT://{self.bootstrap},SECURED://{self.door},CONTROLLER://{controller}",
            "controller.quorum.voters": f"1@{controller}",
        }
        super().prepare()


def broker_for(name: str, durability: str) -> Server:
    """A broker that is not yet started, with this durability, or as it is with secured doors."""
    if durability != KEY:
        return brokers.broker_named(name, brokers.durability_settings(name, durability))
    if name == "penstock":
        return SecuredPenstock()
    if name == "kafka":
        return SecuredKafka()
    raise PartMissing(f"the {name} broker speaks no TLS.")
