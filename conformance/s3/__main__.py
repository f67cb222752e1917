"""Penstock on a real S3 server that hangs, refuses and loses answers, and a cluster that loses a broker.

The run checks the store's behaviour, races for one key, a network that loses answers, stores that are
refused, and requests that hang. Everything is on loopback. Latency and throughput are printed beside the same
run on a local directory: an object store answers each flush with a round trip, and that shows.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from conformance import parts
from conformance.cluster.processes import Cluster
from conformance.cluster.streams import QUIET, Written
from conformance.s3.proxy import Proxy, Rule
from conformance.s3.refusals import refusals
from conformance.s3.server import BUCKET, HOST, S3Server
from conformance.server import ServerFailed, interrupted_cleanly
from penstock.storage.stores.objects import StoreUnavailableError
from penstock.storage.stores.opening import open_store

if TYPE_CHECKING:
    from penstock.storage.stores.objects import ObjectStore

SUITES = ("tests/storage/test_store_behaviour.py", "tests/storage/test_wal_behaviour.py")
SETTINGS = {"broker.session.timeout.ms": "3000"}
PARTITIONS = 6
SINGLE = 200
"""Records sent one at a time, for the latency of an acknowledgement."""
HANG_S = 8.0
"""Longer than the store waits for an answer to a small request."""
HANGING_SHARE = 0.02
HANGING_ACK_S = 6.0
"""A request that hangs is sent again after a second, and once more if that hangs as well."""
FAULTY = (
    Rule("lose", share=0.08),
    Rule("drop", share=0.06),
    Rule("refuse", share=0.06, status=503),
    Rule("hang", share=0.002, seconds=(HANG_S, HANG_S)),
)


async def _create(store: "ObjectStore", key: str, value: bytes) -> bool | None:
    """None: the network was too bad to tell."""
    try:
        return await store.create(key, value)
    except StoreUnavailableError:
        return None


async def race(rounds: int, writers: int, name: str = "race") -> int:
    """How many rounds of racing creates did not have exactly one winner, whose bytes then stand."""
    store = open_store(f"s3://{BUCKET}/{name}")
    wrong = 0
    for number in range(rounds):
        key = f"key/{number}"
        values = [os.urandom(16) for _ in range(writers)]
        won = await asyncio.gather(*(_create(store, key, value) for value in values))
        kept = await store.get(key)
        winners = [value for value, answer in zip(values, won, strict=True) if answer]
        unknown = [value for value, answer in zip(values, won, strict=True) if answer is None]
        if winners != [kept] and (winners or kept not in unknown):
            wrong += 1
    await store.close()
    return wrong


@contextmanager
def behind_a_proxy(seed: int, *rules: Rule) -> Iterator[Proxy]:
    """Stores that are opened meanwhile reach the server through a proxy that obeys these rules."""
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    with Proxy(int(endpoint.rpartition(":")[2]), BUCKET, seed) as proxy, proxy.sick(*rules):
        os.environ["AWS_ENDPOINT_URL"] = f"http://{HOST}:{proxy.port}"
        try:
            yield proxy
        finally:
            os.environ["AWS_ENDPOINT_URL"] = endpoint


def race_through_faults(rounds: int, seed: int) -> int:
    """The same through a proxy that loses answers: each creator must still know whether it is the one."""
    with behind_a_proxy(seed, *FAULTY) as proxy:
        wrong = asyncio.run(race(rounds, 4, "faulty"))
    print(
        f"races through a faulty network: {rounds} of 4 writers each, {wrong} wrong; {proxy.requests} requests, {dict(proxy.faults)}"
    )
    return wrong


def flow(store: str | None, records: int) -> dict[str, float]:
    """Three brokers, of which one is killed half-way through; everything acknowledged must be there once, at its
    offset."""
    with Cluster(3, SETTINGS, store=store) as cluster:
        cluster.start()
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic("flow", PARTITIONS, 3)])["flow"].result(30)
        producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 0, **QUIET}
        )
        written = Written("flow")
        singles = []
        for number in range(SINGLE):
            began = time.perf_counter()
            producer.produce("flow", b"single %d" % number, on_delivery=written.delivered)
            producer.flush(30)
            singles.append(time.perf_counter() - began)
        began = time.perf_counter()
        for number in range(records):
            value = b"%d" % number
            producer.produce("flow", value=value, key=value, on_delivery=written.delivered)
            producer.poll(0.0005)
            if number == records // 2:
                cluster[3].kill()
        left = producer.flush(60)
        seconds = time.perf_counter() - began
        assert not left and not written.failures, f"{left} records unsent, refused: {written.failures[:1]}"
        assert len(written) == records + SINGLE, (
            f"{len(written)} offsets were given to {records + SINGLE} records"
        )
        lacking = written.lacking(cluster.bootstrap, 60.0)
        assert not lacking, f"{len(lacking)} records are not as they were acknowledged: {lacking[:3]}"
    quantiles = statistics.quantiles(singles, n=100)
    return {
        "records/s": records / seconds,
        "ack p50 ms": quantiles[49] * 1000,
        "ack p99 ms": quantiles[98] * 1000,
    }


def hangs(records: int, seed: int) -> None:
    """Write through a proxy that lets some requests hang for longer than the store waits for one: nobody waits
    so long for an acknowledgement."""
    rule = Rule("hang", share=HANGING_SHARE, seconds=(HANG_S, HANG_S))
    with behind_a_proxy(seed, rule) as proxy, Cluster(1, SETTINGS, store=f"s3://{BUCKET}/hanging") as cluster:
        cluster.start()
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0, "log_level": 0})
        waits = []
        for number in range(records):
            began = time.perf_counter()
            producer.produce("hanging", value=b"%d" % number)
            assert not producer.flush(60), "a record was not acknowledged in a minute"
            waits.append(time.perf_counter() - began)
    # The first waits for its topic, too.
    slowest = max(waits[1:])
    print(
        f"requests that hang for {HANG_S:.0f} s: {proxy.faults['hang']} of {proxy.requests}; {records} records "
        f"one at a time, p50 {statistics.median(waits) * 1000:.1f} ms, the slowest {slowest:.2f} s"
    )
    assert slowest < HANGING_ACK_S, f"somebody waited for more than {HANGING_ACK_S:.0f} s"


def prove(rounds: int, records: int) -> None:
    """AssertionError at the first thing that does not hold."""
    wrong = asyncio.run(race(rounds, 8))
    print(f"races: {rounds} of 8 writers each, {wrong} without exactly one winner")
    assert not wrong, "a race did not have exactly one winner"
    suite = {**os.environ, "PENSTOCK_TEST_STORE": f"s3://{BUCKET}"}
    command = [sys.executable, "-m", "pytest", "-q", *SUITES, "-k", "remote or objects"]
    assert not subprocess.run(command, env=suite, cwd=parts.ROOT, check=False).returncode, "the suites failed"
    assert not race_through_faults(rounds // 5, seed=1), "a race through a faulty network went wrong"
    hangs(records // 4, seed=2)
    print("stores that are refused:")
    problems = refusals(BUCKET)
    assert not problems, "; ".join(problems)
    remote = flow(f"s3://{BUCKET}/cluster", records)
    local = flow(None, records)
    print("three brokers, one killed half-way, every acknowledged record read back once at its offset:")
    for name in remote:
        print(f"  {name:12} s3 {remote[name]:10.1f}   directory {local[name]:10.1f}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.s3", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300, help="rounds of racing creates (default: 300)")
    parser.add_argument(
        "--records", type=int, default=4000, help="records through each cluster (default: 4000)"
    )
    chosen = parser.parse_args()
    try:
        with interrupted_cleanly(), S3Server() as server:
            os.environ.update(server.environment)
            prove(chosen.rounds, chosen.records)
    except parts.PartMissing as why:
        return parts.not_run(why)
    except (AssertionError, ServerFailed) as why:
        print(f"FAILED: {why}")
        return 1
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
