"""What no row derives: logins, filters of access rules, and what is told of things of which somebody may see a part."""

from collections.abc import Callable, Iterator
from typing import Any

from conformance.differential.scenario import Draw, Scenario, Step, learned, remember
from conformance.differential.scenarios.topics import TIMEOUT, new_topic
from conformance.differential.scenarios.transactions import SETTLED
from conformance.differential.secured.actors import (
    FIRST,
    NOBODY,
    PASSWORD,
    SECOND,
    STRANGER,
    actor,
    allowed,
    denied,
)
from conformance.differential.world import World
from penstock.broker.acl import CLUSTER_NAME, Operation, Resource
from penstock.security.words import ALL_OPERATIONS, Pattern, Permission

MIXTURES: dict[str, dict[str, Scenario]] = {}
TOPIC, GROUP, CLUSTER, TRANSACTION = (
    Resource.TOPIC,
    Resource.GROUP,
    Resource.CLUSTER,
    Resource.TRANSACTIONAL_ID,
)
READER = actor(
    "reader",
    allowed(Operation.READ, TOPIC, FIRST),
    allowed(Operation.DESCRIBE, GROUP, "mixed-", pattern=Pattern.PREFIXED),
    allowed(Operation.DESCRIBE, TRANSACTION, "mixed-", pattern=Pattern.PREFIXED),
)
WRITER = actor(
    "writer",
    allowed(ALL_OPERATIONS, TRANSACTION, "*"),
    allowed(Operation.READ, GROUP, "mixed-", pattern=Pattern.PREFIXED),
    allowed(Operation.READ, TOPIC, FIRST),
    allowed(Operation.WRITE, TOPIC, FIRST),
)
MAKER = actor(
    "maker",
    allowed(Operation.CREATE, TOPIC, "made-", pattern=Pattern.PREFIXED),
    allowed(Operation.DESCRIBE_CONFIGS, TOPIC, "made-seen-", pattern=Pattern.PREFIXED),
    denied(Operation.CREATE, TOPIC, "made-not-", pattern=Pattern.PREFIXED),
)
FOUNDER = actor("founder", allowed(Operation.CREATE, CLUSTER, CLUSTER_NAME))
SUPER = actor("super")


def mixture(api: str) -> Callable[[Scenario], Scenario]:
    def register(function: Scenario) -> Scenario:
        MIXTURES.setdefault(api, {})[function.__name__] = function
        return function

    return register


# Logins -------------------------------------------------------------------------------------------


def _plain(user: str, password: str, authorized: str = "") -> bytes:
    return f"{authorized}\0{user}\0{password}".encode()


@mixture("SaslAuthenticate")
def plain_logins(draw: Draw, version: int) -> Iterator[Step]:
    tokens = {
        "right": _plain(FOUNDER, PASSWORD),
        "as oneself": _plain(FOUNDER, PASSWORD, FOUNDER),
        "as another": _plain(FOUNDER, PASSWORD, SUPER),
        "wrong password": _plain(FOUNDER, "wrong"),
        "wrong user": _plain("who", PASSWORD),
        "no user": _plain("", PASSWORD),
        "no password": _plain(FOUNDER, ""),
        "nothing": b"",
        "two parts": b"a\0b",
        "four parts": b"a\0b\0c\0d",
        "not text": b"\0\xff\xfe\0x",
        "of SCRAM": _plain(NOBODY, PASSWORD),
    }
    for word, token in tokens.items():
        on = f"{STRANGER}/{draw.fresh(word)}"
        yield Step({"Mechanism": "PLAIN"}, api="SaslHandshake", version=1, on=on)
        yield Step({"AuthBytes": token}, on=on, note=word)
        yield Step({}, api="DescribeCluster", version=0, on=on, note=f"after {word}")


@mixture("SaslAuthenticate")
def scram_first_messages(draw: Draw, version: int) -> Iterator[Step]:
    first = {
        "wrong user": b"n,,n=who,r=abcdef",
        "bound channel": b"p=tls-unique,,n=nobody,r=abcdef",
        "able to bind": b"y,,n=nobody,r=abcdef",
        "no nonce": b"n,,n=nobody",
        "no user": b"n,,n=,r=abcdef",
        "as another": b"n,a=super,n=nobody,r=abcdef",
        "nothing": b"",
        "not text": b"\xff\xfe",
    }
    for word, token in first.items():
        on = f"{STRANGER}/{draw.fresh(word)}"
        yield Step({"Mechanism": "SCRAM-SHA-256"}, api="SaslHandshake", version=1, on=on)
        yield Step({"AuthBytes": token}, on=on, note=word)


@mixture("SaslHandshake")
def mechanisms(draw: Draw, version: int) -> Iterator[Step]:
    for word in ("PLAIN", "SCRAM-SHA-256", "GSSAPI", "OAUTHBEARER", "plain", ""):
        on = f"{STRANGER}/{draw.fresh(word or 'none')}"
        yield Step({"Mechanism": word}, on=on, note=word)
        yield Step({}, api="DescribeCluster", version=0, on=on, note=f"after {word}")


@mixture("SaslHandshake")
def out_of_turn(draw: Draw, version: int) -> Iterator[Step]:
    on = f"{STRANGER}/{draw.fresh('twice')}"
    yield Step({"Mechanism": "PLAIN"}, on=on)
    yield Step({"Mechanism": "PLAIN"}, on=on, note="twice")
    on = f"{STRANGER}/{draw.fresh('asks')}"
    software = {"ClientSoftwareName": "conformance", "ClientSoftwareVersion": "1.0"}
    yield Step(software, api="ApiVersions", version=3, on=on)
    yield Step({"Mechanism": "PLAIN"}, on=on, note="after versions")
    on = f"{STRANGER}/{draw.fresh('asks')}"
    yield Step(software, api="ApiVersions", version=3, on=on)
    yield Step(software, api="ApiVersions", version=3, on=on, note="again")
    on = f"{STRANGER}/{draw.fresh('early')}"
    yield Step({"AuthBytes": b"x"}, api="SaslAuthenticate", version=1, on=on, note="without a handshake")
    yield Step({"Mechanism": "PLAIN"}, on=FOUNDER, note="after the login")
    yield Step({"AuthBytes": b"x"}, api="SaslAuthenticate", version=1, on=FOUNDER, note="after the login")


# Rules --------------------------------------------------------------------------------------------


def _creation(version: int, **more: Any) -> dict[str, Any]:
    made = allowed(Operation.READ, TOPIC, "ruled").creation("ruler")
    if not version:
        del made["ResourcePatternType"]
    return made | more


@mixture("CreateAcls")
def odd_rules(draw: Draw, version: int) -> Iterator[Step]:
    wrong: dict[str, dict[str, Any]] = {
        "no name": {"ResourceName": ""},
        "another cluster": {"ResourceType": int(CLUSTER), "ResourceName": "other"},
        "no colon": {"Principal": "ruler"},
        "another kind": {"Principal": "Group:rulers"},
        "no host": {"Host": ""},
        "operation of another resource": {"Operation": int(Operation.CLUSTER_ACTION)},
        "all operations": {"Operation": ALL_OPERATIONS},
        "any operation": {"Operation": 1},
        "any resource": {"ResourceType": 1},
        "any permission": {"PermissionType": 1},
    }
    if version:
        wrong["any pattern"] = {"ResourcePatternType": int(Pattern.ANY)}
        wrong["matching pattern"] = {"ResourcePatternType": int(Pattern.MATCH)}
    for word, change in wrong.items():
        good = _creation(version, ResourceName=draw.fresh("good"))
        both = [_creation(version, **change), good]
        yield Step({"Creations": both}, note=word, on=SUPER, catch_up=True)


@mixture("DescribeAcls")
def filters(draw: Draw, version: int) -> Iterator[Step]:
    name = draw.fresh("filtered")
    rules = [
        allowed(Operation.READ, TOPIC, name),
        allowed(Operation.READ, TOPIC, name[:-2], pattern=Pattern.PREFIXED),
        denied(Operation.WRITE, TOPIC, name, host="10.1.1.1"),
        allowed(Operation.READ, GROUP, name),
    ]
    made = [rule.creation(name) for rule in rules]
    yield Step({"Creations": made}, api="CreateAcls", version=2, on=SUPER, catch_up=True)
    asked: list[dict[str, Any]] = [
        {},
        {"ResourceNameFilter": name},
        {"ResourceNameFilter": name, "PatternTypeFilter": int(Pattern.MATCH)},
        {"ResourceNameFilter": name, "PatternTypeFilter": int(Pattern.PREFIXED)},
        {"ResourceNameFilter": name + "x", "PatternTypeFilter": int(Pattern.MATCH)},
        {"PermissionType": int(Permission.DENY)},
        {"HostFilter": "10.1.1.1"},
        {"Operation": int(Operation.READ)},
        {"Operation": ALL_OPERATIONS},
        {"ResourceTypeFilter": int(GROUP)},
    ]
    base: dict[str, Any] = {
        "ResourceTypeFilter": 1,
        "ResourceNameFilter": None,
        "PatternTypeFilter": int(Pattern.ANY),
        "PrincipalFilter": f"User:{name}",
        "HostFilter": None,
        "Operation": 1,
        "PermissionType": 1,
    }
    for change in asked:
        if version or "PatternTypeFilter" not in change:
            body = base | change
            if not version:
                del body["PatternTypeFilter"]
            yield Step(body, on=SUPER, note=str(change))
    gone = {"Filters": [base | {"ResourceNameFilter": name, "PatternTypeFilter": int(Pattern.MATCH)}, base]}
    yield Step(gone, api="DeleteAcls", version=2, on=SUPER, catch_up=True, note="removed")


# Parts of things ----------------------------------------------------------------------------------


@mixture("CreateTopics")
def made_by_some(draw: Draw, version: int) -> Iterator[Step]:
    for word in ("made", "made-seen", "made-not", "other"):
        name = f"{word}-{draw.fresh()}"
        yield Step({"Topics": [new_topic(name), new_topic(f"x{name}")], **TIMEOUT}, on=MAKER, note=word)
    name = draw.fresh("founded")
    yield Step({"Topics": [new_topic(name)], **TIMEOUT}, on=FOUNDER)
    yield Step({"Topics": [new_topic(name)], **TIMEOUT}, on=NOBODY, note="there, and nobody's business")


@mixture("ConsumerGroupDescribe")
def of_hidden_topics(draw: Draw, version: int) -> Iterator[Step]:
    for topics in ([FIRST], [FIRST, SECOND]):
        group = f"mixed-{draw.fresh('group')}"
        joins = {
            "GroupId": group,
            "MemberId": "AAAAAAAAAAAAAAAAAAAAAA",
            "MemberEpoch": 0,
            "RebalanceTimeoutMs": 60_000,
            "SubscribedTopicNames": topics,
            "TopicPartitions": [],
        }
        yield Step(joins, api="ConsumerGroupHeartbeat", version=0)
        asked = {"GroupIds": [group], "IncludeAuthorizedOperations": True}
        for who in (READER, WRITER, NOBODY):
            yield Step(asked, on=who, note=f"{who} {len(topics)}")


@mixture("ConsumerGroupHeartbeat")
def subscribed_to_hidden_topics(draw: Draw, version: int) -> Iterator[Step]:
    for topics in ([FIRST], [FIRST, SECOND]):
        joins = {
            "GroupId": f"mixed-{draw.fresh('group')}",
            "MemberId": "AAAAAAAAAAAAAAAAAAAAAA",
            "MemberEpoch": 0,
            "RebalanceTimeoutMs": 60_000,
            "SubscribedTopicNames": topics,
            "TopicPartitions": [],
        }
        for who in (READER, NOBODY, WRITER):
            yield Step(joins, on=who, note=f"{who} {len(topics)}")


@mixture("DescribeTransactions")
def of_hidden_places(draw: Draw, version: int) -> Iterator[Step]:
    name = f"mixed-{draw.fresh('transaction')}"
    slot = f"producer {name}"
    yield Step({"KeyType": 1, "CoordinatorKeys": [name]}, api="FindCoordinator", version=4)
    yield Step(
        {"TransactionalId": name, "TransactionTimeoutMs": 60_000},
        api="InitProducerId",
        version=1,
        learn=remember(ProducerId=slot),
    )
    topics = [{"Name": each, "Partitions": [0]} for each in (FIRST, SECOND)]
    begun = {
        "V3AndBelowTransactionalId": name,
        "V3AndBelowProducerId": learned(slot),
        "V3AndBelowProducerEpoch": 0,
        "V3AndBelowTopics": topics,
    }
    yield Step(begun, api="AddPartitionsToTxn", version=3, on=WRITER, note="added in part")
    yield Step(begun, api="AddPartitionsToTxn", version=3)
    for who in (READER, WRITER, NOBODY):
        yield Step({"TransactionalIds": [name]}, on=who, note=who)
        yield Step({}, api="ListTransactions", version=0, on=who, note=who)
    ended = {"TransactionalId": name, "ProducerId": learned(slot), "ProducerEpoch": 0}
    yield Step(ended, api="EndTxn", version=1, on=READER)
    yield Step(ended, api="EndTxn", version=1, on=WRITER)
    yield from _settled(name)


def _settled(name: str) -> Iterator[Step]:
    """Go on when the transaction's markers are written: whoever lists transactions later sees its state."""

    def is_settled(world: World) -> bool:
        asked = {"TransactionalIds": [name]}
        (answer,) = world.line(f"{WRITER}/look").call("DescribeTransactions", 0, asked)["TransactionStates"]
        return str(answer["TransactionState"]) in SETTLED

    absent = {"TransactionalIds": ["nobody has this id"]}
    asked: dict[str, Any] = {"api": "DescribeTransactions", "version": 0, "on": f"{WRITER}/watch"}
    yield Step(absent, **asked, later=True, until=is_settled)
    yield Step(absent, **asked, collect=True)


@mixture("TxnOffsetCommit")
def committed_in_part(draw: Draw, version: int) -> Iterator[Step]:
    name, group = f"mixed-{draw.fresh('transaction')}", f"mixed-{draw.fresh('group')}"
    slot = f"producer {name}"
    yield Step({"KeyType": 1, "CoordinatorKeys": [name]}, api="FindCoordinator", version=4)
    yield Step(
        {"TransactionalId": name, "TransactionTimeoutMs": 60_000},
        api="InitProducerId",
        version=1,
        on=WRITER,
        learn=remember(ProducerId=slot),
    )
    of = {"TransactionalId": name, "ProducerId": learned(slot), "ProducerEpoch": 0, "GroupId": group}
    yield Step(of, api="AddOffsetsToTxn", version=1, on=READER)
    yield Step(of, api="AddOffsetsToTxn", version=1, on=WRITER)
    partitions = [{"PartitionIndex": 0, "CommittedOffset": 1}]
    topics = [{"Name": each, "Partitions": partitions} for each in (FIRST, SECOND, "absent")]
    for who in (READER, NOBODY, WRITER):
        yield Step({**of, "Topics": topics}, on=who, note=who)
