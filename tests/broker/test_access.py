"""Access rules, credentials, quotas and tokens through their APIs, and their effect on a broker."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.context import Broker
from penstock.broker.handlers import create_delegation_token
from penstock.metadata.access import AccessRule, DelegationToken
from penstock.metadata.commands import SetDelegationToken, SetLevel
from penstock.metadata.image import WalRef
from penstock.metadata.levels import LEVEL_MAX, SECURITY_FROM
from penstock.security import rules as rules_module
from penstock.security.credentials import Mechanism, derived
from penstock.security.delegation import login_with, token_hmac
from penstock.security.words import Operation, Resource
from penstock.settings.access import STANDARD_AUTHORIZER
from penstock.wire.api.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
)
from penstock.wire.api.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from penstock.wire.api.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from penstock.wire.api.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from penstock.wire.api.create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from penstock.wire.api.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from penstock.wire.api.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from penstock.wire.api.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from penstock.wire.api.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from penstock.wire.api.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)
from penstock.wire.api.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from penstock.wire.api.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.wire.api.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.api.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.wire.api.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.wire.api.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse
from penstock.wire.errors import ErrorCode
from tests.broker.rig import Rig, batch

ROOT, ALICE = "User:root", "User:alice"
SECRET = "the key of tokens"
TOPIC, GROUP, CLUSTER = 2, 3, 4
ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
ALL, READ, WRITE, DESCRIBE = 2, 3, 4, 8
DENY, ALLOW = 2, 3
ALICE_READS = AclCreation(TOPIC, "t", LITERAL, ALICE, "*", READ, ALLOW)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = await Rig.start(
        tmp_path / "store",
        authorizer_class_name=STANDARD_AUTHORIZER,
        super_users=ROOT,
        delegation_token_secret_key=SECRET,
    )
    await made.propose(SetLevel(LEVEL_MAX, (WalRef(1, 1),)))
    made.session.principal = ROOT
    await made.topic("t")
    yield made
    await made.close()


async def create(rig: Rig, *creations: AclCreation) -> list[tuple[int, str | None]]:
    answer = await rig.ask(CreateAclsRequest(creations=list(creations)), CreateAclsResponse, 3)
    return [(result.error_code, result.error_message) for result in answer.results]


async def take_back(rig: Rig) -> list[str]:
    """Delete all rules: the principals that had them."""
    every = DeleteAclsFilter(ANY, None, ANY, None, None, ANY, ANY)
    gone = await rig.ask(DeleteAclsRequest(filters=[every]), DeleteAclsResponse, 3)
    return [one.principal for one in gone.filter_results[0].matching_acls]


async def sees(rig: Rig, principal: str) -> int:
    """The code that somebody is given who asks for the topic."""
    was, rig.session.principal = rig.session.principal, principal
    asked = MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=False)
    answer = await rig.ask(asked, MetadataResponse, 12)
    rig.session.principal = was
    return answer.topics[0].error_code


async def test_a_rule_takes_effect_at_once_and_goes_so(rig: Rig) -> None:
    assert await sees(rig, ROOT) == ErrorCode.NONE
    assert await sees(rig, ALICE) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert await create(rig, ALICE_READS, ALICE_READS) == [(0, ""), (0, "")]
    assert list(rig.broker.image.access_rules) == [AccessRule(TOPIC, "t", LITERAL, ALICE, "*", READ, ALLOW)]
    assert await sees(rig, ALICE) == ErrorCode.NONE
    version = rig.broker.image.version
    assert await create(rig, ALICE_READS) == [(0, "")]
    assert rig.broker.image.version == version, "it was there"
    assert await take_back(rig) == [ALICE]
    assert await sees(rig, ALICE) == ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_a_fetch_that_waits_is_given_nothing_that_it_may_not_read_any_more(rig: Rig) -> None:
    await create(rig, ALICE_READS)
    rig.session.principal = ALICE
    wanted = FetchTopic("t", partitions=[FetchPartition(partition=0, partition_max_bytes=1000)])
    asked = FetchRequest(max_wait_ms=60_000, min_bytes=1, max_bytes=1000, topics=[wanted])
    waiting = asyncio.ensure_future(rig.ask(asked, FetchResponse, 11))
    await asyncio.sleep(0)
    rig.session.principal = ROOT
    await take_back(rig)
    rows = [PartitionProduceData(index=0, records=batch(b"secret"))]
    await rig.ask(
        ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[TopicProduceData("t", partition_data=rows)]),
        ProduceResponse,
        9,
    )
    answer = (await waiting).responses[0].partitions[0]
    assert (answer.error_code, bytes(answer.records or b"")) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, b"")


async def test_a_regular_expression_finds_only_topics_that_its_sender_may_describe(rig: Rig) -> None:
    await rig.topic("secret")
    await create(
        rig,
        AclCreation(GROUP, "g", LITERAL, ALICE, "*", READ, ALLOW),
        AclCreation(TOPIC, "t", LITERAL, ALICE, "*", DESCRIBE, ALLOW),
    )
    rig.session.principal = ALICE
    await rig.ask(FindCoordinatorRequest(coordinator_keys=["g"]), FindCoordinatorResponse, 4)
    joining = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        rebalance_timeout_ms=1000,
        subscribed_topic_regex="secret|t",
        topic_partitions=[],
    )
    answer = await rig.ask(joining, ConsumerGroupHeartbeatResponse, 1)
    assert answer.error_code == ErrorCode.NONE
    assert answer.assignment is not None
    found = [one.topic_id for one in answer.assignment.topic_partitions]
    assert found == [rig.broker.image.topics["t"].id]


async def test_nobody_looks_for_a_topic_that_its_asker_may_not_see(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look takes its time, and only what does not exist is looked for: the time would tell."""
    looks: list[str] = []

    async def catch_up() -> None:
        looks.append(rig.session.principal)

    monkeypatch.setattr(rig.broker.metadata, "catch_up", catch_up)
    asked = MetadataRequest(topics=[MetadataRequestTopic(name="absent")], allow_auto_topic_creation=False)
    for principal in (ALICE, ROOT):
        rig.session.principal = principal
        await rig.ask(asked, MetadataResponse, 12)
    assert looks == [ROOT]


async def test_a_right_to_the_whole_that_goes_while_a_request_waits_is_gone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(rig, AclCreation(CLUSTER, "kafka-cluster", LITERAL, ALICE, "*", DESCRIBE, ALLOW))
    catch_up = rig.broker.metadata.catch_up

    async def slowly() -> None:
        monkeypatch.undo()
        rig.session.principal = ROOT
        await take_back(rig)
        await catch_up()

    monkeypatch.setattr(rig.broker.metadata, "catch_up", slowly)
    rig.session.principal = ALICE
    answer = await rig.ask(DescribeAclsRequest(ANY, None, ANY, None, None, ANY, ANY), DescribeAclsResponse, 3)
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (AclCreation(TOPIC, "", LITERAL, ALICE, "*", READ, ALLOW), "Invalid empty resource name"),
        (AclCreation(CLUSTER, "x", LITERAL, ALICE, "*", READ, ALLOW), "The only valid name for the CLUSTER"),
        (AclCreation(9, "t", LITERAL, ALICE, "*", READ, ALLOW), "Invalid resourceType"),
        (AclCreation(ANY, "t", LITERAL, ALICE, "*", READ, ALLOW), "Invalid resourceType"),
        (AclCreation(TOPIC, "t", MATCH, ALICE, "*", READ, ALLOW), "Invalid patternType"),
        (AclCreation(TOPIC, "t", LITERAL, ALICE, "*", ANY, ALLOW), "Invalid operation"),
        (AclCreation(TOPIC, "t", LITERAL, ALICE, "*", 99, ALLOW), "Invalid operation"),
        (AclCreation(TOPIC, "t", LITERAL, ALICE, "*", READ, ANY), "Invalid permissionType"),
        (AclCreation(TOPIC, "t", LITERAL, "alice", "*", READ, ALLOW), "Could not parse principal"),
    ],
)
async def test_what_can_be_no_rule(rig: Rig, wrong: AclCreation, why: str) -> None:
    (code, said), right = await create(rig, wrong, ALICE_READS)
    assert code == ErrorCode.INVALID_REQUEST
    assert said is not None and said.startswith(why)
    assert right == (0, "")
    assert len(rig.broker.image.access_rules) == 1


async def test_rules_are_described_by_resource(rig: Rig) -> None:
    await create(
        rig,
        ALICE_READS,
        AclCreation(TOPIC, "t", LITERAL, "User:bob", "*", WRITE, DENY),
        AclCreation(TOPIC, "t", PREFIXED, ALICE, "*", READ, ALLOW),
        AclCreation(GROUP, "g", LITERAL, ALICE, "*", READ, ALLOW),
    )

    async def found(version: int, *words: Any) -> list[tuple[int, str, int, int]]:
        answer = await rig.ask(DescribeAclsRequest(*words), DescribeAclsResponse, version)
        assert answer.error_code == ErrorCode.NONE
        return [
            (one.resource_type, one.resource_name, one.pattern_type, len(one.acls))
            for one in answer.resources
        ]

    every = (ANY, None, ANY, None, None, ANY, ANY)
    assert await found(3, *every) == [
        (TOPIC, "t", LITERAL, 2),
        (TOPIC, "t", PREFIXED, 1),
        (GROUP, "g", LITERAL, 1),
    ]
    assert await found(0, ANY, None, LITERAL, None, None, ANY, ANY) == [
        (TOPIC, "t", LITERAL, 2),
        (GROUP, "g", LITERAL, 1),
    ]
    assert await found(3, TOPIC, "t1", MATCH, None, None, ANY, ANY) == [(TOPIC, "t", PREFIXED, 1)]
    unknown = await rig.ask(DescribeAclsRequest(0, None, ANY, None, None, ANY, ANY), DescribeAclsResponse, 3)
    assert unknown.error_code == ErrorCode.INVALID_REQUEST
    filters = [DeleteAclsFilter(99, None, ANY, None, None, ANY, ANY), DeleteAclsFilter(GROUP, *every[1:])]
    deleted = await rig.ask(DeleteAclsRequest(filters=filters), DeleteAclsResponse, 3)
    assert [(one.error_code, len(one.matching_acls)) for one in deleted.filter_results] == [
        (ErrorCode.INVALID_REQUEST, 0),
        (ErrorCode.NONE, 1),
    ]
    assert len(rig.broker.image.access_rules) == 3


async def test_below_the_level_nothing_is_said_to_hold(tmp_path: Path) -> None:
    rig = await Rig.start(tmp_path, authorizer_class_name=STANDARD_AUTHORIZER, super_users=ROOT)
    rig.session.principal = ROOT
    assert rig.broker.image.level < SECURITY_FROM
    [(code, why)] = await create(rig, ALICE_READS)
    assert code == ErrorCode.UNSUPPORTED_VERSION
    assert why is not None and "penstock cluster upgrade" in why
    await rig.close()


async def test_of_many_rules_only_those_that_change_are_looked_at(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change of one of 100,000 would hold all clients of each broker up."""
    looked_at: list[AccessRule] = []
    indexed = rules_module._indexed

    def recorded(rule: AccessRule) -> AccessRule:
        looked_at.append(rule)
        return indexed(rule)

    await create(rig, *(AclCreation(TOPIC, f"t{n}", LITERAL, ALICE, "*", READ, ALLOW) for n in range(20)))
    monkeypatch.setattr(rules_module, "_indexed", recorded)
    await create(rig, ALICE_READS)
    assert [rule.name for rule in looked_at] == ["t"]
    assert await sees(rig, ALICE) == ErrorCode.NONE
    looked_at.clear()
    filters = [DeleteAclsFilter(TOPIC, "t", LITERAL, None, None, ANY, ANY)]
    gone = await rig.ask(DeleteAclsRequest(filters=filters), DeleteAclsResponse, 3)
    assert [one.resource_name for one in gone.filter_results[0].matching_acls] == ["t"]
    assert [rule.name for rule in looked_at] == ["t"]
    assert await sees(rig, ALICE) == ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_rules_are_those_of_the_image_at_a_start(rig: Rig) -> None:
    await create(rig, ALICE_READS)
    broker = rig.broker
    again = Broker(
        settings=broker.settings,
        clock=broker.clock,
        metadata=broker.metadata,
        ledger=broker.ledger,
        broker_id=1,
        broker_epoch=1,
    )
    assert again.rules is not None
    assert again.rules.allow(ALICE, "h", Operation.READ, Resource.TOPIC, "t")
    assert not again.rules.allow("User:bob", "h", Operation.READ, Resource.TOPIC, "t")
    assert again.rules.allow(ROOT, "h", Operation.WRITE, Resource.TOPIC, "t")


# -- the audit -------------------------------------------------------------------------------------------


async def test_the_audit_is_told(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.audit")
    await create(rig, ALICE_READS)
    await sees(rig, "User:mallory\nroot")
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "added the rule: allow read topic='t' pattern=literal to='User:alice' from='*' "
        "api=CreateAcls correlation=1 client='rig' principal='User:root' host='127.0.0.1'",
        "refused describe topic='t' api=Metadata correlation=2 client='rig' "
        "principal='User:mallory\\nroot' host='127.0.0.1'",
    ]


async def test_each_refusal_is_told(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.audit")
    for _ in range(3):
        await sees(rig, ALICE)
    assert len(caplog.records) == 3


async def test_who_lists_all_topics_is_not_told_on(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.audit")
    rig.session.principal = ALICE
    answer = await rig.ask(MetadataRequest(topics=None), MetadataResponse, 12)
    assert answer.topics == []
    assert caplog.records == []


# -- credentials -----------------------------------------------------------------------------------------

SALT = b"0123456789abcdef"
SALTED = hashlib.pbkdf2_hmac("sha256", b"pencil", SALT, 8192)


async def alter(
    rig: Rig, *upsertions: ScramCredentialUpsertion, gone: tuple[Any, ...] = ()
) -> dict[str, int]:
    message = AlterUserScramCredentialsRequest(upsertions=list(upsertions), deletions=list(gone))
    answer = await rig.ask(message, AlterUserScramCredentialsResponse, 0)
    return {one.user: one.error_code for one in answer.results}


async def test_a_password_is_kept_as_derived_keys_only(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    assert await alter(rig, ScramCredentialUpsertion("alice", 1, 8192, SALT, SALTED)) == {"alice": 0}
    kept = rig.broker.image.credentials["alice", 1]
    assert kept == derived(Mechanism.SCRAM_SHA_256, "pencil", SALT, 8192)
    assert SALTED not in (kept.stored_key, kept.server_key)
    assert "pencil" not in caplog.text and SALTED.hex() not in caplog.text
    assert "salted" not in repr(ScramCredentialUpsertion("alice", 1, 8192, SALT, SALTED))
    told = await rig.ask(
        DescribeUserScramCredentialsRequest(users=None), DescribeUserScramCredentialsResponse, 0
    )
    assert [
        (one.user, [(i.mechanism, i.iterations) for i in one.credential_infos]) for one in told.results
    ] == [("alice", [(1, 8192)])]


async def test_credentials_that_are_refused(rig: Rig) -> None:
    def made(
        name: str, mechanism: int = 1, iterations: int = 8192, salt: bytes = SALT
    ) -> ScramCredentialUpsertion:
        return ScramCredentialUpsertion(name, mechanism, iterations, salt, SALTED)

    assert await alter(
        rig, made(""), made("few", 1, 4095), made("many", 1, 16385), made("other", 3), made("salt", salt=b"")
    ) == {
        "": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "few": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "many": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "other": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        "salt": ErrorCode.UNACCEPTABLE_CREDENTIAL,
    }
    assert await alter(rig, made("twice"), made("twice", 2), made("once")) == {
        "twice": ErrorCode.DUPLICATE_RESOURCE,
        "once": 0,
    }
    assert list(rig.broker.image.credentials) == [("once", 1)]
    gone = (ScramCredentialDeletion("once", 2), ScramCredentialDeletion("nobody", 1))
    assert await alter(rig, gone=gone) == {
        "once": ErrorCode.RESOURCE_NOT_FOUND,
        "nobody": ErrorCode.RESOURCE_NOT_FOUND,
    }
    assert await alter(rig, gone=(ScramCredentialDeletion("once", 1),)) == {"once": 0}
    assert rig.broker.image.credentials == {}
    users = [UserName("x"), UserName("y"), UserName("y")]
    told = await rig.ask(
        DescribeUserScramCredentialsRequest(users=users), DescribeUserScramCredentialsResponse, 0
    )
    assert {one.user: one.error_code for one in told.results} == {
        "x": ErrorCode.RESOURCE_NOT_FOUND,
        "y": ErrorCode.DUPLICATE_RESOURCE,
    }


# -- quotas ----------------------------------------------------------------------------------------------


async def set_quota(
    rig: Rig, entity: dict[str, str | None], validate: bool = False, **values: float | None
) -> int:
    entry = EntryData(
        entity=[EntityData(kind, name) for kind, name in entity.items()],
        ops=[OpData(key, value or 0.0, value is None) for key, value in values.items()],
    )
    message = AlterClientQuotasRequest(entries=[entry], validate_only=validate)
    answer = await rig.ask(message, AlterClientQuotasResponse, 1)
    [result] = answer.entries
    assert [(one.entity_type, one.entity_name) for one in result.entity] == list(entity.items())
    return result.error_code


async def test_quotas_are_set_and_described(rig: Rig) -> None:
    assert await set_quota(rig, {"user": "alice"}, producer_byte_rate=1024.0, request_percentage=50.5) == 0
    assert await set_quota(rig, {"user": None, "client-id": "app"}, consumer_byte_rate=5.0) == 0
    assert await set_quota(rig, {"ip": None}, connection_creation_rate=3.0) == 0
    assert await set_quota(rig, {"user": "alice"}, validate=True, producer_byte_rate=1.0) == 0
    assert rig.broker.image.quotas == {
        ("alice", None, None): {"producer_byte_rate": 1024.0, "request_percentage": 50.5},
        ("", "app", None): {"consumer_byte_rate": 5.0},
        (None, None, ""): {"connection_creation_rate": 3.0},
    }

    async def found(strict: bool, *components: ComponentData) -> list[list[tuple[str, str | None]]]:
        message = DescribeClientQuotasRequest(components=list(components), strict=strict)
        answer = await rig.ask(message, DescribeClientQuotasResponse, 1)
        return [
            [(one.entity_type, one.entity_name) for one in entry.entity] for entry in answer.entries or ()
        ]

    alice, app, ip = [("user", "alice")], [("user", None), ("client-id", "app")], [("ip", None)]
    assert await found(False) == [alice, app, ip]
    assert await found(False, ComponentData("user", 2, None)) == [alice, app]
    assert await found(True, ComponentData("user", 2, None)) == [alice]
    assert await found(False, ComponentData("user", 1, None)) == [app]
    assert await found(False, ComponentData("user", 0, "alice")) == [alice]
    assert await found(False, ComponentData("client-id", 0, "app"), ComponentData("user", 1, None)) == [app]
    assert await set_quota(rig, {"user": "alice"}, producer_byte_rate=None, request_percentage=None) == 0
    assert await found(False, ComponentData("user", 0, "alice")) == []


@pytest.mark.parametrize(
    ("entity", "values"),
    [
        ({}, {"producer_byte_rate": 1.0}),
        ({"dog": "x"}, {"producer_byte_rate": 1.0}),
        ({"user": ""}, {"producer_byte_rate": 1.0}),
        ({"user": "a", "ip": "127.0.0.1"}, {"connection_creation_rate": 1.0}),
        ({"ip": "nowhere"}, {"connection_creation_rate": 1.0}),
        ({"user": "a"}, {"connection_creation_rate": 1.0}),
        ({"ip": "127.0.0.1"}, {"producer_byte_rate": 1.0}),
        ({"user": "a"}, {"x": 1.0}),
        ({"user": "a"}, {"producer_byte_rate": 0.0}),
        ({"user": "a"}, {"producer_byte_rate": -1.0}),
        ({"user": "a"}, {"producer_byte_rate": 1.5}),
        ({"user": "a"}, {"producer_byte_rate": float("nan")}),
        ({"user": "a"}, {"request_percentage": float("inf")}),
        ({"user": "a"}, {"consumer_byte_rate": 1e30}),
    ],
)
async def test_quotas_that_are_refused(
    rig: Rig, entity: dict[str, str | None], values: dict[str, float]
) -> None:
    entry = EntryData(
        entity=[EntityData(kind, name) for kind, name in entity.items()],
        ops=[OpData(key, value, False) for key, value in values.items()],
    )
    answer = await rig.ask(AlterClientQuotasRequest(entries=[entry]), AlterClientQuotasResponse, 1)
    assert [one.error_code for one in answer.entries] == [ErrorCode.INVALID_REQUEST]
    assert rig.broker.image.quotas == {}


# -- delegation tokens -----------------------------------------------------------------------------------

HOUR = 3_600_000


async def token_for(rig: Rig, **words: Any) -> CreateDelegationTokenResponse:
    return await rig.ask(CreateDelegationTokenRequest(**words), CreateDelegationTokenResponse, 3)


async def test_the_life_of_a_token(rig: Rig) -> None:
    rig.session.principal = ALICE
    made = await token_for(rig, renewers=[CreatableRenewers("User", "bob")], max_lifetime_ms=30 * HOUR)
    assert made.error_code == ErrorCode.NONE
    assert (made.principal_name, made.token_requester_principal_name) == ("alice", "alice")
    assert made.hmac == token_hmac(made.token_id, SECRET)
    assert made.expiry_timestamp_ms - made.issue_timestamp_ms == 24 * HOUR
    assert made.max_timestamp_ms - made.issue_timestamp_ms == 30 * HOUR
    login = login_with(rig.broker.image.tokens, SECRET, Mechanism.SCRAM_SHA_512)(made.token_id)
    assert login is not None and login.owner == ALICE
    assert login_with(rig.broker.image.tokens, SECRET, Mechanism.SCRAM_SHA_512)("other") is None

    async def renew(principal: str, hmac: bytes = made.hmac) -> tuple[int, int]:
        rig.session.principal = principal
        answer = await rig.ask(RenewDelegationTokenRequest(hmac, -1), RenewDelegationTokenResponse, 2)
        return answer.error_code, answer.expiry_timestamp_ms

    assert await renew("User:mallory") == (ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, 0)
    assert await renew(ALICE, b"forged") == (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, 0)
    rig.clock.ahead_ms += 23 * HOUR
    assert await renew("User:bob") == (0, made.max_timestamp_ms), "never beyond its last time"
    rig.clock.ahead_ms += 8 * HOUR
    assert await renew(ALICE) == (ErrorCode.DELEGATION_TOKEN_EXPIRED, 0)
    rig.broker.services.start()
    await rig.broker.services.expired_tokens.sweep()
    assert rig.broker.image.tokens == {}


async def test_a_token_is_ended(rig: Rig) -> None:
    rig.session.principal = ALICE
    made = await token_for(rig)

    async def expire(principal: str, period: int) -> tuple[int, bool]:
        rig.session.principal = principal
        message = ExpireDelegationTokenRequest(made.hmac, period)
        answer = await rig.ask(message, ExpireDelegationTokenResponse, 2)
        return answer.error_code, made.token_id in rig.broker.image.tokens

    assert await expire("User:mallory", -1) == (ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, True)
    assert await expire(ALICE, HOUR) == (0, True)
    assert rig.broker.image.tokens[made.token_id].expires_ms < made.expiry_timestamp_ms
    assert await expire(ALICE, -1) == (0, False)
    assert await expire(ALICE, -1) == (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, False)


async def test_who_may_have_a_token(rig: Rig) -> None:
    rig.session.principal = "User:ANONYMOUS"
    assert (await token_for(rig)).error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    rig.session.principal = ALICE
    rig.session.state["by_token"] = True
    assert (await token_for(rig)).error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    rig.session.state["by_token"] = False
    another = {"owner_principal_type": "User", "owner_principal_name": "bob"}
    assert (await token_for(rig, **another)).error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    wrong = await token_for(rig, renewers=[CreatableRenewers("Group", "x")])
    assert wrong.error_code == ErrorCode.INVALID_PRINCIPAL_TYPE
    rig.session.principal = ROOT
    await create(rig, AclCreation(7, "User:bob", LITERAL, ALICE, "*", 13, ALLOW))
    rig.session.principal = ALICE
    made = await token_for(rig, **another)
    assert (made.error_code, made.principal_name) == (0, "bob")

    async def shown(principal: str, *owners: str, every: bool = False) -> list[str]:
        rig.session.principal = principal
        named = None if every else [DescribeDelegationTokenOwner("User", owner) for owner in owners]
        message = DescribeDelegationTokenRequest(owners=named)
        answer = await rig.ask(message, DescribeDelegationTokenResponse, 3)
        assert answer.error_code == ErrorCode.NONE
        return [token.principal_name for token in answer.tokens]

    assert await shown("User:bob", every=True) == ["bob"]
    assert await shown(ALICE, every=True) == [], "who asked for it does not own it"
    assert await shown(ROOT, "bob") == ["bob"]
    assert await shown(ROOT, "carol") == []
    assert await shown(ROOT) == []


async def test_what_one_user_makes_of_tokens_is_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody needs a right to make them, and all brokers keep them."""
    rig.session.principal = ALICE
    most = create_delegation_token.RENEWERS_CHARACTERS_MAX
    for name, code in (("b" * most, ErrorCode.NONE), ("b" * (most + 1), ErrorCode.INVALID_REQUEST)):
        assert (await token_for(rig, renewers=[CreatableRenewers("User", name)])).error_code == code
    many = [CreatableRenewers("User", "b")] * (create_delegation_token.RENEWERS_MAX + 1)
    assert (await token_for(rig, renewers=many)).error_code == ErrorCode.INVALID_REQUEST
    monkeypatch.setattr(create_delegation_token, "TOKENS_OF_REQUESTER_MAX", 3)
    made = [await token_for(rig) for _ in range(4)]
    assert [one.error_code for one in made] == [0, 0, ErrorCode.POLICY_VIOLATION, ErrorCode.POLICY_VIOLATION]
    rig.session.principal = "User:bob"
    assert (await token_for(rig)).error_code == ErrorCode.NONE
    rig.session.principal = ALICE
    ended = await rig.ask(ExpireDelegationTokenRequest(made[0].hmac, -1), ExpireDelegationTokenResponse, 2)
    assert (ended.error_code, (await token_for(rig)).error_code) == (0, 0)


async def test_who_names_very_many_owners_holds_nobody_up(rig: Rig) -> None:
    """Nobody needs a right to ask: 250,000 owners, each compared with 10,000 tokens, would take minutes."""
    tokens = [
        DelegationToken(f"t{n}", ALICE, ALICE, ("User:bob",), issued_ms=0, expires_ms=1, expires_last_ms=1)
        for n in range(1000)
    ]
    await rig.propose(*(SetDelegationToken(one, base_ms=-1) for one in tokens))
    others = [DescribeDelegationTokenOwner("User", f"{n}") for n in range(100_000)]
    rig.session.principal = ALICE
    for last, count in (("eve", 0), ("bob", 1000), ("alice", 1000)):
        message = DescribeDelegationTokenRequest([*others, DescribeDelegationTokenOwner("User", last)])
        began = time.thread_time()
        answer = await rig.ask(message, DescribeDelegationTokenResponse, 3)
        assert time.thread_time() - began < 1.5
        assert len(answer.tokens) == count


async def test_without_a_key_there_are_no_tokens(tmp_path: Path) -> None:
    rig = await Rig.start(tmp_path)
    rig.session.principal = ALICE
    assert (await token_for(rig)).error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    await rig.close()
