"""The programs of a chain: links that transact, the writer of its input, readers, and who asks for offsets."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from conformance import parts
from conformance.client import BY_NAME
from conformance.cluster.streams import QUIET
from conformance.histories.history import OffsetSeen
from conformance.transactions import asking
from conformance.transactions.account import Account
from conformance.transactions.places import Place
from conformance.wire.connection import Closed, Silent
from penstock.testing.waiting import Late

LEFT_WITHIN_S = 45.0
HANGS_S = 25.0
"""A transaction that takes longer than any time-out of its client. librdkafka waits for ever in
send_offsets_to_transaction when the only broker was restarted meanwhile, whichever that is."""
TIMEOUT_MS = 6_000
"""A transaction of a link takes no longer."""
RESTLESS: dict[str, Any] = {
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 250,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 250,
    "socket.timeout.ms": 2_000,
    **QUIET,
}


@dataclass(frozen=True, slots=True)
class Part:
    """What one link of a chain does, whichever process does it."""

    client: str
    group: str
    id: str
    input: str
    outputs: tuple[str, ...]
    partitions: int
    assigned: tuple[int, ...] | None = None
    batch: int = 10
    timeout_ms: int = TIMEOUT_MS
    abort_every: int = 6


class Link:
    """A part of a chain, and the process that plays it at present. When one ends, another takes its place."""

    def __init__(self, part: Part, place: Place, account: Account) -> None:
        self.part = part
        self.failures: list[str] = []
        """Why processes ended that nobody killed."""
        self._place = place
        self._account = account
        self._incarnation = 0
        self._ending = False
        self._paused = False
        self.hung: list[str] = []
        """Transactions that took so long that the process was killed."""
        self._start()

    @property
    def name(self) -> str:
        return f"{self.part.id}-{self._incarnation}"

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def _start(self) -> None:
        self._incarnation += 1
        self._killed = False
        self._open: tuple[str, float] | None = None
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [*BY_NAME[self.part.client].program(), "--bootstrap", self._place.bootstrap],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=parts.ROOT,
        )
        part = self.part
        self._send(
            {
                "do": "link",
                "name": self.name,
                "group": part.group,
                "id": part.id,
                "input": part.input,
                "outputs": part.outputs,
                "partitions": part.partitions,
                "batch": part.batch,
                "timeout_ms": part.timeout_ms,
                "abort_every": part.abort_every,
                "assigned": part.assigned,
            }
        )
        self._listener = threading.Thread(target=self._listen, args=(self.name, self._process), daemon=True)
        self._listener.start()

    def _send(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()

    def _listen(self, name: str, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.endswith(b"\n"):
                break  # killed in the middle of a word
            said = json.loads(line)
            if "event" in said:
                if said["event"] != "ready":
                    self._account.heard(name, self.part.group, said)
                going = said["event"] in ("begin", "asked")
                self._open = (said["name"], time.monotonic()) if going else None
            else:
                if "error" in said:
                    self.failures.append(f"{name}: {said['error']}")
                process.kill()  # It may hang in what it has open.
                break

    def kill(self) -> None:
        """kill -9."""
        self._killed = True
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        self._paused = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        self._paused = False
        if self._open is not None:
            self._open = (self._open[0], time.monotonic())
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGCONT)

    def tend(self) -> None:
        """Another process if this one has ended, or hangs."""
        if self.running and not self._paused and self._open is not None:
            name, since = self._open
            if time.monotonic() - since > HANGS_S:
                self.hung.append(name)
                self.kill()
        if not self.running and not self._ending:
            if not self._killed and self._process.returncode not in (0, -signal.SIGKILL):
                self._errors.seek(0)
                last = self._errors.read().decode(errors="replace").strip().splitlines()[-3:]
                self.failures.append(f"{self.name} ended: {' | '.join(last)}")
            self._forget()
            self._start()

    def leave(self) -> None:
        """Ask it to; `close` waits for it."""
        self._ending = True
        self._send({"do": "leave"})

    def close(self) -> None:
        self._ending = True
        if self._paused:
            self.resume()
        self._send({"do": "leave"})
        self._listener.join(LEFT_WITHIN_S)
        if self._process.poll() is None:
            self._process.kill()
        self._forget()

    def _forget(self) -> None:
        self._process.wait()
        self._listener.join(10)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._errors.close()


class Helper(threading.Thread):
    """Something that goes on all the while, until it is told to end."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.ending = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self.act()
        except BaseException as error:
            self.failure = error

    def act(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        self.ending.set()
        self.join(LEFT_WITHIN_S)


class Source(Helper):
    """Writes the input: numbered values at an even pace, by an idempotent producer."""

    def __init__(self, place: Place, topic: str, partitions: int, every_s: float, account: Account) -> None:
        super().__init__(f"source of {topic}")
        self.values: list[str] = []
        """Those that were acknowledged."""
        self._topic, self._partitions, self._every_s, self._account = topic, partitions, every_s, account
        self._brokers = place.bootstrap

    def act(self) -> None:
        settings = {"enable.idempotence": True, "linger.ms": 0, "message.timeout.ms": 120_000, **RESTLESS}
        producer = Producer({"bootstrap.servers": self._brokers, **settings})
        number = 0
        while not self.ending.wait(self._every_s):
            for partition in range(self._partitions):
                value = f"{self._topic}.{number}"
                number += 1
                done = partial(self._delivered, value, f"{self._topic}-{partition}", time.time())
                producer.produce(self._topic, value.encode(), partition=partition, on_delivery=done)
            producer.poll(0)
        left = producer.flush(120)
        assert not left, f"{left} inputs were never answered"

    def _delivered(
        self, value: str, place: str, began: float, error: KafkaError | None, message: Message
    ) -> None:
        assert error is None, f"the input {value} was refused: {error}"
        self._account.wrote(place, value, message.offset(), began)
        self.values.append(value)


class Watcher(Helper):
    """Reads topics at read_committed all the while, and notes when it was shown what."""

    def __init__(self, place: Place, topics: list[str], partitions: int, account: Account) -> None:
        super().__init__("watcher")
        self._brokers = place.bootstrap
        self._places = [TopicPartition(topic, at, 0) for topic in topics for at in range(partitions)]
        self._account = account

    def act(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._brokers,
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 100,
                **RESTLESS,
            }
        )
        consumer.assign(self._places)
        while not self.ending.is_set():
            for message in consumer.consume(500, 0.1):
                if message.error() is None:
                    where = f"{message.topic()}-{message.partition()}"
                    value = (message.value() or b"").decode()
                    self._account.read(self.name, where, message.offset() or 0, value, time.time())
        consumer.close()


class Inquirer(Helper):
    """Asks for the stable offsets of groups again and again."""

    def __init__(
        self, place: Place, lanes: list[tuple[str, str]], partitions: int, every_s: float, account: Account
    ) -> None:
        """`lanes`: groups and the topics that they consume."""
        super().__init__("inquirer")
        self._place, self._lanes, self._partitions = place, lanes, partitions
        self._every_s, self._account = every_s, account

    def act(self) -> None:
        turn = 0
        while not self.ending.wait(self._every_s):
            turn += 1
            group, topic = self._lanes[turn % len(self._lanes)]
            partition = turn // len(self._lanes) % self._partitions
            asked = time.time()
            try:
                told = asking.committed(self._place, group, topic, partition)
            except (Late, Closed, Silent, OSError):
                continue
            if isinstance(told, int):
                self._account.told(OffsetSeen(group, f"{topic}-{partition}", told, asked, time.time()))
