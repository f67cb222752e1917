"""An etcd member for tests: the part of the JSON gateway that the store uses, with faults on demand.

Members share one `Keys`, as those of a real cluster do.
"""

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any

from tests.storage.fake_http import FakeHttp

_OF_SOMEBODY_ELSE = {"page": b"<html>", "nothing": b"{}"}


class Keys:
    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.revision = 1
        self.compacted = 0
        self.compaction = asyncio.Event()


class FakeMember(FakeHttp):
    """`faults` are used up in order, one per request: "drop" (do nothing, close), "lose" (do it, then close),
    "silent" (do it, never answer), "no leader", "full", "chunked" (a body in chunks), "page" and "nothing"
    (do it, and answer as somebody else)."""

    def __init__(self, keys: Keys, *, password: str = "") -> None:
        super().__init__()
        self.keys = keys
        self.faults: list[str] = []
        self.paths: list[str] = []
        self.password = password
        self.tokens: list[str] = []

    async def start(self) -> str:
        return f"127.0.0.1:{await self.listen()}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split(" ", 2)[1]
        headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
        message = json.loads(await reader.readexactly(int(headers["content-length"])))
        self.paths.append(path)
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "drop":
            return False
        if fault == "no leader":
            status, answer = 503, {"code": 14, "message": "etcdserver: no leader"}
        elif fault == "full":
            status, answer = 429, {"code": 8, "message": "etcdserver: mvcc: database space exceeded"}
        else:
            status, answer = self._answer(path, message, headers.get("authorization", ""))
        if fault == "lose":
            return False
        if fault == "silent":
            await asyncio.sleep(3600)
        body = _OF_SOMEBODY_ELSE.get(fault) or json.dumps(answer).encode()
        if fault == "chunked":
            half = len(body) // 2
            pieces = b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in (body[:half], body[half:]))
            writer.write(b"HTTP/1.1 %d X\r\nTransfer-Encoding: chunked\r\n\r\n%s0\r\n\r\n" % (status, pieces))
        else:
            writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))
        return True

    def _answer(self, path: str, message: dict[str, Any], token: str) -> tuple[int, dict[str, Any]]:
        if path == "/v3/auth/authenticate":
            if message["password"] != self.password:
                reason = "etcdserver: authentication failed, invalid user ID or password"
                return 400, {"code": 3, "message": reason}
            self.tokens.append(f"token-{len(self.tokens)}")
            return 200, {"token": self.tokens[-1]}
        if self.password and token not in self.tokens:
            return 401, {"code": 16, "message": "etcdserver: invalid auth token"}
        size = len(json.dumps(message))
        if size > 2_100_000:  # 1.5 MB, as base64.
            return 400, {"code": 3, "message": "etcdserver: request is too large"}
        act: Callable[[dict[str, Any]], dict[str, Any]] = getattr(self, "_" + path.rsplit("/", 1)[1])
        try:
            answer = act(message)
        except LookupError as error:
            return 400, {"code": 11, "message": str(error)}
        return 200, {"header": {"revision": str(self.keys.revision)}, **answer}

    def _range(self, message: dict[str, Any]) -> dict[str, Any]:
        names = self._names(message)
        limit = int(message.get("limit", len(names) or 1))
        found = [{"key": _text(name), "value": _text(self.keys.values[name])} for name in names[:limit]]
        return {"kvs": found, **({"more": True} if len(names) > limit else {})} if found else {}

    def _put(self, message: dict[str, Any]) -> dict[str, Any]:
        self.keys.revision += 1
        key = _bytes(message["key"])
        old = self.keys.values.get(key)
        self.keys.values[key] = _bytes(message.get("value", ""))
        return {} if old is None else {"prev_kv": {"key": message["key"], "value": _text(old)}}

    def _deleterange(self, message: dict[str, Any]) -> dict[str, Any]:
        self.keys.revision += 1
        gone = [
            {"key": _text(name), "value": _text(self.keys.values.pop(name))} for name in self._names(message)
        ]
        return {"prev_kvs": gone} if gone and message.get("prev_kv") else {}

    def _txn(self, message: dict[str, Any]) -> dict[str, Any]:
        (compare,) = message["compare"]
        assert compare["target"] == "CREATE" and compare["create_revision"] == "0"
        if _bytes(compare["key"]) in self.keys.values:
            # False is left out, as the gateway does.
            return {"responses": [{"response_range": self._range(message["failure"][0]["request_range"])}]}
        self._put(message["success"][0]["request_put"])
        return {"succeeded": True, "responses": [{"response_put": {}}]}

    def _compaction(self, message: dict[str, Any]) -> dict[str, Any]:
        revision = int(message["revision"])
        if revision <= self.keys.compacted:
            raise LookupError("etcdserver: mvcc: required revision has been compacted")
        self.keys.compacted = revision
        self.keys.compaction.set()
        return {}

    def _names(self, message: dict[str, Any]) -> list[bytes]:
        key = _bytes(message["key"])
        if "range_end" not in message:
            return [key] if key in self.keys.values else []
        end = _bytes(message["range_end"])
        return sorted(name for name in self.keys.values if key <= name < end)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
