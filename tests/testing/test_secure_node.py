"""A broker whose listeners ask for TLS and a login, seen from outside."""

from __future__ import annotations

import asyncio
import socket
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography.x509.oid import NameOID

from penstock.client import Client, ClientError
from penstock.node.node import Node, StartError
from penstock.settings import Settings
from penstock.settings.clients import ClientSecurity, client_security
from penstock.wire.api.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
)
from penstock.wire.api.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from penstock.wire.api.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from penstock.wire.api.metadata import MetadataRequest, MetadataResponse
from penstock.wire.errors import ErrorCode
from tests.certificates import Authority

AUTHORITY = Authority()
PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";'
SCRAM = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="{}" password="{}";'


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    keys = AUTHORITY.vouch().write(tmp_path / "broker.pem")
    values = {
        "store": str(tmp_path / "store"),
        "listeners": "LOGIN://127.0.0.1:0,MUTUAL://127.0.0.1:0",
        "listener.security.protocol.map": "LOGIN:SASL_SSL,MUTUAL:SSL",
        "ssl.keystore.location": keys,
        "ssl.truststore.location": AUTHORITY.write(tmp_path / "ca.pem"),
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.mutual.ssl.principal.mapping.rules": "RULE:^CN=(.*?),.*$/$1/L",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "listener.name.login.plain.sasl.jaas.config": PLAIN,
        "delegation.token.secret.key": "a key of the brokers",
    }
    made = Node(Settings().with_values(values), first_users={"bob": "password"})
    await made.start()
    yield made
    await made.kill()


def properties(tmp_path: Path, **more: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": str(tmp_path / "ca.pem"),
        **{name.replace("_", "."): value for name, value in more.items()},
    }


async def brokers(node: Node, listener: int, given: dict[str, str]) -> int:
    """How many brokers the cluster says it has."""
    address = f"127.0.0.1:{node.bound[listener].port}"

    def ask() -> int:
        with Client(address, 5.0, client_security(given)) as client:
            return len(client.metadata([]).brokers)

    return await asyncio.to_thread(ask)


async def test_each_way_in(node: Node, tmp_path: Path) -> None:
    plain = properties(tmp_path, sasl_mechanism="PLAIN", sasl_username="alice", sasl_password="secret")
    assert await brokers(node, 0, plain) == 1
    scram = properties(
        tmp_path, sasl_mechanism="SCRAM-SHA-512", sasl_jaas_config=SCRAM.format("bob", "password")
    )
    assert await brokers(node, 0, scram) == 1
    own = AUTHORITY.vouch((NameOID.ORGANIZATION_NAME, "Us"), (NameOID.COMMON_NAME, "Carol"))
    mutual = properties(
        tmp_path, security_protocol="SSL", ssl_keystore_location=own.write(tmp_path / "carol.pem")
    )
    assert await brokers(node, 1, mutual) == 1


@pytest.mark.parametrize(
    ("listener", "given", "words"),
    [
        (0, {"sasl_mechanism": "PLAIN", "sasl_username": "alice", "sasl_password": "guess"}, "login failed"),
        (
            0,
            {"sasl_mechanism": "SCRAM-SHA-512", "sasl_username": "bob", "sasl_password": "guess"},
            "login failed",
        ),
        (
            0,
            {"sasl_mechanism": "SCRAM-SHA-256", "sasl_username": "bob", "sasl_password": "password"},
            "does not offer",
        ),
        (0, {"security_protocol": "SSL"}, "broke|answer"),
        (0, {"security_protocol": "PLAINTEXT"}, "broke|answer"),
        (1, {"security_protocol": "SSL"}, "broke|TLS"),
    ],
)
async def test_wrong_ways_in(
    node: Node, tmp_path: Path, listener: int, given: dict[str, str], words: str
) -> None:
    with pytest.raises(ClientError, match=words):
        await brokers(node, listener, properties(tmp_path, **given))


async def test_a_broker_that_nobody_vouches_for_is_not_trusted(node: Node, tmp_path: Path) -> None:
    other = Authority("others").write(tmp_path / "other.pem")
    given = properties(tmp_path, security_protocol="SSL", ssl_truststore_location=other)
    with pytest.raises(ClientError, match="not trusted"):
        await brokers(node, 1, given)


async def test_plain_bytes_get_no_answer(node: Node) -> None:
    def ask() -> bytes:
        with socket.create_connection(("127.0.0.1", node.bound[0].port), 5) as connection:
            connection.sendall(b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff")
            return connection.recv(100)

    assert await asyncio.to_thread(ask) == b""


async def test_an_open_address_is_refused(tmp_path: Path) -> None:
    settings = Settings().with_values({"store": str(tmp_path), "listeners": "PLAINTEXT://0.0.0.0:0"})
    with pytest.raises(StartError, match=r"--secure .* --insecure"):
        await Node(settings).start()


async def test_keys_that_cannot_be_read_end_a_start(tmp_path: Path) -> None:
    settings = Settings().with_values(
        {
            "store": str(tmp_path),
            "listeners": "SSL://127.0.0.1:0",
            "ssl.keystore.location": str(tmp_path / "no.pem"),
        }
    )
    with pytest.raises(StartError, match=r"no.pem cannot be read"):
        await Node(settings).start()


async def test_a_user_that_is_removed_is_out(node: Node, tmp_path: Path) -> None:
    scram = properties(
        tmp_path, sasl_mechanism="SCRAM-SHA-512", sasl_jaas_config=SCRAM.format("bob", "password")
    )

    def ask() -> None:
        with Client(f"127.0.0.1:{node.bound[0].port}", 5.0, client_security(scram)) as client:
            metadata = MetadataRequest(topics=[])
            connection = client.any()
            assert len(connection.ask(metadata, MetadataResponse).brokers) == 1
            removed = AlterUserScramCredentialsRequest(deletions=[ScramCredentialDeletion("bob", 2)])
            answer = connection.ask(removed, AlterUserScramCredentialsResponse)
            assert answer.results[0].error_code == 0, "what is under way is answered"
            with pytest.raises(ClientError, match="broke"):
                connection.ask(metadata, MetadataResponse)

    await asyncio.to_thread(ask)
    with pytest.raises(ClientError, match="login failed"):
        await brokers(node, 0, scram)


async def test_a_delegation_token_is_shown_as_javas_clients_show_it(node: Node, tmp_path: Path) -> None:
    def security(name: str, password: str, more: str = "") -> ClientSecurity:
        jaas = SCRAM.format(name, password).replace(";", f"{more};")
        return client_security(properties(tmp_path, sasl_mechanism="SCRAM-SHA-512", sasl_jaas_config=jaas))

    def ask() -> None:
        address = f"127.0.0.1:{node.bound[0].port}"
        create = CreateDelegationTokenRequest(max_lifetime_ms=-1)
        with Client(address, 5.0, security("bob", "password")) as bob:
            made = bob.any().ask(create, CreateDelegationTokenResponse)
            assert made.error_code == ErrorCode.NONE
            shown = made.token_id, b64encode(made.hmac).decode()
            with pytest.raises(ClientError, match="login failed"):
                Client(address, 5.0, security(*shown))
            with Client(address, 5.0, security(*shown, ' tokenauth="true"')) as by_token:
                connection = by_token.any()
                refused = connection.ask(create, CreateDelegationTokenResponse)
                assert refused.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
                assert refused.principal_name == "bob"
                ended = ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=-1)
                assert bob.any().ask(ended, ExpireDelegationTokenResponse).error_code == ErrorCode.NONE
                with pytest.raises(ClientError, match="broke"):
                    connection.ask(MetadataRequest(topics=[]), MetadataResponse)

    await asyncio.to_thread(ask)
