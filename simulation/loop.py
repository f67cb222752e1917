"""An event loop for a whole world of processes, in which nothing takes time and everything has an order.

Every callback belongs to a *process*: the process that was current when it was scheduled. A context variable
carries it along. A process stands for a process of an operating system with its own loop: its callbacks run
in the order in which it scheduled them, as asyncio promises. Between processes there is no such promise, so
after each callback a seeded choice says whose turn is next. If no process has anything to do, time jumps to
the next timer.

    pause     the callbacks of a process wait, while its timers run out; then it wakes, late for everything
    sleep     a pause in which its timers wait too, as when its machine is suspended
    crash     its callbacks are gone, and the objects of its coroutines are never seen again
    preempt   a pause in the middle of a callback, between two system calls: the others run meanwhile, nested

Threads do not exist: work for a thread is a callback of the same process a little later.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import math
import random
from asyncio.tasks import _enter_task, _leave_task
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NoReturn

NESTED_MAX = 3
"""Preemptions within preemptions. Each can only end after those inside of it."""

STEPS_MAX = 2_000_000
"""A hundred times what a seed takes."""

THREAD_SECONDS_MAX = 0.004
"""How long a thread needs to take up work, at most."""


Connect = Callable[
    [Callable[[], asyncio.Protocol], str], Awaitable[tuple[asyncio.Transport, asyncio.Protocol]]
]


class Crashed(BaseException):
    """The process died in the middle of what it did."""


class Halted(Exception):
    """The world has ended early: something was found."""


class Turn:
    """One callback of a process: asyncio's handle, without the parts that only debuggers look at."""

    __slots__ = ("_when", "arguments", "callback", "context", "is_cancelled", "process")

    def __init__(
        self,
        process: Process,
        context: contextvars.Context,
        callback: Callable[..., object],
        arguments: tuple[Any, ...],
        when: float = 0.0,
    ) -> None:
        self.process = process
        self.context = context
        self.callback = callback
        self.arguments = arguments
        self._when = when
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self._when


class Arrival(Turn):
    """A callback that another process causes in this one at some time. Unlike a timer, it does not sleep with
    it."""

    __slots__ = ()


class Process:
    """What has its own turn: a broker, a client, the store."""

    def __init__(self, loop: World, name: str, host: str = "") -> None:
        self.name = name
        self.host = host or name
        """The machine that it runs on."""
        self.ready: deque[Turn] = deque()
        self.paused = 0
        self.dead = False
        self.asleep: list[Turn] | None = None
        """While its machine is suspended: its timers that would have run out."""
        self.after: Callable[[], None] | None = None
        """Called after each of its callbacks."""
        self.tasks: list[asyncio.Task[Any]] = []
        """All that it ever began: they are few, and a set of those left would cost more than it saves."""
        self._loop = loop
        self._context = contextvars.copy_context()
        self._context.run(CURRENT.set, self)

    @property
    def context(self) -> contextvars.Context:
        """For callbacks that shall be this process's."""
        return self._context.copy()

    def post(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Let the process call this, soon."""
        self._loop.enqueue(Turn(self, self._context.copy(), callback, arguments))

    def post_at(self, when: float, callback: Callable[..., object], *arguments: Any) -> None:
        self._loop.add_timer(Arrival(self, self._context.copy(), callback, arguments, when))

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self._loop.create_task(work, context=self.context)

    def pause(self) -> None:
        self.paused += 1
        self._loop.set_aside(self)

    def resume(self) -> None:
        self.paused -= 1
        self._loop.consider(self)


CURRENT: contextvars.ContextVar[Process] = contextvars.ContextVar("process")


class World(asyncio.BaseEventLoop):
    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng
        self._now = 0.0
        self._timers: list[tuple[float, int, Turn]] = []
        self._timer_count = 0
        self._runnable: list[Process] = []
        self._depth = 0
        self._graveyard: list[Any] = []
        self._outside = Process(self, "world")
        self._current = self._outside
        self.steps = 0
        self._stopping = False
        self.halted = False
        """Something was found: run nothing more."""
        self.connect: Connect | None = None
        """How a process reaches a host."""
        self.set_exception_handler(lambda loop, context: None)

    # Processes.

    def process(self, name: str, host: str = "") -> Process:
        return Process(self, name, host)

    def consider(self, process: Process) -> None:
        """It may have something to do."""
        if process.ready and not process.paused and not process.dead and process not in self._runnable:
            self._runnable.append(process)

    def crash(self, process: Process) -> None:
        """Nothing of this process happens any more. What it held is kept until the end of the world, because
        letting go of it would run its `finally` blocks."""
        process.dead = True
        self._graveyard.append(list(process.tasks))
        self._graveyard.append(list(process.ready))
        process.ready.clear()
        self.set_aside(process)

    def set_aside(self, process: Process) -> None:
        """It is not its turn until somebody says so."""
        if process in self._runnable:
            self._runnable.remove(process)

    def put_to_sleep(self, process: Process) -> None:
        """Its timers stand still. It is paused already."""
        process.asleep = []

    def wake(self, process: Process, slept: float) -> None:
        """Its timers go on where they were."""
        missed, process.asleep = process.asleep or [], None
        for _when, _number, turn in self._timers:
            if turn.process is process and not isinstance(turn, Arrival):
                turn._when += slept
        self._timers[:] = [(turn._when, number, turn) for _when, number, turn in self._timers]
        heapq.heapify(self._timers)
        for turn in missed:
            turn._when += slept
            self.add_timer(turn)

    def preempt(self, process: Process, seconds: float) -> None:
        """Called by a callback of `process`: let the others run for a while. Raises Crashed if it died."""
        if self._depth >= NESTED_MAX or self.halted:
            return
        self._depth += 1
        process.pause()
        task = asyncio.current_task(self)
        if task is not None:
            _leave_task(self, task)
        try:
            self._run_until(self._now + seconds)
        finally:
            if task is not None:
                _enter_task(self, task)
            self._current = process
            process.resume()
            self._depth -= 1
        if process.dead:
            raise Crashed

    # What asyncio calls.

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Turn:
        # The whole of `enqueue` again: half of all turns come this way.
        if context is None:
            process = self._current
            turn = Turn(process, contextvars.copy_context(), callback, args)
        else:
            process = context.get(CURRENT, self._outside)
            turn = Turn(process, context, callback, args)
        if process.dead:
            self._graveyard.append(turn)
        elif process.ready:
            process.ready.append(turn)
        else:
            process.ready.append(turn)
            self.consider(process)
        return turn

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> Turn:
        when = self._now + delay
        if context is None:
            turn = Turn(self._current, contextvars.copy_context(), callback, args, when)
        else:
            turn = Turn(context.get(CURRENT, self._outside), context, callback, args, when)
        self._timer_count = number = self._timer_count + 1
        heapq.heappush(self._timers, (when, number, turn))
        return turn

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> Turn:
        if context is None:
            turn = Turn(self._current, contextvars.copy_context(), callback, args, when)
        else:
            turn = Turn(context.get(CURRENT, self._outside), context, callback, args, when)
        self.add_timer(turn)
        return turn

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Any = None
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        owner = self._current if context is None else context.get(CURRENT)
        owner.tasks.append(task)
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        self.call_later(self._rng.random() * THREAD_SECONDS_MAX, work)
        return future

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int, **options: Any
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        assert self.connect is not None, "this world has no network"
        assert not any(options.values()), f"{options} are not simulated"
        return await self.connect(protocol_factory, host)

    def _process_events(self, event_list: object) -> NoReturn:
        raise AssertionError("there are no sockets in this world")

    def _run_once(self) -> None:
        if self.halted:
            raise Halted
        self._run_until(math.inf)
        if not (self.halted or self._stopping):
            raise AssertionError("everybody waits for something that never happens")

    def close(self) -> None:
        self._graveyard.clear()
        self._timers.clear()
        self._runnable.clear()
        super().close()

    # Turn by turn.

    def enqueue(self, turn: Turn) -> None:
        process = turn.process
        if process.dead:
            self._graveyard.append(turn)
            return
        process.ready.append(turn)
        if len(process.ready) == 1:
            self.consider(process)

    def add_timer(self, turn: Turn) -> None:
        self._timer_count = number = self._timer_count + 1
        heapq.heappush(self._timers, (turn._when, number, turn))

    def _run_until(self, until: float) -> None:
        """Run one callback of somebody after the other, and move time on where nobody has any, until it is
        `until`, or nothing is left to happen, or the world is to stop."""
        runnable, chance = self._runnable, self._rng.random
        while not (self.halted or self._stopping):
            if not runnable:
                if self._now >= until:
                    break
                if not self._timers or self._timers[0][0] > until:
                    if until != math.inf:
                        self._now = until
                    return
                self._advance()
                continue
            count = len(runnable)
            at = int(chance() * count) if count > 1 else 0
            process = runnable[at]
            ready = process.ready
            turn = ready.popleft()
            if not ready:
                runnable[at] = runnable[-1]
                runnable.pop()
            if turn.is_cancelled:
                continue
            self.steps = steps = self.steps + 1
            if steps > STEPS_MAX:
                raise AssertionError("this world does not come to an end")
            self._current = process
            # What a callback raises is nobody's, as on any loop; what a broker logs of it is in the trace.
            try:
                turn.context.run(turn.callback, *turn.arguments)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException:
                pass
            if process.after is not None and not process.dead:
                process.after()
        self._current = self._outside

    def _advance(self) -> None:
        """Move time to the next timer, and let whoever's time has come be ready."""
        timers, pop = self._timers, heapq.heappop
        self._now = now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= now:
            turn = pop(timers)[2]
            if turn.is_cancelled:
                continue
            process = turn.process
            if process.dead:
                self._graveyard.append(turn)
                continue
            if process.asleep is not None and not isinstance(turn, Arrival):
                process.asleep.append(turn)
                continue
            process.ready.append(turn)
            if len(process.ready) == 1:
                self.consider(process)
