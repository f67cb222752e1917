"""What partitions cost: requests to an object store per flush, and the time and requests of a restart.

A broker runs on a store that counts its requests (the store in memory, used as an object store is: one object
a flush). The same number of Produce requests is sent for 1, 100 and 3,000 partitions, each request with a
batch for every partition. The number of PUTs must not grow with the partitions. Then brokers are killed and
started again as processes, on a directory, with few and with 3,000 partitions: how long until each partition
answers? At last one broker of three is killed, and another stopped: how long until every partition of the
cluster takes a record again?
"""

import argparse
import asyncio
import contextlib
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from conformance.cluster.bare import LATEST, PRODUCE_BY_NAME
from conformance.cluster.processes import HOST, Cluster
from conformance.cluster.views import wait_for_balance, wait_for_brokers
from conformance.server import interrupted_cleanly
from penstock.client import Client, ClientError, Connection
from penstock.node.node import Node
from penstock.settings import Settings
from penstock.storage.stores.memory import MemoryStore
from penstock.wire.api.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from penstock.wire.api.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.wire.batch import Record, build_batch

FLUSHES = 5
PER_TOPIC = 100
OPEN_MAX_S = 5.0
TAKEOVER_GIVE_UP_S = 60.0


class CountingStore(MemoryStore):
    """Counts requests by kind and by the first part of the key."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: Counter[tuple[str, str]] = Counter()

    def _count(self, kind: str, key: str) -> None:
        self.requests[kind, key.partition("/")[0]] += 1

    async def create(self, key: str, *parts: Any) -> bool:
        self._count("PUT", key)
        return await super().create(key, *parts)

    async def put(self, key: str, *parts: Any) -> None:
        self._count("PUT", key)
        await super().put(key, *parts)

    async def get(self, key: str) -> bytes | None:
        self._count("GET", key)
        return await super().get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self._count("GET", key)
        return await super().get_range(key, start, length)


def topics_for(partitions: int) -> dict[str, int]:
    """Topics of at most a hundred partitions."""
    whole, rest = divmod(partitions, PER_TOPIC)
    names = {f"t{number}": PER_TOPIC for number in range(whole)}
    return names | ({f"t{whole}": rest} if rest else {})


def create(address: str, topics: dict[str, int]) -> None:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    wanted = [NewTopic(name, count, 1) for name, count in topics.items()]
    for done in admin.create_topics(wanted).values():
        done.result(60)


def one_batch_each(topics: Mapping[str, Iterable[int]]) -> ProduceRequest:
    """A request with a batch for each of these partitions."""
    batch = bytes(
        build_batch([Record(offset=0, timestamp=int(time.time() * 1000), key=None, value=b"x" * 100)])
    )
    return ProduceRequest(
        acks=-1,
        timeout_ms=60_000,
        topic_data=[
            TopicProduceData(
                name=name,
                partition_data=[PartitionProduceData(index=index, records=batch) for index in indexes],
            )
            for name, indexes in topics.items()
        ],
    )


def write(address: str, topics: dict[str, int], rounds: int) -> None:
    """One batch to every partition in one request, `rounds` times, each answered before the next."""
    host, _colon, port = address.rpartition(":")
    request = one_batch_each({name: range(count) for name, count in topics.items()})
    with contextlib.closing(Connection(host, int(port), 10.0)) as connection:
        for _ in range(rounds):
            answer = connection.ask(request, ProduceResponse, seconds=60, newest=PRODUCE_BY_NAME)
            codes = {one.error_code for topic in answer.responses for one in topic.partition_responses}
            assert codes == {0}, f"records were answered {codes}"


async def requests_per_flush(partitions: int) -> tuple[int, int, int, int]:
    """Flushes, PUTs of the write-ahead log, PUTs of one settling, GETs of opening everything again."""
    store = CountingStore()
    settings = Settings().with_values(
        {"listeners": f"PLAINTEXT://{HOST}:0", "store": "memory://", "wal.settle.interval.ms": "3600000"}
    )
    topics = topics_for(partitions)
    node, run = await _serve(settings, store)
    (address,) = node.addresses
    await asyncio.to_thread(create, address, topics)
    store.requests.clear()
    flushes = node.broker.ledger.counters()["flushes"]
    await asyncio.to_thread(write, address, topics, FLUSHES)
    flushes = node.broker.ledger.counters()["flushes"] - flushes
    wal_puts = store.requests["PUT", "wal"]
    store.requests.clear()
    await node.broker.ledger.settle()
    settle_puts = sum(
        count for (kind, room), count in store.requests.items() if kind == "PUT" and room != "live"
    )
    await asyncio.to_thread(write, address, topics, 1)
    run.cancel()
    await node.kill()
    store.requests.clear()
    node, run = await _serve(settings, store)
    gets = sum(count for (kind, _room), count in store.requests.items() if kind == "GET")
    run.cancel()
    await node.kill()
    return flushes, wal_puts, settle_puts, gets


async def _serve(settings: Settings, store: CountingStore) -> tuple[Node, "asyncio.Task[str | None]"]:
    node = Node(settings, open_store=lambda _settings: store)
    await node.start()
    return node, asyncio.ensure_future(node.run())


def reopening(partitions: int) -> tuple[float, float, float]:
    """Seconds until a killed broker serves again, until it answers for every partition, and its MB."""
    topics = topics_for(partitions)
    with Cluster(1) as cluster:
        cluster.start()
        member = cluster[1]
        create(member.address, topics)
        write(member.address, topics, 2)
        member.kill()
        served = member.start()
        began = time.monotonic()
        with contextlib.closing(Connection(HOST, member.port, 10.0)) as connection:
            request = ListOffsetsRequest(
                topics=[
                    ListOffsetsTopic(
                        name=name,
                        partitions=[
                            ListOffsetsPartition(partition_index=index, timestamp=LATEST)
                            for index in range(count)
                        ],
                    )
                    for name, count in topics.items()
                ]
            )
            answer = connection.ask(request, ListOffsetsResponse, seconds=30)
        ends = {one.offset for topic in answer.topics for one in topic.partitions}
        assert ends == {2}, f"after the restart partitions end at {sorted(ends)}, not at 2"
        return served, time.monotonic() - began, member.rss_bytes() / 2**20


def write_to_leaders(address: str, topics: Iterable[str]) -> int:
    """One batch to every partition, wherever it is led; how many did not take it."""
    with Client(address) as client:
        metadata = client.metadata(topics)
    ports = {one.node_id: one.port for one in metadata.brokers}
    led: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for topic in metadata.topics:
        for partition in topic.partitions:
            led[partition.leader_id][topic.name or ""].append(partition.partition_index)
    refused = 0
    for leader, places in led.items():
        try:
            with contextlib.closing(Connection(HOST, ports[leader], 10.0)) as connection:
                request = one_batch_each(places)
                answer = connection.ask(request, ProduceResponse, seconds=60, newest=PRODUCE_BY_NAME)
        except (KeyError, ClientError):
            refused += sum(map(len, places.values()))
            continue
        codes = [one.error_code for topic in answer.responses for one in topic.partition_responses]
        refused += sum(code != 0 for code in codes)
    return refused


def takeover(partitions: int) -> dict[str, float]:
    """Seconds after the death, and after the beginning of the stop, of one of three brokers until every
    partition was written to again."""
    topics = topics_for(partitions)
    found = {}
    with Cluster(3) as cluster:
        cluster.start()
        create(cluster[2].address, topics)
        assert not write_to_leaders(cluster[2].address, topics), "a healthy cluster does not take records"
        for how in ("killed", "stopped"):
            began = time.monotonic()
            if how == "killed":
                cluster[1].kill()
            else:
                cluster[1].stop()
            while write_to_leaders(cluster[2].address, topics):
                assert time.monotonic() - began < TAKEOVER_GIVE_UP_S, "some partitions are not taken over"
            found[how] = time.monotonic() - began
            cluster[1].start()
            wait_for_brokers(cluster.running, (), cluster.members, 10)
            wait_for_balance(cluster.running, TAKEOVER_GIVE_UP_S)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m conformance.cluster.costs", description=summary)
    parser.add_argument("--short", action="store_true", help="at most 300 partitions: for CI")
    chosen = parser.parse_args(arguments)
    problems = []
    with interrupted_cleanly():
        for partitions in (1, 100, 300 if chosen.short else 3000):
            flushes, puts, settling, gets = asyncio.run(requests_per_flush(partitions))
            print(
                f"{partitions} partitions: {puts} PUTs for {FLUSHES} requests in {flushes} flushes; {settling} "
                "PUTs to settle; "
                f"{gets} GETs to open everything again",
                flush=True,
            )
            if puts > flushes:
                problems.append(f"{puts} PUTs for {flushes} flushes with {partitions} partitions")
            if puts > FLUSHES:
                problems.append(f"{puts} PUTs for {FLUSHES} requests with {partitions} partitions")
        for partitions in (1, 300 if chosen.short else 3000):
            served, answered, memory = reopening(partitions)
            print(
                f"{partitions} partitions on a directory, after kill -9: serving in {served:.2f} s, all of "
                f"them answered {answered:.2f} s later, {memory:.0f} MB",
                flush=True,
            )
            if served + answered > OPEN_MAX_S:
                problems.append(f"opening {partitions} partitions took {served + answered:.1f} s")
        for partitions in (3, 300 if chosen.short else 3000):
            times = takeover(partitions)
            told = ", ".join(f"{how}: every partition written to {s:.2f} s later" for how, s in times.items())
            print(f"{partitions} partitions on three brokers, one {told}", flush=True)
            if max(times.values()) > OPEN_MAX_S:
                problems.append(f"taking {partitions} partitions over took {max(times.values()):.1f} s")
    for problem in problems:
        print(f"FAILED: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
