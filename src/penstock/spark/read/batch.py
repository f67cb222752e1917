"""`spark.read.format("penstock")`: planned once, on the driver; read by tasks, from the store."""

import gc
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.arrow.asked import LATEST
from penstock.arrow.errors import OptionError
from penstock.spark.options import ReadOptions
from penstock.spark.plain import all_plainly, plainly
from penstock.spark.read.schema import columns_of

if TYPE_CHECKING:
    from penstock.arrow.reading import ReadSettings
    from penstock.metadata.image import PartitionKey
    from penstock.storage.reader.stretches import Stretch
    from penstock.storage.reader.view import PartitionView


class Split(InputPartition):
    """The work of one task."""

    def __init__(self, stretches: "Sequence[Stretch]", settings: "ReadSettings") -> None:
        self.stretches = stretches
        self.settings = settings


def read_split(partition: InputPartition) -> Iterator[Any]:
    """The records of a split, as Arrow record batches. Runs on executors."""
    if not isinstance(partition, Split):
        return iter(())  # Spark's stand-in for a plan without partitions.
    from penstock.arrow import decode  # noqa: F401 - with all that it imports, before what follows
    from penstock.arrow.reading import read_stretches

    # Spark's workers collect garbage after each task. To look at every object of the modules that are loaded
    # takes longer than a small task; they stay until the process ends, so let the collector leave them out.
    if not gc.get_freeze_count():
        gc.freeze()
    return all_plainly(read_stretches(partition.stretches, partition.settings))


def locate(options: ReadOptions) -> str:
    """Where the store is: as given, or as a broker says."""
    if options.store:
        return options.store
    from penstock.spark.brokers import find_store

    assert options.bootstrap is not None
    return find_store(options.bootstrap, options.security)


def settings_of(options: ReadOptions, store: str, schema: StructType) -> "ReadSettings":
    from penstock.arrow.reading import ReadSettings

    return ReadSettings(
        store,
        columns_of(schema),
        options.isolation,
        options.check_crc,
        options.fail_on_data_loss,
        options.words.lost,
    )


class BatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType, parallelism: int) -> None:
        self._options = options
        self._schema = schema
        self._parallelism = parallelism
        columns_of(schema)

    @plainly
    def partitions(self) -> Sequence[InputPartition]:
        from penstock.arrow.planning import Deal, OffsetRange, splits
        from penstock.arrow.reading import open_blocking
        from penstock.arrow.session import ReadSession

        options = self._options
        store = locate(options)
        session = ReadSession(open_blocking(store), options)
        views = session.refresh()
        starts, ends = session.starts(views), session.ends(views)
        self._require_order(views, starts, ends)
        ranges = [OffsetRange(view, starts[key], ends[key]) for key, view in views.items()]
        deal = Deal(
            options.split_bytes, self._parallelism, options.min_partitions, options.max_records_per_partition
        )
        settings = settings_of(options, store, self._schema)
        return [Split(stretches, settings) for stretches in splits(ranges, deal, options.isolation)]

    def _require_order(
        self,
        views: "Mapping[PartitionKey, PartitionView]",
        starts: "Mapping[PartitionKey, int]",
        ends: "Mapping[PartitionKey, int]",
    ) -> None:
        """As Spark's connector: where both bounds were asked for, a start beyond its end is a mistake."""
        if self._options.end.everywhere == LATEST and not self._options.end.by_timestamp:
            return
        for key, view in views.items():
            if starts[key] > ends[key]:
                raise OptionError(
                    f"Reading of topic {view.topic!r} partition {view.index} is asked to start at offset"
                    f" {starts[key]}, which is beyond its end at offset {ends[key]}."
                )

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_split(partition)
