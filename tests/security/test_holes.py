"""The classes of holes that Kafka had to close, each with the test that fails if Penstock had it.

`HOLES` maps a class, with the CVEs that it is known by, to tests. Those that stand elsewhere are checked
to be there; those that nothing else tests are here.
"""

from __future__ import annotations

import ast
import hmac
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.acl import Operation, Resource
from penstock.broker.registry import APIS, Api
from penstock.metadata.access import AccessRule
from penstock.security import credentials
from penstock.security.credentials import Mechanism, from_salted_password
from penstock.security.rules import AccessRules
from penstock.security.words import Pattern, Permission
from penstock.settings.jaas import parse_jaas
from penstock.settings.setting import SettingsError
from penstock.wire.api.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ReplicaState
from penstock.wire.api.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.wire.codec import decode, encode
from penstock.wire.errors import ErrorCode
from penstock.wire.headers import parse_response_header, request_header
from penstock.wire.layout import layout_of
from tests.broker.rig import Rig, batch
from tests.broker.test_rights import codes

TESTS = Path(__file__).resolve().parent.parent
ME = "User:me"

HOLES = {
    "counts and lengths above the bytes that are left (2026-111108, 2026-111115, 2022-34917)": (
        "wire/test_properties.py::test_a_huge_count_costs_nothing",
        "wire/test_properties.py::test_every_cut_is_refused",
        "server/test_login.py::test_a_token_that_is_too_long_is_not_read",
    ),
    "bombs (2023-34455)": (
        "wire/test_compression.py::test_bombs_are_refused_without_memory",
        "wire/test_compression.py::test_a_snappy_length_is_not_believed",
        "broker/test_expanding.py::test_a_bomb_is_too_large_wherever_it_must_be_expanded",
    ),
    "bombs of telemetry (2026-111073)": ("security/test_holes.py::test_telemetry_is_not_served",),
    "tokens that nobody checks (2026-33557, 2026-110985)": (
        "security/test_tokens.py::test_a_wrong_token",
        "settings/test_doors.py::test_half_a_security_setting_is_refused",
    ),
    "the nonce of SCRAM (2024-56128)": ("security/test_scram.py::test_the_final_nonce_must_be_ours",),
    "timing (2021-38153)": (
        "security/test_holes.py::test_secrets_are_compared_in_one_time",
        "security/test_holes.py::test_no_secret_is_compared_by_equality",
    ),
    "posing as a follower (2018-1288)": ("security/test_holes.py::test_a_follower_is_a_broker",),
    "posing as another user (2017-12610)": (
        "security/test_scram.py::test_nobody_poses_as_somebody_else",
        "security/test_scram.py::test_plain_refuses",
    ),
    "past the rights of transactions (2018-17196)": (
        "security/test_holes.py::test_a_transaction_needs_the_right_to_its_id",
    ),
    "empty collections (2026-83525)": (
        "security/test_holes.py::test_asking_for_nothing_opens_nothing_and_breaks_nothing",
    ),
    "code and URLs from settings (2025-27817, 2025-27818, 2025-27819)": (
        "security/test_holes.py::test_no_other_login_module_is_taken",
    ),
    "internal topics by the name of a client": (
        "security/test_holes.py::test_the_name_of_a_client_opens_no_internal_topic",
    ),
}


@pytest.mark.parametrize("hole", HOLES)
def test_each_hole_has_its_tests(hole: str) -> None:
    for place in HOLES[hole]:
        file, _, name = place.partition("::")
        tree = ast.parse((TESTS / file).read_text())
        found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert name in found, place


def test_telemetry_is_not_served() -> None:
    """What is not served expands nothing."""
    assert not {71, 72} & set(APIS)


# -- secrets ---------------------------------------------------------------------------------------------


def test_secrets_are_compared_in_one_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[Any, Any]] = []

    def spy(one: Any, other: Any) -> bool:
        compared.append((one, other))
        return hmac_compare(one, other)

    hmac_compare = hmac.compare_digest
    monkeypatch.setattr("penstock.security.credentials.hmac.compare_digest", spy)
    credential = from_salted_password(Mechanism.SCRAM_SHA_256, b"s" * 32, b"salt", 4096)
    assert not credentials.proves(Mechanism.SCRAM_SHA_256, credential, b"message", bytes(32))
    assert len(compared) == 1
    assert all(len(one) == len(other) for one, other in compared)


def test_no_secret_is_compared_by_equality() -> None:
    """Words that name secrets stand on neither side of == in the rooms that have them."""
    secrets = {"password", "stored_key", "server_key", "hmac", "proof", "signature", "secret", "given"}
    for path in (TESTS.parent / "src" / "penstock" / "security").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq):
                sides = {ast.unparse(side).rpartition(".")[2] for side in (node.left, *node.comparators)}
                assert not sides & secrets, f"{path.name}:{node.lineno}"


@pytest.mark.parametrize(
    "module",
    [
        "com.sun.security.auth.module.JndiLoginModule",
        "com.sun.security.auth.module.LdapLoginModule",
        "com.sun.security.auth.module.KeyStoreLoginModule",
        "PlainLoginModuleX",
        "javax.script.ScriptLoginModule",
    ],
)
def test_no_other_login_module_is_taken(module: str) -> None:
    options = 'user.provider.url="ldap://evil/x" useFirstPass="true"'
    with pytest.raises(SettingsError) as told:
        parse_jaas(f"{module} required {options};", "PLAIN", "sasl.jaas.config")
    assert "evil" not in str(told.value)


# -- rights ----------------------------------------------------------------------------------------------


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = await Rig.start(
        tmp_path / "store",
        offsets_topic_num_partitions=1,
        transaction_state_log_num_partitions=1,
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        delegation_token_secret_key="secret",
    )
    await made.upgrade()
    await made.topic("first", 2)
    made.session.principal = ME
    yield made
    await made.close()


def may(*pairs: tuple[Operation, Resource]) -> AccessRules:
    return AccessRules(
        AccessRule(
            resource,
            "kafka-cluster" if resource is Resource.CLUSTER else "*",
            Pattern.LITERAL,
            ME,
            "*",
            operation,
            Permission.ALLOW,
        )
        for operation, resource in pairs
    )


async def test_a_follower_is_a_broker(rig: Rig) -> None:
    """Who says to be a follower may read nothing by that, and writes nobody's progress."""
    rig.broker.rules = may((Operation.READ, Resource.TOPIC))
    part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    for version in range(APIS[1].max_version + 1):
        by_id = version >= 13
        topic = FetchTopic(
            topic="" if by_id else "first",
            topic_id=b"first".ljust(16, b"*") if by_id else bytes(16),
            partitions=[part],
        )
        asked = FetchRequest(max_wait_ms=0, max_bytes=1000, topics=[topic])
        if version >= 15:
            asked.replica_state = ReplicaState(replica_id=2)
        else:
            asked.replica_id = 2
        answer = await rig.ask(asked, FetchResponse, version)
        assert {partition.error_code for one in answer.responses for partition in one.partitions} == {
            ErrorCode.TOPIC_AUTHORIZATION_FAILED
        }, version


def _produce(topic: str, transactional_id: str | None) -> ProduceRequest:
    records = batch(
        b"x", transactional=transactional_id is not None, producer_id=1, producer_epoch=0, base_sequence=0
    )
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(records=records)])
    return ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=1000, topic_data=[data])


async def test_a_transaction_needs_the_right_to_its_id(rig: Rig) -> None:
    rig.broker.rules = may((Operation.WRITE, Resource.TOPIC), (Operation.IDEMPOTENT_WRITE, Resource.CLUSTER))
    for version in range(3, 13):
        answer = await rig.ask(_produce("first", "theirs"), ProduceResponse, version)
        assert set(codes(answer)) == {ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}, version
        hidden = _produce("first", "theirs")
        hidden.transactional_id = None  # The batch alone says that it is of a transaction.
        answer = await rig.ask(hidden, ProduceResponse, version)
        assert ErrorCode.NONE not in [
            part.error_code for topic in answer.responses for part in topic.partition_responses
        ], version


async def test_the_name_of_a_client_opens_no_internal_topic(rig: Rig) -> None:
    for internal in ("__consumer_offsets", "__transaction_state"):
        await rig.topic(internal)
        for client_id in ("rig", "__admin_client"):
            rig.broker.rules = may((Operation.WRITE, Resource.CLUSTER))
            assert await _written(rig, internal, client_id) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        rig.broker.rules = may((Operation.WRITE, Resource.TOPIC))
        assert await _written(rig, internal, "rig") == ErrorCode.INVALID_TOPIC_EXCEPTION


async def _written(rig: Rig, topic: str, client_id: str) -> int:
    frame = request_header(0, 9, 1, client_id) + encode(_produce(topic, None), 9)
    buffers = await rig.finished(rig.handle(memoryview(bytearray(frame)), owned=True))
    assert buffers is not None
    data = memoryview(b"".join(buffers))
    _, at = parse_response_header(0, 9, data)
    answer, _end = decode(ProduceResponse, 9, data, at)
    return answer.responses[0].partition_responses[0].error_code


def _nothing(row: Api, version: int) -> Iterator[Any]:
    """The request with every list empty, or null where that may be."""
    layout = layout_of(row.messages()[0], version)
    lists = [field for field in layout.fields if field.present and field.type.kind == "array"]
    for null in (False, True):
        asked: Any = layout.cls(
            **{field.name: None if null and field.type.nullable else [] for field in lists}
        )
        if row.name == "Produce":
            asked.acks = -1  # Else there is no answer.
        yield asked


@pytest.mark.parametrize("row", [row for row in APIS.values() if not row.raw], ids=lambda row: row.name)
async def test_asking_for_nothing_opens_nothing_and_breaks_nothing(
    rig: Rig, row: Api, caplog: pytest.LogCaptureFixture
) -> None:
    rig.broker.rules = AccessRules(())
    cluster_wide = row.whole is not None and row.whole.resource is Resource.CLUSTER
    for version in range(row.min_version, row.max_version + 1):
        for asked in _nothing(row, version):
            answer = await rig.ask(asked, row.messages()[1], version)
            found = set(codes(answer))
            assert ErrorCode.UNKNOWN_SERVER_ERROR not in found, version
            if cluster_wide and "error_code" in {f.name for f in layout_of(type(answer), version).plain}:
                assert found == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}, version
            assert "first" not in str(answer), "a topic that may not be described was named"
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
