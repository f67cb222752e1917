"""What a reader knows of its topics: the view of the store, and where reading starts and ends."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from penstock.arrow.asked import EARLIEST, LATEST, Asked, Bound
from penstock.arrow.errors import LostRecordsError, OptionError, SourceError, StoreAccessError, TakeoverError
from penstock.arrow.planning import choose
from penstock.cluster.reading import NoClusterError, view_of
from penstock.metadata.codec import FormatError
from penstock.metadata.image import ClusterImage, PartitionKey
from penstock.storage.reader.times import offset_at
from penstock.storage.reader.view import Chosen, EndUnknownError, PartitionView
from penstock.storage.stores.blocking import BlockingStore
from penstock.storage.stores.objects import StoreError, StoreUnavailableError

T = TypeVar("T")


class ReadSession:
    """Used by one thread."""

    def __init__(self, store: BlockingStore, asked: Asked) -> None:
        self.store = store
        self.missing_ok = False
        """Whether topics and partitions that were asked for by name may be missing."""
        self.asked = asked
        self._view = view_of(store.store, self._choose)

    @property
    def image(self) -> ClusterImage:
        return self._view.image

    @property
    def views(self) -> Mapping[PartitionKey, PartitionView]:
        """The partitions as they were at the last `refresh`."""
        return self._view.partitions

    def _choose(self, image: ClusterImage) -> dict[PartitionKey, Chosen]:
        return choose(self.asked.selection, image, missing_ok=self.missing_ok)

    def refresh(self) -> Mapping[PartitionKey, PartitionView]:
        """The partitions that were asked for, as the store has them now."""
        return self._run(self._view.refresh())

    def end(self, view: PartitionView) -> int:
        """Where the records that a reader may see end."""
        return view.end_for(self.asked.isolation)

    def starts(self, views: Mapping[PartitionKey, PartitionView]) -> dict[PartitionKey, int]:
        """Where reading starts, as it was asked."""
        bound, words = self.asked.start, self.asked.words
        found = self._resolve(words.start_time if bound.by_timestamp else words.start, bound, views)
        starts = {}
        for key, view in views.items():
            offset = found[key]
            if offset is None:
                if self.asked.timestamp_without_match == "error":
                    raise OptionError(
                        f"No record of topic {view.topic!r} partition {view.index} is as late as the starting"
                        " timestamp.",
                        words.too_late,
                    )
                offset = self.end(view)
            starts[key] = self._within(view, offset, starting=True) if not bound.by_timestamp else offset
        return starts

    def ends(self, views: Mapping[PartitionKey, PartitionView]) -> dict[PartitionKey, int]:
        """Where a batch read ends, as it was asked."""
        bound, words = self.asked.end, self.asked.words
        found = self._resolve(words.end_time if bound.by_timestamp else words.end, bound, views)
        ends = {}
        for key, view in views.items():
            offset = found[key]
            if offset is None:
                offset = self.end(view)
            ends[key] = self._within(view, offset, starting=False) if not bound.by_timestamp else offset
        return ends

    def resume(self, view: PartitionView, offset: int) -> int:
        """Where reading goes on that has come to an offset: there, unless records are gone meanwhile."""
        if offset < view.log_start:
            self.lost(view, offset, view.log_start - 1, f": the log begins at {view.log_start} now")
            return view.log_start
        if offset > view.end:
            self.lost(view, view.end, offset - 1, f": the log ends at {view.end} now")
            return view.end
        return offset

    def lost(self, view: PartitionView, first: int, last: int, reason: str) -> None:
        """Records are gone: the query fails, unless it was told to go on without them."""
        if self.asked.fail_on_data_loss:
            raise LostRecordsError(view.topic, view.index, first, last, reason, self.asked.words.lost)

    def _within(self, view: PartitionView, offset: int, *, starting: bool) -> int:
        """A given offset, which must be one that the partition has or will have next. One may start beyond an
        open transaction, and not end there: what became of it is not known."""
        words = self.asked.words
        option = words.start if starting else words.end
        end = view.end if starting else self.end(view)
        if end < offset <= view.end and self.asked.fail_on_data_loss:
            raise OptionError(
                f"{option} asks for offset {offset} of topic {view.topic!r} partition {view.index},"
                f" and a transaction that is open there begins at {end}.",
                words.unstable,
            )
        if offset > end:
            if self.asked.fail_on_data_loss:
                raise OptionError(
                    f"{option} asks for offset {offset} of topic {view.topic!r} partition {view.index},"
                    f" which ends at {end}.",
                    words.beyond,
                )
            return end
        if offset < view.log_start:
            if starting:
                reason = f": the log begins at {view.log_start} now"
                self.lost(view, offset, view.log_start - 1, reason)
            return view.log_start
        return offset

    def _resolve(
        self, name: str, bound: Bound, views: Mapping[PartitionKey, PartitionView]
    ) -> dict[PartitionKey, int | None]:
        """The offset that a bound means for each partition; None where no record is late enough."""
        _require_all(name, bound, views)
        found: dict[PartitionKey, int | None] = {}
        times: dict[PartitionKey, int] = {}
        for key, view in views.items():
            value = bound.partitions.get(view.topic, {}).get(view.index, bound.everywhere)
            assert value is not None, "options allow no bound that leaves partitions out"
            if bound.by_timestamp:
                times[key] = value
            elif value == EARLIEST:
                found[key] = view.log_start
            elif value == LATEST:
                found[key] = self.end(view)
            else:
                found[key] = value
        if times:
            found.update(self._run(self._at_times(times, views)))
        return found

    async def _at_times(
        self, times: Mapping[PartitionKey, int], views: Mapping[PartitionKey, PartitionView]
    ) -> dict[PartitionKey, int | None]:
        async def one(key: PartitionKey, time_ms: int) -> int | None:
            view = views[key]
            return await offset_at(self.store.store, view, time_ms, self.end(view))

        answers = await asyncio.gather(*(one(key, time_ms) for key, time_ms in times.items()))
        return dict(zip(times, answers, strict=True))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return reach(self.store.location, lambda: self.store.run(work))


def reach(location: str, work: Callable[[], T]) -> T:
    """Do something with the store; what is wrong with it becomes one sentence."""
    try:
        return work()
    except SourceError:
        raise
    except NoClusterError:
        raise StoreAccessError(f"No Penstock cluster lives in {location}.") from None
    except EndUnknownError:
        raise TakeoverError from None
    except StoreUnavailableError as error:
        raise StoreAccessError(f"The store {location} cannot be reached: {error}.") from None
    except (StoreError, FormatError) as error:
        raise StoreAccessError(f"The store {location} cannot be read: {error}.") from None


def _require_all(name: str, bound: Bound, views: Mapping[PartitionKey, PartitionView]) -> None:
    """As in Spark's connector, a bound by partition names every partition that is read, and no other."""
    if bound.everywhere is not None:
        return
    read = {(view.topic, view.index) for view in views.values()}
    named = {(topic, index) for topic, indexes in bound.partitions.items() for index in indexes}
    for topic, index in sorted(read - named):
        raise OptionError(f"The option '{name}' has no entry for topic {topic!r} partition {index}.")
    for topic, index in sorted(named - read):
        raise OptionError(f"The option '{name}' names topic {topic!r} partition {index}, which is not read.")
