"""The fast way through Produce, for a connection that repeats itself.

Nearly every producer sends one request after the other with the same client id, acks and time-out to the same
partition: all bytes up to the length of the records are those of the request before. A `Route` remembers
these bytes and their consequences (the partition, the topic's demands, the shape of the answer). One Struct
takes a request apart that begins with them: the repeated part, the length of the records, the header of the
batch, and the first bytes of the records. Another packs the answer.

A producer that sends to many partitions in turn, one in each request, is served by many routes. `Routes`
finds a route by these bytes. Connections whose requests begin alike share routes.

A route holds for one image: leadership and settings cannot have changed while the image is the same. It holds
for the access rules of its permit, and for one principal: code that changes the principal clears
`session.fast`. And a route only ever accepts: a batch that is not plainly in order, or a request that is not
exactly of that shape, goes the general way, which decides and words the refusal.

Written plainly for speed.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from penstock.broker.produce.answers import Asked, Target, encoded
from penstock.broker.produce.checks import Demands, skimmed
from penstock.wire.batch import (
    CODEC_MASK,
    CONTROL,
    CRC_FROM,
    HEADER_SIZE,
    LENGTH_FROM,
    LOG_APPEND_TIME,
    NO_PRODUCER_ID,
    TRANSACTIONAL,
)
from penstock.wire.checksum import crc32c
from penstock.wire.compression import ZSTD
from penstock.wire.errors import ErrorCode
from penstock.wire.exchange import Reply
from penstock.wire.skim import SHAPE_BYTES, shape
from penstock.wire.varint import unsigned

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.rights import Permit
    from penstock.metadata.image import ClusterImage
    from penstock.storage.ledger.ledger import Partition
    from penstock.storage.partitions.answers import Appended, Done
    from penstock.wire.exchange import Request

FLEXIBLE_FROM = 9
TOPIC_IDS_FROM = 13
_PREFIX_AT = 8
"""Where the bytes that repeat begin: after api key, version and correlation id."""
_ODD_ATTRIBUTES = CONTROL | LOG_APPEND_TIME | TRANSACTIONAL
_EPOCH_AT = 51
"""Where the producer's epoch stands in a batch: only batches of transactions are asked for it."""
_BATCH = f"qi4xbIhi8xqq2xii{SHAPE_BYTES}s"
"""The header of a batch, without leader epoch, base timestamp and producer epoch; and how the records
begin."""
_SIZE_MIN = HEADER_SIZE + SHAPE_BYTES
_SHARED_MAX = 4096
"""Routes that connections share: about a kilobyte each. Beyond it all are forgotten."""
_SHARED_PREFIX_MAX = 512
_NEVER = 2**63 - 1
_SECONDS_MIN = 1.0
"""The least time that a producer may set: a store takes its time, and the timer is coarse."""


def seconds_for(acks: int, timeout_ms: int) -> float:
    """How long the answer to a produce waits for its records to be durable. Without an answer nobody
    waits."""
    return float("inf") if acks == 0 else max(timeout_ms / 1000, _SECONDS_MIN)


class Route:
    """The shape of one connection's last request, and what follows for a request of the same shape."""

    __slots__ = (
        "after_max_ms",
        "answer_pack",
        "answer_prefix",
        "answer_suffix",
        "append",
        "at",
        "broker",
        "codec_max",
        "end",
        "fixed_bytes",
        "flexible",
        "image",
        "late_ms",
        "length_at",
        "length_bytes",
        "listener",
        "max_message_bytes",
        "metadata",
        "meter",
        "now_ms",
        "partition",
        "prefix",
        "rest",
        "rules",
        "seconds",
        "shape",
        "siblings",
        "silent",
        "size",
        "target",
        "transactional",
        "unpack",
        "version",
        "with_log_start",
    )

    def __init__(
        self,
        broker: Broker,
        request: Request,
        permit: Permit,
        partition: Partition,
        demands: Demands,
        name: str,
        acks: int,
        timeout_ms: int,
        length_at: int,
        *,
        transactional: bool,
    ) -> None:
        """`length_at`: where the length of the records stands in the frame, which has nothing unusual.
        `transactional`: the request has a transactional id that its sender may use."""
        frame = request.frame
        version = request.api_version
        self.broker = broker
        self.metadata = broker.metadata
        self.image = broker.metadata.image
        self.rules = permit.rules
        self.listener = request.session.listener
        self.siblings = broker.services.produce_routes.like(self.image, version, self.listener, permit)
        self.append = broker.ledger.append
        self.meter = broker.meters.produced(version)
        self.now_ms = broker.clock.time_ms
        self.partition = partition
        self.version = version
        self.flexible = version >= FLEXIBLE_FROM
        self.codec_max = ZSTD if version >= 7 else ZSTD - 1
        self.length_at = length_at
        self.prefix = frame[_PREFIX_AT:length_at].tobytes()
        self.fixed_bytes = length_at + (3 if self.flexible else 0)
        """All but the records and their length; flexible versions end with three empty sets of tags."""
        self.silent = acks == 0
        self.transactional = transactional
        self.seconds = seconds_for(acks, timeout_ms)
        self.max_message_bytes = demands.max_message_bytes
        self.after_max_ms = _NEVER if demands.log_append_time else demands.after_max_ms
        self.late_ms = 0
        """Times up to this one are not too late: computed when a later one comes, for the clock goes on."""
        self.shape: bytes | None = None
        """How the last batch began, if it was one record and this tells all of it; for batches of its
        size."""
        self.target = Target(name, partition.topic_id, partition.index)
        self.answer_prefix, self.answer_suffix = answer_shape(version, self.target)
        self.with_log_start = version >= 5
        times = "qq" if self.with_log_start else "q"
        self.answer_pack = Struct(f">i{len(self.answer_prefix)}sq{times}{len(self.answer_suffix)}s").pack
        self._fit(len(frame) - self.fixed_bytes)
        if len(self.prefix) <= _SHARED_PREFIX_MAX:
            self.siblings[self.prefix] = self

    def _fit(self, rest: int) -> None:
        """Expect records that take, with their length, `rest` bytes: as many as the last time, often."""
        self.rest = rest
        self.shape = None
        if self.flexible:
            length_size = 1 if rest < 129 else 2 if rest < 16386 else 3 if rest < 2097155 else 4
            self.size = rest - length_size
            self.length_bytes = unsigned(max(self.size, 0) + 1)
        else:
            length_size = 4
            self.size = rest - length_size
            self.length_bytes = max(self.size, 0).to_bytes(4, "big")
        self.at = self.length_at + length_size
        self.end = self.at + self.size
        self.unpack = _struct(len(self.prefix), length_size).unpack_from

    def take(self, frame: memoryview, owned: bool) -> Reply | None:
        """Append the batch in `frame` if all is in order; None: the general way must look at it."""
        rest = len(frame) - self.fixed_bytes
        if rest != self.rest:
            self._fit(rest)
        size = self.size
        if (
            size < _SIZE_MIN
            or size > self.max_message_bytes
            or self.metadata.image is not self.image
            or self.broker.rules is not self.rules
        ):
            return None
        (
            api_key, version, correlation_id, prefix, length_bytes, base_offset, length, magic, crc,
            attributes, last_offset_delta, max_timestamp, producer_id, base_sequence, count, first,
        ) = self.unpack(frame)  # fmt: skip
        if prefix != self.prefix:
            sibling = self.siblings.get(prefix)
            return None if sibling is None else sibling.take(frame, owned)
        at, end = self.at, self.end
        if (
            api_key
            or version != self.version
            or length_bytes != self.length_bytes
            or (self.flexible and (frame[end] or frame[end + 1] or frame[end + 2]))
            or magic != 2
            or length != size - LENGTH_FROM
            or base_offset
            or count <= 0
            or last_offset_delta != count - 1
            or (attributes & _ODD_ATTRIBUTES and not self._goes_on(attributes, producer_id, frame))
            or attributes & CODEC_MASK > self.codec_max
            or (base_sequence < 0 and producer_id != NO_PRODUCER_ID)
            or (max_timestamp > self.late_ms and self._is_late(max_timestamp))
            or (
                (first != self.shape or count != 1 or attributes & CODEC_MASK or frame[end - 1])
                and not self._in_order(frame[at + HEADER_SIZE : end], attributes & CODEC_MASK, count)
            )
            or crc32c(frame[at + CRC_FROM : end]) != crc
        ):
            return None
        reply = RouteReply(self, correlation_id)
        batch = frame[at:end]
        done: Done = reply.appended
        meter = self.meter
        meter.fast = count = meter.fast + 1
        if count >= meter.sample_at:
            done = meter.sampled(done)
        self.append(self.partition, batch if owned else bytearray(batch), done, self.seconds)
        return reply

    def _goes_on(self, attributes: int, producer_id: int, frame: memoryview) -> bool:
        """Is this a batch of a transaction that is open in the partition, and odd in nothing else?"""
        at = self.at + _EPOCH_AT
        return (
            attributes & _ODD_ATTRIBUTES == TRANSACTIONAL
            and self.transactional
            and self.partition.in_transaction(
                producer_id, int.from_bytes(frame[at : at + 2], "big", signed=True)
            )
        )

    def _in_order(self, block: memoryview, codec: int, count: int) -> bool:
        """Are the records plainly in order, as far as that is cheap to tell?"""
        if not skimmed(block, codec, count):
            return False
        self.shape = shape(block) if count == 1 and not codec else None
        return True

    def _is_late(self, timestamp: int) -> bool:
        self.late_ms = self.now_ms() + self.after_max_ms
        return timestamp > self.late_ms


_structs: dict[tuple[int, int], Struct] = {}
_STRUCTS_MAX = 1000


def _struct(prefix_size: int, length_size: int) -> Struct:
    """What takes a whole request apart, up to the records themselves. Few shapes occur."""
    made = _structs.get((prefix_size, length_size))
    if made is None:
        if len(_structs) >= _STRUCTS_MAX:
            _structs.clear()
        made = _structs[prefix_size, length_size] = Struct(f">hhi{prefix_size}s{length_size}s{_BATCH}")
    return made


class Routes:
    """The routes of all connections, by the bytes that their requests begin with. All hold for the same
    image."""

    def __init__(self) -> None:
        self._image: ClusterImage | None = None
        self._likes: dict[tuple[int, str, Permit], dict[bytes, Route]] = {}

    def known(self, image: ClusterImage, request: Request, permit: Permit, length_at: int) -> Route | None:
        """The route of a request that begins like this one."""
        if image is not self._image:
            return None
        routes = self._likes.get((request.api_version, request.session.listener, permit))
        return None if routes is None else routes.get(request.frame[_PREFIX_AT:length_at].tobytes())

    def like(self, image: ClusterImage, version: int, listener: str, permit: Permit) -> dict[bytes, Route]:
        """The routes that connections of this kind share, which one more is about to join."""
        if image is not self._image or sum(map(len, self._likes.values())) >= _SHARED_MAX:
            self._image = image
            self._likes = {}
        return self._likes.setdefault((version, listener, permit), {})


class RouteReply(Reply):
    """The answer to one request that went the fast way."""

    __slots__ = ("_correlation_id", "_route")

    def __init__(self, route: Route, correlation_id: int) -> None:
        # What Reply.__init__ does, without the call.
        self.buffers = None
        self.done = self.closed = self.exclusive = False
        self.weight = 0
        self.on_abandon = self.on_hurry = self.seen = self._notify = None
        self._route = route
        self._correlation_id = correlation_id

    def appended(self, result: Appended | ErrorCode) -> None:
        """Called by the ledger when the batch is durable or refused, and before that if it takes too long.
        What comes after an answer was sent changes nothing."""
        route = self._route
        if isinstance(result, ErrorCode):
            self._refused(result)
            return
        if not route.silent:
            base_offset, append_time, log_start, _duplicate = result
            before, after = route.answer_prefix, route.answer_suffix
            if route.with_log_start:
                answer = route.answer_pack(
                    self._correlation_id, before, base_offset, append_time, log_start, after
                )
            else:
                answer = route.answer_pack(self._correlation_id, before, base_offset, append_time, after)
            self.buffers = [answer]
        # What Reply.complete does, without the calls.
        self.done = True
        notify, self._notify = self._notify, None
        if notify is not None:
            notify(self)

    def _refused(self, code: ErrorCode) -> None:
        route = self._route
        if route.silent:
            self.close()
            return
        target = route.target
        key = (target.topic_id if route.version >= TOPIC_IDS_FROM else target.name, target.partition)
        asked = Asked(route.version, self._correlation_id, route.listener)
        self.complete(encoded(route.broker, asked, {key: target}, {key: code}))


def answer_shape(version: int, target: Target) -> tuple[bytes, bytes]:
    """The bytes of a successful answer before and after its offsets and times, from version 3."""
    flexible = version >= FLEXIBLE_FROM
    one = b"\2" if flexible else b"\0\0\0\1"
    before = b"\0" + one if flexible else one
    if version >= TOPIC_IDS_FROM:
        before += target.topic_id
    else:
        name = target.name.encode()
        before += unsigned(len(name) + 1) if flexible else len(name).to_bytes(2, "big")
        before += name
    before += one + target.partition.to_bytes(4, "big") + b"\0\0"
    after = b""
    if version >= 8:
        # No record errors, and no message.
        after += b"\1\0" if flexible else b"\0\0\0\0\xff\xff"
    # The ends of partition and topic, no throttling, the end of the answer.
    after += b"\0\0" + b"\0\0\0\0" + b"\0" if flexible else b"\0\0\0\0"
    return before, after
