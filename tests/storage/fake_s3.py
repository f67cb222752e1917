"""An S3 server for tests: the part of the protocol that the store uses, in memory, with faults on demand.

Signatures are not looked at. `faults` are used up in order, one per request whose method they name:

    ("PUT", "lose")     do it, then close the connection
    ("PUT", "drop")     close the connection
    ("PUT", "silent")   do it, and never answer
    ("PUT", "hang")     neither do it nor answer, before `release` is set
    ("PUT", "503")      answer with that status and do nothing
    ("GET", "page")     answer 404 as a proxy does that finds no service
    ("GET", "login")    answer 200 with a page, as a proxy does that wants a login
    ("GET", "away")     the same with a page that is a file, and so has a tag and a date, as a proxy does
                        while the service is away
    ("PUT", "repeated") do it, and answer as if it were done again: a proxy repeated it
    ("GET", "cut")      close the connection in the middle of the body
    ("GET", "short")    send half of the body as if it were all
    ("GET", "other")    send the bytes before those that were asked for, and say so
    ("GET", "swapped")  send what belongs to the object that was written last
    ("GET", "again")    a list never ends: its page says that more follow, and comes again
"""

import asyncio
import hashlib
import re
import urllib.parse
from collections.abc import Callable
from email.utils import formatdate
from xml.sax.saxutils import escape

from tests.storage.fake_http import FakeHttp

_NOT_FOUND = b"<Error><Code>NoSuchKey</Code><Message>There is no such key.</Message></Error>"
_NO_BUCKET = b"<Error><Code>NoSuchBucket</Code><Message>There is no such bucket.</Message></Error>"
_EXISTS = b"<Error><Code>PreconditionFailed</Code><Message>It exists.</Message></Error>"
_DENIED = b"<Error><Code>AccessDenied</Code><Message>Not you.</Message></Error>"
_PAGE = f'ETag: "65a1f2c3-1f"\r\nLast-Modified: {formatdate(1, usegmt=True)}\r\nContent-Type: text/html\r\n'
_WHOLE_LIST = b"<IsTruncated>false</IsTruncated>"
_PART_OF_A_LIST = b"<IsTruncated>true</IsTruncated><NextContinuationToken>more</NextContinuationToken>"
_BUSY = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"


class Answer(Exception):
    def __init__(self, status: int, body: bytes = b"", headers: str = "") -> None:
        super().__init__(status)
        self.status = status
        self.body = body
        self.headers = headers


class FakeS3(FakeHttp):
    def __init__(self, *, atomic: bool = True, conditional: bool = True) -> None:
        """`atomic`: whether a conditional put is one step; `conditional`: whether there is such a thing."""
        super().__init__()
        self.objects: dict[str, bytes] = {}
        self.faults: list[tuple[str, str]] = []
        self.requests: list[tuple[str, str]] = []
        self.hangs: Callable[[str, str], bool] = lambda method, path: False
        """Which requests hang as long as `release` is not set, beside those of `faults`."""
        self.release = asyncio.Event()
        self.hanging = 0
        """How many hang now."""
        self.read_only = False
        self._metadata: dict[str, str] = {}
        """The headers with which objects were written that come back with them."""
        self._atomic = atomic
        self._conditional = conditional
        self._looked: dict[str, int] = {}

    async def start(self) -> dict[str, str]:
        """The environment that points S3 clients here; the bucket is called "bucket"."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{await self.listen()}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def count(self, method: str) -> int:
        return sum(one == method for one, _key in self.requests)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        path, _, query = target.partition("?")
        self.requests.append((method, urllib.parse.unquote(path)))
        fault = ""
        if self.faults and self.faults[0][0] == method:
            fault = self.faults.pop(0)[1]
        if fault == "drop":
            return False
        hung = fault == "hang" or self.hangs(method, urllib.parse.unquote(path))
        if hung:
            self.hanging += 1
            await self.release.wait()
        try:
            if fault.isdecimal():
                raise Answer(int(fault), _BUSY if int(fault) == 429 or int(fault) >= 500 else _DENIED)
            if fault == "page":
                raise Answer(404, b"<html>404 page not found</html>")
            if fault == "login":
                raise Answer(200, b"<html>log in first</html>")
            if fault == "away":
                raise Answer(200, b"<html>back soon</html>", _PAGE)
            if fault == "other":
                headers["range"] = _before(headers["range"])
            if fault == "whole":
                headers.pop("range", None)
            if fault == "swapped":
                path = f"/bucket/{next(reversed(self.objects))}"
            await self._act(method, urllib.parse.unquote(path), query, headers, body)
        except Answer as given:
            answer = given
        finally:
            self.hanging -= hung
        if fault == "short":
            answer.body = answer.body[: len(answer.body) // 2]
        if fault == "repeated":
            answer = Answer(412, _EXISTS)
        if fault == "again":
            answer.body = answer.body.replace(_WHOLE_LIST, _PART_OF_A_LIST)
        if fault == "lose":
            return False
        if fault == "silent":
            await asyncio.sleep(3600)
        size = len(answer.body)
        if fault == "cut":
            answer.body = answer.body[: size // 2]
        lines = f"HTTP/1.1 {answer.status} X\r\nContent-Length: {size}\r\n{answer.headers}\r\n"
        writer.write(lines.encode() + (b"" if method == "HEAD" else answer.body))
        await writer.drain()
        return fault != "cut"

    async def _act(self, method: str, path: str, query: str, headers: dict[str, str], body: bytes) -> None:
        _, bucket, key = (*path.split("/", 2), "")[:3]
        if bucket != "bucket":
            raise Answer(404, _NO_BUCKET)
        if method == "POST":
            keys = re.findall(rb"<Key>([^<]*)</Key>", body)
            for found in keys:
                self.objects.pop(found.decode(), None)
            gone = b"".join(b"<Deleted><Key>%s</Key></Deleted>" % found for found in keys)
            raise Answer(200, b"<DeleteResult>%s</DeleteResult>" % gone)
        if not key:
            raise self._listing(urllib.parse.parse_qs(query))
        if method == "PUT":
            if self.read_only:
                raise Answer(403, _DENIED)
            await self._put(key, body, "if-none-match" in headers)
            kept = [f"{name}: {value}\r\n" for name, value in headers.items() if "x-amz-meta-" in name]
            self._metadata[key] = "".join(kept)
            raise Answer(200, b"", f"ETag: {_tag(body)}\r\n")
        if key not in self.objects:
            raise Answer(404, _NOT_FOUND)
        raise self._contents(self.objects[key], headers.get("range", ""), self._metadata.get(key, ""))

    async def _put(self, key: str, body: bytes, conditional: bool) -> None:
        if conditional and self._conditional:
            if key in self.objects:
                raise Answer(412, _EXISTS)
            if not self._atomic:
                # Nobody writes before two have seen that nothing is there.
                self._looked[key] = self._looked.get(key, 0) + 1
                async with asyncio.timeout(30):
                    while self._looked[key] < 2:  # noqa: ASYNC110
                        await asyncio.sleep(0.001)
        self.objects[key] = body

    def _contents(self, stored: bytes, wanted: str, metadata: str) -> Answer:
        stamps = f"ETag: {_tag(stored)}\r\nLast-Modified: {formatdate(0, usegmt=True)}\r\n{metadata}"
        if not wanted:
            return Answer(200, stored, stamps)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        if int(first) >= len(stored):
            return Answer(416, b"<Error><Code>InvalidRange</Code></Error>")
        part = stored[int(first) : int(last) + 1]
        end = int(first) + len(part) - 1
        return Answer(206, part, f"{stamps}Content-Range: bytes {first}-{end}/{len(stored)}\r\n")

    def _listing(self, query: dict[str, list[str]]) -> Answer:
        (prefix,) = query.get("prefix", [""])
        found = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.objects[key])}</Size>"
            '<LastModified>2020-01-01T00:00:00.000Z</LastModified><ETag>"1"</ETag></Contents>'
            for key in sorted(self.objects)
            if key.startswith(prefix)
        )
        text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>"
        return Answer(200, text.encode())


def _tag(contents: bytes) -> str:
    return f'"{hashlib.md5(contents).hexdigest()}"'


def _before(wanted: str) -> str:
    """The range of the same length, one byte earlier."""
    first, _, last = wanted.removeprefix("bytes=").partition("-")
    return f"bytes={int(first) - 1}-{int(last) - 1}"
