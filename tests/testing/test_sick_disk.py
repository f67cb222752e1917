"""A whole broker whose disk is full or read-only: readers go on, producers are told, it recovers by itself.

Beyond its session time-out too: a lone broker may not be able to renew its lease, and nobody else is there.
"""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from conformance.cluster import bare

from penstock.client import Connection
from penstock.storage.stores.files import Files
from penstock.testing import Broker
from penstock.testing.waiting import until
from penstock.wire.api.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from penstock.wire.api.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from penstock.wire.errors import ErrorCode

SESSION_SECONDS = 1.0
SETTINGS = {
    "broker.session.timeout.ms": int(SESSION_SECONDS * 1000),
    "broker.heartbeat.interval.ms": 250,
    "log.segment.delete.delay.ms": 100,
}


class Client:
    """Produces to and reads from one partition."""

    def __init__(self, broker: Broker) -> None:
        self._connection = Connection(broker.host, broker.port, 60)
        topics = [CreatableTopic(name="t", num_partitions=1, replication_factor=1)]
        request = CreateTopicsRequest(timeout_ms=5000, topics=topics)
        (made,) = self._connection.ask(request, CreateTopicsResponse).topics
        assert made.error_code == 0

    def close(self) -> None:
        self._connection.close()

    def produce(self, size: int) -> tuple[int, int]:
        """Error code and offset."""
        return bare.produce(self._connection, "t", 0, os.urandom(size), timeout_ms=5000)

    def fetch(self, offset: int) -> tuple[int, int]:
        """Error code and bytes."""
        code, records = bare.fetch(self._connection, "t", 0, offset, max_wait_ms=0)
        return code, len(records)

    def end(self) -> tuple[int, int]:
        return bare.bound(self._connection, "t", 0)

    def delete_all(self) -> tuple[int, int]:
        asked = DeleteRecordsTopic(
            name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=-1)]
        )
        request = DeleteRecordsRequest(timeout_ms=10_000, topics=[asked])
        (partition,) = self._connection.ask(request, DeleteRecordsResponse).topics[0].partitions
        return partition.error_code, partition.low_watermark


def past_the_session(check: Callable[[], None]) -> None:
    """Check again and again until the lease would have run out, and then some."""
    deadline = time.monotonic() + 3 * SESSION_SECONDS
    while time.monotonic() < deadline:
        check()
        time.sleep(0.1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mount = tmp_path / "small"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(mount)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


def test_a_full_disk_is_freed_by_deleting_records(small_disk: Path) -> None:
    with (
        Broker(store=small_disk / "store", settings=SETTINGS, process=True) as broker,
        closing(Client(broker)) as client,
    ):
        stored, size = 0, 200_000
        # A lease that is renewed takes a block for a moment, so what is refused once may find room again.
        while size >= 500 or os.statvfs(small_disk).f_bavail:
            code, offset = client.produce(size)
            if code == 0:
                assert offset == stored
                stored += 1
            else:
                assert code == ErrorCode.KAFKA_STORAGE_ERROR
                size = max(size // 2, 400)

        def readers_go_on() -> None:
            assert client.fetch(0)[0] == 0 and client.fetch(0)[1] > 200_000
            assert client.fetch(stored - 1)[1] > 0
            assert client.end() == (0, stored)
            assert client.produce(200_000)[0] == ErrorCode.KAFKA_STORAGE_ERROR

        past_the_session(readers_go_on)
        assert client.delete_all() == (0, stored)
        until(lambda: client.produce(200_000) == (0, stored), 120, "that answer", every_s=0.1)
        assert client.fetch(stored)[1] > 200_000


def test_a_full_disk_to_which_space_returns(small_disk: Path) -> None:
    filler = small_disk / "filler"
    with (
        Broker(store=small_disk / "store", settings=SETTINGS, process=True) as broker,
        closing(Client(broker)) as client,
    ):
        assert client.produce(100) == (0, 0)
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
            while True:
                file.write(bytes(4096))
        until(
            lambda: client.produce(10_000)[0] == ErrorCode.KAFKA_STORAGE_ERROR,
            60,
            "that answer",
            every_s=0.1,
        )
        past_the_session(lambda: _same(client.fetch(0)[0], 0))
        end = client.end()[1]
        filler.unlink()
        until(lambda: client.produce(10_000) == (0, end), 60, "that answer", every_s=0.1)


def test_a_read_only_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the calls that a broker makes: a file system that is in use cannot be remounted."""
    sick = False

    def refuse(name: str, writes: Callable[..., bool]) -> None:
        call = getattr(Files, name)

        def checked(self: Files, *arguments: Any) -> Any:
            if sick and writes(*arguments):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            return call(self, *arguments)

        monkeypatch.setattr(Files, name, checked)

    refuse("open", lambda path, flags, *_: bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)))
    for name in ("pwritev", "ftruncate", "link", "rename", "unlink", "mkdir", "rmdir", "allocate"):
        refuse(name, lambda *_: True)
    with Broker(store=tmp_path / "store", settings=SETTINGS) as broker, closing(Client(broker)) as client:
        assert client.produce(1000) == (0, 0)
        sick = True

        def readers_go_on() -> None:
            assert client.fetch(0)[0] == 0 and client.fetch(0)[1] > 1000
            assert client.end() == (0, 1)
            assert client.produce(1000)[0] == ErrorCode.KAFKA_STORAGE_ERROR

        past_the_session(readers_go_on)
        assert client.delete_all()[0] != 0
        sick = False
        until(lambda: client.produce(1000) == (0, 1), 60, "that answer", every_s=0.1)
        assert client.delete_all() == (0, 2)


def _same(found: object, expected: object) -> None:
    assert found == expected
