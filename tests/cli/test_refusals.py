"""`penstock start` on a store that cannot be used: one sentence, an exit code, and nothing left behind.

The S3 server is a fake in this process; `make s3` does the same with a real one.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.storage.fake_s3 import FakeS3

IDENTITY = b'{"kind":"penstock-cluster","format":%d,"cluster_id":"somebody"}'


async def start(store: str, environment: dict[str, str] | None = None, *arguments: str) -> str:
    """The sentence with which a broker refuses to start."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "penstock", "start", "--listen=127.0.0.1:0", "--store", store, *arguments,
        env={**os.environ, **(environment or {})},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        output, problem = await asyncio.wait_for(process.communicate(), 60)
    except TimeoutError:
        process.kill()
        raise
    assert process.returncode == 1, problem.decode()
    assert output == b""
    (sentence,) = problem.decode().splitlines()
    assert sentence.startswith("penstock: ")
    return sentence


@pytest.fixture
async def server() -> AsyncIterator[FakeS3]:
    made = FakeS3()
    yield made
    await made.stop()


async def test_a_bucket_that_is_not_there(server: FakeS3) -> None:
    sentence = await start("s3://nowhere/x", await server.start())
    assert "s3://nowhere/x" in sentence and "the bucket does not exist" in sentence


async def test_credentials_that_are_refused(server: FakeS3) -> None:
    server.faults = [("GET", "403")] * 9
    assert "s3://bucket/x" in await start("s3://bucket/x", await server.start())
    assert not server.objects


async def test_a_bucket_that_may_only_be_read(server: FakeS3) -> None:
    server.read_only = True
    assert "could not create" in await start("s3://bucket/x", await server.start())


@pytest.mark.parametrize("kind", [{"atomic": False}, {"conditional": False}])
async def test_a_store_whose_creates_are_not_atomic(kind: dict[str, bool]) -> None:
    server = FakeS3(**kind)
    assert "not atomic" in await start("s3://bucket/x", await server.start())
    assert not server.objects
    await server.stop()


async def test_a_format_of_another_time(server: FakeS3) -> None:
    server.objects["x/meta/cluster"] = IDENTITY % 99
    assert "format 99" in await start("s3://bucket/x", await server.start())
    assert list(server.objects) == ["x/meta/cluster"]


async def test_records_of_nobody_knows_whom(server: FakeS3) -> None:
    server.objects["x/wal/1/1/00000000000000000000"] = b"records"
    assert "second cluster" in await start("s3://bucket/x", await server.start())
    assert len(server.objects) == 1


async def test_another_metadata_log_than_the_clusters(server: FakeS3) -> None:
    server.objects["x/meta/cluster"] = IDENTITY % 1
    environment = await server.start()
    sentence = await start("s3://bucket/x", environment, "--metadata=etcd://127.0.0.1:1")
    assert "without --metadata" in sentence


async def test_a_service_that_is_not_there(server: FakeS3) -> None:
    environment = await server.start()
    environment["AWS_ENDPOINT_URL"] = "http://127.0.0.1:1"
    assert "Connection refused" in await start("s3://bucket/x", environment)


async def test_something_that_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert "Not a directory" in await start(str(tmp_path / "file"))


async def test_a_directory_with_a_format_of_another_time(tmp_path: Path) -> None:
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "cluster").write_bytes(IDENTITY % 99)
    assert "format 99" in await start(str(tmp_path))
