"""`penstock start` on an S3 store that it cannot use: it prints one sentence and ends with an exit code."""

import asyncio
import os
import subprocess

from conformance.cluster.processes import penstock
from penstock.storage.stores.opening import open_store

TIMEOUT_S = 60.0


async def _write(url: str, key: str, contents: bytes) -> None:
    store = open_store(url)
    await store.put(key, contents)
    await store.close()


def _start(store: str, environment: dict[str, str], *arguments: str) -> tuple[int, str]:
    command = [penstock(), "start", "--listen", "127.0.0.1:0", "--store", store, *arguments]
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return done.returncode, done.stderr.strip()


def refusals(bucket: str) -> list[str]:
    """What is wrong with them; the environment points at the server."""
    asyncio.run(
        _write(
            f"s3://{bucket}/newer",
            "meta/cluster",
            b'{"kind":"penstock-cluster","format":99,"cluster_id":"x"}',
        )
    )
    asyncio.run(_write(f"s3://{bucket}/foreign", "meta/cluster", b"something else"))
    asyncio.run(_write(f"s3://{bucket}/headless", "wal/1/1/00000000000000000000", b"records"))
    asyncio.run(
        _write(
            f"s3://{bucket}/here", "meta/cluster", b'{"kind":"penstock-cluster","format":1,"cluster_id":"x"}'
        )
    )
    cases = [
        ("a bucket that is not there", "s3://no-such-bucket/x", {}, (), "the bucket does not exist"),
        ("a wrong secret", f"s3://{bucket}/x", {"AWS_SECRET_ACCESS_KEY": "wrong"}, (), "SignatureDoesNotMatch"),
        ("an unknown user", f"s3://{bucket}/x", {"AWS_ACCESS_KEY_ID": "nobody"}, (), "access key"),
        ("no server", f"s3://{bucket}/x", {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, (), "Connection refused"),
        ("a newer format", f"s3://{bucket}/newer", {}, (), "format 99"),
        ("what is no cluster", f"s3://{bucket}/foreign", {}, (), "not a Penstock cluster"),
        ("records without a cluster", f"s3://{bucket}/headless", {}, (), "second cluster"),
        ("another metadata log", f"s3://{bucket}/here", {}, ("--metadata", "etcd://127.0.0.1:1"), "without --metadata"),
    ]  # fmt: skip
    problems = []
    for name, store, environment, arguments, words in cases:
        code, said = _start(store, environment, *arguments)
        if code != 1 or words not in said or "\n" in said or not said.startswith("penstock: "):
            problems.append(f"{name}: exit code {code}, {said!r}")
        else:
            print(f"  {name}: {said}")
    return problems
