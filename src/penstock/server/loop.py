"""The event loop: uvloop where it is installed, else asyncio's own."""

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        from uvloop import new_event_loop as new_uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return new_uvloop()
