"""A broker is started on a copy of the bucket of a cluster that lives, and whose metadata log is in etcd."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Mapping

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.cimpl import KafkaError, Message

from conformance.cluster.processes import HOST, Cluster, penstock
from conformance.etcd.server import Etcd
from conformance.s3.server import BUCKET, S3Server
from conformance.server import free_port
from penstock.cluster.leases import whole_leases
from penstock.storage.stores.etcd import EtcdStore
from penstock.testing.waiting import until

TOPIC = "copied"
REFUSAL = "is a copy of the store of cluster"
COPY = "copy"
START_TIMEOUT_S = 30.0


def _write(bootstrap: str, first: int, count: int) -> int:
    """How many of these records were acknowledged."""
    acknowledged = 0

    def delivered(error: KafkaError | None, _message: Message) -> None:
        nonlocal acknowledged
        acknowledged += error is None

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": "all"})
    for number in range(first, first + count):
        producer.produce(TOPIC, b"%d" % number, partition=0, on_delivery=delivered)
        producer.flush(30)
    return acknowledged


def _end(bootstrap: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "copies"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=30)[1])
    finally:
        consumer.close()


def _start_on_copy(broker: int, environment: Mapping[str, str]) -> str:
    """What a broker says that is started there, without a word of etcd."""
    command = [penstock(), "start", "--broker-id", str(broker), "--listen", f"{HOST}:{free_port()}"]
    command += ["--store", f"s3://{BUCKET}/{COPY}"]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=START_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as over:
        return f"it went on: {over.stdout!r} {over.stderr!r}"
    return f"{done.returncode} {done.stdout}{done.stderr}"


async def _flushes_said(url: str) -> int:
    store = EtcdStore(url)
    try:
        return max((lease.flushes for lease in (await whole_leases(store)).values()), default=0)
    finally:
        await store.close()


def run_copies(etcd: Etcd) -> list[str]:
    problems = []
    with S3Server() as store:
        environment = {**os.environ, **store.environment}
        settings = {"metadata": etcd.url, "wal.settle.interval.ms": "3600000"}
        cluster = Cluster(1, settings, environment=lambda _folder: environment, store=store.url)
        try:
            cluster.start()
            acknowledged = _write(cluster.bootstrap, 0, 20)
            shutil.copytree(store.objects, store.objects.parent / COPY)
            copied = asyncio.run(_flushes_said(etcd.url))
            acknowledged += _write(cluster.bootstrap, 20, 20)
            until(lambda: asyncio.run(_flushes_said(etcd.url)) >= copied + 20, 30, "a heartbeat after that")
            for broker in (1, 2):
                said = _start_on_copy(broker, environment)
                if REFUSAL not in said:
                    problems.append(f"broker {broker} on a copy was not refused: {said[-300:]}")
            acknowledged += _write(cluster.bootstrap, 40, 20)
            cluster.kill()
            cluster.start()
            end = _end(cluster.bootstrap)
        finally:
            cluster.close()
    if (acknowledged, end) != (60, 60):
        problems.append(f"of 60 records {acknowledged} were acknowledged beside a copy, and {end} are there")
    print(
        f"copies: 2 brokers started on a copy of the bucket, {acknowledged} records acknowledged, {end} there"
    )
    return problems
