"""A secured broker, started from a `server.properties` as Kafka's is, with all that clients need to log in.

Its listeners: LOGIN (SASL_SSL, every mechanism), NAKED (SASL_PLAINTEXT), MUTUAL (SSL with client certificates), and
BRIEF (SASL_SSL), where a login lasts for some seconds.
"""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from tests.certificates import Authority

from conformance.clients.secured import Security
from conformance.parts import ROOT
from penstock.client import Client
from penstock.settings.clients import client_security
from penstock.testing.ports import consecutive
from penstock.wire.api.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialUpsertion,
)

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
VALIDATOR = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
USER, PASSWORD = "alice", "wonder,land=1"
AUDIENCE, ISSUER = "penstock", "https://issuer.example"
PORTS = 4
LOGIN_LASTS_MS = 3_000
"""At BRIEF: short enough to see several, and long enough for clients that log in anew some seconds ahead."""


class Stage:
    """The running broker."""

    def __init__(self, folder: Path, first_port: int) -> None:
        self.folder = folder
        addresses = [f"127.0.0.1:{first_port + number}" for number in range(PORTS)]
        self.login, self.naked, self.mutual, self.brief = addresses
        self.authority = Authority("the stage")
        self.ca = self.authority.write(folder / "ca.pem")
        self.keys = self.authority.vouch().write(folder / "broker.pem")
        self.signing_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        (folder / "jwks.json").write_text(json.dumps({"keys": [{**self.jwk, "kid": "one", "use": "sig"}]}))
        self.token_file = folder / "token"
        self.token_file.write_text(self.token())
        self.extra: dict[str, str] = {}
        """Settings instead of the usual ones."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def jwk(self) -> dict[str, str]:
        """The public half of the key that signs tokens, without its id."""
        found: dict[str, str] = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.signing_key.public_key()))
        return found

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def token(self, key: Any = None, algorithm: str = "RS256", **claims: Any) -> str:
        now = int(time.time())
        body = {"sub": USER, "aud": AUDIENCE, "iss": ISSUER, "iat": now, "exp": now + 600, **claims}
        return jwt.encode(body, self.signing_key if key is None else key, algorithm, headers={"kid": "one"})

    def security(self, protocol: str, mechanism: str = "", right: bool = True) -> Security:
        """How a client logs in; wrongly: with a guess, a token that is over, or keys that a stranger vouches for."""
        given = Security(protocol, mechanism, ca=self.ca if protocol.endswith("SSL") else "")
        if not mechanism:
            return replace(given, keys=self.client_keys(None if right else Authority("strangers")))
        if mechanism != "OAUTHBEARER":
            return replace(given, user=USER, password=PASSWORD if right else "a guess")
        file = self.token_file if right else self.folder / "token-that-is-over"
        file.write_text(self.token() if right else self.token(exp=int(time.time()) - 300))
        return replace(given, tokens=str(file))

    def own_properties(self, mechanism: str) -> dict[str, str]:
        """For Penstock's own client."""
        return own_properties(self.security("SASL_SSL", mechanism))

    def client_keys(self, authority: Authority | None = None, days: int = 1) -> str:
        made = (authority or self.authority).vouch((NameOID.COMMON_NAME, USER), days=days)
        return made.write(self.folder / f"client-{os.urandom(4).hex()}.pem")

    def start(self) -> None:
        plain = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        properties = {
            "process.roles": "broker",
            "node.id": "1",
            "log.dirs": "/nowhere",
            "listeners": f"LOGIN://{self.login},NAKED://{self.naked},MUTUAL://{self.mutual},BRIEF://{self.brief}",
            "listener.security.protocol.map": "LOGIN:SASL_SSL,NAKED:SASL_PLAINTEXT,MUTUAL:SSL,BRIEF:SASL_SSL",
            "group.initial.rebalance.delay.ms": "0",
            "listener.name.brief.connections.max.reauth.ms": str(LOGIN_LASTS_MS),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.keys,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.ca,
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.mutual.ssl.principal.mapping.rules": "RULE:^CN=(.*?)$/$1/,DEFAULT",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.login.plain.sasl.jaas.config": plain,
            "listener.name.naked.plain.sasl.jaas.config": plain,
            "listener.name.brief.plain.sasl.jaas.config": plain,
            # Kafka checks no token without it.
            "listener.name.login.oauthbearer.sasl.server.callback.handler.class": VALIDATOR,
            "sasl.oauthbearer.jwks.endpoint.url": f"file://{self.folder / 'jwks.json'}",
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{USER}",
            **self.extra,
        }
        file = self.folder / "server.properties"
        file.write_text("".join(f"{name}={text}\n" for name, text in properties.items()))
        program = Path(sys.executable).with_name("penstock")
        log = (self.folder / "broker.log").open("wb")
        command = [str(program), "start", "--config", str(file), "--store", str(self.folder / "store")]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, cwd=ROOT)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if b"is serving" not in line:
            raise RuntimeError((self.folder / "broker.log").read_text())
        self._add_users()

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
            self._process.kill()
            self._process.wait()

    def _add_users(self) -> None:
        salt = os.urandom(16)
        rows = [
            ScramCredentialUpsertion(
                name=USER,
                mechanism=number,
                iterations=4096,
                salt=salt,
                salted_password=hashlib.pbkdf2_hmac(name, PASSWORD.encode(), salt, 4096),
            )
            for number, name in ((1, "sha256"), (2, "sha512"))
        ]
        with Client(self.login, 10.0, client_security(self.own_properties("PLAIN"))) as client:
            for one in rows:
                answer = client.any().ask(
                    AlterUserScramCredentialsRequest(upsertions=[one]), AlterUserScramCredentialsResponse
                )
                assert not any(result.error_code for result in answer.results), answer


def own_properties(given: Security) -> dict[str, str]:
    """By the names of Java's clients, without the classes that only Java has."""
    return {name: text for name, text in given.java().items() if not name.endswith(".class")}


@contextlib.contextmanager
def stage(prepare: Callable[[Stage], None] = lambda _: None) -> Iterator[Stage]:
    """A broker that serves. `prepare` is called before it starts."""
    folder = Path(tempfile.mkdtemp(prefix="locked-doors-"))
    with consecutive(PORTS) as first_port:
        made = Stage(folder, first_port)
        try:
            prepare(made)
            made.start()
            yield made
        finally:
            made.stop()
            shutil.rmtree(folder, ignore_errors=True)
