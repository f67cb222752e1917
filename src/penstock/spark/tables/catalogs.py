"""Catalogs of Iceberg tables, by pyiceberg: a file beside the table, unless a user names another one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.spark.errors import TableError
from penstock.spark.tables.position import BATCH, POSITION, QUERY, Commit, History, Position, decode

CATALOG = "penstock"
FILE = "catalog.db"


def require_pyiceberg(table: str) -> None:
    """Raises TableError if it is not installed."""
    try:
        import pyiceberg.catalog  # noqa: F401
    except ImportError:
        raise TableError(
            f"The table {table!r} is an Iceberg table: pip install 'penstock[iceberg]'."
        ) from None


def open_catalog(path: str, properties: Mapping[str, str]) -> Any:
    """The catalog of the table at a path, to be closed."""
    from pyiceberg.catalog import load_catalog

    if properties:
        return load_catalog(CATALOG, **properties)
    local = local_path(path)
    if local is None:
        raise TableError(f"The Iceberg table at {path} needs a catalog: give options such as catalog.uri.")
    uri, warehouse = f"sqlite:///{local}/{FILE}", f"file://{local}"
    return load_catalog(CATALOG, type="sql", uri=uri, warehouse=warehouse)


def local_path(path: str) -> Path | None:
    """None if it is not on this machine."""
    bare = path.removeprefix("file://")
    return None if "://" in bare else Path(bare)


def for_iceberg(file: str) -> str:
    """A path as pyiceberg takes it: a local one bare, and S3 without Hadoop's name for it."""
    return file.removeprefix("file://").removeprefix("file:").replace("s3a://", "s3://", 1)


def for_spark(file: str) -> str:
    """And as Spark takes it."""
    if file.startswith("/"):
        return f"file://{file}"
    return file.replace("s3://", "s3a://", 1)


def history_of(metadata: Any) -> History:
    """The snapshots in the metadata of a table."""
    commits = {one.snapshot_id: _commit(one) for one in metadata.snapshots}
    return History(metadata.current_snapshot_id, commits)


def _commit(snapshot: Any) -> Commit:
    from pyiceberg.table.snapshots import Operation

    summary = snapshot.summary
    adds = summary is not None and summary.operation is Operation.APPEND
    told = summary.additional_properties if summary is not None else {}
    query = told.get(QUERY) if BATCH in told else None
    return Commit(
        snapshot.parent_snapshot_id, snapshot.sequence_number or 0, adds, query, int(told.get(BATCH, -1))
    )


def position_of(metadata: Any) -> Position | None:
    return decode(metadata.properties.get(POSITION))
