"""How a client program logs in: the file that `--security` names, the same for every program.

    {"protocol": "SASL_SSL", "mechanism": "SCRAM-SHA-512", "user": U, "password": P, "tokens": FILE, "ca": FILE,
     "keys": FILE, "java": {"security.protocol": ..., ...}}

"protocol" is one of SSL, SASL_PLAINTEXT and SASL_SSL. "mechanism" is there with the last two, with "user" and
"password" or, for OAUTHBEARER, with the file that has the token: programs read it again for each login. "ca" is there
with TLS. "keys" is a client's key and certificate in one PEM file, if it shows one. "java" is the same by the names of Java's clients.
"""

import argparse
import json
import ssl
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

JAVA_MODULES = {"PLAIN": "plain.Plain", "OAUTHBEARER": "oauthbearer.OAuthBearer"}
TOKEN_RETRIEVER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
ALLOWED = "org.apache.kafka.sasl.oauthbearer.allowed"


@dataclass(frozen=True, slots=True, repr=False)
class Security:
    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    user: str = ""
    password: str = ""
    tokens: str = ""
    ca: str = ""
    keys: str = ""

    @staticmethod
    def read(path: str | None) -> "Security":
        given = {} if path is None else json.loads(Path(path).read_text())
        return Security(**{name: text for name, text in given.items() if name != "java"})

    def python(self, provider: Callable[["Security"], object]) -> dict[str, Any]:
        """By the names that kafka-python and aiokafka share. `provider`: what gives the library its tokens."""
        if self.protocol == "PLAINTEXT":
            return {}
        login = {"security_protocol": self.protocol, "ssl_context": self.context}
        if not self.mechanism:
            return login
        login["sasl_mechanism"] = self.mechanism
        if self.tokens:
            return login | {"sasl_oauth_token_provider": provider(self)}
        return login | {"sasl_plain_username": self.user, "sasl_plain_password": self.password}

    def write(self, path: Path) -> Path:
        told = {name: text for name, text in asdict(self).items() if text}
        path.write_text(json.dumps({**told, "java": self.java()}))
        return path

    @property
    def context(self) -> ssl.SSLContext | None:
        if not self.protocol.endswith("SSL"):
            return None
        made = ssl.create_default_context(cafile=self.ca)
        if self.keys:
            made.load_cert_chain(self.keys)
        return made

    def token(self) -> str:
        return Path(self.tokens).read_text()

    def librdkafka(self) -> dict[str, str]:
        """But for the token, which it asks a callback for."""
        found = {"security.protocol": self.protocol}
        if self.mechanism:
            found["sasl.mechanism"] = self.mechanism
        if self.user and not self.tokens:
            found |= {"sasl.username": self.user, "sasl.password": self.password}
        if self.ca:
            found["ssl.ca.location"] = self.ca
        if self.keys:
            found |= {"ssl.certificate.location": self.keys, "ssl.key.location": self.keys}
        return found

    def java(self) -> dict[str, str]:
        found = {"security.protocol": self.protocol}
        if self.ca:
            found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": self.ca}
        if self.keys:
            found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": self.keys}
        if not self.mechanism:
            return found
        module = JAVA_MODULES.get(self.mechanism, "scram.Scram")
        head = f"org.apache.kafka.common.security.{module}LoginModule required"
        found["sasl.mechanism"] = self.mechanism
        if self.tokens:
            return found | {
                "sasl.jaas.config": f"{head};",
                "sasl.login.callback.handler.class": TOKEN_RETRIEVER,
                "sasl.oauthbearer.token.endpoint.url": f"file://{self.tokens}",
            }
        return found | {"sasl.jaas.config": f'{head} username="{self.user}" password="{self.password}";'}

    def java_options(self) -> list[str]:
        """What the machine is told that runs a Java client: it reads tokens only from files that are named."""
        if not self.tokens:
            return []
        return [f"-D{ALLOWED}.urls=file://{self.tokens}", f"-D{ALLOWED}.files={self.tokens}"]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--security", metavar="FILE", help="see conformance/clients/secured.py")
