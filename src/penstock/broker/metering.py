"""What a broker counts of its requests, for metrics.

Every request is counted by API and version. Requests of the fast way of Produce are counted by their route,
and some of them are timed: one in `SAMPLE`, and one in each tenth of a second (`ring`). A request that is
timed stands for those since the last one. To time each would cost more than the rest of the metering. Other
requests pass through `metered`, which times each.

Codes are counted as Kafka counts them: the code of a whole answer, and the codes of its topics, partitions
and other items. `NONE` is not counted. Produce and Fetch count the codes of partitions where they make their
answers, and dispatch looks for them in all other responses.

A broker that nobody watches times nothing: its requests do not come by here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from struct import Struct
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from penstock.broker.observing import place
from penstock.broker.registry import APIS
from penstock.tally import Histogram
from penstock.wire.exchange import Reply
from penstock.wire.layout import Layout, WireType, layout_of

if TYPE_CHECKING:
    from penstock.broker.observing import Answer, Handle
    from penstock.storage.partitions.answers import Done
    from penstock.wire.buffers import Buffer
    from penstock.wire.exchange import Request
    from penstock.wire.schema import ApiMessage

PRODUCE = 0
SAMPLE = 64
NEVER = 1 << 62

_code_at = Struct(">h").unpack_from


class RequestMeter:
    """The requests of one API in one version."""

    __slots__ = ("_error_at", "_meters", "_sampled", "api_key", "fast", "general", "sample_at", "times")

    def __init__(self, meters: Meters, api_key: int, version: int, times: Histogram) -> None:
        self.api_key = api_key
        self.general = 0
        self.fast = 0
        """Requests of the fast way."""
        self.sample_at = 0 if meters.timed else NEVER
        """When there are so many of the fast way, one is timed."""
        self._sampled = 0
        """How many there were when one was last timed."""
        self.times = times
        """In nanoseconds; of all versions."""
        self._meters = meters
        self._error_at = place(APIS[api_key], version, "error_code")

    @property
    def requests(self) -> int:
        return self.general + self.fast

    def sampled(self, done: Done) -> Done:
        """The last request of the fast way is timed: what is to be called instead of `done`."""
        stands_for = self.fast - self._sampled
        self._sampled = self.fast
        self.sample_at = self.fast + SAMPLE
        return _Sampled(done, self.times, stands_for)

    def began(self, answer: Answer, began_ns: int) -> None:
        """A request was handed over at that time, and this is its answer, or will be."""
        self.general += 1
        if isinstance(answer, Reply):
            if answer.done:
                self.replied(answer, began_ns)
            else:
                answer.seen = lambda reply: self.replied(reply, began_ns)
        else:
            self.answered(answer, began_ns)

    def replied(self, reply: Reply, began_ns: int) -> None:
        if reply.closed:
            self._meters.closed[self.api_key] = self._meters.closed.get(self.api_key, 0) + 1
        self.answered(reply.buffers, began_ns)

    def answered(self, buffers: Sequence[Buffer] | None, began_ns: int) -> None:
        self.times.add(perf_counter_ns() - began_ns)
        at = self._error_at
        if at is not None and buffers:
            first = buffers[0] if len(buffers[0]) >= at + 2 else b"".join(buffers)
            code = _code_at(first, at)[0]
            if code:
                self._meters.error(self.api_key, code)


class _Sampled:
    """Told once: what comes after a time-out is no second request."""

    __slots__ = ("_began_ns", "_done", "_stands_for", "_times")

    def __init__(self, done: Done, times: Histogram, stands_for: int) -> None:
        self._done = done
        self._stands_for = stands_for
        self._times: Histogram | None = times
        self._began_ns = perf_counter_ns()

    def __call__(self, result: Any) -> None:
        self._done(result)
        if self._times is not None:
            self._times.add(perf_counter_ns() - self._began_ns, self._stands_for)
            self._times = None


class Meters:
    """All that one broker process counts of its requests. It outlives incarnations."""

    def __init__(self, *, timed: bool = False) -> None:
        self.timed = timed
        """Whether somebody watches."""
        self.requests: dict[tuple[int, int], RequestMeter] = {}
        """By API key and version."""
        self.times: dict[int, Histogram] = {}
        self.errors: dict[tuple[int, int], int] = {}
        """By API key and code."""
        self.closed: dict[int, int] = {}
        """By API key: requests whose connection was closed instead of an answer."""
        self.unknown = 0
        """Requests of an API or a version that is not served."""
        self.throttled = 0
        self.throttled_ms = 0
        self.tail_reads = 0
        """Reads of partitions that memory answered."""

    def of(self, api_key: int, version: int) -> RequestMeter | None:
        """None if that is not served: a peer cannot make numbers of it."""
        found = self.requests.get((api_key, version))
        if found is None:
            row = APIS.get(api_key)
            if row is None or not row.min_version <= version <= row.max_version:
                return None
            times = self.times.setdefault(api_key, Histogram())
            found = self.requests[api_key, version] = RequestMeter(self, api_key, version, times)
        return found

    def produced(self, version: int) -> RequestMeter:
        found = self.of(PRODUCE, version)
        assert found is not None, "a request of this version was just served"
        return found

    def ring(self) -> None:
        """Time the next request of each kind: some time has passed."""
        for meter in self.requests.values():
            meter.sample_at = 0

    def error(self, api_key: int, code: int) -> None:
        self.errors[api_key, code] = self.errors.get((api_key, code), 0) + 1

    def count_items(self, response: ApiMessage) -> None:
        """Count the codes of the items of a response."""
        for code in item_codes(response):
            self.error(response.api_key, code)


def metered(handle: Handle, meters: Meters) -> Handle:
    """`handle`, with each request counted and timed."""
    known = meters.requests

    def metered_handle(request: Request) -> Answer:
        began_ns = perf_counter_ns()
        answer = handle(request)
        meter = known.get((request.api_key, request.api_version))
        if meter is None:
            meter = meters.of(request.api_key, request.api_version)
            if meter is None:
                meters.unknown += 1
                return answer
        meter.began(answer, began_ns)
        return answer

    return metered_handle


# -- codes in responses ----------------------------------------------------------------------------------


def item_codes(response: ApiMessage) -> Iterable[int]:
    """The codes of the items of a response, as deep as they are, without NONE."""
    find = _finder(type(response))
    if find is not None:
        yield from find(response)


_Find = Callable[[Any], Iterable[int]]


@cache
def _finder(cls: type[ApiMessage]) -> _Find | None:
    return _find_in(layout_of(cls, cls.max_version), of_itself=False)


def _find_in(layout: Layout, *, of_itself: bool) -> _Find | None:
    """What finds codes in a structure; None if it has no place for any."""
    own = of_itself and any(field.name == "error_code" for field in layout.fields)
    found = ((field.name, _find_items(field.type)) for field in layout.fields)
    inner = [(name, find_items) for name, find_items in found if find_items is not None]
    if not own and not inner:
        return None

    def find(structure: Any) -> Iterable[int]:
        if own and structure.error_code:
            yield structure.error_code
        for name, find_items in inner:
            for item in getattr(structure, name) or ():
                yield from find_items(item)

    return find


def _find_items(wire_type: WireType) -> _Find | None:
    element = wire_type.element
    if element is None or element.layout is None:
        return None
    return _find_in(element.layout, of_itself=True)
