"""Every API at every version: without a login, without any right, with its rights, with a deny over them.

All of it follows from the registry, so an API that is added is tested by its row. The rules are those of
`security.rules`, as a broker has them. What Kafka answers to the same requests is compared by
`python -m conformance.differential --secured`.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.broker.acl import CLUSTER_NAME, REFUSED_WITH, Resource
from penstock.broker.registry import APIS, Api
from penstock.broker.rights import Right
from penstock.metadata.access import AccessRule
from penstock.security.rules import AccessRules
from penstock.security.words import EVERY_NAME, Pattern, Permission
from penstock.testing.hosts import ThreadHost
from penstock.testing.ports import consecutive
from penstock.wire.codec import encode
from penstock.wire.headers import request_header
from penstock.wire.schema import ZERO_UUID
from tests.broker.rig import Rig
from tests.broker.test_every_version import TOPICS, Builder, with_metadata_topic
from tests.broker.test_rights import codes, rights_of

ME, HERE = "User:me", "127.0.0.1"
REFUSALS = set(REFUSED_WITH.values())
ROWS = [row for row in APIS.values() if any(rights_of(row))]
SILENT = {
    "ListGroups",
    "ListTransactions",
    "DescribeCluster",
    "DescribeDelegationToken",
    "CreateDelegationToken",
}
"""These leave out what somebody may not see; and anybody may have a token of their own."""
TOLD_BEFORE_RIGHTS = {
    ("DescribeLogDirs", version) for version in range(3)
}  # fmt: skip
"""Versions whose answers have no code: they are empty."""
BEFORE_LOGIN = {"SaslHandshake", "ApiVersions"}


def rules_for(rights: Iterator[Right], permission: Permission) -> Iterator[AccessRule]:
    """One rule for each right, on everything of its kind."""
    for right in rights:
        name = CLUSTER_NAME if right.resource is Resource.CLUSTER else EVERY_NAME
        yield AccessRule(right.resource, name, Pattern.LITERAL, ME, EVERY_NAME, right.operation, permission)


def allowed(row: Api) -> list[AccessRule]:
    return list(rules_for(rights_of(row), Permission.ALLOW))


def denied_over_allowed(row: Api) -> list[AccessRule]:
    return [*allowed(row), *rules_for(rights_of(row), Permission.DENY)]


def requests(row: Api, version: int) -> Any:
    ids = {name: name.encode().ljust(16, b"*") for name in TOPICS}
    message = Builder(ids, 2).build(row, version)
    for topic in getattr(message, "topics", None) or ():
        if getattr(topic, "name", None) and getattr(topic, "topic_id", None):
            topic.topic_id = ZERO_UUID  # By name or by id, not by both.
    return with_metadata_topic(message) if row.name == "DescribeQuorum" else message


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = await Rig.start(
        tmp_path / "store",
        offsets_topic_num_partitions=1,
        transaction_state_log_num_partitions=1,
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        delegation_token_secret_key="secret",
        group_initial_rebalance_delay_ms=0,
    )
    await made.upgrade()
    made.session.principal = ME
    for name in TOPICS:
        await made.topic(name, 2)
    yield made
    await made.close()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_a_client_has_what_its_rules_say(rig: Rig, row: Api) -> None:
    response = row.messages()[1]
    versions = range(row.min_version, row.max_version + 1)
    lacking = [(AccessRules(()), "no rules"), (AccessRules(denied_over_allowed(row)), "denied")]
    for version in versions:
        answers = []
        for rules, _word in lacking:
            rig.broker.rules = rules
            answers.append(await rig.ask(requests(row, version), response, version))
        assert (
            (row.name, version) in TOLD_BEFORE_RIGHTS
            or row.name in SILENT
            or REFUSALS & set(codes(answers[0]))
        ), f"version {version} is open to everybody: {answers[0]}"
        if row.name != "CreateDelegationToken":  # Each is another one.
            assert answers[0] == answers[1], f"version {version}: to deny is more than not to allow"
    rig.broker.rules = AccessRules(allowed(row))
    for version in versions:
        answer = await rig.ask(requests(row, version), response, version)
        found = REFUSALS & set(codes(answer))
        assert not found, f"version {version} needs more than its row says: {answer}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_rules_of_others_do_not_help(rig: Rig, row: Api) -> None:
    """The same rights for somebody else, from elsewhere, or on another resource."""
    version, response = row.max_version, row.messages()[1]
    rig.broker.rules = AccessRules(())
    nothing = await rig.ask(requests(row, version), response, version)
    if row.name == "CreateDelegationToken":
        return
    for changes in ({"principal": "User:other"}, {"host": "10.9.9.9"}, {"name": "elsewhere"}):
        rig.broker.rules = AccessRules(msgspec.structs.replace(rule, **changes) for rule in allowed(row))
        assert await rig.ask(requests(row, version), response, version) == nothing, changes


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """The listener with logins of a running broker."""
    with consecutive(2) as port:
        plain = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_me="secret";'
        host = ThreadHost(
            {
                "broker.id": "1",
                "store": str(tmp_path_factory.mktemp("door")),
                "listeners": f"PLAINTEXT://{HERE}:{port},LOGIN://{HERE}:{port + 1}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.login.plain.sasl.jaas.config": plain,
            }
        )
        host.start()
        yield HERE, port + 1
        host.stop()


@pytest.mark.parametrize("row", APIS.values(), ids=lambda row: row.name)
def test_nothing_is_answered_before_the_login(door: tuple[str, int], row: Api) -> None:
    for version in range(row.min_version, row.max_version + 1):
        body = encode(requests(row, version), version)
        frame = request_header(row.key, version, 1, "stranger") + body
        with socket.create_connection(door, 20) as line:
            line.sendall(struct.pack(">i", len(frame)) + frame)
            answered = bool(line.recv(4))
        assert answered == (row.name in BEFORE_LOGIN), f"version {version}"
