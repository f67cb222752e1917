"""Stored forms: what is damaged, foreign or newer is refused in one sentence and never half read."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.metadata.codec import (
    Entry,
    FormatError,
    Identity,
    Stub,
    decode_entry,
    decode_identity,
    decode_snapshot,
    encode_entry,
    encode_identity,
    encode_snapshot,
    encode_stub,
)
from penstock.metadata.commands import DeleteTopic

from .worlds import cluster, with_topic

ENTRY = encode_entry(Entry(7, "a-1", 123, [DeleteTopic(bytes(16))]))
SNAPSHOT = encode_snapshot(with_topic(cluster(1, 2), 1, "t", 3), 0)


def test_an_entry_comes_back() -> None:
    assert decode_entry(ENTRY, 7) == Entry(7, "a-1", 123, [DeleteTopic(bytes(16))])


def test_an_entry_under_another_number_is_refused() -> None:
    with pytest.raises(FormatError, match="metadata entry 8 says that it is entry 7"):
        decode_entry(ENTRY, 8)


@given(st.data())
@settings(derandomize=True, max_examples=100)
def test_any_flipped_bit_or_cut_is_found(data: st.DataObject) -> None:
    stored = data.draw(st.sampled_from([ENTRY, SNAPSHOT]))
    if data.draw(st.booleans()):
        damaged = bytearray(stored)
        at = data.draw(st.integers(0, len(stored) - 1))
        damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    else:
        damaged = bytearray(stored[: data.draw(st.integers(0, len(stored) - 1))])
    with pytest.raises(FormatError):
        if stored is ENTRY:
            decode_entry(bytes(damaged), 7)
        else:
            decode_snapshot(bytes(damaged), 1)


def test_a_newer_format_is_named() -> None:
    newer = bytearray(ENTRY)
    newer[4:6] = (2).to_bytes(2, "big")
    with pytest.raises(FormatError, match=r"metadata entry 7 is in format 2; this version .* reads format 1"):
        decode_entry(bytes(newer), 7)


def test_an_unknown_command_is_not_skipped() -> None:
    import crc32c

    body = msgspec.msgpack.encode(
        {"number": 7, "author": "x", "time_ms": 0, "commands": [{"kind": "from_the_future"}]}
    )
    stored = ENTRY[:6] + crc32c.crc32c(body).to_bytes(4, "big") + body
    with pytest.raises(FormatError, match="holds something that this version does not know"):
        decode_entry(stored, 7)


def test_an_entry_is_not_a_snapshot() -> None:
    with pytest.raises(FormatError, match="does not look like one"):
        decode_snapshot(ENTRY, 1)


def test_a_stub_keeps_version_and_floor() -> None:
    assert decode_snapshot(encode_stub(20, 10), 2) == (10, Stub(20))


def test_the_identity_can_be_read_by_a_person() -> None:
    here, there = Identity.new("abc"), Identity.new("abc", "etcd://one:2379/penstock")
    assert encode_identity(here) == b'{"kind":"penstock-cluster","format":1,"cluster_id":"abc"}'
    assert [decode_identity(encode_identity(one)) for one in (here, there)] == [here, there]


def test_a_store_that_holds_something_else() -> None:
    with pytest.raises(FormatError, match="is not a Penstock cluster"):
        decode_identity(b'{"kind":"other"}')
    with pytest.raises(FormatError, match=r"holds a cluster in format 9; .* format 1"):
        decode_identity(b'{"kind":"penstock-cluster","format":9,"cluster_id":"abc"}')
