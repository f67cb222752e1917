"""The messages of ASGI on a socket between two processes: each a size and a MessagePack map.

One socket carries one request. Its end is the end of the request, whoever closes it.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from typing import Any

import msgspec

_SIZE = struct.Struct(">I")
FRAME_BYTES_MAX = 64 * 1024 * 1024
PIECE_BYTES = 256 * 1024
"""Bodies are sent in pieces of this size, so that a slow reader holds little."""


def packed(message: Mapping[str, Any]) -> bytes:
    data = msgspec.msgpack.encode(message)
    return _SIZE.pack(len(data)) + data


async def read_message(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """The next message; None at the end."""
    try:
        (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
        if size > FRAME_BYTES_MAX:
            return None
        message: dict[str, Any] = msgspec.msgpack.decode(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return message


async def write_message(writer: asyncio.StreamWriter, message: Mapping[str, Any]) -> None:
    """ConnectionError if the other end is gone."""
    body = message.get("body") or b""
    if len(body) > PIECE_BYTES:
        for at in range(0, len(body), PIECE_BYTES):
            last = at + PIECE_BYTES >= len(body)
            more = not last or message.get("more_body", False)
            writer.write(packed({**message, "body": body[at : at + PIECE_BYTES], "more_body": more}))
            await writer.drain()
        return
    writer.write(packed(message))
    await writer.drain()


_SCOPE = ("type", "http_version", "method", "path", "raw_path", "query_string", "headers", "scheme", "client",
          "server", "root_path")  # fmt: skip


def scope_message(scope: Mapping[str, Any]) -> dict[str, Any]:
    return {name: scope[name] for name in _SCOPE}


def with_pairs(message: dict[str, Any]) -> dict[str, Any]:
    """MessagePack knows lists only, and ASGI's headers are pairs."""
    if "headers" in message:
        message["headers"] = [(bytes(name), bytes(value)) for name, value in message["headers"]]
    return message
