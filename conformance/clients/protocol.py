"""The line protocol that every client program speaks, whatever its language.

A program is started with `--bootstrap HOST:PORT`, with `--security FILE` (secured.py) if it has to log in, and perhaps
with options of its own. It reads one JSON command
a line from standard input and answers one JSON object a line on standard output; anything else it has to
say goes to standard error. It ends when its input ends. Bytes are base64, absent keys and values are null.

    {"do": "create", "topic": T, "partitions": N}
        -> {}
    {"do": "produce", "topic": T, "partition": P, "codec": C, "records": [RECORD, ...]}
        -> {"offsets": [...]}
           in order, only when all are acknowledged; -1 where the client cannot tell
    {"do": "flood", "topic": T, "records": [RECORD, ...]}
        -> {"offsets": [...]}
           each to its own "partition", by one idempotent producer that outlives commands
    {"do": "consume", "topic": T, "partition": P, "offset": O, "count": N, "committed": C, "timeout_s": S}
        -> {"records": [RECORD, ...]}
           by assignment, without a group; fewer than N when S seconds have passed; at read_committed if C
    {"do": "group", "group": G, "topic": T, "count": N, "each": K, "variant": V, "timeout_s": S}
        -> {"records": [RECORD, ...], "committed": {"0": NEXT, ...}}
           join G, consume N records and no more than K of a partition, commit what was consumed, leave
    {"do": "member", "group": G, "topic": T, "variant": V, "instance": I}
        -> {}
           join G, consume and commit until a line {"do": "leave"} comes, leave. Meanwhile a line an event:
           {"event": "assigned", "partitions": [...], "at": MS}   before anything of them is consumed
           {"event": "revoked", "partitions": [...], "at": MS}    nothing is consumed after, all is committed
           {"event": "lost", "partitions": [...], "at": MS}       likewise, but too late to commit
           {"event": "consumed", "partition": P, "offsets": [...], "at": MS}

    {"do": "open", "id": I, "timeout_ms": MS}          a producer with a transactional id, until "close"
    {"do": "begin"}, {"do": "commit"}, {"do": "abort"}, {"do": "close"}
    {"do": "offsets", "group": G, "topic": T, "offsets": {"0": NEXT, ...}}
        -> {}
    {"do": "send", "topic": T, "records": [RECORD, ...]}
        -> {"offsets": [...]}
           in the transaction, each to its own "partition", when all are acknowledged
    {"do": "link", "name": N, "group": G, "id": I, "input": T, "outputs": [T, ...], "partitions": P, "batch": B,
     "timeout_ms": MS, "abort_every": A, "assigned": [...]}
        -> {}
           consume, transform and produce in transactions until a line {"do": "leave"} comes: see transactor.py.
           Meanwhile a line an event, where "at" is in seconds:
           {"event": "begin", "name": "N.1", "appends": [["T-0", VALUE], ...], "moves": [["T-0", START, END], ...]}
           {"event": "asked", "name": "N.1", "at": S}     a commit is asked for from now on
           {"event": "ended", "name": "N.1", "outcome": "committed", "aborted" or "unknown", "at": S}
           "assigned" null: as the group decides, and a commit names the member (KIP-447)

    A static member of "group" is the instance "G-one", expected back for two minutes; a member of "member" is
    static if I is not null.

    RECORD: {"key", "value", "headers": [[name, value], ...], "timestamp"}; when read, "offset", "partition".
    A command that fails is answered by {"error": "one sentence", "kind": K}, K being the client's name for it.
"""

import base64
import json
import sys
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from typing import Any

from conformance.clients.transactor import Link, Transactor
from conformance.clients.voice import Voice

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True, slots=True)
class Record:
    """A record as a client sees it; `timestamp` None means that the client chooses or cannot tell."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = None
    offset: int = -1
    partition: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "key": text_of(self.key),
            "value": text_of(self.value),
            "headers": [[name, text_of(value)] for name, value in self.headers],
            "timestamp": self.timestamp,
            "offset": self.offset,
            "partition": self.partition,
        }

    @staticmethod
    def from_json(record: dict[str, Any]) -> "Record":
        return Record(
            key=bytes_of(record["key"]),
            value=bytes_of(record["value"]),
            headers=tuple((name, bytes_of(value)) for name, value in record.get("headers") or ()),
            timestamp=record.get("timestamp"),
            offset=record.get("offset", -1),
            partition=record.get("partition", 0),
        )


def text_of(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def bytes_of(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


class Share:
    """The part of a topic that one member takes: so many records, and no more than so many of a partition."""

    def __init__(self, count: int, each: int) -> None:
        self.records: list[Record] = []
        self._count = count
        self._each = each
        self._taken: Counter[int] = Counter()

    @property
    def complete(self) -> bool:
        return len(self.records) >= self._count

    def offer(self, record: Record) -> None:
        """Take the record, or leave it to whoever comes next."""
        if not self.complete and self._taken[record.partition] < self._each:
            self._taken[record.partition] += 1
            self.records.append(record)

    def next_offsets(self) -> dict[int, int]:
        return {record.partition: record.offset + 1 for record in self.records}


class Program(ABC):
    """What a client program written in Python fills in."""

    @abstractmethod
    def create(self, topic: str, partitions: int) -> None: ...

    @abstractmethod
    def produce(self, topic: str, partition: int, codec: str, records: list[Record]) -> list[int]: ...

    def flood(self, topic: str, records: list[Record]) -> list[int]:
        raise ValueError("this client has no idempotent producer here")

    @abstractmethod
    def consume(
        self, topic: str, partition: int, offset: int, count: int, timeout_s: float, committed: bool = False
    ) -> list[Record]: ...

    def group(self, group: str, topic: str, share: Share, variant: str, timeout_s: float) -> None:
        raise ValueError("this client joins no groups here")

    def member(self, group: str, topic: str, variant: str, instance: str | None, voice: Voice) -> None:
        raise ValueError("this client joins no groups here")

    def transactor(self) -> Transactor:
        raise ValueError("this client has no transactions here")

    def link(self, link: Link) -> None:
        raise ValueError("this client is no link of a chain here")

    def kind_of(self, error: Exception) -> str:
        """The client's name for an error."""
        return type(error).__name__

    def close(self) -> None:  # noqa: B027 (most keep nothing)
        """Nothing to close unless the client keeps connections between commands."""


def serve(program: Program) -> None:
    """Answer commands until the input ends."""
    kept: dict[str, Transactor] = {}
    for line in sys.stdin:
        try:
            answer = _answer(program, json.loads(line), kept)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}", "kind": program.kind_of(error)}
        print(json.dumps(answer), flush=True)
    program.close()


def _answer(program: Program, command: dict[str, Any], kept: dict[str, Transactor]) -> dict[str, Any]:
    match command.pop("do"):
        case "open" | "begin" | "send" | "offsets" | "commit" | "abort" | "close" as step:
            if "one" not in kept:
                kept["one"] = program.transactor()
            return _step(kept["one"], step, command)
        case "link":
            program.link(Link(**command))
            return {}
        case "create":
            program.create(**command)
            return {}
        case "produce":
            records = [Record.from_json(record) for record in command.pop("records")]
            return {"offsets": program.produce(**command, records=records)}
        case "flood":
            records = [Record.from_json(record) for record in command.pop("records")]
            return {"offsets": program.flood(**command, records=records)}
        case "consume":
            return {"records": [record.to_json() for record in program.consume(**command)]}
        case "group":
            share = Share(command.pop("count"), command.pop("each"))
            program.group(**command, share=share)
            by_partition = {str(partition): offset for partition, offset in share.next_offsets().items()}
            return {"records": [record.to_json() for record in share.records], "committed": by_partition}
        case "member":
            program.member(**command, voice=Voice())
            return {}
        case unknown:
            raise ValueError(f"no such command: {unknown}")


def _step(transactor: Transactor, step: str, command: dict[str, Any]) -> dict[str, Any]:
    match step:
        case "open":
            transactor.open(**command)
        case "begin":
            transactor.begin()
        case "send":
            records = [Record.from_json(record) for record in command["records"]]
            values = [(record.partition, record.value or b"") for record in records]
            return {"offsets": transactor.send(command["topic"], values)}
        case "offsets":
            offsets = {int(partition): offset for partition, offset in command["offsets"].items()}
            transactor.offsets(command["group"], command["topic"], offsets)
        case "commit":
            transactor.commit()
        case "abort":
            transactor.abort()
        case "close":
            transactor.close()
    return {}
