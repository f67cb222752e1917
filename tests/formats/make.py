"""Writes the small stores of this folder: `python -m tests.formats.make v1` (or v2, v3).

    v1/   feature level 1, written by brokers of the last version that knows no other (`conformance.earlier`)
    v2/   feature level 2, likewise
    v3/   feature level 3, written by brokers of this version

A store that was landed is never written anew: it is what a store of that time looks like. So this says how
they were made, and makes those of a new format. Beside each `<name>.tar.gz`, `<name>.json` says what it must
give back (`Contents`).

    fresh    one broker, killed a moment after its first records: a write-ahead log and nothing else
    rich     two brokers. Records settled into segments; compacted topics (the groups' offsets too); snapshots
             and trimmed entries of the metadata log; the log of a broker that was killed, taken over and
             settled; the log of another, which is sealed and not settled
    locked   from level 3 on. Transactions that were committed and aborted, in segments and in a log, with
             offsets of a group; an open one; a snapshot with an access rule, a user, a quota
"""

import argparse
import asyncio
import json
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from confluent_kafka.cimpl import NewTopic
from conformance.cluster.processes import Cluster

from conformance import earlier, parts
from penstock.client import Client
from penstock.cluster.reading import ImageReader
from penstock.metadata.image import OFFSETS_TOPIC
from penstock.storage.stores.opening import open_store
from penstock.testing.waiting import until
from penstock.wire.api.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
)

FOLDER = Path(__file__).parent
GROUP = "readers"
LOG_TOPIC, TABLE_TOPIC = "orders", "prices"
SOON = {"min.cleanable.dirty.ratio": "0.01", "segment.ms": "100"}
SET = AlterConfigOpType.SET
PARTITIONS = 2
NOT_STORED = ("presence", "reserve", "tmp")
"""What is in the directory for the processes that run, and for a full disk."""
BASIC = {
    "offsets.topic.num.partitions": "2",
    "broker.session.timeout.ms": "2000",
    "group.initial.rebalance.delay.ms": "0",
    "wal.segment.bytes": "1048576",
}
BUSY = {
    **BASIC,
    "wal.settle.interval.ms": "200",
    "log.cleaner.backoff.ms": "300",
    "metadata.snapshot.entries": "5",
}
LOCKED = {
    "transaction.state.log.num.partitions": "2",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
IDLE = {**BASIC, "wal.settle.interval.ms": "3600000", "auto.leader.rebalance.enable": "false"}

Contents = Mapping[str, object]
"""`topics`: by name and partition, [offset, key, value] of each record; `compacted`: the names of those of
which only the last record of each key must be there; `groups`: by name and place, committed offsets."""


def produce(bootstrap: str, topic: str, records: Sequence[tuple[str, str]]) -> None:
    """Spread over the partitions by key, each acknowledged."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0})
    for number, (key, value) in enumerate(records):
        producer.produce(topic, value.encode(), key.encode(), partition=number % PARTITIONS)
        if number % 10 == 9:
            producer.flush(30)
    assert producer.flush(30) == 0


def commit(bootstrap: str, topic: str, offset: int) -> None:
    consumer = _consumer(bootstrap)
    offsets = [TopicPartition(topic, index, offset) for index in range(PARTITIONS)]
    for done in consumer.commit(offsets=offsets, asynchronous=False) or ():
        assert done.error is None, done.error
    consumer.close()


def contents(bootstrap: str, topics: Sequence[str]) -> dict[str, object]:
    """All that clients are given."""
    consumer = _consumer(bootstrap)
    found: dict[str, dict[str, list[list[object]]]] = {}
    for topic in topics:
        found[topic] = {}
        for index in range(PARTITIONS):
            place = TopicPartition(topic, index, 0)
            _low, end = consumer.get_watermark_offsets(place, 30)
            consumer.assign([place])
            records: list[list[object]] = []
            while consumer.position([place])[0].offset < end:  # Markers have offsets, too.
                for message in consumer.consume(100, 0.2):
                    if message.error() is None:
                        key, value = message.key() or b"", message.value() or b""
                        records.append([message.offset(), key.decode(), value.decode()])
            found[topic][str(index)] = records
    places = [TopicPartition(LOG_TOPIC, index) for index in range(PARTITIONS)]
    committed = {f"{one.topic}-{one.partition}": one.offset for one in consumer.committed(places, 30)}
    consumer.close()
    compacted = [TABLE_TOPIC] if TABLE_TOPIC in topics else []
    return {"topics": found, "compacted": compacted, "groups": {GROUP: committed}}


def _consumer(bootstrap: str) -> Consumer:
    settings = {"bootstrap.servers": bootstrap, "group.id": GROUP, "enable.auto.commit": False}
    # Told of the end, a consumer that finds only markers there has its position behind them.
    return Consumer({**settings, "enable.partition.eof": True})


def _records(prefix: str, count: int) -> list[tuple[str, str]]:
    return [(f"k{number}", f"{prefix}-{number}") for number in range(count)]


def _create(bootstrap: str, *topics: NewTopic) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.create_topics(list(topics)).values():
        done.result(30)


def make_fresh(store: Path, source: Path) -> Contents:
    with _cluster(1, store, source, IDLE) as cluster:
        cluster.start()
        _create(cluster.bootstrap, NewTopic(LOG_TOPIC, PARTITIONS, 1))
        produce(cluster.bootstrap, LOG_TOPIC, _records("first", 20))
        commit(cluster.bootstrap, LOG_TOPIC, 3)
        found = contents(cluster.bootstrap, [LOG_TOPIC])
        cluster.kill()
    return found


def make_rich(store: Path, source: Path) -> Contents:
    with _cluster(2, store, source, BUSY) as cluster:
        cluster.start()
        where = cluster.bootstrap
        table = NewTopic(TABLE_TOPIC, PARTITIONS, 2, config={"cleanup.policy": "compact", **SOON})
        _create(where, NewTopic(LOG_TOPIC, PARTITIONS, 2), table)
        for turn in range(6):
            produce(where, LOG_TOPIC, _records(f"settled-{turn}", 20))
            produce(where, TABLE_TOPIC, _records(f"settled-{turn}", 20))
            commit(where, LOG_TOPIC, turn)
            if turn == 0:
                _compact_soon(where, OFFSETS_TOPIC)
            time.sleep(1.0)
        for member in cluster.members.values():
            member.stop()
    with _cluster(2, store, source, IDLE) as cluster:
        cluster.start()
        produce(cluster.bootstrap, LOG_TOPIC, _records("killed", 20))
        produce(cluster.bootstrap, TABLE_TOPIC, _records("killed", 10))
        cluster.kill()
    with _cluster(1, store, source, IDLE) as cluster:
        cluster.start()
        _wait_for_leaders(cluster.bootstrap)
        produce(cluster.bootstrap, LOG_TOPIC, _records("last", 20))
        commit(cluster.bootstrap, LOG_TOPIC, 33)
        found = contents(cluster.bootstrap, [LOG_TOPIC, TABLE_TOPIC])
        cluster.kill()
        # Registering seals its log. A moment later it would be settled.
        while not sealed(store):
            cluster.start()
            cluster.kill()
    return found


def make_locked(store: Path, source: Path) -> Contents:
    with _cluster(1, store, source, BUSY | LOCKED) as cluster:
        cluster.start()
        where = cluster.bootstrap
        _create(where, NewTopic(LOG_TOPIC, PARTITIONS, 1), NewTopic("open", PARTITIONS, 1))
        _lock(where)
        produce(where, LOG_TOPIC, _records("plain", 10))
        _transact(where, "settled")
        time.sleep(1.0)
        cluster.kill()
    with _cluster(1, store, source, IDLE | LOCKED) as cluster:
        cluster.start()
        where = cluster.bootstrap
        _transact(where, "logged")
        produce(where, LOG_TOPIC, _records("last", 10))
        opened = _transactional(where, "open")
        opened.begin_transaction()
        opened.produce("open", b"nobody knows", partition=0)
        opened.flush(30)
        found = contents(where, [LOG_TOPIC])
        cluster.kill()
    return found


def _transactional(bootstrap: str, name: str) -> Producer:
    settings = {"bootstrap.servers": bootstrap, "linger.ms": 0, "transaction.timeout.ms": 900_000}
    producer = Producer({**settings, "transactional.id": name})
    producer.init_transactions(30)
    return producer


def _transact(bootstrap: str, prefix: str) -> None:
    """Transactions in both partitions, committed and aborted in turn; the last commits offsets."""
    producer, consumer = _transactional(bootstrap, "writer"), _consumer(bootstrap)
    for turn in range(5):
        producer.begin_transaction()
        for number in range(6):
            producer.produce(LOG_TOPIC, f"{prefix}-{turn}-{number}", f"k{number}", number % PARTITIONS)
        producer.flush(30)
        if turn == 4:
            places = [TopicPartition(LOG_TOPIC, index, 3 + len(prefix)) for index in range(PARTITIONS)]
            producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), 30)
        if turn % 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    consumer.close()


def _lock(bootstrap: str) -> None:
    """An access rule, a user and a quota."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    rule = AclBinding(
        ResourceType.TOPIC, LOG_TOPIC, ResourcePatternType.LITERAL, "User:reader", "*", AclOperation.READ,
        AclPermissionType.ALLOW,
    )  # fmt: skip
    scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    user = UserScramCredentialUpsertion("reader", scram, b"secret", b"salt")
    for done in (*admin.create_acls([rule]).values(), *admin.alter_user_scram_credentials([user]).values()):
        done.result(30)
    quota = EntryData(
        entity=[EntityData(entity_type="user", entity_name="reader")],
        ops=[OpData(key="consumer_byte_rate", value=1e6)],
    )
    with Client(bootstrap) as client:
        answer = client.any().ask(AlterClientQuotasRequest(entries=[quota]), AlterClientQuotasResponse)
        assert [one.error_code for one in answer.entries] == [0], answer


def sealed(store: Path) -> bool:
    """Whether a sealed log is needed."""

    async def look() -> bool:
        opened = open_store(str(store))
        try:
            return bool((await ImageReader(opened).refresh()).sealed)
        finally:
            await opened.close()

    return asyncio.run(look())


def _compact_soon(bootstrap: str, topic: str) -> None:
    changes = [ConfigEntry(name, value, incremental_operation=SET) for name, value in SOON.items()]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=changes)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(30)


def _wait_for_leaders(bootstrap: str) -> None:
    """The broker that does not come back must be fenced first."""
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def alone() -> bool:
        found = admin.list_topics(timeout=30)
        led = {one.leader for topic in found.topics.values() for one in topic.partitions.values()}
        return led == {1} and len(found.brokers) == 1

    until(alone, 60, "the end of broker 2", every_s=0.2)


def _cluster(count: int, store: Path, source: Path, settings: Mapping[str, str]) -> Cluster:
    variables = earlier.environment(source)
    program = [sys.executable, "-m", "penstock"]
    return Cluster(count, settings, program=program, environment=lambda _: variables, store=str(store))


STORES = {"fresh": (1, make_fresh), "rich": (1, make_rich), "locked": (3, make_locked)}
"""By name: the first level that has it, and what makes it."""


def pack(store: Path, target: Path) -> None:
    with tarfile.open(target, "w:gz") as archive:
        for path in sorted(store.iterdir()):
            if path.name not in NOT_STORED:
                archive.add(path, path.name)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.formats.make")
    parser.add_argument("version", choices=("v1", "v2", "v3"))
    version = parser.parse_args(arguments).version
    level = int(version[1:])
    target = FOLDER / version
    target.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        old = level in earlier.REVISIONS
        source = earlier.unpack(Path(folder) / "earlier", level) if old else parts.ROOT / "src"
        for name, (first_level, make) in STORES.items():
            if level < first_level:
                continue
            store = Path(folder) / name
            found = make(store, source)
            pack(store, target / f"{name}.tar.gz")
            (target / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
            print(f"{version}/{name}: {(target / f'{name}.tar.gz').stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
