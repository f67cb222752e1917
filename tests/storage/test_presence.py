"""A process holds its lock as long as it lives, stopped or not, and not a moment longer."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.storage.stores.directory import DirectoryStore
from penstock.storage.stores.files import Files
from penstock.storage.stores.presence import Presence

HOLDER = """
import sys
from penstock.storage.stores.files import Files
from penstock.storage.stores.presence import Presence
presence = Presence(sys.argv[1], Files(), "x")
presence.announce(3, 7)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_process_that_ends_is_gone(tmp_path: Path) -> None:
    looker = Presence(str(tmp_path), Files(), "x")
    assert not looker.is_gone(3, 7)  # nobody ever said so
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert not looker.is_gone(3, 7)
        os.kill(process.pid, signal.SIGSTOP)
        assert not looker.is_gone(3, 7)
        process.kill()
        process.wait()
        assert looker.is_gone(3, 7)
        assert looker.is_gone(3, 7)
    looker.forget(3, 7)
    assert not looker.is_gone(3, 7)


def test_the_next_incarnation_clears_up_after_those_before_it(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.DEVNULL, check=True)
    (tmp_path / "presence" / "3-5.4711").touch()
    (tmp_path / "presence" / "33-5").touch()
    presence = Presence(str(tmp_path), Files(), "x")
    presence.announce(3, 9)
    assert sorted(os.listdir(tmp_path / "presence")) == ["3-9", "33-5"]
    presence.withdraw()


def test_who_withdraws_leaves_nothing_behind(tmp_path: Path) -> None:
    presence = Presence(str(tmp_path), Files(), "x")
    presence.announce(1, 4)
    presence.announce(1, 5)  # the next incarnation of the same process
    assert os.listdir(tmp_path / "presence") == ["1-5"]
    assert not Presence(str(tmp_path), Files(), "x").is_gone(1, 5)
    presence.withdraw()
    assert os.listdir(tmp_path / "presence") == []
    presence.withdraw()


def test_what_cannot_be_told_is_not_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "presence").write_text("no directory")
    presence = Presence(str(tmp_path), Files(), "x")
    presence.announce(1, 4)
    assert "by its silence only" in caplog.text
    assert not presence.is_gone(1, 4)
    presence.withdraw()


def test_a_file_system_without_locks_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda fd, how: None)
    presence = Presence(str(tmp_path), Files(), "x")
    presence.announce(1, 4)
    assert "does not keep locks" in caplog.text
    assert os.listdir(tmp_path / "presence") == []
    assert not presence.is_gone(1, 4)


async def test_locks_are_no_objects(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path))
    presence = store.presence()
    presence.announce(1, 4)
    await store.put("live/1", b"x")
    assert [info.key async for info in store.list("")] == ["live/1"]
    presence.withdraw()
    await store.close()


WRITER = """
import asyncio, os, sys
from penstock.storage.stores.directory import DirectoryStore
async def main():
    store = DirectoryStore(sys.argv[1])
    await store.create("k", b"whole")
    print(store.write_temporary([b"half"], False), flush=True)
    os.mkdir(store.temporary_name())
    sys.stdin.read()
asyncio.run(main())
"""


def test_what_a_killed_process_did_not_finish_goes_with_the_next_sweep(tmp_path: Path) -> None:
    """However young it is. What a living one is writing stays."""
    store = DirectoryStore(str(tmp_path))
    own = store.write_temporary([b"half"], False)
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        other = process.stdout.readline().decode().strip()
        asyncio.run(store.sweep(0))
        assert Path(own).exists() and Path(other).exists()
        os.kill(process.pid, signal.SIGSTOP)
        asyncio.run(store.sweep(0))
        assert Path(own).exists() and Path(other).exists()
        process.kill()
        process.wait()
    asyncio.run(store.sweep(0))
    assert Path(own).exists()
    assert {path.name for path in (tmp_path / "tmp").iterdir()} == {
        Path(own).name, f"{Path(own).name.partition('-')[0]}.lock"
    }  # fmt: skip
    asyncio.run(store.close())
