"""A repair is committed only on the manifest that was looked at, and where every broker knows the command."""

import msgspec

from penstock.metadata.apply import apply_entry
from penstock.metadata.commands import CreateTopic, RegisterBroker, RepairPartition, Settled, SettlePartitions
from penstock.metadata.image import ClusterImage, Listener, ManifestRef
from penstock.metadata.preconditions import check
from penstock.metadata.refusal import Refusal
from penstock.wire.errors import ErrorCode

TOPIC = b"t" * 16
OLD, NEW = ManifestRef("manifests/1/1/000000000001", 0, 9), ManifestRef("manifests/1/1/900000000000", 0, 9)


def settled() -> ClusterImage:
    image = msgspec.structs.replace(ClusterImage(cluster_id="c"), level=2)
    for command in (
        RegisterBroker(1, (Listener("PLAINTEXT", "host", 9092),)),
        CreateTopic(TOPIC, "t", ((1,),)),
        SettlePartitions(1, 1, (Settled(TOPIC, 0, 0, OLD),)),
    ):
        image = apply_entry(image, [command])
    return image


def refused(image: ClusterImage, command: RepairPartition) -> ErrorCode:
    refusal = check(image, command)
    assert isinstance(refusal, Refusal)
    return refusal.code


def test_a_repair_changes_the_manifest_and_nothing_else() -> None:
    image = settled()
    command = RepairPartition(TOPIC, 0, OLD, NEW)
    assert check(image, command) is None
    before, after = image.topics["t"].partitions[0], apply_entry(image, [command]).topics["t"].partitions[0]
    assert after == msgspec.structs.replace(before, manifest=NEW)


def test_what_is_refused() -> None:
    image = settled()
    assert refused(image, RepairPartition(TOPIC, 0, NEW, OLD)) == ErrorCode.INVALID_UPDATE_VERSION
    assert refused(image, RepairPartition(TOPIC, 1, OLD, NEW)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert refused(image, RepairPartition(b"x" * 16, 0, OLD, NEW)) == ErrorCode.UNKNOWN_TOPIC_ID
    low = msgspec.structs.replace(image, level=1)
    assert refused(low, RepairPartition(TOPIC, 0, OLD, NEW)) == ErrorCode.UNSUPPORTED_VERSION
