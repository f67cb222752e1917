"""One DataFrame over a topic's table and the part of the log that the table does not have yet.

Both are fixed when it is made, so a commit to the table meanwhile neither doubles nor loses a record:

    table   the data files of one snapshot. The metadata that names them also has the position of the table.
    tail    from that position to where the log ends at that moment.

The table is looked at first, and the log after it: so the log is at least as long as the table says. Spark's
own Parquet reader reads the files. There is no Iceberg jar for the versions of Spark that are supported.
"""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.arrow.asked import EARLIEST, LATEST, Bound, Selection
from penstock.arrow.errors import LostRecordsError, OptionError, TopicChangedError
from penstock.arrow.reading import open_blocking
from penstock.arrow.session import ReadSession, reach
from penstock.spark.errors import TableError
from penstock.spark.options import ReadOptions
from penstock.spark.read.admission import TopicPosition, decode_positions
from penstock.spark.read.schema import HEADERS, TYPES, full_schema
from penstock.spark.tables.catalogs import (
    FILE,
    for_spark,
    history_of,
    local_path,
    open_catalog,
    position_of,
    require_pyiceberg,
)
from penstock.spark.tables.places import Place, places_of
from penstock.spark.tables.position import Position, difference
from penstock.wire.uuids import uuid_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.storage.stores.blocking import BlockingStore

LOOKS_MAX = 5
"""At a table that others change just then. Each of them must have done something since the last look."""
ICEBERG_TYPES = {
    "key": "binary", "value": "binary", "topic": "string", "partition": "int", "offset": "long",
    "timestamp": "timestamptz", "timestampType": "int", HEADERS: "list",
}  # fmt: skip


class MissingTableError(TableError):
    """It was there, or somebody says that it is, and it cannot be found."""


class Held(NamedTuple):
    """What a table has, at one of its snapshots."""

    place: str
    metadata: str
    """The file that says it all."""
    files: tuple[str, ...] = ()
    position: Position | None = None
    """None if nothing was ever committed to it."""


class Range(NamedTuple):
    """Of the offsets of a partition: from `low` up to, not including, `high`."""

    low: int
    high: int


class Wanted(NamedTuple):
    """What a user asked for."""

    store: str
    topic: str
    table: str | None = None
    catalog: Mapping[str, str] = {}
    fail_on_data_loss: bool = True


def frame(spark: "SparkSession", wanted: Wanted, columns: Sequence[str] | None) -> "DataFrame":
    names = _checked(columns)
    held, tail = look(wanted)
    parts = []
    if held is not None and held.files:
        parts.append(_of_files(spark, held, wanted.topic).select(*names))
    if not parts or any(one.low < one.high for one in tail.values()):
        parts.append(_of_tail(spark, wanted, tail, names))
    return parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])


def _checked(columns: Sequence[str] | None) -> list[str]:
    if columns is None:
        return list(TYPES)
    for name in columns:
        if name not in TYPES:
            raise OptionError(f"There is no column {name!r}, only {', '.join(TYPES)}.")
    if not columns or len(set(columns)) != len(columns):
        raise OptionError("Name at least one column, and none twice.")
    return list(columns)


def _of_files(spark: "SparkSession", held: Held, topic: str) -> "DataFrame":
    from pyspark.sql import functions as f

    # Users may have told Spark to leave out files that it cannot read. Here each of them has records.
    reader = spark.read.option("ignoreMissingFiles", "false").option("ignoreCorruptFiles", "false")
    rows = reader.schema(full_schema(headers=True)).parquet(*map(for_spark, held.files))
    several = held.position is not None and len(held.position.topics) > 1
    return rows.where(f.col("topic") == topic) if several else rows


def _of_tail(
    spark: "SparkSession", wanted: Wanted, tail: Mapping[int, Range], names: Sequence[str]
) -> "DataFrame":
    from pyspark.sql.types import StructField, StructType

    def text(of: Any) -> str:
        return json.dumps({wanted.topic: of})

    # Partitions are named, so that one that is added meanwhile is not asked for.
    options = {
        "store": wanted.store,
        "assign": text(sorted(tail)),
        "startingOffsets": text({str(number): one.low for number, one in tail.items()}),
        "endingOffsets": text({str(number): one.high for number, one in tail.items()}),
        "failOnDataLoss": str(wanted.fail_on_data_loss).lower(),
    }
    schema = StructType([StructField(name, TYPES[name]) for name in names])
    return spark.read.format("penstock").options(**options).schema(schema).load()


# What is there.


def look(wanted: Wanted) -> tuple[Held | None, dict[int, Range]]:
    """The table, and what the log has beyond it. None if the topic has no table yet."""
    store = open_blocking(wanted.store)
    held = _held(store, wanted)
    for left in reversed(range(LOOKS_MAX)):
        try:
            return held, _tail(store, wanted, held)
        except LostRecordsError:
            # Retention may have deleted records that a pipeline has brought to the table meanwhile.
            again = _held(store, wanted)
            if not left or (again and again.metadata) == (held and held.metadata):
                raise
            held = again
    raise AssertionError("the last look returns or raises")


def _tail(store: "BlockingStore", wanted: Wanted, held: Held | None) -> dict[int, Range]:
    options = ReadOptions(
        selection=Selection(names=(wanted.topic,)), store=wanted.store, bootstrap=None,
        start=Bound(everywhere=EARLIEST), end=Bound(everywhere=LATEST),
        fail_on_data_loss=wanted.fail_on_data_loss,
    )  # fmt: skip
    session = ReadSession(store, options)
    views = session.refresh()
    position = _topic_position(wanted, held)
    found = {}
    for view in views.values():
        if position is None:
            low = view.log_start
        elif position.topic_id != uuid_text(view.topic_id):
            raise TopicChangedError(
                f"The topic {wanted.topic!r} was deleted and created again since {_name(held)} was written."
            )
        else:
            low = session.resume(view, position.offsets.get(view.index, 0))
        found[view.index] = Range(low, max(low, session.end(view)))
    return found


def _topic_position(wanted: Wanted, held: Held | None) -> TopicPosition | None:
    if held is None or held.position is None:
        return None
    found = decode_positions(held.position.topics).get(wanted.topic)
    if found is None:
        raise TableError(f"{_name(held, first=True)} holds no records of topic {wanted.topic!r}.")
    return found


def _name(held: Held | None, *, first: bool = False) -> str:
    assert held is not None
    return f"{'The' if first else 'the'} table {held.place}"


def _held(store: "BlockingStore", wanted: Wanted) -> Held | None:
    """The topic's table. None if it has none yet."""
    if wanted.table is not None:
        return _open(_given(wanted.table, wanted.catalog), wanted)
    places = reach(store.location, lambda: places_of(store, wanted.topic))
    if wanted.catalog and not any(place.catalog_given for place in places):
        raise OptionError(f"Say with table= which table of the catalog holds topic {wanted.topic!r}.")
    if not places:
        return None
    found: list[Held] = []
    missing: list[TableError] = []
    refused: list[TableError] = []
    for place in places:
        try:
            found.append(_open(place, wanted))
        except MissingTableError as error:
            missing.append(error)
        except TableError as error:
            refused.append(error)
    if len(found) > 1:
        raise TableError(
            f"The topic {wanted.topic!r} has {len(found)} tables: say with table= which one,"
            f" {' or '.join(one.place for one in found)}."
        )
    if not found:
        raise (refused + missing)[0]
    return found[0]


def _given(table: str, catalog: Mapping[str, str]) -> Place:
    if catalog:
        return Place("", table, True)
    return Place(table if "://" in table else os.path.abspath(table), "")


def _open(place: Place, wanted: Wanted) -> Held:
    """What a table has now. Raises TableError."""
    where = place.name if place.catalog_given else place.path
    require_pyiceberg(where)
    if place.catalog_given and not wanted.catalog:
        raise TableError(f"The table {where} is in a catalog of its own: give catalog=, as to the pipeline.")
    properties = wanted.catalog if place.catalog_given else {}
    if not properties and (local := local_path(place.path)) is not None and not (local / FILE).exists():
        raise MissingTableError(f"There is no Iceberg table at {place.path}.")
    with closing(open_catalog(place.path, properties)) as catalog:
        for _ in range(LOOKS_MAX):
            # Somebody may expire the snapshot between two reads; then there is another one.
            with suppress(FileNotFoundError):
                return _held_by(_load(catalog, place.name, where), where)
    raise TableError(f"Files that say what is in the table {where} are gone.")


def _load(catalog: Any, name: str, where: str) -> Any:
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    try:
        if name:
            return catalog.load_table(name)
        names = [one for space in catalog.list_namespaces() for one in catalog.list_tables(space)]
        if len(names) == 1:
            return catalog.load_table(names[0])
    except (NoSuchTableError, NoSuchNamespaceError):
        names = []
    if names:
        raise TableError(f"The catalog at {where} has {len(names)} tables: name one by table= and catalog=.")
    raise MissingTableError(f"There is no Iceberg table {where}.")


def _held_by(table: Any, where: str) -> Held:
    metadata = table.metadata
    try:
        position = position_of(metadata)
    except msgspec.DecodeError:
        raise TableError(f"The table {where} says how far it is in words that are not known here.") from None
    history = history_of(metadata)
    if position is None:
        if history.current is not None:
            raise TableError(f"The table {where} does not say how far it holds a topic's records.")
        return Held(where, table.metadata_location)
    if why := position.changed or difference(position, history):
        raise TableError(f"The table {where} does not hold its topic's records as they are: {why}.")
    kinds = {one.name: str(one.field_type).partition("<")[0] for one in table.schema().fields}
    for name, kind in ICEBERG_TYPES.items():
        if kinds.get(name) != kind:
            raise TableError(
                f"The table {where} does not hold its topic's records as they are: the column {name!r} is"
                f" {kinds.get(name, 'missing')}, not {kind}."
            )
    return Held(where, table.metadata_location, tuple(_files(table, where)), position)


def _files(table: Any, where: str) -> list[str]:
    """The data files of the current snapshot."""
    found = []
    for task in table.scan().plan_files():
        if task.delete_files:
            raise TableError(
                f"Rows of the table {where} were deleted by files beside its data: compact it first,"
                " because Spark's Parquet reader does not know them."
            )
        if task.file.file_format.value.lower() != "parquet":
            raise TableError(f"The table {where} has files that are not Parquet.")
        found.append(task.file.file_path)
    return found
