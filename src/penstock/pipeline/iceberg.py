"""Iceberg tables: pyiceberg makes files that Spark wrote part of a table.

A commit carries the number of its query and its micro-batch. If a driver died after the commit and the
micro-batch runs again, the run finds the commit in the table and leaves the table alone. The same commit says
how far the table has its topics, so that `penstock.spark.table` can add what the log has beyond. And it adds
the columns that the table lacks, as after a change of the function.

The catalog, `penstock`, is by default a file beside the table. The options `catalog.NAME` are properties of
another one (for example `catalog.type` is `rest`), and `table` is the table's name in it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.pipeline.checkpoints import planned_ends
from penstock.pipeline.errors import PipelineError
from penstock.pipeline.tables import Files, ParquetTable, Plans, unfit
from penstock.spark.errors import TableError
from penstock.spark.tables.catalogs import (
    for_iceberg,
    history_of,
    local_path,
    open_catalog,
    position_of,
    require_pyiceberg,
)
from penstock.spark.tables.places import Place
from penstock.spark.tables.position import BATCH, POSITION, QUERY, Position, Stored, after, encode

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

RETRIES = "commit.retry.num-retries"
COMMITS_MAX = 5
"""Attempts to commit beside other writers of the table."""
_CATALOG = "catalog."


class Following(NamedTuple):
    """What a table follows."""

    checkpoint: str
    """Of its query, which knows where a micro-batch ends."""
    changed: str
    """Why its rows are not the records of its topics as they are, or nothing."""
    made: Callable[[Place], None]
    """Called when the table is there, before it has rows."""


class IcebergTable:
    def __init__(
        self,
        path: str,
        name: str,
        options: dict[str, str],
        plans: Plans,
        following: Following | None = None,
    ) -> None:
        try:
            require_pyiceberg(name)
        except TableError as error:
            raise PipelineError(str(error)) from None
        self._path = path
        self._name = options.get("table", f"penstock.{name.replace('.', '_')}")
        self._catalog = {
            key.removeprefix(_CATALOG): value for key, value in options.items() if key.startswith(_CATALOG)
        }
        written = {
            key: value for key, value in options.items() if key != "table" and not key.startswith(_CATALOG)
        }
        self._plans = plans
        self._following = following
        self._files = ParquetTable(f"{path}/data", (), written, plans)
        self._table: Any = None
        self._last = -1

    def add(self, frame: "DataFrame", batch: int) -> None:
        """What `foreachBatch` calls."""
        if self._table is None:
            from pyspark.sql.pandas.types import to_arrow_schema

            schema = to_arrow_schema(frame.schema, timezone="UTC")
            self.open(schema)
            self._require_fitting(schema)
        if batch <= self._last:
            return
        files = self._files.write(frame, batch)
        if files:
            self.commit([for_iceberg(file) for file in files], batch, self._ends(frame, batch))
        self._last = batch

    def _ends(self, frame: "DataFrame", batch: int) -> Stored:
        """Where a micro-batch ends, in each topic."""
        if self._following is None:
            return {}
        checkpoint = Files(frame.sparkSession, self._following.checkpoint)
        return planned_ends(checkpoint.read(f"offsets/{batch}"))

    def close(self) -> None:
        """Let go of the catalog, which may have connections open."""
        if self._table is not None:
            self._table.catalog.close()

    def commit(self, files: list[str], batch: int, ends: Stored) -> None:
        """Make files part of the table, unless they are."""
        from pyiceberg.exceptions import CommitFailedException

        about = {QUERY: self._plans.id(), BATCH: str(batch)}
        schema = self._schema_of(files[0])
        for left in reversed(range(COMMITS_MAX)):
            if self._newest() >= batch:
                return
            # pyiceberg would try again by itself, and add what another driver has added meanwhile.
            self._table.metadata.properties[RETRIES] = "0"
            try:
                with self._table.transaction() as change:
                    change.set_properties(self._told(batch, ends))
                    with change.update_schema() as columns:
                        self._widen(columns, schema)
                    change.add_files(files, snapshot_properties=about)
                return
            except (CommitFailedException, ValueError):
                # Somebody else has changed the table, perhaps a driver that was taken for dead.
                self._table.refresh()
                if not left and self._newest() < batch:
                    raise

    def _schema_of(self, file: str) -> "pa.Schema":
        """The columns of the files of a micro-batch. They may be those of a run with another function, which
        died before it could commit them."""
        from pyarrow.parquet import read_schema

        with self._table.io.new_input(file).open() as opened:
            return read_schema(opened)

    def _widen(self, columns: Any, schema: "pa.Schema") -> None:
        """Give the table the columns that it lacks. They are null in the rows that it has."""
        import pyarrow as pa

        there = {one.name for one in self._table.schema().fields}
        columns.union_by_name(pa.schema([
            one if one.name in there else one.with_nullable(True) for one in schema
        ]))  # fmt: skip

    def _require_fitting(self, schema: "pa.Schema") -> None:
        """Before anything is planned: files that do not fit could never become part of the table, whatever
        the function makes later."""
        from pyiceberg.exceptions import ValidationError

        try:
            self._widen(self._table.update_schema(), schema)
        except (ValidationError, ValueError) as error:
            raise unfit(self._path, str(error)) from None

    def _told(self, batch: int, ends: Stored) -> dict[str, str]:
        """What the table is to say of itself after a commit of this micro-batch."""
        metadata = self._table.metadata
        if self._following is None:
            return {}
        sequence = metadata.last_sequence_number + 1
        made = Position(self._plans.id(), batch, sequence, ends, self._following.changed)
        return {POSITION: encode(after(position_of(metadata), history_of(metadata), made))}

    def open(self, schema: "pa.Schema") -> None:
        """The table, created if there is none."""
        local = local_path(self._path)
        if not self._catalog and local is not None:
            local.mkdir(parents=True, exist_ok=True)
        try:
            catalog = open_catalog(self._path, self._catalog)
        except TableError as error:
            raise PipelineError(str(error)) from None
        catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0] or "penstock")
        location = for_iceberg(self._path) if "://" in self._path else f"file://{self._path}"
        self._table = catalog.create_table_if_not_exists(self._name, schema=schema, location=location)
        if self._following is not None:
            self._following.made(Place(self._path, self._name, bool(self._catalog)))
        self._last = self._newest()

    def _newest(self) -> int:
        """The newest micro-batch of this query that the table has."""
        query, metadata = self._plans.id(), self._table.metadata
        numbers = [one.batch for one in history_of(metadata).commits.values() if one.query == query]
        # Snapshots may be expired, and the position stays. Without it, a micro-batch whose files were
        # compacted would be added again.
        told = position_of(metadata)
        if told is not None and told.query == query:
            numbers.append(told.batch)
        return max(numbers, default=-1)
