"""The catalogue of clients, and the driver that runs one client program and speaks to it."""

import json
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from conformance import parts
from conformance.clients.protocol import CODECS, Record

COMMAND_TIMEOUT_S = 300.0


class ClientFailed(Exception):
    """The client program answered with an error, ended, or did not answer in time."""

    def __init__(self, text: str, kind: str = "") -> None:
        super().__init__(text)
        self.kind = kind
        """The client's own name for an error that it answered with."""


@dataclass(frozen=True, slots=True)
class Client:
    """What one client is and what it can say."""

    name: str
    program: Callable[[], list[str]]
    codecs: tuple[str, ...] = CODECS
    """Codecs it writes and reads."""
    headers: bool = True
    """It writes and reads record headers."""
    stamps: bool = True
    """It lets the writer choose timestamps."""
    binary: bool = True
    """It writes arbitrary bytes, not only lines of text."""
    partitions: int = 3
    """How many partitions its topics get: 1 where it cannot choose, or cannot choose where to write."""
    header_lists: bool = True
    """It keeps the order of headers and several of one name."""
    null_headers: bool = True
    """It writes headers whose value is null."""
    floods: bool = False
    """Its program keeps an idempotent producer across commands."""
    variants: tuple[str, ...] = ()
    """Kinds of group membership it has: classic, cooperative, static, consumer (KIP-848)."""
    transacts: bool = False
    """It has transactions."""


def _python(module: str, *options: str) -> Callable[[], list[str]]:
    return lambda: [sys.executable, "-m", f"conformance.clients.{module}", *options]


def _sarama(version: str) -> Callable[[], list[str]]:
    return lambda: [str(parts.go_program("sarama")), "--version", version]


# A broker of 2016 and clients of its age: no headers, no zstd.
OLD_CODECS = ("none", "gzip", "snappy", "lz4")
ALL_VARIANTS = ("classic", "cooperative", "static", "consumer")

CLIENTS = (
    Client(
        "kafka-python",
        _python("kafka_python"),
        null_headers=False,
        variants=("classic", "cooperative", "static"),
        transacts=True,
    ),
    Client(
        "kafka-python-0.10",
        _python("kafka_python", "--api-version", "0.10.0"),
        codecs=OLD_CODECS,
        headers=False,
        partitions=1,
        variants=("classic",),
    ),
    Client("aiokafka", _python("aiokafka_client"), variants=("classic", "static"), transacts=True),
    Client("confluent-kafka", _python("confluent"), floods=True, variants=ALL_VARIANTS, transacts=True),
    Client("kcat", _python("kcat"), stamps=False, partitions=1),
    Client(
        "kafkajs",
        lambda: parts.node_program("kafkajs"),
        header_lists=False,
        null_headers=False,
        variants=("classic",),
        transacts=True,
    ),
    Client("java", parts.java_client, floods=True, variants=ALL_VARIANTS, transacts=True),
    Client("kafka-tools", _python("kafka_tools"), stamps=False, binary=False, partitions=1),
    Client(
        "franz-go",
        lambda: [str(parts.go_program("franz"))],
        floods=True,
        variants=ALL_VARIANTS,
        transacts=True,
    ),
    Client("sarama-0.10.2", _sarama("0.10.2.0"), codecs=OLD_CODECS, headers=False, variants=("classic",)),
    Client("sarama", _sarama("newest"), variants=("classic", "static"), transacts=True),
)
BY_NAME = {client.name: client for client in CLIENTS}
# What these speak was dropped in Kafka 4 (KIP-896): their oracle is Kafka 3.9.
OLD = frozenset(("kafka-python-0.10", "sarama-0.10.2"))


class Session:
    """One running client program."""

    def __init__(self, client: Client, bootstrap: str, security: Path | None = None) -> None:
        self.client = client
        login = [] if security is None else ["--security", str(security)]
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        self.process = subprocess.Popen(
            [*client.program(), "--bootstrap", bootstrap, *login],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            cwd=parts.ROOT,
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.stdin = self.process.stdin
        self.stdout = self.process.stdout
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.stdout, selectors.EVENT_READ)

    def create(self, topic: str, partitions: int) -> None:
        self._ask({"do": "create", "topic": topic, "partitions": partitions})

    def produce(self, topic: str, partition: int, codec: str, records: list[Record]) -> list[int]:
        sent = [record.to_json() for record in records]
        asked = {"do": "produce", "topic": topic, "partition": partition, "codec": codec, "records": sent}
        offsets: list[int] = self._ask(asked)["offsets"]
        return offsets

    def flood(self, topic: str, records: list[Record]) -> list[int]:
        offsets: list[int] = self._ask(
            {"do": "flood", "topic": topic, "records": [each.to_json() for each in records]}
        )["offsets"]
        return offsets

    def consume(
        self,
        topic: str,
        partition: int,
        offset: int,
        count: int,
        timeout_s: float = 20.0,
        committed: bool = False,
    ) -> list[Record]:
        asked = {"do": "consume", "topic": topic, "partition": partition, "offset": offset, "count": count}
        answer = self._ask({**asked, "timeout_s": timeout_s, "committed": committed})
        return [Record.from_json(record) for record in answer["records"]]

    def group(
        self, group: str, topic: str, count: int, each: int, variant: str, timeout_s: float = 30.0
    ) -> tuple[list[Record], dict[int, int]]:
        asked = {
            "do": "group",
            "group": group,
            "topic": topic,
            "count": count,
            "each": each,
            "variant": variant,
        }
        answer = self._ask({**asked, "timeout_s": timeout_s})
        committed = {int(partition): offset for partition, offset in answer["committed"].items()}
        return [Record.from_json(record) for record in answer["records"]], committed

    def step(self, do: str, **details: Any) -> dict[str, Any]:
        """A step of a transaction: open, begin, send, offsets, commit, abort, close."""
        return self._ask({"do": do, **details})

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        try:
            self.stdin.write(json.dumps(command).encode() + b"\n")
            self.stdin.flush()
        except BrokenPipeError:
            raise ClientFailed(f"{self.client.name} ended: {self._complaint()}") from None
        if not self.selector.select(COMMAND_TIMEOUT_S):
            self.process.kill()
            raise ClientFailed(
                f"{self.client.name} did not answer within {COMMAND_TIMEOUT_S:.0f} s: {self._complaint()}"
            )
        line = self.stdout.readline()
        if not line:
            raise ClientFailed(f"{self.client.name} ended: {self._complaint()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ClientFailed(f"{self.client.name}: {answer['error']}", answer.get("kind", ""))
        return answer

    def _complaint(self) -> str:
        self.errors.seek(0)
        return " | ".join(self.errors.read().decode(errors="replace").strip().splitlines()[-3:])

    def close(self) -> None:
        self.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.selector.close()
        self.stdout.close()
        self.errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
