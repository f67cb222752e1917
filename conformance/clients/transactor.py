"""Transactions of a client program written in Python: the steps of one transaction, and the link of a chain.

The steps are single commands, so that the caller decides what happens between them. A link is a program that
consumes, transforms and produces in transactions until it is told to leave, and tells of each transaction before
and after whatever could be its last act.
"""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from conformance.clients.voice import Orders

COMMITTED, ABORTED, UNKNOWN = "committed", "aborted", "unknown"


class Transactor(ABC):
    """One producer with a transactional id. It outlives commands."""

    @abstractmethod
    def open(self, id: str, timeout_ms: int) -> None:
        """Make the producer, and initialise its transactions."""

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def send(self, topic: str, records: list[tuple[int, bytes]]) -> list[int]:
        """Values to partitions; their offsets once all are acknowledged, -1 where the client cannot tell."""

    @abstractmethod
    def offsets(self, group: str, topic: str, offsets: dict[int, int]) -> None: ...

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def abort(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Consumed:
    partition: int
    offset: int
    value: str


@dataclass(frozen=True, slots=True)
class Work:
    """One transaction of a link: what it writes, and where its group stands after."""

    name: str
    appends: list[tuple[str, int, str]]
    """Topic, partition and value."""
    ends: dict[int, int]
    starts: dict[int, int]
    to_abort: bool


class Link:
    """The orders of a link, and what it says.

    Each value that is consumed becomes a value in every output. The name of the transaction is added to it, so
    that values are unique even if the same input is transformed again after an abort.
    """

    def __init__(
        self,
        name: str,
        group: str,
        id: str,
        input: str,
        outputs: Sequence[str],
        partitions: int,
        batch: int,
        timeout_ms: int,
        abort_every: int,
        assigned: Sequence[int] | None,
    ) -> None:
        self.name = name
        self.group = group
        self.id = id
        self.input = input
        self.outputs = list(outputs)
        self.partitions = partitions
        self.batch = batch
        self.timeout_ms = timeout_ms
        self.abort_every = abort_every
        self.assigned = None if assigned is None else list(assigned)
        """None: as the group decides."""
        self._orders = Orders()
        self._number = 0

    @property
    def told_to_leave(self) -> bool:
        return self._orders.told_to_leave

    def work(self, consumed: Sequence[Consumed]) -> Work:
        """What to do with these; it is told before anything of it is done."""
        self._number += 1
        name = f"{self.name}.{self._number}"
        appends: list[tuple[str, int, str]] = []
        starts: dict[int, int] = {}
        ends: dict[int, int] = {}
        for one in consumed:
            starts.setdefault(one.partition, one.offset)
            ends[one.partition] = one.offset + 1
            for turn, output in enumerate(self.outputs):
                # The first output keeps the partition, the others spread what was together.
                partition = one.partition if turn == 0 else one.offset % self.partitions
                appends.append((output, partition, f"{one.value}|{name}.{turn}"))
        to_abort = self.abort_every > 0 and self._number % self.abort_every == 0
        told = [[f"{topic}-{partition}", value] for topic, partition, value in appends]
        moves = [[f"{self.input}-{partition}", starts[partition], end] for partition, end in ends.items()]
        self._say("begin", name, appends=told, moves=moves)
        return Work(name, appends, ends, starts, to_abort)

    def ready(self) -> None:
        self._say("ready", self.name)

    def asked(self, work: Work) -> None:
        """Call it before a commit is asked for."""
        self._say("asked", work.name)

    def ended(self, work: Work, outcome: str, why: str = "") -> None:
        self._say("ended", work.name, outcome=outcome, why=why)

    def _say(self, event: str, name: str, **details: Any) -> None:
        print(json.dumps({"event": event, "name": name, "at": time.time(), **details}), flush=True)
