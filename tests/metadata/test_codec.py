"""Stored forms: what is damaged, foreign or newer is refused in one sentence and never half read."""

import itertools
import typing

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cluster.health.metadata import corrected_identity
from penstock.log.manifest import Manifest
from penstock.log.markers import AbortedTransaction
from penstock.log.segment import Footer
from penstock.metadata import snapshot
from penstock.metadata.access import AccessRule, DelegationToken, ScramCredential
from penstock.metadata.codec import (
    DamagedError,
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
from penstock.metadata.commands import AssignLeaders, DeleteTopic, LeaderMove, SetLevel
from penstock.metadata.draft import Draft
from penstock.metadata.image import TOPIC_CONFIG, BrokerInfo, ClusterImage, PendingMove, WalRef, derive
from penstock.metadata.levels import LEVEL_MAX
from penstock.wire.checksum import crc32c

from .worlds import cluster, with_topic

RULE = AccessRule(2, "t", 3, "User:alice", "*", 3, 3)
COMMANDS = Entry(7, "a-1", 123, [DeleteTopic(bytes(16))])
ENTRY = encode_entry(COMMANDS, 1)
ENTRY_2 = encode_entry(COMMANDS, 2)
IMAGE = with_topic(cluster(1, 2), 1, "t", 3)
SNAPSHOT = encode_snapshot(IMAGE, 0)
SNAPSHOT_2 = encode_snapshot(msgspec.structs.replace(IMAGE, level=2, level_since=1), 0)


def test_an_entry_comes_back() -> None:
    assert decode_entry(ENTRY, 7) == Entry(7, "a-1", 123, [DeleteTopic(bytes(16))])


def test_an_entry_under_another_number_is_refused() -> None:
    with pytest.raises(FormatError, match="metadata entry 8 says that it is entry 7"):
        decode_entry(ENTRY, 8)


@given(st.data())
@settings(derandomize=True, max_examples=100)
def test_any_flipped_bit_or_cut_is_found(data: st.DataObject) -> None:
    stored = data.draw(st.sampled_from([ENTRY, ENTRY_2, SNAPSHOT, SNAPSHOT_2]))
    if data.draw(st.booleans()):
        damaged = bytearray(stored)
        at = data.draw(st.integers(0, len(stored) - 1))
        damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    else:
        damaged = bytearray(stored[: data.draw(st.integers(0, len(stored) - 1))])
    with pytest.raises(FormatError):
        if stored in (ENTRY, ENTRY_2):
            decode_entry(bytes(damaged), 7)
        else:
            decode_snapshot(bytes(damaged), 1)


def test_a_newer_format_is_named() -> None:
    newer = bytearray(ENTRY)
    newer[4:6] = (3).to_bytes(2, "big")
    with pytest.raises(FormatError, match=r"entry 7 is in format 3; this version .* reads formats 1 and 2"):
        decode_entry(bytes(newer), 7)


def test_an_unknown_command_is_not_skipped() -> None:
    body: dict[str, object] = {"number": 7, "author": "x", "time_ms": 0}
    stored = _framed(ENTRY, {**body, "commands": [{"kind": "from_the_future"}]})
    with pytest.raises(FormatError, match="holds something that this version does not know"):
        decode_entry(stored, 7)


def test_an_unknown_field_is_not_dropped() -> None:
    """Of a command, of a part of one, of the entry itself, of the image in a snapshot."""
    move = LeaderMove(bytes(16), 0, 1, 2)
    assign = msgspec.to_builtins(AssignLeaders(1, 1, (move,)), builtin_types=(bytes,))
    longer = {**assign, "moves": [[*assign["moves"][0], None, "news"]]}
    entry = {"number": 7, "author": "x", "time_ms": 0, "commands": [assign]}
    assert decode_entry(_framed(ENTRY, entry), 7).commands == [AssignLeaders(1, 1, (move,))]
    for unknown in (
        {**entry, "commands": [{**assign, "more": 1}]},
        {**entry, "commands": [longer]},
        {**entry, "more": 1},
    ):
        with pytest.raises(FormatError, match="holds something that this version does not know"):
            decode_entry(_framed(ENTRY, unknown), 7)
    image = {"version": 3, "floor": 0, "cluster_id": "c"}
    assert decode_snapshot(_framed(SNAPSHOT, image), 1)[0] == 0
    broker = [1, 1, [["PLAINTEXT", "h", 1, "PLAINTEXT"]], None, False, ""]
    for more in ({"more": 1}, {"brokers": [[*broker, "news"]]}):
        with pytest.raises(FormatError, match="holds something that this version does not know"):
            decode_snapshot(_framed(SNAPSHOT, {**image, **more}), 1)


def _framed(like: bytes, body: dict[str, object]) -> bytes:
    encoded = msgspec.msgpack.encode(body)
    return like[:6] + crc32c(encoded).to_bytes(4, "big") + encoded


def test_every_struct_that_is_stored_refuses_what_it_does_not_know() -> None:
    seen: list[object] = []

    def walk(kind: object) -> None:
        if kind in seen:
            return
        seen.append(kind)
        for argument in typing.get_args(kind):
            walk(argument)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            assert kind.__struct_config__.forbid_unknown_fields, kind
            for hint in typing.get_type_hints(kind).values():
                walk(hint)

    for root in (Entry, Identity, snapshot._Body, Manifest, Footer):
        walk(root)
    assert {SetLevel, BrokerInfo, AbortedTransaction} <= {kind for kind in seen if isinstance(kind, type)}


def test_a_cluster_of_a_later_level_is_refused() -> None:
    later = encode_entry(Entry(7, "a-1", 0, [SetLevel(LEVEL_MAX + 1)]), LEVEL_MAX + 1)
    stored = encode_snapshot(msgspec.structs.replace(IMAGE, level=LEVEL_MAX + 1), 0)
    sentence = f"the cluster is at feature level {LEVEL_MAX + 1}; this version of Penstock knows levels 1 to"
    with pytest.raises(FormatError, match=sentence):
        decode_entry(later, 7)
    with pytest.raises(FormatError, match=sentence):
        decode_snapshot(stored, 1)


def test_every_field_of_the_image_is_in_a_snapshot() -> None:
    """Each field that is stored gets a value that is not its default."""
    values = {
        "version": 9,
        "cluster_id": "c",
        "brokers": IMAGE.brokers,
        "topics": IMAGE.topics,
        "configs": {(TOPIC_CONFIG, "t"): {"retention.ms": "1"}},
        "next_producer_id": 5,
        "sealed": {WalRef(1, 1): 4},
        "wal_starts": {WalRef(1, 1): 2},
        "moves": {(IMAGE.topics["t"].id, 0): PendingMove(2)},
        "level": 2,
        "level_since": 3,
        "access_rules": {RULE: RULE},
        "credentials": {("alice", 1): ScramCredential(b"salt", b"stored", b"server", 4096)},
        "quotas": {("alice", None, None): {"producer_byte_rate": 1024.0}, (None, None, ""): {"x": 1.0}},
        "tokens": {"id": DelegationToken("id", "User:a", "User:b", ("User:c",), 1, 2, 3)},
    }
    derived = {"names", "live_brokers", "leader_counts", "wal_uses", "folded_names"}
    assert values.keys() | derived == set(ClusterImage.__struct_fields__)
    image = derive(ClusterImage(**values))  # type: ignore[arg-type]
    assert decode_snapshot(encode_snapshot(image, 4), 1) == (4, image)
    assert Draft(image).image() == image


def test_a_snapshot_is_laid_out_as_it_always_was() -> None:
    image = msgspec.structs.replace(
        IMAGE,
        version=9,
        next_producer_id=5,
        configs={(TOPIC_CONFIG, "t"): {"retention.ms": "1"}},
        sealed={WalRef(1, 1): 4},
        moves={(bytes(16), 3): PendingMove(2, (1,))},
        level=2,
    )
    body = msgspec.msgpack.decode(encode_snapshot(image, 4)[18:])
    names = "version floor cluster_id next_producer_id brokers topics configs sealed moves level"
    assert " ".join(body) == names
    assert [one[0] for one in body["brokers"]] == [1, 2]
    assert [one[1] for one in body["topics"]] == ["t"]
    assert body["configs"] == [[TOPIC_CONFIG, "t", {"retention.ms": "1"}]]
    assert body["sealed"] == [[[1, 1], 4]]
    assert body["moves"] == [[bytes(16), 3, [2, [1]]]]


def test_an_entry_is_not_a_snapshot() -> None:
    with pytest.raises(FormatError, match="does not look like one"):
        decode_snapshot(ENTRY, 1)


def test_a_stub_keeps_version_and_floor() -> None:
    assert decode_snapshot(encode_stub(20, 10, 1), 2) == (10, Stub(20))


def test_the_identity_can_be_read_by_a_person() -> None:
    here, there = Identity.new("abc"), Identity.new("abc", "etcd://one:2379/penstock")
    bare = b'{"kind":"penstock-cluster","format":1,"cluster_id":"abc"'
    assert encode_identity(here) == bare + b',"checksum":"%08x"}' % crc32c(bare + b"}")
    assert decode_identity(bare + b"}").cluster_id == "abc", "the first version wrote none"
    assert [decode_identity(encode_identity(one)) for one in (here, there)] == [here, there]


def test_each_bit_of_the_identity() -> None:
    """Whichever is flipped, it is known to be damaged, and repair finds what it was; a few show that."""
    whole = encode_identity(Identity.new("abc", "etcd://one:2379/penstock"))
    for at, bit in itertools.product(range(len(whole)), range(8)):
        hurt = bytearray(whole)
        hurt[at] ^= 1 << bit
        with pytest.raises(DamagedError, match=r"meta/cluster is damaged: .*; `penstock store repair` says"):
            decode_identity(bytes(hurt))
        if (at * 8 + bit) % 29 == 0:
            assert corrected_identity(bytes(hurt)) == whole


def test_a_store_that_holds_something_else() -> None:
    with pytest.raises(FormatError, match="is not a Penstock cluster"):
        decode_identity(b'{"kind":"other"}')
    with pytest.raises(FormatError, match=r"holds a cluster in format 9; .* format 1"):
        decode_identity(b'{"kind":"penstock-cluster","format":9,"cluster_id":"abc"}')
