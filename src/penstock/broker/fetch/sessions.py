"""Incremental fetch sessions (KIP-227): the broker remembers which partitions a consumer fetches.

A full fetch (epoch 0) may open a session. In it, the consumer sends only changes to its partitions, and the
answer leaves out partitions without news. The epoch counts the requests of a session, so a lost or repeated
one is noticed. A full fetch with epoch -1, and any fetch below version 7, is without a session.

The cache is bounded in sessions and in partitions over all of them. When it is full, a new session may
replace one that was not used for a while, or one that is not new and has fewer partitions than itself; else
the consumer goes on without a session.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from penstock.broker.fetch.results import Result
from penstock.wire.api.fetch import FetchRequest
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.entropy import Entropy

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
TOPIC_IDS_FROM = 13

EVICTION_MS = 120_000
"""Kafka's: after so long a session may be replaced (max.incremental.fetch.session.cache's companion)."""
PARTITIONS_MAX = 400_000
"""Partitions remembered over all sessions, at about 200 bytes each: consumers choose how many they name."""

Key = tuple[bytes | str, int]
"""Topic id or name, as the version has it, and partition."""


class Wanted:
    """A consumer's request for one partition, and the last answer about it in a session."""

    __slots__ = (
        "index",
        "last_fetched_epoch",
        "leader_epoch",
        "max_bytes",
        "name",
        "offset",
        "told_high_watermark",
        "told_log_start",
        "topic_id",
    )

    def __init__(
        self,
        name: str,
        topic_id: bytes,
        index: int,
        offset: int,
        max_bytes: int,
        leader_epoch: int,
        last_fetched_epoch: int,
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.index = index
        self.offset = offset
        self.max_bytes = max_bytes
        self.leader_epoch = leader_epoch
        self.last_fetched_epoch = last_fetched_epoch
        self.told_high_watermark = -1
        self.told_log_start = -1

    def ask(self, other: Wanted) -> None:
        """The consumer asks anew."""
        self.offset = other.offset
        self.max_bytes = other.max_bytes
        self.leader_epoch = other.leader_epoch
        self.last_fetched_epoch = other.last_fetched_epoch

    def tell(self, result: Result) -> bool:
        """Remember what is answered now; whether there is anything to say."""
        news = (
            result.size > 0
            or result.error is not ErrorCode.NONE
            or result.diverging is not None
            or self.told_high_watermark != result.high_watermark
            or self.told_log_start != result.log_start
        )
        # After an error the partition is answered again once, even if nothing else has changed.
        self.told_high_watermark = -1 if result.error is not ErrorCode.NONE else result.high_watermark
        self.told_log_start = result.log_start
        return news


class Session:
    __slots__ = ("by_id", "created_ms", "epoch", "id", "partitions", "used_ms")

    def __init__(self, session_id: int, by_id: bool, partitions: dict[Key, Wanted], now_ms: int) -> None:
        self.id = session_id
        self.by_id = by_id
        self.partitions = partitions
        self.epoch = 1
        self.created_ms = now_ms
        self.used_ms = now_ms


class Context(NamedTuple):
    """How one request stands to sessions."""

    wanted: Sequence[Wanted]
    session: Session | None = None
    expected_epoch: int = 0
    opens: bool = False
    """A full fetch that would like a session."""
    error: ErrorCode = ErrorCode.NONE


Answered = tuple[ErrorCode, int, Sequence[tuple[Wanted, Result]]]
"""The error and session id of the whole answer, and the partitions in it."""


class Sessions:
    def __init__(self, slots: int, entropy: Entropy) -> None:
        """`slots`: how many sessions are remembered at most."""
        self._slots = slots
        self._entropy = entropy
        self._sessions: dict[int, Session] = {}
        """By id, the one that was not used for longest first."""
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    # -- a request comes in ---------------------------------------------------------------------------

    def named(self, message: FetchRequest, version: int) -> Iterable[Key]:
        """The partitions that a request is about: those of its session, and those that it names itself."""
        if message.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            return _named_by(message, version)
        session = self._sessions.get(message.session_id)
        if session is None:
            return ()
        if not message.topics:
            return session.partitions
        return chain(session.partitions, _named_by(message, version))

    def begin(self, message: FetchRequest, version: int, now_ms: int) -> Context:
        epoch, session_id = message.session_epoch, message.session_id
        asked = wanted_by(message, version)
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._remove(session_id)
            return Context(list(asked.values()), opens=epoch == INITIAL_EPOCH)
        session = self._sessions.get(session_id)
        if session is None:
            return Context((), error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            return Context((), error=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != (version >= TOPIC_IDS_FROM):
            return Context((), error=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        self._update(session, asked, forgotten_by(message, version))
        if not session.partitions:
            self._remove(session.id)
            return Context(list(asked.values()))
        if self._partitions > PARTITIONS_MAX:
            self._remove(session.id)
            return Context((), error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.used_ms = now_ms
        session.epoch = next_epoch(session.epoch)
        self._sessions[session.id] = self._sessions.pop(session.id)
        return Context(list(session.partitions.values()), session, session.epoch)

    def _update(self, session: Session, asked: dict[Key, Wanted], forgotten: Iterable[Key]) -> None:
        partitions = session.partitions
        before = len(partitions)
        for key, wanted in asked.items():
            known = partitions.get(key)
            if known is None:
                partitions[key] = wanted
            else:
                known.ask(wanted)
        for key in forgotten:
            partitions.pop(key, None)
        self._partitions += len(partitions) - before

    # -- its answer goes out --------------------------------------------------------------------------

    def finish(
        self, context: Context, version: int, results: Sequence[tuple[Wanted, Result]], now_ms: int
    ) -> Answered:
        session = context.session
        if session is None:
            session_id = self._open(version, results, now_ms) if context.opens else NO_SESSION
            return ErrorCode.NONE, session_id, results
        if session.epoch != context.expected_epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH, session.id, ()
        told = []
        partitions = session.partitions
        for wanted, result in results:
            if wanted.tell(result):
                told.append((wanted, result))
                if result.size:
                    # The next fetch begins with those that had nothing this time.
                    key = key_of(wanted, session.by_id)
                    if key in partitions:
                        partitions[key] = partitions.pop(key)
        return ErrorCode.NONE, session.id, told

    def _open(self, version: int, results: Sequence[tuple[Wanted, Result]], now_ms: int) -> int:
        size = len(results)
        if self._partitions + size > PARTITIONS_MAX or not self._make_room(size, now_ms):
            return NO_SESSION
        by_id = version >= TOPIC_IDS_FROM
        partitions: dict[Key, Wanted] = {}
        for wanted, result in results:
            wanted.told_high_watermark = result.high_watermark
            wanted.told_log_start = result.log_start
            partitions[key_of(wanted, by_id)] = wanted
        session_id = self._new_id()
        while session_id in self._sessions:
            session_id = self._new_id()
        self._sessions[session_id] = Session(session_id, by_id, partitions, now_ms)
        self._partitions += len(partitions)
        return session_id

    def _new_id(self) -> int:
        """From 1 on."""
        return 1 + int.from_bytes(self._entropy.token(4), "big") % (2**31 - 1)

    def _make_room(self, size: int, now_ms: int) -> bool:
        if len(self._sessions) < self._slots:
            return True
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now_ms - oldest.used_ms > EVICTION_MS:
            self._remove(oldest.id)
            return True
        old = [one for one in self._sessions.values() if now_ms - one.created_ms > EVICTION_MS]
        smallest = min(old, key=lambda one: len(one.partitions), default=None)
        if smallest is None or len(smallest.partitions) >= size:
            return False
        self._remove(smallest.id)
        return True

    def _remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session.partitions)


def next_epoch(epoch: int) -> int:
    return 1 if epoch == 2**31 - 1 else epoch + 1


def key_of(wanted: Wanted, by_id: bool) -> Key:
    return (wanted.topic_id if by_id else wanted.name, wanted.index)


def _named_by(message: FetchRequest, version: int) -> Iterable[Key]:
    if version >= TOPIC_IDS_FROM:
        return [(topic.topic_id, asked.partition) for topic in message.topics for asked in topic.partitions]
    return [(topic.topic, asked.partition) for topic in message.topics for asked in topic.partitions]


def wanted_by(message: FetchRequest, version: int) -> dict[Key, Wanted]:
    """The partitions that a request names, in its order. Of one named twice the last counts."""
    by_id = version >= TOPIC_IDS_FROM
    wanted: dict[Key, Wanted] = {}
    for topic in message.topics:
        name, topic_id = topic.topic, topic.topic_id
        for asked in topic.partitions:
            wanted[topic_id if by_id else name, asked.partition] = Wanted(
                name,
                topic_id,
                asked.partition,
                asked.fetch_offset,
                asked.partition_max_bytes,
                asked.current_leader_epoch,
                asked.last_fetched_epoch,
            )
    return wanted


def forgotten_by(message: FetchRequest, version: int) -> list[Key]:
    by_id = version >= TOPIC_IDS_FROM
    return [
        (topic.topic_id if by_id else topic.topic, index)
        for topic in message.forgotten_topics_data
        for index in topic.partitions
    ]
