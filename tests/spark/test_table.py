"""A topic with its table, as `penstock.spark.table` finds them: which files, and which offsets of the log.

The log is made by hand, the table by the code that commits for pipelines, and Arrow reads both: so no Spark
is needed to see each record once. tests/pipeline/test_spark_table.py does it with whole pipelines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import Log
from penstock.arrow.errors import LostRecordsError, MissingTopicError, OptionError, TopicChangedError
from penstock.arrow.reading import open_blocking
from penstock.pipeline.iceberg import Following, IcebergTable
from penstock.pipeline.tables import Plans
from penstock.spark.errors import TableError
from penstock.spark.tables import reading
from penstock.spark.tables.catalogs import history_of, open_catalog
from penstock.spark.tables.places import write
from penstock.spark.tables.reading import Wanted, look
from tests.spark.workshop import Workshop

pytest.importorskip("pyiceberg")

TOPIC = "orders"
TEXT = pa.string()
SCHEMA = pa.schema(
    [
        ("key", pa.binary()), ("value", pa.binary()), ("topic", TEXT), ("partition", pa.int32()),
        ("offset", pa.int64()), ("timestamp", pa.timestamp("us", tz="UTC")), ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", TEXT), ("value", pa.binary())]))),
    ]
)  # fmt: skip
Rows = list[tuple[int, int, bytes]]


class Lake:
    """A topic, and a table that somebody keeps of it as a pipeline does."""

    def __init__(self, workshop: Workshop, home: Path) -> None:
        self.workshop = workshop
        self.store = workshop.store
        self.home = home
        self.written: Rows = []
        self.counts: dict[int, int] = {}

    def write(self, count: int, *partitions: int) -> None:
        for index in partitions or (0, 1):
            first = self.counts.get(index, 0)
            values = [b"%d-%d" % (index, first + at) for at in range(count)]
            self.workshop.write(TOPIC, values, index)
            self.counts[index] = first + count
            self.written += [(index, first + at, value) for at, value in enumerate(values)]

    def path(self, name: str = "lake") -> Path:
        return self.home / name

    def keep(
        self, batch: int, name: str = "lake", query: str = "q", changed: str = "", *, commit: bool = True
    ) -> None:
        """Bring what the table does not have yet to it, as one micro-batch."""
        found = look(Wanted(self.store, TOPIC, str(self.path(name)))) if batch else (None, self.ends())
        ranges = found[1]
        with Log(self.store) as log:
            topic = log.topic(TOPIC)
            lows = {number: one.low for number, one in ranges.items()}
            highs = {number: one.high for number, one in ranges.items()}
            rows = topic.scan(start=lows, end=highs).read_all().cast(SCHEMA)
        file = self.path(name) / "data" / f"{query}-{batch}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, file)
        if commit:
            self.commit(batch, highs, str(file), name, query, changed)

    def commit(
        self, batch: int, ends: dict[int, int], file: str, name: str = "lake", query: str = "q", why: str = ""
    ) -> None:
        store = open_blocking(self.store)
        plans = Plans(store, lambda: None)
        plans.query.set_result(query)
        following = Following("", why, lambda place: write(store, TOPIC, name, "rows", place))
        with closing(IcebergTable(str(self.path(name)), "rows", {}, plans, following)) as table:
            table.open(SCHEMA)
            told: dict[str, int | str] = {str(number): offset for number, offset in ends.items()}
            table.commit([file], batch, {TOPIC: {"id": self.topic_id(), **told}})

    def ends(self) -> dict[int, reading.Range]:
        with Log(self.store) as log:
            return {at: reading.Range(*one) for at, one in log.topic(TOPIC).offsets().items()}

    def topic_id(self) -> str:
        from penstock.wire.uuids import uuid_text

        return uuid_text(self.workshop._metadata.image.topics[TOPIC].id)

    def change(self, work: Callable[[Any], object]) -> None:
        """As somebody else does, with the table."""
        with closing(open_catalog(str(self.path()), {})) as catalog:
            work(catalog.load_table("penstock.rows"))

    def found(self, **asked: Any) -> Rows:
        """What is in the table, and then what is in the tail."""
        held, tail = look(Wanted(self.store, TOPIC, **asked))
        rows = [SCHEMA.empty_table()]
        if held is not None and held.files:
            rows.append(pa.concat_tables([pq.read_table(one).cast(SCHEMA) for one in held.files]))
        with Log(self.store) as log:
            lows = {number: one.low for number, one in tail.items()}
            highs = {number: one.high for number, one in tail.items()}
            rows.append(log.topic(TOPIC).scan(start=lows, end=highs).read_all().cast(SCHEMA))
        columns = pa.concat_tables(rows).select(["partition", "offset", "value"]).to_pylist()
        return sorted((row["partition"], row["offset"], row["value"]) for row in columns)

    def in_table(self) -> int:
        held, _tail = look(Wanted(self.store, TOPIC))
        return sum(pq.read_metadata(one).num_rows for one in held.files) if held is not None else 0


@pytest.fixture
def lake(workshop: Workshop, tmp_path: Path) -> Iterator[Lake]:
    workshop.create(TOPIC, 2)
    yield Lake(workshop, tmp_path / "tables")


def test_each_record_is_there_once_before_in_and_beyond_the_table(lake: Lake) -> None:
    assert lake.found() == []
    lake.write(5)
    assert (lake.found(), lake.in_table()) == (sorted(lake.written), 0)
    lake.keep(0)
    assert (lake.found(), lake.in_table()) == (sorted(lake.written), 10)
    lake.write(3)
    assert (lake.found(), lake.in_table()) == (sorted(lake.written), 10)
    lake.keep(1)
    assert (lake.found(), lake.in_table()) == (sorted(lake.written), 16)


def test_a_look_is_fixed_whatever_is_committed_later(lake: Lake) -> None:
    lake.write(5)
    lake.keep(0)
    lake.write(2)
    before = look(Wanted(lake.store, TOPIC))
    assert before[1] == {0: (5, 7), 1: (5, 7)}
    lake.write(1)
    lake.keep(1)
    held, _tail = before
    assert held is not None and [Path(one).name for one in held.files] == ["q-0.parquet"]


def test_files_that_were_not_committed_are_not_in_it(lake: Lake) -> None:
    lake.write(5)
    lake.keep(0)
    lake.write(2)
    lake.keep(1, commit=False)
    assert lake.found() == sorted(lake.written)


def test_partitions_that_were_added_since_are_read_from_the_log(lake: Lake) -> None:
    lake.write(4)
    lake.keep(0)
    lake.workshop.grow(TOPIC, 3)
    lake.write(2, 0, 2)
    assert lake.found() == sorted(lake.written)
    lake.keep(1)
    assert (lake.found(), lake.in_table()) == (sorted(lake.written), 12)


def test_what_the_log_deleted_stays_in_the_table_and_what_is_in_neither_is_missed(lake: Lake) -> None:
    lake.write(6)
    lake.workshop.settle()
    lake.keep(0)
    lake.write(6, 1)
    lake.workshop.settle()
    lake.workshop.delete_records(TOPIC, 6, 0)
    lake.workshop.delete_records(TOPIC, 4, 1)
    assert lake.found() == sorted(lake.written)
    lake.workshop.delete_records(TOPIC, 9, 1)
    with pytest.raises(LostRecordsError, match="Records 6 to 8 of topic 'orders' partition 1 are gone"):
        lake.found()
    left = [row for row in lake.written if row[0] == 0 or row[1] not in (6, 7, 8)]
    assert lake.found(fail_on_data_loss=False) == sorted(left)


def test_records_that_come_to_the_table_between_two_looks_are_not_missed(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.write(4)
    lake.keep(0)
    lake.write(4)
    lake.workshop.settle()
    plain = reading._tail
    looks: list[int] = []

    def late(*arguments: Any) -> Any:
        looks.append(1)
        if len(looks) == 1:
            lake.keep(1)
            lake.workshop.delete_records(TOPIC, 8, 0)
        return plain(*arguments)

    monkeypatch.setattr(reading, "_tail", late)
    assert lake.found() == sorted(lake.written)
    assert len(looks) == 3  # The keeper looked, too.


def test_a_topic_that_was_created_again_is_another_topic(lake: Lake) -> None:
    lake.write(2)
    lake.keep(0)
    lake.workshop.delete(TOPIC)
    with pytest.raises(MissingTopicError, match="The topic 'orders' does not exist"):
        lake.found()
    lake.workshop.create(TOPIC, 2)
    with pytest.raises(
        TopicChangedError, match=r"deleted and created again since the table .*lake was written"
    ):
        lake.found(fail_on_data_loss=False)


def test_a_table_that_others_compact_and_expire_holds_the_same_as_before(lake: Lake) -> None:
    for batch in range(2):
        lake.write(5)
        lake.keep(batch)
    lake.change(compact)
    lake.change(expire)
    lake.write(2)
    assert (lake.found(), lake.in_table()) == (sorted(lake.written), 20)
    # Its pipeline was killed after the commit of the last micro-batch, and runs that one again.
    lake.commit(1, {0: 10, 1: 10}, str(lake.path() / "data" / "q-1.parquet"))
    assert (lake.found(), lake.in_table()) == (sorted(lake.written), 20)
    lake.keep(2)
    assert (lake.found(), lake.in_table()) == (sorted(lake.written), 24)


def test_a_table_that_was_rolled_back_is_refused_for_ever(lake: Lake) -> None:
    for batch in range(2):
        lake.write(5)
        lake.keep(batch)
    lake.change(lambda table: table.manage_snapshots().rollback_to_snapshot(first_of(table)).commit())
    with pytest.raises(TableError, match="does not hold its topic's records as they are: it was rolled back"):
        lake.found()
    lake.write(1)
    lake.commit(2, {0: 11, 1: 11}, str(lake.path() / "data" / "q-1.parquet"))
    with pytest.raises(TableError, match="as they are: it was rolled back"):
        lake.found()


def test_rows_that_others_add_and_tables_of_other_rows_are_refused(lake: Lake) -> None:
    lake.write(2)
    lake.keep(0)
    lake.change(lambda table: table.append(table.scan().to_arrow()))
    with pytest.raises(TableError, match="as they are: somebody else has added rows to it"):
        lake.found()
    lake.keep(0, "other", changed="its function makes other rows of them")
    with pytest.raises(TableError, match="as they are: its function makes other rows of them"):
        lake.found(table=str(lake.path("other")))


def test_a_topic_with_two_tables_wants_to_be_told_which(lake: Lake) -> None:
    lake.write(3)
    lake.keep(0, "one")
    lake.keep(0, "two")
    with pytest.raises(TableError, match=r"has 2 tables: say with table= which one, .*one or .*two"):
        lake.found()
    assert lake.found(table=str(lake.path("two"))) == sorted(lake.written)
    with pytest.raises(TableError, match=r"There is no Iceberg table at .*three"):
        lake.found(table=str(lake.path("three")))
    with pytest.raises(OptionError, match="Say with table= which table of the catalog holds topic 'orders'"):
        lake.found(catalog={"type": "sql"})


def test_a_catalog_of_ones_own_is_named_as_to_the_pipeline(lake: Lake) -> None:
    lake.write(3)
    lake.keep(0)
    catalog = {"type": "sql", "uri": f"sqlite:///{lake.path()}/catalog.db"}
    assert lake.found(table="penstock.rows", catalog=catalog) == sorted(lake.written)
    with pytest.raises(TableError, match=r"There is no Iceberg table penstock\.lines"):
        lake.found(table="penstock.lines", catalog=catalog)


def first_of(table: Any) -> int:
    commits = history_of(table.metadata).commits
    return min(commits, key=lambda one: commits[one].sequence)


def compact(table: Any) -> None:
    """All rows in one new file, as engines do it."""
    from pyiceberg.io.pyarrow import _dataframe_to_data_files

    old = [task.file for task in table.scan().plan_files()]
    assert len(old) > 1
    rows = table.scan().to_arrow()
    with table.transaction() as change, change.update_snapshot().overwrite() as snapshot:
        for file in old:
            snapshot.delete_data_file(file)
        for file in _dataframe_to_data_files(change.table_metadata, rows, table.io):
            snapshot.append_data_file(file)


def expire(table: Any) -> None:
    """All snapshots but the current one."""
    gone = [one for one in history_of(table.metadata).commits if one != table.metadata.current_snapshot_id]
    table.maintenance.expire_snapshots().by_ids(gone).commit()
