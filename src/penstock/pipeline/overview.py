"""The state of a pipeline, put together from its last report, its checkpoints and the ends of its topics."""

from typing import NamedTuple

from penstock.pipeline import status as statuses
from penstock.pipeline.checkpoints import lag, read_checkpoint
from penstock.pipeline.status import PREFIX, Status
from penstock.storage.stores.blocking import BlockingStore


class Overview(NamedTuple):
    status: Status
    state: str
    """The run's own, or `crashed`."""
    silent_seconds: float
    sentence: str


def names(store: BlockingStore) -> list[str]:
    """The pipelines that were ever run on this cluster."""

    async def collect() -> list[str]:
        return [info.key async for info in store.store.list(PREFIX)]

    return sorted(key.removeprefix(PREFIX) for key in store.run(collect()))


def overview(store: BlockingStore, name: str, now_ms: int) -> Overview | None:
    """None if the pipeline was never run here."""
    status = statuses.read(store, name)
    if status is None:
        return None
    for one in status.outputs:
        checkpoint = read_checkpoint(one.checkpoint)
        if checkpoint is not None:
            one.batches = checkpoint.batches
            one.positions = {topic: at for source in checkpoint.positions for topic, at in source.items()}
            positions = checkpoint.positions
        else:
            positions = [one.positions] if one.positions else []
        if positions:
            one.lag = lag(store.location, one.topics, positions)
    silent = max(0.0, (now_ms - status.reported_ms) / 1000)
    state = "crashed" if statuses.crashed(status, now_ms) else status.state
    return Overview(status, state, silent, _sentence(status, state, silent))


def _sentence(status: Status, state: str, silent: float) -> str:
    by = f"process {status.pid} on {status.host}"
    match state:
        case "crashed":
            return (
                f"crashed: {by} was running it and is gone, last heard of {silent:.0f} s ago."
                " The next run goes on where it was."
            )
        case "failed":
            return f"failed {silent:.0f} s ago: {status.error}"
        case "starting" | "running":
            return f"{state}, by {by}, on {status.master}."
    return f"{state} {silent:.0f} s ago."
