"""A broker, a topic of numbers, the pipelines that are run on it, and where each number must be in the end."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from conformance.target import Penstock

RUN_SECONDS = 600
"""For a machine that others use as well: this bounds what hangs, nothing is expected to take so long."""
BAD_EVERY = 50
PARTITIONS = 3
TOPIC = "numbers"
BRIEF_JAVA = ("--set", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1")
"""A driver that lives for seconds gains nothing from the slower one of Java's compilers."""

DEFINITION = """
from penstock.pipeline import Json, Pipeline

pipeline = Pipeline("{name}")
numbers = pipeline.source("numbers", value=Json("n long not null, text string"), dead_letters="{name}.dead")

@pipeline.table("rows", format="{format}")
def rows(numbers):
    return numbers.select("value.n", "value.text", "partition", "offset", "timestamp")

@pipeline.topic("{name}.even", key="n")
def even(numbers):
    return numbers.where("value.n % 2 = 0").select("value.n")
"""


class Place:
    """A broker with a topic, and the pipelines that are run on it."""

    def __init__(self, broker: Penstock) -> None:
        self.broker = broker
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for made in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
            made.result(30)
        self._producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 20})
        self.written = 0

    def write(self, count: int) -> None:
        for _ in range(count):
            number = self.written
            value = json.dumps({"n": number, "text": f"text {number}" * 5}).encode()
            bad = number % BAD_EVERY == 7
            self._producer.produce(TOPIC, b"bad %d" % number if bad else value, b"%d" % number)
            self._producer.poll(0)
            self.written += 1
        if self._producer.flush(60):
            raise RuntimeError("records could not be written")

    def define(self, name: str, kind: str = "parquet") -> Path:
        file = self.broker.folder / f"{name}.py"
        file.write_text(DEFINITION.format(name=name, format=kind))
        return file

    def command(self, *arguments: str | Path) -> list[str]:
        return [
            sys.executable,
            "-m",
            "penstock",
            "pipeline",
            *map(str, arguments),
            "--bootstrap",
            self.broker.bootstrap,
        ]

    def run(self, file: Path, *arguments: str) -> None:
        """Everything that is there now."""
        done = subprocess.run(
            self.command("run", file, "--once", *BRIEF_JAVA, *arguments),
            capture_output=True, text=True, timeout=RUN_SECONDS, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"a run failed: {done.stderr.strip() or done.stdout.strip()}")

    def status(self, file: Path) -> dict[str, Any]:
        done = subprocess.run(
            self.command("status", file), capture_output=True, text=True, timeout=60, check=True
        )
        (found,) = json.loads(done.stdout)
        return dict(found)

    def table(self, name: str) -> Path:
        return self.broker.folder / "store" / "pipelines" / name / "tables" / "rows"

    def topic(self, topic: str) -> list[Any]:
        consumer = Consumer(
            {"bootstrap.servers": self.broker.bootstrap, "group.id": "check", "enable.auto.commit": False}
        )
        found = []
        for number in consumer.list_topics(topic, 30).topics[topic].partitions:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), 30)
            consumer.assign([TopicPartition(topic, number, low)])
            while low < high:
                message = consumer.poll(30)
                if message is None or message.error():
                    raise RuntimeError(f"{topic} cannot be read: {message and message.error()}")
                found.append(message)
                low = (message.offset() or 0) + 1
        consumer.close()
        return found

    def judge(self, name: str, table: list[int]) -> str:
        """Each record once, in the table, in the topic or among the dead letters. Raises AssertionError."""
        good = [n for n in range(self.written) if n % BAD_EVERY != 7]
        exactly("the table", table, good)
        sent = [json.loads(one.value() or b"")["n"] for one in self.topic(f"{name}.even")]
        exactly("the topic", sent, [n for n in good if n % 2 == 0])
        letters = self.topic(f"{name}.dead")
        dead = [int((one.value() or b"").split()[1]) for one in letters]
        exactly("the dead letters", dead, [n for n in range(self.written) if n % BAD_EVERY == 7])
        for one in letters:
            headers = dict(one.headers() or [])
            if headers["__connect.errors.topic"] != TOPIC.encode():
                raise AssertionError(f"a dead letter is said to be of {headers}")
        return f"{len(table)} rows, {len(sent)} records, {len(dead)} dead letters, each once"


def exactly(what: str, found: list[int], wanted: list[int]) -> None:
    counts = Counter(found)
    lost = [n for n in wanted if n not in counts]
    twice = [n for n, count in counts.items() if count > 1]
    foreign = counts.keys() - set(wanted)
    if lost or twice or foreign:
        raise AssertionError(
            f"{what}: {len(lost)} lost (first {lost[:3]}), {len(twice)} more than once (first {twice[:3]}),"
            f" {len(foreign)} foreign (first {sorted(foreign)[:3]})"
        )
