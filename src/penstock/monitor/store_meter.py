"""Counts the requests to a store: kinds, times, errors and bytes.

A store is asked for by what it can do beyond its contract (`ImmediateStore`, `DistantStore`, `local`), so a
wrapper around it would hide that. The methods of the one object are replaced instead, before anybody uses it.
Reads that the page cache answers (`get_range_now`) are left alone: they are no requests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from penstock.tally import Histogram

if TYPE_CHECKING:
    from penstock.storage.stores.objects import ObjectStore

WRITES = ("create", "put", "create_durable")
READS = ("get", "get_range", "get_up_to", "size")
DELETE = "delete"
LISTS = ("list_dated", "list")


class StoreMeter:
    def __init__(self, name: str) -> None:
        self.name = name
        self.times: dict[str, Histogram] = {}
        """By kind, in nanoseconds; those that failed too."""
        self.errors: dict[str, int] = {}
        self.bytes_read = 0
        self.bytes_written = 0

    def watch(self, store: ObjectStore) -> ObjectStore:
        """Count the requests to this object from now on; the same object."""
        for kind in WRITES:
            self._replace(store, kind, self._counted)
        for kind in _outermost(store):
            self._replace(store, kind, self._counted)
        self._replace(store, DELETE, self._counted)
        # `list` of a store that knows dates goes through the other.
        self._replace(store, next(kind for kind in LISTS if hasattr(store, kind)), self._counted_list)
        return store

    def _replace(
        self, store: ObjectStore, kind: str, counted: Callable[[str, Callable[..., Any]], Callable[..., Any]]
    ) -> None:
        method = getattr(store, kind, None)
        if method is not None:
            setattr(store, kind, counted(kind, method))

    def _counted(self, kind: str, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        times = self.times[kind] = Histogram()
        self.errors[kind] = 0
        writes = kind in WRITES

        async def counted_method(key: str, *arguments: Any) -> Any:
            began_ns = perf_counter_ns()
            try:
                answer = await method(key, *arguments)
            except Exception:
                self.errors[kind] += 1
                raise
            finally:
                times.add(perf_counter_ns() - began_ns)
            if writes:
                self.bytes_written += sum(map(len, arguments))
            elif isinstance(answer, bytes | bytearray | memoryview):
                self.bytes_read += len(answer)
            return answer

        return counted_method

    def _counted_list(
        self, _kind: str, method: Callable[[str], AsyncIterator[Any]]
    ) -> Callable[[str], AsyncIterator[Any]]:
        times = self.times["list"] = Histogram()
        self.errors["list"] = 0

        async def counted_list(prefix: str) -> AsyncIterator[Any]:
            began_ns = perf_counter_ns()
            try:
                async for one in method(prefix):
                    yield one
            except Exception:
                self.errors["list"] += 1
                raise
            finally:
                times.add(perf_counter_ns() - began_ns)

        return counted_list


def _outermost(store: ObjectStore) -> tuple[str, ...]:
    """The reads to count: `get_range` of a distant store goes through `get_up_to`."""
    return tuple(kind for kind in READS if not (kind == "get_range" and hasattr(store, "get_up_to")))
