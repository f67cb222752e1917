"""The log of a store as Arrow, from the store itself: without brokers, and without Spark.

    from penstock import Log

    with Log("./penstock-data") as log:
        table = log.topic("orders").scan(columns=["offset", "value"]).read_all()

A scan is planned when it is asked for: it ends where the topic ended then. Its records are read while it is
consumed. It goes through the partitions one after the other, in the order of their numbers, and through each
in the order of offsets, so it holds about one Arrow batch at a time.
"""

import os
import threading
import weakref
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import chain
from operator import index
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from penstock.arrow.asked import EARLIEST, LATEST, Asked, Bound, Selection
from penstock.arrow.errors import MissingTopicError, OptionError
from penstock.arrow.planning import Deal, OffsetRange, splits
from penstock.arrow.reading import ReadSettings, open_anew, read_stretches
from penstock.arrow.session import ReadSession, reach
from penstock.cluster.reading import ImageReader
from penstock.log.isolation import Isolation

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.storage.reader.stretches import Stretch
    from penstock.storage.stores.blocking import BlockingStore

Word = Literal["earliest", "latest"]
Place = Word | datetime | Mapping[int, int | Word]
"""Where a scan starts or ends: at a word, at a time, or by partition."""
Level = Literal["read_committed", "read_uncommitted"]

_WORDS = {"earliest": EARLIEST, "latest": LATEST}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WHOLE = Deal(split_bytes=1 << 62)
"""There is one reader, so nothing is dealt out."""


class Offsets(NamedTuple):
    """Where the records of a partition begin, and the offset that follows the last one to be seen."""

    earliest: int
    latest: int


class Log:
    """What a store holds. Nothing is written, and no broker is asked."""

    def __init__(self, store: str | os.PathLike[str]) -> None:
        """`store`: a directory, or a URL such as s3://bucket/prefix. Credentials come from the environment,
        as for brokers and Spark. The store is opened when something is asked of it."""
        location = os.fspath(store)
        self.store = location if "://" in location else os.path.abspath(location)
        self._opened: BlockingStore | None = None
        self._process = 0
        self._closed = False
        self._readings: weakref.WeakSet[Generator[pa.RecordBatch]] = weakref.WeakSet()

    def topics(self) -> list[str]:
        """The names of the topics that are there now, without internal ones."""
        store = self._open()
        image = reach(self.store, lambda: store.run(ImageReader(store.store).refresh()))
        return sorted(name for name, topic in image.topics.items() if not topic.internal)

    def topic(self, name: str) -> "Topic":
        """A topic by its name. The store is asked for it when it is scanned."""
        return Topic(self, name)

    def _open(self) -> "BlockingStore":
        """The store, opened once. ValueError if the log was closed."""
        self._require_open()
        # A thread does the work of a store, and a forked process does not have it.
        if self._opened is None or self._process != os.getpid():
            self._opened, self._process = open_anew(self.store), os.getpid()
            self._end = weakref.finalize(self, _let_go, self._opened, self._process)
            self._end.atexit = False
        return self._opened

    def _require_open(self) -> None:
        if self._closed:
            raise ValueError(f"The log of {self.store} was closed.")

    def close(self) -> None:
        """Let go of the store. Scans that were begun end with an error."""
        store, self._opened = self._opened, None
        self._closed = True
        for reading in list(self._readings):
            with suppress(ValueError):  # Another thread is within it, and is told by the store.
                reading.close()
        if store is not None and self._end.detach() and self._process == os.getpid():
            store.close()

    def __enter__(self) -> Self:
        self._require_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Log({self.store!r})"


class Topic:
    """A topic of a log."""

    def __init__(self, log: Log, name: str) -> None:
        self.name = name
        self._log = log

    def __repr__(self) -> str:
        return f"{self._log!r}.topic({self.name!r})"

    def offsets(self, isolation: Level = "read_committed") -> dict[int, Offsets]:
        """Where each partition begins and ends now. LookupError if there is no such topic."""
        session = self._session(_asked(self.name, None, None, _isolation(isolation)))
        return {view.index: Offsets(view.log_start, session.end(view)) for view in session.views.values()}

    def scan(
        self,
        start: Place | None = None,
        end: Place | None = None,
        columns: Iterable[str] | None = None,
        isolation: Level = "read_committed",
    ) -> "pa.RecordBatchReader":
        """The records from `start` up to, not including, `end`, with the columns of Spark's Kafka source.

        `start`, `end`: "earliest"; "latest"; by partition an offset or one of these words, as
        {0: 5, 1: "latest"}; or a datetime, of local time if it has no time zone. A datetime means, in each
        partition, the first record at that time or later; where no record is so late, it means "latest". A
        scan goes from "earliest" to "latest" if nothing else is asked for, also in partitions that are not
        named.
        `columns`: some of key, value, topic, partition, offset, timestamp, timestampType, headers. What is
        not named is not decoded.
        `isolation`: "read_committed" leaves out what was aborted, and ends where the oldest open transaction
        begins; "read_uncommitted" reads all.

        ValueError for an argument that makes no sense or an offset beyond the end, LookupError for a topic or
        partition that does not exist. LostRecordsError, here or while records are read, if some of them are
        deleted or damaged; it names them. Other SourceErrors tell what is wrong with the store.
        """
        _require_arrow()
        from penstock.arrow.columns import schema_of

        wanted = _columns(columns)
        session = self._session(_asked(self.name, start, end, _isolation(isolation)), start, end)
        views = session.views
        starts, ends = session.starts(views), session.ends(views)
        ranges = [
            OffsetRange(view, starts[key], ends[key])
            for key, view in sorted(views.items(), key=lambda entry: entry[1].index)
        ]
        level = session.asked.isolation
        settings = ReadSettings(self._log.store, wanted, level, check_crc=True, fail_on_data_loss=True)
        stretches = chain.from_iterable(splits(ranges, _WHOLE, level))
        return _reader(schema_of(wanted), self._batches(stretches, settings))

    def _session(self, asked: Asked, *places: Place | None) -> ReadSession:
        session = ReadSession(self._log._open(), asked)
        count = len(session.refresh())
        for place in places:
            for number in place if isinstance(place, Mapping) else ():
                if number not in range(count):
                    raise MissingTopicError(
                        f"The topic {self.name!r} has no partition {number!r}: it has {count} of them."
                    )
        return session

    def _batches(self, stretches: "Iterable[Stretch]", settings: ReadSettings) -> "Iterator[pa.RecordBatch]":
        reading = read_stretches(stretches, settings, self._log._open())
        self._log._readings.add(reading)
        for batch in reading:
            yield batch
            self._log._require_open()
        self._log._require_open()  # One that was closed has no end of its own.


def _reader(schema: "pa.Schema", batches: "Iterator[pa.RecordBatch]") -> "pa.RecordBatchReader":
    import pyarrow as pa

    return pa.RecordBatchReader.from_batches(schema, batches)


def _require_arrow() -> None:
    try:
        import llvmlite  # noqa: F401
        import numpy  # noqa: F401
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ModuleNotFoundError(
            f"Scans are Arrow, and {error.name} is missing: pip install 'penstock[arrow]'.", name=error.name
        ) from None


def _let_go(store: "BlockingStore", process: int) -> None:
    """Nobody has the log any more, and it was not closed. A thread of its own does this: garbage may be
    collected on the very one that the store would wait for."""
    if process == os.getpid():
        threading.Thread(target=store.close, name="penstock-closing", daemon=True).start()


# What was asked for.


def _asked(topic: str, start: Place | None, end: Place | None, isolation: Isolation) -> Asked:
    return Asked(
        selection=Selection(names=(topic,)),
        start=_bound("start", topic, "earliest" if start is None else start),
        end=_bound("end", topic, "latest" if end is None else end),
        timestamp_without_match="latest",
        isolation=isolation,
    )


def _bound(name: str, topic: str, place: Place) -> Bound:
    if isinstance(place, datetime) and (moment := _moment(place)) is not None:
        # Records have milliseconds. One at this time or later is one at the next whole millisecond or later.
        return Bound(everywhere=-((_EPOCH - moment) // timedelta(milliseconds=1)), by_timestamp=True)
    if isinstance(place, str) and place in _WORDS:
        return Bound(everywhere=_WORDS[place])
    if isinstance(place, Mapping):
        offsets = {key: _offset(name, key, value) for key, value in place.items()}
        return Bound(everywhere=EARLIEST if name == "start" else LATEST, partitions={topic: offsets})
    raise OptionError(
        f"{name} is 'earliest', 'latest', a datetime, or offsets as {{0: 5, 1: 7}}, not {place!r}."
    )


def _moment(place: datetime) -> datetime | None:
    """With a time zone. None for what is no time, such as one that pandas has for that."""
    try:
        if place.utcoffset() is not None:
            return place
        # Local time, as everywhere in Python; a timestamp of pandas has another meaning of its own.
        return datetime.combine(place.date(), place.time()).astimezone()
    except (ValueError, OverflowError):
        return None


def _offset(name: str, partition: int, value: object) -> int:
    if isinstance(value, str) and value in _WORDS:
        return _WORDS[value]
    try:
        offset = index(value)  # type: ignore[arg-type]
    except TypeError:
        offset = -1
    if offset < 0 or isinstance(value, bool):
        raise OptionError(
            f"{name} has {value!r} for partition {partition}: an offset is 0 or more, 'earliest' or 'latest'."
        )
    return offset


def _columns(columns: Iterable[str] | None) -> tuple[str, ...]:
    from penstock.arrow.columns import COLUMNS

    if columns is None:
        return tuple(COLUMNS)
    if isinstance(columns, str):
        raise OptionError(f"columns is a list of names, such as [{columns!r}], not a text.")
    wanted = tuple(columns)
    for name in wanted:
        if name not in COLUMNS:
            raise OptionError(f"There is no column {name!r}: a topic has {', '.join(COLUMNS)}.")
    if not wanted or len(set(wanted)) < len(wanted):
        raise OptionError("columns names each column once, and at least one.")
    return wanted


def _isolation(level: str) -> Isolation:
    try:
        return Isolation(level)
    except ValueError:
        raise OptionError(f"isolation is {' or '.join(Isolation)}, not {level!r}.") from None
