"""Files that other programs leave in a store: the cluster starts, and scrub and audit pass them over."""

from pathlib import Path

import pytest

from penstock.cluster.snapshots import LOG_PREFIX, SNAPSHOT_PREFIX, entry_key, entry_number, snapshot_number
from penstock.metadata.codec import decode_snapshot

from .ward import Ward

STRAYS = (".DS_Store", "x~", ".000000000001.Xa3k", "lost+found/file", "1 (copy)", "-1", "1.5", "7", "2" * 26)


@pytest.mark.parametrize("kind", ["directory", "memory"])
@pytest.mark.parametrize("stray", STRAYS)
async def test_a_stray_file_in_every_directory_stops_nothing(tmp_path: Path, stray: str, kind: str) -> None:
    ward = Ward(kind, tmp_path)
    await ward.fill()
    version = ward.node.broker.image.version if ward.node is not None else 0
    await ward.kill()
    for directory in await ward.directories():
        await ward.leave(f"{directory}{stray}", b"nobody's")
    assert (await ward.scrub()).exit_code == 0
    await ward.start()
    assert ward.node is not None and ward.node.broker.image.version >= version
    for topic, end in (("orders", 17), ("other", 9)):
        assert ward.partition(topic).high_watermark == end
    await ward.write("other", 0, [b"more"])
    await ward.kill()


def test_a_number_of_another_length_is_not_that_of_an_entry() -> None:
    assert entry_number(f"{LOG_PREFIX}000000000042") == 42
    for name in ("42", "0000000000042", "20261118", "-00000000042", "٠٠٠٠٠٠٠٠٠٠٤٢"):
        assert entry_number(f"{LOG_PREFIX}{name}") is None
    assert snapshot_number("meta/snapshot/000000042") == 42
    assert snapshot_number("meta/snapshot/42") is None


async def test_an_entry_that_a_snapshot_covers_is_not_missed(tmp_path: Path) -> None:
    ward = Ward("directory", tmp_path, "metadata.snapshot.entries=5")
    await ward.fill()
    for number in range(14):
        await ward.create(f"more{number}")
    assert ward.node is not None
    await ward.node.broker.metadata.snapshot_written()
    await ward.kill()
    # Without further snapshots.
    ward = Ward("directory", tmp_path)
    await ward.start()
    for number in range(3):
        await ward.create(f"last{number}")
    await ward.kill()
    newest = max((ward.root / SNAPSHOT_PREFIX).iterdir())
    _floor, covered = decode_snapshot(newest.read_bytes(), int(newest.name))
    (ward.root / entry_key(covered.version)).unlink()
    assert (await ward.scrub()).exit_code == 0
    (ward.root / entry_key(covered.version + 1)).unlink()
    assert (await ward.scrub()).exit_code == 1
