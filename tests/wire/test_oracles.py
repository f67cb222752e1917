"""Every message at every version, against an independent codec, in both directions."""

from random import Random

import pytest

from penstock.wire.codec import decode, encode
from penstock.wire.layout import layout_of
from penstock.wire.schema import ApiMessage
from tests.wire.oracles import flat, hand_written, leaves, oracle_for, same
from tests.wire.samples import API_VERSIONS, name_of, sample

NOBODY_ELSE_HAS = {
    *((name, 0) for name in ("CreateDelegationToken", "RenewDelegationToken", "ExpireDelegationToken")),
    ("DescribeDelegationToken", 0),
    *((name, 0) for name in ("ShareGroupHeartbeat", "ShareGroupDescribe", "ShareFetch", "ShareAcknowledge")),
}
"""Dropped before any codec at hand was written. No client speaks them, and no broker here."""

SAMPLES = 4


@pytest.mark.parametrize(("cls", "version"), API_VERSIONS, ids=name_of)
def test_agrees_with_an_independent_codec(cls: type[ApiMessage], version: int) -> None:
    oracle = oracle_for(cls, version)
    name = cls.__name__.removesuffix("Request").removesuffix("Response")
    if oracle is None:
        assert (name, version) in NOBODY_ELSE_HAS
        return
    assert (name, version) not in NOBODY_ELSE_HAS
    for message in [cls(), *(sample(cls, version, Random(seed)) for seed in range(SAMPLES))]:
        data = encode(message, version)
        theirs = oracle.decode(data)
        assert same(message, theirs, version)
        encoded = oracle.encode(theirs)
        assert encoded == data
        assert decode(cls, version, encoded) == (message, len(data))


OLD_SCHEMAS_ARE_WRONG = {
    ("ApiVersionsResponse", 1): "reads every answer as version 0 first",
    ("ApiVersionsResponse", 2): "reads every answer as version 0 first",
    ("DescribeGroupsResponse", 3): "turns authorized operations into a set",
    ("MetadataResponse", 8): "turns authorized operations into a set",
    ("DescribeLogDirsRequest", 0): "does not know that topics may be null",
}

HAND_WRITTEN_VERSIONS = [
    (cls, version)
    for cls, version in API_VERSIONS
    if (cls.__name__, version) in hand_written()
    and (cls.__name__, version) not in OLD_SCHEMAS_ARE_WRONG
    and version < cls.flexible_from
]


@pytest.mark.parametrize(("cls", "version"), HAND_WRITTEN_VERSIONS, ids=name_of)
def test_agrees_with_schemas_written_by_hand(cls: type[ApiMessage], version: int) -> None:
    """Tables can share a mistake; these share nothing with ours. They cover the old versions well."""
    oracle = hand_written()[cls.__name__, version]
    for seed in range(SAMPLES):
        message = sample(cls, version, Random(seed))
        data = encode(message, version)
        theirs = oracle.decode(data)
        assert flat([getattr(theirs, name) for name in theirs.SCHEMA.names]) == leaves(
            message, layout_of(cls, version)
        )
        assert oracle.encode(theirs) == data


def test_hand_written_schemas_cover_the_oldest_versions() -> None:
    covered = {(cls.__name__, version) for cls, version in HAND_WRITTEN_VERSIONS}
    for name, last in (("Produce", 2), ("Fetch", 3), ("OffsetCommit", 1), ("CreateTopics", 1)):
        for version in range(last + 1):
            assert {(f"{name}Request", version), (f"{name}Response", version)} <= covered
