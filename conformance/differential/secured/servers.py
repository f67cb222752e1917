"""Apache Kafka and Penstock with the same settings: a listener with logins beside an open one, and the authorizer."""

import hashlib
import secrets
import time

from conformance.differential.secured.actors import ACTORS, NOBODY, PASSWORD, STRANGER
from conformance.differential.world import PATIENCE_S, World
from conformance.oracle import ApacheKafka
from conformance.server import free_port
from conformance.target import Penstock
from conformance.wire.connection import Connection
from penstock.security.proving import Proof, plain_proof, scram_proof

SCRAM_SHA_256 = 1
ITERATIONS = 4096
BATCH = 500


class LoginFailed(Exception):
    """A user that is known was not let in."""


def secured() -> dict[str, str]:
    """The settings of either broker, beside where it listens."""
    users = " ".join(f'user_{name}="{PASSWORD}"' for name in ACTORS if name != NOBODY)
    module = "org.apache.kafka.common.security"
    return {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.login.plain.sasl.jaas.config": f"{module}.plain.PlainLoginModule required {users};",
        "listener.name.login.scram-sha-256.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
        "listener.name.login.scram-sha-512.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:super",
        "delegation.token.secret.key": "a secret of both",
        # Members stay while nobody looks after them.
        "group.consumer.max.session.timeout.ms": "3600000",
        "group.consumer.session.timeout.ms": "3600000",
    }


class SecuredKafka(ApacheKafka):
    def __init__(self, version: str, settings: dict[str, str]) -> None:
        super().__init__(version)
        self.login_port = free_port()
        controller = free_port()
        places = f"PLAINTEXT://{self.bootstrap},LOGIN://{self.host}:{self.login_port}"
        self.extra = {
            **settings,
            **secured(),
            "listeners": f"{places},CONTROLLER://{self.host}:{controller}",
            "controller.quorum.voters": f"1@{self.host}:{controller}",
        }


class SecuredPenstock(Penstock):
    def __init__(self, settings: dict[str, str]) -> None:
        super().__init__()
        self.login_port = free_port()
        places = f"PLAINTEXT://{self.bootstrap},LOGIN://{self.host}:{self.login_port}"
        self.settings = {**settings, **secured(), "listeners": places}
        self.properties = self.folder / "server.properties"

    def prepare(self) -> None:
        self.properties.write_text("".join(f"{name}={value}\n" for name, value in self.settings.items()))

    def command(self) -> list[str]:
        store = str(self.folder / "store")
        return [str(self.program), "start", "--config", str(self.properties), "--store", store]


class SecuredWorld(World):
    """Connections are by the name of the user who logs in there; the first one is a super user's."""

    server: SecuredKafka | SecuredPenstock

    @property
    def ports(self) -> tuple[int, ...]:
        return (self.server.port, self.server.login_port)

    def connect(self, name: str) -> Connection:
        if not name:
            return super().connect(name)
        connection = Connection(self.server.host, self.server.login_port, timeout_s=PATIENCE_S)
        user = name.partition("/")[0]
        if user != STRANGER:
            log_in(connection, user)
        return connection

    def add_user(self, name: str) -> None:
        salt = secrets.token_bytes(16)
        row = {
            "Name": name,
            "Mechanism": SCRAM_SHA_256,
            "Iterations": ITERATIONS,
            "Salt": salt,
            "SaltedPassword": hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), salt, ITERATIONS),
        }
        self.connection.call("AlterUserScramCredentials", 0, {"Deletions": [], "Upsertions": [row]})

    def await_transactions(self, name: str) -> None:
        """Until a producer with this transactional id was begun."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            self.connection.call("FindCoordinator", 4, {"KeyType": 1, "CoordinatorKeys": [name]})
            body = {"TransactionalId": name, "TransactionTimeoutMs": 10_000}
            if self.connection.call("InitProducerId", 1, body)["ErrorCode"] == 0:
                return
            time.sleep(0.1)
        raise LoginFailed(f"{self.name} has no coordinator for transactions")

    def add_rules(self) -> None:
        creations = [rule.creation(user) for user, rules in ACTORS.items() for rule in rules]
        for at in range(0, len(creations), BATCH):
            answer = self.connection.call("CreateAcls", 2, {"Creations": creations[at : at + BATCH]})
            wrong = [
                (made, result)
                for made, result in zip(creations[at:], answer["Results"], strict=False)
                if result["ErrorCode"]
            ]
            if wrong:
                raise LoginFailed(f"{self.name} refused an access rule: {wrong[0]}")


def log_in(connection: Connection, user: str) -> None:
    mechanism = "SCRAM-SHA-256" if user == NOBODY else "PLAIN"
    proof: Proof = (
        scram_proof(mechanism, user, PASSWORD, secrets.token_hex(12))
        if user == NOBODY
        else plain_proof(user, PASSWORD)
    )
    connection.call("SaslHandshake", 1, {"Mechanism": mechanism})
    token = next(proof)
    while True:
        answer = connection.call("SaslAuthenticate", 2, {"AuthBytes": token})
        if answer["ErrorCode"]:
            raise LoginFailed(f"{user} was not let in: {answer}")
        try:
            token = proof.send(answer["AuthBytes"])
        except StopIteration:
            return
