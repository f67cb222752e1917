"""The run with the newest claim may run a pipeline.

    spark/claims/<pipeline>/<number>     created once, by the run that holds it

A run that finds the pipeline free creates the claim after the newest one. If two start at the same moment,
one gets it. A run that was paused, taken for dead and replaced finds a newer claim than its own, and ends. It
may find that late. Its work until then must do no harm, and `tables` says why it does none.
"""

import msgspec

from penstock.pipeline import status as statuses
from penstock.pipeline.errors import PipelineError
from penstock.pipeline.status import Status
from penstock.storage.stores.blocking import BlockingStore

PREFIX = "spark/claims/"


class Claim:
    def __init__(self, store: BlockingStore, pipeline: str, number: int) -> None:
        self._store = store
        self._pipeline = pipeline
        self._number = number

    def check(self) -> None:
        """Raises PipelineError if another run has taken over."""
        if _newest(self._store, self._pipeline) != self._number:
            raise PipelineError(f"Another run of pipeline {self._pipeline!r} has taken over.")


def take(store: BlockingStore, status: Status, now_ms: int) -> Claim:
    """Claim a pipeline for the run that has this status. Raises PipelineError if another one has it."""
    newest = _newest(store, status.pipeline)
    holder = _holder(store, status.pipeline, newest)
    if holder is not None and not holder.ended and not statuses.crashed(holder, now_ms):
        raise _held_by(holder)
    mine = newest + 1
    created = store.run(store.store.create(_key(status.pipeline, mine), msgspec.json.encode(status)))
    # Claims before the newest are deleted, so a late starter can create one that was there before.
    if not created or _newest(store, status.pipeline) != mine:
        raise _held_by(_holder(store, status.pipeline, _newest(store, status.pipeline)) or status)
    for number in _numbers(store, status.pipeline):
        if number < mine:
            store.run(store.store.delete(_key(status.pipeline, number)))
    return Claim(store, status.pipeline, mine)


def _held_by(status: Status) -> PipelineError:
    return PipelineError(
        f"The pipeline {status.pipeline!r} is being run by process {status.pid} on {status.host}."
    )


def _holder(store: BlockingStore, pipeline: str, number: int) -> Status | None:
    """The last word of the run that has a claim, or what it said when it took it."""
    reported = statuses.read(store, pipeline)
    stored = store.run(store.store.get(_key(pipeline, number)))
    if stored is None:
        return reported
    claimed = msgspec.json.decode(stored, type=Status)
    return reported if reported is not None and reported.run == claimed.run else claimed


def _newest(store: BlockingStore, pipeline: str) -> int:
    return max(_numbers(store, pipeline), default=0)


def _numbers(store: BlockingStore, pipeline: str) -> list[int]:
    prefix = f"{PREFIX}{pipeline}/"

    async def collect() -> list[int]:
        return [int(info.key.removeprefix(prefix)) async for info in store.store.list(prefix)]

    return store.run(collect())


def _key(pipeline: str, number: int) -> str:
    return f"{PREFIX}{pipeline}/{number:09d}"
