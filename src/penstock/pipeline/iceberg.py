"""Iceberg tables: pyiceberg makes files that Spark wrote part of a table.

A commit carries the number of its query and its micro-batch. If a driver died after the commit and the
micro-batch runs again, the run finds the commit in the table and leaves the table alone. The catalog,
`penstock`, is by default a file beside the table. The options `catalog.NAME` are properties of another one
(for example `catalog.type` is `rest`), and `table` is the table's name in it.
"""

from typing import TYPE_CHECKING, Any

from penstock.pipeline.errors import PipelineError
from penstock.pipeline.tables import ParquetTable, Plans

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUERY = "penstock.query"
BATCH = "penstock.batch"
RETRIES = "commit.retry.num-retries"
COMMITS_MAX = 5
"""Attempts to commit beside other writers of the table."""
_CATALOG = "catalog."


class IcebergTable:
    def __init__(self, path: str, name: str, options: dict[str, str], plans: Plans) -> None:
        try:
            import pyiceberg.catalog  # noqa: F401
        except ImportError:
            raise PipelineError(
                f"The table {name!r} is an Iceberg table: pip install 'penstock[iceberg]'."
            ) from None
        self._path = path
        self._name = options.get("table", f"penstock.{name.replace('.', '_')}")
        self._catalog = {
            key.removeprefix(_CATALOG): value for key, value in options.items() if key.startswith(_CATALOG)
        }
        written = {
            key: value for key, value in options.items() if key != "table" and not key.startswith(_CATALOG)
        }
        self._plans = plans
        self._files = ParquetTable(f"{path}/data", (), written, plans)
        self._table: Any = None
        self._last = -1

    def add(self, frame: "DataFrame", batch: int) -> None:
        """What `foreachBatch` calls."""
        if self._table is None:
            self._table = self._open(frame)
            self._last = self._newest()
        if batch <= self._last:
            return
        files = self._files.write(frame, batch)
        if files:
            self._append([_for_iceberg(file) for file in files], batch)
        self._last = batch

    def close(self) -> None:
        """Let go of the catalog, which may have connections open."""
        if self._table is not None:
            self._table.catalog.close()

    def _append(self, files: list[str], batch: int) -> None:
        from pyiceberg.exceptions import CommitFailedException

        about = {QUERY: self._plans.id(), BATCH: str(batch)}
        for attempt in range(1, COMMITS_MAX + 1):
            # pyiceberg would try again by itself, and add what another driver has added meanwhile.
            self._table.metadata.properties[RETRIES] = "0"
            try:
                self._table.add_files(files, snapshot_properties=about)
                return
            except (CommitFailedException, ValueError):
                # Somebody else has changed the table, perhaps a driver that was taken for dead.
                self._table.refresh()
                if self._newest() >= batch:
                    return
                if attempt == COMMITS_MAX:
                    raise

    def _open(self, frame: "DataFrame") -> Any:
        from pyiceberg.catalog import load_catalog
        from pyspark.sql.pandas.types import to_arrow_schema

        properties = self._catalog
        if not properties:
            local = self._path.removeprefix("file://")
            if "://" in local:
                raise PipelineError(
                    f"The Iceberg table at {self._path} needs a catalog: give options such as catalog.uri."
                )
            from pathlib import Path

            Path(local).mkdir(parents=True, exist_ok=True)
            properties = {
                "type": "sql",
                "uri": f"sqlite:///{local}/catalog.db",
                "warehouse": f"file://{local}",
            }
        catalog = load_catalog("penstock", **properties)
        catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0] or "penstock")
        location = _for_iceberg(self._path) if "://" in self._path else f"file://{self._path}"
        schema = to_arrow_schema(frame.schema, timezone="UTC")
        return catalog.create_table_if_not_exists(self._name, schema=schema, location=location)

    def _newest(self) -> int:
        """The newest micro-batch of this query that the table has."""
        told = [one.summary.additional_properties for one in self._table.metadata.snapshots if one.summary]
        numbers = (int(one[BATCH]) for one in told if one.get(QUERY) == self._plans.id() and BATCH in one)
        return max(numbers, default=-1)


def _for_iceberg(file: str) -> str:
    """A path as pyiceberg takes it: a local one bare, and S3 without Hadoop's name for it."""
    return file.removeprefix("file://").removeprefix("file:").replace("s3a://", "s3://", 1)
