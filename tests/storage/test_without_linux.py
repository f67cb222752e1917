"""A directory is a store on systems that lack some of Linux's file calls."""

import os
import subprocess
import sys

import pytest

from penstock.storage.stores.files import Files

_LIKE_MACOS = """
import fcntl, os, time
for name in ("fdatasync", "posix_fallocate", "posix_fadvise", "memfd_create", "RWF_NOWAIT"):
    if hasattr(os, name):
        delattr(os, name)
if hasattr(time, "CLOCK_BOOTTIME"):
    del time.CLOCK_BOOTTIME
fcntl.F_FULLFSYNC = 51
synced, call = [], fcntl.fcntl
def fcntl_of_macos(fd, command, *more):
    if command == 51:
        synced.append(fd)
        return os.fsync(fd)
    return call(fd, command, *more)
fcntl.fcntl = fcntl_of_macos
"""

_WRITE_AND_READ = """
import sys
from confluent_kafka import Consumer, Producer, TopicPartition
from penstock.testing import Broker
with Broker(store=sys.argv[1], settings={"durability": "fsync"}) as broker:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce("orders", b"one", partition=0)
    assert producer.flush(20) == 0
with Broker(store=sys.argv[1]) as broker:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
    consumer.assign([TopicPartition("orders", 0, 0)])
    message = consumer.poll(20)
    assert message is not None and message.value() == b"one"
    consumer.close()
print("synced" if synced else "never synced")
"""


def test_space_is_made_without_fallocate(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    monkeypatch.delattr(os, "posix_fadvise")
    files = Files()
    path = f"{tmp_path}/log"
    fd = files.open(path, os.O_RDWR | os.O_CREAT)
    try:
        files.write_all(fd, [b"abc"], 0)
        files.allocate(fd, 100)
        assert files.size(fd) == 100
        assert files.pread(fd, 4, 0) == b"abc\0"
        files.allocate(fd, 10)
        assert files.size(fd) == 100, "what is there is never cut"
        files.drop_cached(fd, 0)
    finally:
        files.close(fd)


def test_a_broker_on_a_directory_without_the_calls_of_linux(tmp_path: object) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LIKE_MACOS + _WRITE_AND_READ, f"{tmp_path}/store"],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "synced\n"
