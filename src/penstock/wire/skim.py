"""A quick look at records: are they plainly in order?

Kafka reads every record that is produced. Here a record takes half a microsecond to read. For bulk of small
records that is several times the rest of its way through a broker. So the broker skims records: `in_order`
answers yes, within a bounded time, if all that it looked at is as clients write it. It answers no if anything
is wrong or merely unusual. After a no `validation.validate_records` reads all of them and decides. So
skimming itself refuses nothing, and the only faults that it lets pass are in records that it does not look
at.

`in_order` looks at a records block that was taken out of its codec:

- Of up to 32 records it looks at all, whole: the lengths of record, key, value and headers, and the offset.
- Of more it looks at the first 8, whole, and at the last: whether the bytes before the end are a record with
  the last offset. This shows a wrong number of records, an end that is cut off, and rubbish at the end.

So it does not look at the records in the middle of a batch of more than 32.

Written plainly for speed.
"""

from struct import Struct

from penstock.wire.batch import skip_headers
from penstock.wire.buffers import Buffer
from penstock.wire.errors import WireError
from penstock.wire.varint import read_unsigned, read_zigzag, zigzag

WHOLE_MAX = 32
"""Batches of so many records are read whole."""
FIRST = 8
"""So many are read of a larger one."""
RECORD_BYTES_MIN = 7
SHAPE_BYTES = 8
"""Two lengths of two bytes each and four fields of one: a record of up to 8 KiB without a key."""

_beginning = Struct("6B").unpack_from
_TIME_BYTES_MAX = 10
_TAIL_BYTES = 1024
"""How much is searched first for the last record; then 16 times as much."""
_TRIES_MAX = 64
"""How often the last offset may turn up in what proves to be something else: in a value, say."""


def in_order(data: Buffer, count: int) -> bool:
    """Are these plainly `count` records that fill `data`, with the offsets 0, 1, 2, ...?"""
    if count * RECORD_BYTES_MIN > len(data):
        return False
    try:
        if count <= WHOLE_MAX:
            return _walk(data, count) == len(data)
        return _walk(data, FIRST) > 0 and _ends_in_order(data, count)
    except (IndexError, WireError):
        return False


def shape(data: Buffer) -> bytes | None:
    """The first bytes of one record that is in order, if they tell all of it: the key is null or empty, and
    there are no headers. Another block of its length that begins with them and ends with 0 is in order too.
    """
    first = bytes(data[:SHAPE_BYTES])
    try:
        _size, pos = read_zigzag(first, 0)
        if first[pos + 1] > 127 or first[pos + 3] > 1:
            return None
        value_size, pos = read_zigzag(first, pos + 4)
    except IndexError:
        return None
    return first if pos + max(value_size, 0) + 1 == len(data) else None


def _walk(data: Buffer, count: int) -> int:
    """Where the first `count` records end; -1, WireError or IndexError if one of them is not in order.

    In most records the lengths of record and value take two bytes each, and all other numbers one. Then a
    record is seven bytes longer than its key and its value, and no call is needed to tell.
    """
    pos, last = 0, len(data) - RECORD_BYTES_MIN
    for offset in range(0, 2 * count, 2):  # as it is written
        if pos > last:
            return -1
        size, size_rest, _attributes, time, number, key = _beginning(data, pos)
        if size > 127 > size_rest and time < 128 and number == offset and key < 128:
            if key == 1:
                key = 0  # absent: no bytes follow
            at = pos + 6 + (key >> 1)
            value, value_rest = data[at], data[at + 1]
            if (
                value > 127 > value_rest
                and size - value + (size_rest - value_rest << 7) == key + 14
                and not (size | key) & 1
            ):
                stop = pos + (size >> 1) + (size_rest << 6) - 62
                if not data[stop - 1]:  # no headers
                    pos = stop
                    continue
        pos = _record_end(data, pos, offset)
        if pos < 0:
            return -1
    return pos


def _record_end(data: Buffer, pos: int, offset: int) -> int:
    """Where any record ends; -1, WireError or IndexError if it is not in order."""
    size, pos = read_unsigned(data, pos)
    stop = pos + (size >> 1)
    time_at = pos = pos + 1
    while data[pos] > 127:
        pos += 1
    if size & 1 or stop > len(data) or pos - time_at >= _TIME_BYTES_MAX:
        return -1
    number, pos = read_unsigned(data, pos + 1)
    return stop if number == offset and _rest_end(data, pos, stop) == stop else -1


def _rest_end(data: Buffer, pos: int, stop: int) -> int:
    """Where key, value and headers end that begin at `pos`; -1, WireError or IndexError if that cannot be."""
    for _ in range(2):
        number, pos = read_unsigned(data, pos)
        if number != 1:
            if number & 1:
                return -1
            pos += number >> 1
    if pos >= stop:
        return -1
    return skip_headers(data, pos, stop) if data[pos] else pos + 1


def _ends_in_order(data: Buffer, count: int) -> bool:
    """Is there a record of the last offset that ends where `data` ends? It is searched for from the end, in
    ever larger parts."""
    offset = zigzag(count - 1)
    part = _TAIL_BYTES
    while True:
        tail = bytes(data[-part:])
        at = len(tail)
        for _ in range(_TRIES_MAX):
            at = tail.rfind(offset, 0, at + len(offset) - 1)
            if at < 0:
                break
            if _is_last(tail, at, at + len(offset)):
                return True
        else:
            return False
        if part >= len(data):
            return False
        part *= 16


def _is_last(tail: bytes, offset_at: int, offset_end: int) -> bool:
    """Does the record that has its offset there fill the rest of the bytes?"""
    try:
        if _rest_end(tail, offset_end, len(tail)) != len(tail):
            return False
    except (IndexError, WireError):
        return False
    at = offset_at - 1
    if at < 0 or tail[at] > 127:
        return False
    while at > 0 and tail[at - 1] > 127 and offset_at - at < _TIME_BYTES_MAX:
        at -= 1
    at -= 1  # to the attributes, with which the length begins to count
    return at > 0 and tail.endswith(zigzag(len(tail) - at), 0, at)
