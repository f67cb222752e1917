"""The scenes know the layout of a write-ahead file by themselves. It is held against a file that a
broker wrote, so that they do not flip bits in the wrong places."""

from pathlib import Path

from conformance.sick import rot
from conformance.sick.speaker import Speaker
from conformance.sick.verdict import Told

from penstock.testing import Broker


def test_places_of_a_write_ahead_file(tmp_path: Path) -> None:
    settings = {"wal.settle.interval.ms": 3_600_000}
    with Broker(store=tmp_path / "store", settings=settings) as broker:
        told = Told()
        speaker = Speaker(lambda: broker.bootstrap_servers, told)
        places = speaker.create("layout", 1)
        assert speaker.write(places, 5) == 5
        assert speaker.read(places)[places[0]].records == told.acknowledged[places[0]]
        broker.kill()
        files = [path for path in (tmp_path / "store" / "wal").rglob("*") if path.name.isdecimal()]
        stored = max(
            (path for path in files if path.is_file()), key=lambda path: path.stat().st_size
        ).read_bytes()
    found = rot.flushes(stored)
    assert len(found) >= 5 and found[-1].end == len(stored)
    value = max(told.acknowledged[places[0]].items())[1]
    last = stored[found[-1].start : found[-1].index_start]
    assert value in last
    assert all(0 <= at < len(stored) for at in rot.wal_places(stored).values())
