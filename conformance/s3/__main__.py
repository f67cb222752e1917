"""Penstock on a real S3 server: the store's behaviour, races for one key, a network that loses answers, stores
that are refused, requests that hang, and a cluster that loses a broker.

The server is versitygw (Apache-2.0), built by `go install`. Everything runs on loopback. Latency and
throughput are printed beside the same run on a local directory: an object store answers each flush with a
round trip, and that shows.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance import parts
from conformance.s3.proxy import HANG_S, Proxy
from conformance.s3.refusals import refusals
from conformance.server import free_port, serves

if TYPE_CHECKING:
    from penstock.storage.stores.objects import ObjectStore

VERSION = "v1.8.0"
BUCKET = "penstock"
KEY, SECRET = "conformance", "conformance-secret"
SUITES = ("tests/storage/test_store_behaviour.py", "tests/storage/test_wal_behaviour.py")
SESSION_TIMEOUT_MS = 3000
SINGLE = 200
"""Records sent one at a time, for the latency of an acknowledgement."""
HANGING_SHARE = 0.02
HANGING_ACK_S = 6.0
"""A request that hangs is sent again after a second, and once more if that hangs as well."""


def versitygw() -> Path:
    """The S3 server, built once."""
    program = parts.PARTS / "bin" / "versitygw"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        os.environ["GOBIN"] = str(program.parent)
        parts.fetch(
            f"versitygw {VERSION}",
            ["go", "install", f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"],
            parts.ROOT,
        )
    return program


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Run the server with one empty bucket; gives the environment that points S3 clients at it."""
    program = versitygw()
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="conformance-s3-") as folder:
        (Path(folder) / BUCKET).mkdir()
        environment = {**os.environ, "ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
        command = [str(program), "--port", f"127.0.0.1:{port}", "posix", folder]
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            try:
                yield {
                    "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
                    "AWS_ACCESS_KEY_ID": KEY,
                    "AWS_SECRET_ACCESS_KEY": SECRET,
                    "AWS_REGION": "us-east-1",
                    "AWS_ALLOW_HTTP": "true",
                }
            finally:
                process.kill()


async def _create(store: "ObjectStore", key: str, value: bytes) -> bool | None:
    """None: the network was too bad to tell."""
    from penstock.storage.stores.objects import StoreUnavailableError

    try:
        return await store.create(key, value)
    except StoreUnavailableError:
        return None


async def race(rounds: int, writers: int, name: str = "race") -> int:
    """How many rounds of racing creates did not have exactly one winner, whose bytes then stand."""
    from penstock.storage import open_store

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


def race_through_faults(rounds: int, seed: int) -> int:
    """The same through a proxy that loses answers: each creator must still know whether it is the one."""
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    shares = {"lose": 0.08, "drop": 0.06, "busy": 0.06, "hang": 0.002}
    with Proxy(int(endpoint.rpartition(":")[2]), shares, seed) as proxy:
        os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{proxy.port}"
        try:
            wrong = asyncio.run(race(rounds, 4, "faulty"))
        finally:
            os.environ["AWS_ENDPOINT_URL"] = endpoint
        print(
            f"races through a faulty network: {rounds} of 4 writers each, {wrong} wrong; {proxy.requests} requests, {dict(proxy.faults)}"
        )
    return wrong


@contextmanager
def brokers(store: str, count: int) -> Iterator[tuple[str, list["subprocess.Popen[bytes]"]]]:
    """Brokers 1 to `count` of the cluster in `store`, each a process of its own."""
    program = Path(sys.executable).with_name("penstock")
    ports = [free_port() for _ in range(count)]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for number, port in enumerate(ports, 1):
            command = [str(program), "start", "--broker-id", str(number), "--listen", f"127.0.0.1:{port}"]
            chosen = f"--set=broker.session.timeout.ms={SESSION_TIMEOUT_MS}"
            running.append(subprocess.Popen([*command, "--store", store, chosen], stdout=subprocess.DEVNULL))
        deadline = time.monotonic() + 30
        while not all(serves("127.0.0.1", port) for port in ports):
            if time.monotonic() > deadline or any(one.poll() is not None for one in running):
                raise SystemExit(f"a broker on {store} did not start")
            time.sleep(0.05)
        yield ",".join(f"127.0.0.1:{port}" for port in ports), running
    finally:
        for one in running:
            one.kill()
            one.wait()


def flow(bootstrap: str, running: list["subprocess.Popen[bytes]"], records: int) -> dict[str, float]:
    """Write with one broker killed half-way; everything acknowledged must be there once, at its offset."""
    from confluent_kafka import Consumer, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic("flow", 6, 3)]).values():
        created.result(30)
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0, "log_level": 0}
    )
    acknowledged: dict[tuple[int, int], bytes] = {}
    failures: list[str] = []
    waits: list[float] = []
    sent_at: dict[bytes, float] = {}

    def delivered(error: object, message: Any) -> None:
        if error is not None:
            failures.append(str(error))
            return
        value = message.value()
        waits.append(time.perf_counter() - sent_at[value])
        acknowledged[message.partition(), message.offset()] = value

    for number in range(SINGLE):
        value = b"single %d" % number
        sent_at[value] = time.perf_counter()
        producer.produce("flow", value=value, on_delivery=delivered)
        producer.flush(30)
    singles = list(waits)
    began = time.perf_counter()
    for number in range(records):
        value = b"%d" % number
        sent_at[value] = time.perf_counter()
        producer.produce("flow", value=value, key=value, on_delivery=delivered)
        producer.poll(0.0005)
        if number == records // 2:
            running[-1].kill()
    left = producer.flush(60)
    seconds = time.perf_counter() - began
    if left or failures:
        raise SystemExit(f"{left} records unsent, {len(failures)} refused: {failures[:1]}")
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "check", "enable.auto.commit": False, "log_level": 0}
    )
    consumer.assign([TopicPartition("flow", partition, 0) for partition in range(6)])
    found: dict[tuple[int | None, int | None], bytes | None] = {}
    deadline = time.monotonic() + 60
    while len(found) < records + SINGLE and time.monotonic() < deadline:
        for message in consumer.consume(1000, 1):
            if message.error() is None:
                found[message.partition(), message.offset()] = message.value()
    consumer.close()
    if found != acknowledged:
        raise SystemExit(
            f"acknowledged {len(acknowledged)} records, read {len(found)}, and they are not the same"
        )
    quantiles = statistics.quantiles(singles, n=100)
    return {
        "records/s": records / seconds,
        "ack p50 ms": quantiles[49] * 1000,
        "ack p99 ms": quantiles[98] * 1000,
    }


def hangs(records: int, seed: int) -> bool:
    """Write through a proxy that lets some requests hang for longer than the store waits for one: nobody waits
    so long for an acknowledgement. False if somebody does."""
    from confluent_kafka import Producer

    endpoint = os.environ["AWS_ENDPOINT_URL"]
    with Proxy(int(endpoint.rpartition(":")[2]), {"hang": HANGING_SHARE}, seed) as proxy:
        os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{proxy.port}"
        try:
            with brokers(f"s3://{BUCKET}/hanging", 1) as (bootstrap, _running):
                producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0})
                waits = []
                for number in range(records):
                    began = time.perf_counter()
                    producer.produce("hanging", value=b"%d" % number)
                    if producer.flush(60):
                        raise SystemExit("a record was not acknowledged in a minute")
                    waits.append(time.perf_counter() - began)
        finally:
            os.environ["AWS_ENDPOINT_URL"] = endpoint
        # The first waits for its topic, too.
        slowest = max(waits[1:])
        print(
            f"requests that hang for {HANG_S:.0f} s: {proxy.faults['hang']} of {proxy.requests}; {records} records "
            f"one at a time, p50 {statistics.median(waits) * 1000:.1f} ms, the slowest {slowest:.2f} s"
        )
    return slowest < HANGING_ACK_S


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.s3", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300, help="rounds of racing creates (default: 300)")
    parser.add_argument(
        "--records", type=int, default=4000, help="records through each cluster (default: 4000)"
    )
    chosen = parser.parse_args()
    try:
        with s3_server() as environment:
            os.environ.update(environment)
            wrong = asyncio.run(race(chosen.rounds, 8))
            print(f"races: {chosen.rounds} of 8 writers each, {wrong} without exactly one winner")
            suite = {**os.environ, "PENSTOCK_TEST_STORE": f"s3://{BUCKET}"}
            command = [sys.executable, "-m", "pytest", "-q", *SUITES, "-k", "remote or objects"]
            if wrong or subprocess.run(command, env=suite, cwd=parts.ROOT, check=False).returncode:
                return 1
            if race_through_faults(chosen.rounds // 5, seed=1):
                return 1
            if not hangs(chosen.records // 4, seed=2):
                print(f"FAILED: somebody waited for more than {HANGING_ACK_S:.0f} s")
                return 1
            print("stores that are refused:")
            problems = refusals(BUCKET)
            if problems:
                print("\n".join(f"FAILED: {problem}" for problem in problems))
                return 1
            with brokers(f"s3://{BUCKET}/cluster", 3) as (bootstrap, running):
                remote = flow(bootstrap, running, chosen.records)
            with tempfile.TemporaryDirectory() as folder, brokers(folder, 3) as (bootstrap, running):
                local = flow(bootstrap, running, chosen.records)
    except parts.PartMissing as why:
        print(why)
        return 1
    print("three brokers, one killed half-way, every acknowledged record read back once at its offset:")
    for name in remote:
        print(f"  {name:12} s3 {remote[name]:10.1f}   directory {local[name]:10.1f}")
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
