"""A client of the HTTP port, on the test's loop."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple


class Got(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def get(address: str, path: str, method: str = "GET", **headers: str) -> Got:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {address}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return await send(address, "\r\n".join(lines).encode() + b"\r\n\r\n", has_body=method != "HEAD")


async def becomes(address: str, path: str, status: int) -> Got:
    """Ask until the answer has this status."""
    async with asyncio.timeout(60):
        while True:
            got = await get(address, path)
            if got.status == status:
                return got
            await asyncio.sleep(0.001)


async def send(address: str, data: bytes, *, has_body: bool = True) -> Got:
    """Send these bytes and read one answer."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        return await read(reader, has_body=has_body)
    finally:
        writer.close()


async def read(reader: asyncio.StreamReader, *, has_body: bool = True) -> Got:
    async with asyncio.timeout(30):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = dict(line.split(": ", 1) for line in head[1:] if line)
        headers = {name.lower(): value for name, value in fields.items()}
        body = await reader.readexactly(int(headers["content-length"])) if has_body else b""
    return Got(int(head[0].split()[1]), headers, body)
