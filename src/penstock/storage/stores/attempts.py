"""Requests to a service: bounded in number and time, asked twice when they hang, tried again when they fail.

One call is a few attempts with pauses between them. One attempt is a request, and up to two more beside it if
it hangs (`patience`). The first answer that says something counts, and the others are given up. A request
that is given up is not undone: a write may still take effect, however late, and for a second time. So
`Attempts.begun` says how many requests were sent for a call: from the second on, "it exists" may mean our own
work.

A call ends when an attempt is answered, when `ATTEMPTS_MAX` failed, or when the lane's time is over.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import NamedTuple, Never, TypeVar

from obstore import exceptions

from penstock.entropy import Entropy
from penstock.storage.stores.patience import Patience, attempt_seconds
from penstock.storage.stores.remote_errors import Verdict, explain

T = TypeVar("T")

ATTEMPTS_MAX = 6
"""With the pauses of most lanes about ten seconds in all: longer than a store needs to shed load."""
HEDGES_MAX = 2
PAUSE_FIRST_SECONDS = 0.1
LAST_ATTEMPT_SECONDS = 1.0
"""The least that an attempt gets, however little is left of a call's time."""

FAILURES = (exceptions.BaseError, OSError)
"""What the SDK raises; a time-out is an OSError too."""


class Limits(NamedTuple):
    """The limits of one lane."""

    calls: int
    """Under way at once; more wait. Each holds at most 1 + HEDGES_MAX connections."""
    seconds: float
    """No attempt begins later than this after the call did."""
    pause_seconds: float = 5.0
    """The longest pause between attempts. After an outage, so long nobody notices that it is over."""


class NoAnswerError(TimeoutError):
    """Nothing came within the time that a request may take."""


class Attempts:
    """The requests of one call."""

    def __init__(self) -> None:
        self.begun = 0


class Caller:
    """Calls of one lane."""

    def __init__(
        self,
        limits: Limits,
        entropy: Entropy,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.patience = Patience()
        self._limits = limits
        self._room = asyncio.Semaphore(limits.calls)
        self._entropy = entropy
        self._sleep = sleep
        self.requests = 0

    async def call(
        self,
        request: Callable[[], Coroutine[object, Never, T]],
        size: int = 0,
        *,
        hedge: bool = True,
        seconds: float | None = None,
        attempts: Attempts | None = None,
    ) -> T:
        """The answer. Raises one of FAILURES: what the last attempt met, or what no other attempt mends.
        `size`: how many bytes go or come, as far as known. `hedge`: whether to ask twice when it hangs.
        `seconds`: how long an attempt may take, if that is not a matter of its size."""
        begun = attempts if attempts is not None else Attempts()
        loop = asyncio.get_running_loop()
        async with self._room:
            deadline = loop.time() + self._limits.seconds
            attempt = 0
            while True:
                limit = attempt_seconds(size, attempt) if seconds is None else seconds
                if attempt:
                    limit = min(limit, max(LAST_ATTEMPT_SECONDS, deadline - loop.time()))
                try:
                    return await self._attempt(request, size, limit, hedge=hedge, attempts=begun)
                except FAILURES as error:
                    attempt += 1
                    pause = self._pause(attempt)
                    over = attempt == ATTEMPTS_MAX or loop.time() + pause >= deadline
                    if over or explain(error).verdict is not Verdict.AGAIN:
                        raise
                await self._sleep(pause)

    def _pause(self, attempt: int) -> float:
        longest = min(self._limits.pause_seconds, PAUSE_FIRST_SECONDS * 2.0**attempt)
        return longest * (0.5 + self._entropy.fraction() / 2)

    async def _attempt(
        self,
        request: Callable[[], Coroutine[object, Never, T]],
        size: int,
        seconds: float,
        *,
        hedge: bool,
        attempts: Attempts,
    ) -> T:
        """A request, others beside it when it hangs, and the first answer that is one."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        wait = self.patience.before_hedge(size) if hedge else seconds
        hedges_left = HEDGES_MAX if hedge else 0
        under_way = {self._begin(request, size, attempts)}
        failure: Exception | None = None
        try:
            while under_way:
                left = deadline - loop.time()
                if left <= 0:
                    raise NoAnswerError(f"no answer within {seconds:.0f} s")
                done, under_way = await asyncio.wait(
                    under_way, timeout=min(wait, left), return_when=asyncio.FIRST_COMPLETED
                )
                # An answer before a refusal, if both have come.
                for one in sorted(done, key=lambda task: task.exception() is not None):
                    error = one.exception()
                    if error is None:
                        return one.result()
                    if not isinstance(error, FAILURES) or explain(error).verdict is not Verdict.AGAIN:
                        raise error
                    failure = error
                if not done and hedges_left and self.patience.may_hedge():
                    under_way.add(self._begin(request, size, attempts))
                    hedges_left -= 1
                elif not done:
                    wait = seconds
        finally:
            for one in under_way:
                one.cancel()
        assert failure is not None
        raise failure

    def _begin(
        self, request: Callable[[], Coroutine[object, Never, T]], size: int, attempts: Attempts
    ) -> asyncio.Task[T]:
        attempts.begun += 1
        self.requests += 1
        task = asyncio.get_running_loop().create_task(self._timed(request, size), name="request")
        task.add_done_callback(_see)
        return task

    async def _timed(self, request: Callable[[], Coroutine[object, Never, T]], size: int) -> T:
        loop = asyncio.get_running_loop()
        began = loop.time()
        answer = await request()
        self.patience.note(size, loop.time() - began)
        return answer


def _see(task: asyncio.Task[object]) -> None:
    """What failed after another answer counted concerns nobody."""
    if not task.cancelled():
        task.exception()
