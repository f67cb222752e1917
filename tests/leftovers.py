"""What still runs on an event loop: where there is nothing, nothing more can happen."""

import asyncio


def left_behind() -> list[str]:
    """Other tasks than this one, and timers that have not gone off."""
    loop = asyncio.get_running_loop()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    timers = [one for one in loop._scheduled if not one.cancelled()]  # type: ignore[attr-defined]
    return [*map(repr, tasks), *map(repr, timers)]
