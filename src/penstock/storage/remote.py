"""The store on S3, GCS or Azure, through obstore.

Retries are made here and not by the SDK, because a repeated create must know that it is one. A create
whose answer was lost (time-out, dropped connection, 5xx) is tried again; if the key then exists, the
stored bytes tell whose it is. Writers make their bytes unique (a nonce, the author of an entry), so equal
bytes are ours. On the first attempt, "exists" means what it says.

A request for few bytes that takes seconds hangs in a connection that leads nowhere: it is given up long
before the time that a large one may take, and tried again on another.
"""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl

import obstore
from obstore import exceptions

from penstock.storage.objects import (
    DatedObject,
    ObjectInfo,
    ObjectMissingError,
    StoreError,
    StoreReadOnlyError,
    StoreUnavailableError,
    Unproven,
)
from penstock.storage.remote_errors import Verdict, concerns_range, explain
from penstock.wire.buffers import Buffer

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Backend

T = TypeVar("T")

ATTEMPTS_MAX = 6
"""With the pauses below about ten seconds in all: longer than a store needs to shed load."""
PAUSE_FIRST_SECONDS = 0.1
PAUSE_MAX_SECONDS = 5.0
REQUEST_TIMEOUT = "30s"
SMALL_BYTES = 1024 * 1024
SMALL_SECONDS = 6.0
"""How long a request for at most so many bytes may take."""
_LIST_CHUNK = 1000

_FAILURES = (exceptions.BaseError, OSError)
"""What the SDK raises; a time-out is an OSError too."""


class RemoteStore(Unproven):
    def __init__(
        self,
        url: str,
        *,
        backend: "Backend | None" = None,
        rng: random.Random | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`url` is s3://bucket/prefix, gs://bucket/prefix or az://container/prefix. Credentials come from the
        usual environment variables of each service, and so do region and endpoint, unless the URL names them:
        s3://bucket/prefix?endpoint=http://host:9000&region=us-east-1&path_style=true."""
        self.url = url
        self._store = backend if backend is not None else _open(url)
        self._random = rng or random.Random()
        self._sleep = sleep
        self.requests = 0

    async def create(self, key: str, *parts: Buffer) -> bool:
        contents = b"".join(parts)
        what = f"could not create {key}"
        lost = False
        for attempt in range(ATTEMPTS_MAX):
            await self._pause(attempt)
            self.requests += 1
            try:
                async with asyncio.timeout(_patience(len(contents))):
                    await obstore.put_async(self._store, key, contents, mode="create", use_multipart=False)
                return True
            except _FAILURES as error:
                verdict, _reason = explain(error)
                if verdict is Verdict.EXISTS:
                    return lost and await self.get(key) == contents
                if verdict is not Verdict.AGAIN:
                    raise self._error(error, what, writing=True) from error
                lost = True
                last = error
        raise self._error(last, what, writing=True) from last

    async def put(self, key: str, *parts: Buffer) -> None:
        contents = b"".join(parts)
        await self._retry(
            f"could not write {key}",
            lambda: obstore.put_async(self._store, key, contents, use_multipart=False),
            _patience(len(contents)),
            writing=True,
        )

    async def get(self, key: str) -> bytes | None:
        async def whole() -> bytes:
            answer = await obstore.get_async(self._store, key)
            return bytes(await answer.bytes_async())

        try:
            return await self._retry(f"could not read {key}", whole)
        except ObjectMissingError:
            return None

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        if not length:
            return b""

        async def part() -> bytes:
            try:
                return bytes(await obstore.get_range_async(self._store, key, start=start, length=length))
            except exceptions.GenericError as error:
                if not concerns_range(error):
                    raise
                found = await obstore.head_async(self._store, key)
                if found["size"] < start + length:
                    return b""
                raise

        found = await self._retry(f"could not read {key}", part, _patience(length))
        if len(found) != length:
            raise ObjectMissingError(f"{key} ends before byte {start + length}")
        return found

    async def get_up_to(self, key: str, start: int, length: int) -> bytes:
        """At most `length` bytes from `start`: fewer if the object ends before."""

        async def part() -> bytes:
            try:
                return bytes(await obstore.get_range_async(self._store, key, start=start, length=length))
            except exceptions.GenericError as error:
                if not concerns_range(error):
                    raise
                return b""

        return await self._retry(f"could not read {key}", part, _patience(length))

    async def size(self, key: str) -> int | None:
        """How many bytes an object has; None if there is none."""

        async def look() -> int:
            return int((await obstore.head_async(self._store, key))["size"])

        try:
            return await self._retry(f"could not look at {key}", look, SMALL_SECONDS)
        except ObjectMissingError:
            return None

    async def delete(self, key: str) -> None:
        try:
            await self._retry(
                f"could not delete {key}", lambda: obstore.delete_async(self._store, key), SMALL_SECONDS
            )
        except ObjectMissingError:
            return

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async for found in self.list_dated(prefix):
            yield ObjectInfo(found.key, found.size)

    async def list_dated(self, prefix: str) -> AsyncIterator[DatedObject]:
        # A service matches whole path segments only: ask for the directory, and match the rest here.
        directory = prefix.rpartition("/")[0]

        async def everything() -> list[DatedObject]:
            found = []
            async for chunk in obstore.list(self._store, directory or None, chunk_size=_LIST_CHUNK):
                for meta in chunk:
                    if meta["path"].startswith(prefix):
                        written_ms = int(meta["last_modified"].timestamp() * 1000)
                        found.append(DatedObject(meta["path"], meta["size"], written_ms))
            return found

        try:
            found = await self._retry(f"could not list {prefix or 'objects'}", everything)
        except ObjectMissingError:
            return
        for one in sorted(found):
            yield one

    async def close(self) -> None:
        """The SDK closes its connections when the store is forgotten."""

    async def _retry(
        self,
        what: str,
        request: Callable[[], Awaitable[T]],
        seconds: float | None = None,
        *,
        writing: bool = False,
    ) -> T:
        """`seconds`: how long an attempt may take, if not as long as the SDK lets it."""
        for attempt in range(ATTEMPTS_MAX):
            await self._pause(attempt)
            self.requests += 1
            try:
                async with asyncio.timeout(seconds):
                    return await request()
            except _FAILURES as error:
                if explain(error).verdict is not Verdict.AGAIN:
                    raise self._error(error, what, writing=writing) from error
                last = error
        raise self._error(last, what, writing=writing) from last

    async def _pause(self, attempt: int) -> None:
        if attempt:
            longest = min(PAUSE_MAX_SECONDS, PAUSE_FIRST_SECONDS * 2**attempt)
            await self._sleep(longest * self._random.uniform(0.5, 1.0))

    def _error(self, error: Exception, what: str, *, writing: bool = False) -> StoreError:
        verdict, reason = explain(error)
        if isinstance(error, TimeoutError):
            reason = f"no answer within {SMALL_SECONDS:.0f} s"
        sentence = f"{what} in {self.url}: {reason}"
        match verdict:
            case Verdict.MISSING if not writing:
                return ObjectMissingError(sentence)
            case Verdict.MISSING | Verdict.REFUSED:
                return StoreReadOnlyError(sentence)
            case Verdict.MISUSED:
                return StoreError(sentence)
        return StoreUnavailableError(sentence)


def _patience(size: int) -> float | None:
    return SMALL_SECONDS if size <= SMALL_BYTES else None


def _open(url: str) -> "Backend":
    from obstore.store import from_url

    plain, config = _settings_in(url)
    options: Any = {"timeout": REQUEST_TIMEOUT}
    # Options given here hide the environment's, so what it says about plain HTTP is passed on.
    endpoint = (
        config.get("endpoint")
        or os.environ.get("AWS_ENDPOINT_URL_S3")
        or os.environ.get("AWS_ENDPOINT_URL", "")
    )
    if endpoint.startswith("http://") or os.environ.get("AWS_ALLOW_HTTP", "").lower() == "true":
        options["allow_http"] = True
    given: Any = config or None
    try:
        return from_url(plain, config=given, retry_config={"max_retries": 0}, client_options=options)
    except Exception as error:
        raise StoreError(f"{url!r} is not a store: {explain(error).reason}") from error


def _settings_in(url: str) -> tuple[str, dict[str, str]]:
    """The URL without its query, and what the query sets: an endpoint and a region, for instance, which
    everybody who is told the store needs to know. Secrets come from the environment alone."""
    plain, _, query = url.partition("?")
    scheme = plain.partition("://")[0]
    known = _SETTINGS.get(scheme)
    if known is None:
        raise StoreError(f"{url!r} is not a store: use a directory, s3://, gs:// or az://")
    config = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            possible = ", ".join(known) or "nothing"
            raise StoreError(f"{url!r} sets {name!r}; what can be set there is {possible}")
        config[known[name]] = value
    if "path_style" in config:
        style = config.pop("path_style").lower()
        if style not in ("true", "false"):
            raise StoreError(f"{url!r}: path_style is true or false")
        config["virtual_hosted_style_request"] = "false" if style == "true" else "true"
    return plain, config


_S3 = {"endpoint": "endpoint", "region": "region", "path_style": "path_style"}
_AZURE = {"account": "account_name", "endpoint": "endpoint"}
_SETTINGS: dict[str, dict[str, str]] = {
    "s3": _S3,
    "s3a": _S3,
    "gs": {},
    "az": _AZURE,
    "azure": _AZURE,
    "adl": _AZURE,
    "abfs": _AZURE,
    "abfss": _AZURE,
}
"""By scheme, what a URL may set, and what the SDK calls it."""
