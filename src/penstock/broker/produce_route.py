"""The fast way through Produce, for a connection that repeats itself.

Nearly every producer sends one request after the other with the same client id, acks and time-out to the
same partition: all bytes up to the length of the records are those of the request before. A `Route`
remembers these bytes and what followed from them (the partition, the topic's rules, the shape of the
answer). A request that begins with them needs no parsing beyond the header of its batch, and its answer
is packed with one Struct.

A route holds for one image: leadership and settings cannot have changed while the image is the same. And
it only ever accepts: a batch that is not plainly in order, or a request that is not exactly of that
shape, goes the general way, which decides and words the refusal.

Written plainly for speed.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from penstock.broker.produce_answers import Asked, Target, encoded
from penstock.broker.produce_checks import Refused, Rules
from penstock.wire.batch import CODEC_MASK, CONTROL, HEADER, LOG_APPEND_TIME, TRANSACTIONAL
from penstock.wire.checksum import crc32c
from penstock.wire.compression import ZSTD
from penstock.wire.errors import ErrorCode
from penstock.wire.exchange import Reply
from penstock.wire.varint import unsigned

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.storage.answers import Appended
    from penstock.storage.ledger import Partition
    from penstock.wire.exchange import Request

FLEXIBLE_FROM = 9
TOPIC_IDS_FROM = 13
_PREFIX_AT = 8
"""Where the bytes that repeat begin: after api key, version and correlation id."""
_ODD_ATTRIBUTES = CONTROL | LOG_APPEND_TIME | TRANSACTIONAL
_BATCH_OVERHEAD = 61
_CRC_FROM = 21

_unpack_header = HEADER.unpack_from
_unpack_length = Struct(">i").unpack_from


class Route:
    """What one connection's last request was like, and what follows for one like it."""

    __slots__ = (
        "after_max_ms",
        "answer_pack",
        "answer_prefix",
        "answer_suffix",
        "append",
        "broker",
        "end",
        "flexible",
        "image",
        "listener",
        "max_message_bytes",
        "metadata",
        "now_ms",
        "partition",
        "prefix",
        "silent",
        "tail_bytes",
        "target",
        "version",
        "with_log_start",
    )

    def __init__(
        self,
        broker: Broker,
        request: Request,
        frame: memoryview,
        partition: Partition,
        rules: Rules,
        name: str,
        acks: int,
        records_length_at: int,
    ) -> None:
        version = request.api_version
        self.broker = broker
        self.metadata = broker.metadata
        self.image = broker.metadata.image
        self.append = broker.ledger.append
        self.now_ms = broker.clock.time_ms
        self.partition = partition
        self.version = version
        self.flexible = version >= FLEXIBLE_FROM
        self.end = records_length_at
        self.prefix = frame[_PREFIX_AT:records_length_at].tobytes()
        self.tail_bytes = 3 if self.flexible else 0
        """No tagged fields of partition, topic and request."""
        self.silent = acks == 0
        self.max_message_bytes = rules.max_message_bytes
        self.after_max_ms = rules.after_max_ms if not rules.log_append_time else 2**63 - 1
        self.target = Target(name, partition.topic_id, partition.index)
        self.listener = request.session.listener
        self.answer_prefix, self.answer_suffix = answer_shape(version, self.target)
        self.with_log_start = version >= 5
        times = "qq" if self.with_log_start else "q"
        self.answer_pack = Struct(f">i{len(self.answer_prefix)}sq{times}{len(self.answer_suffix)}s").pack

    def take(self, request: Request) -> Reply | None:
        """Append the request's batch if all is in order; None: the general way must look at it."""
        frame = request.frame
        at = self.end
        if (
            request.api_version != self.version
            or frame[_PREFIX_AT:at].tobytes() != self.prefix
            or self.metadata.image is not self.image
        ):
            return None
        if self.flexible:
            size = frame[at]
            at += 1
            if size > 127:
                shift = 7
                size &= 127
                while True:
                    byte = frame[at]
                    at += 1
                    size |= (byte & 127) << shift
                    if byte < 128:
                        break
                    shift += 7
                    if shift > 28:
                        return None
            size -= 1
        else:
            size = _unpack_length(frame, at)[0]
            at += 4
        end = at + size
        if (
            size < _BATCH_OVERHEAD
            or size > self.max_message_bytes
            or end + self.tail_bytes != len(frame)
            or (self.flexible and (frame[end] or frame[end + 1] or frame[end + 2]))
        ):
            return None
        (
            base_offset, length, _epoch, magic, crc, attributes, last_offset_delta, _base_timestamp,
            max_timestamp, producer_id, _producer_epoch, base_sequence, count,
        ) = _unpack_header(frame, at)  # fmt: skip
        if (
            magic != 2
            or length != size - 12
            or base_offset != 0
            or count <= 0
            or last_offset_delta != count - 1
            or attributes & _ODD_ATTRIBUTES
            or attributes & CODEC_MASK > (ZSTD if self.version >= 7 else ZSTD - 1)
            or (base_sequence < 0 and producer_id != -1)
            or crc32c(frame[at + _CRC_FROM : end]) != crc
            or max_timestamp - self.now_ms() > self.after_max_ms
            or self.partition.closed
        ):
            return None
        reply = RouteReply(self, request.correlation_id)
        batch = frame[at:end]
        self.append(self.partition, batch if request.owned else bytearray(batch), reply.appended)
        return reply


class RouteReply(Reply):
    """The answer to one request that went the fast way."""

    __slots__ = ("_correlation_id", "_route")

    def __init__(self, route: Route, correlation_id: int) -> None:
        # What Reply.__init__ does, without the call.
        self.buffers = None
        self.done = self.closed = self.exclusive = False
        self.weight = 0
        self.on_abandon = self.on_hurry = self._notify = None
        self._route = route
        self._correlation_id = correlation_id

    def appended(self, result: Appended | ErrorCode) -> None:
        route = self._route
        if type(result) is ErrorCode:
            self._refused(result)
        elif route.silent:
            self.complete(None)
        else:
            assert not isinstance(result, ErrorCode)
            base_offset, append_time, log_start, _duplicate = result
            before, after = route.answer_prefix, route.answer_suffix
            if route.with_log_start:
                answer = route.answer_pack(
                    self._correlation_id, before, base_offset, append_time, log_start, after
                )
            else:
                answer = route.answer_pack(self._correlation_id, before, base_offset, append_time, after)
            self.complete([answer])

    def _refused(self, code: ErrorCode) -> None:
        route = self._route
        if route.silent:
            self.close()
            return
        target = route.target
        key = (target.topic_id if route.version >= TOPIC_IDS_FROM else target.name, target.partition)
        asked = Asked(route.version, self._correlation_id, route.listener)
        self.complete(encoded(route.broker, asked, {key: target}, {key: Refused.by_log(code)}))


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
