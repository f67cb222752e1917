"""Tables whose micro-batches are run again, by drivers that died, and by drivers that were only paused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest

from penstock.pipeline.errors import PipelineError
from penstock.pipeline.iceberg import IcebergTable
from penstock.pipeline.tables import PLANS_KEPT, STAGING, ParquetTable, Plans
from penstock.storage.stores.blocking import BlockingStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class ReplacedError(Exception):
    pass


def replaced() -> None:
    raise ReplacedError


def in_charge() -> None:
    pass


class World:
    """A table, and runs that write it."""

    def __init__(self, spark: SparkSession, home: Path) -> None:
        self.spark = spark
        self.path = home / "table"
        self.store = BlockingStore(str(home / "store"))
        self._open: list[IcebergTable] = []

    def close(self) -> None:
        for table in self._open:
            table.close()
        self.store.close()

    def plans(self, fence: Callable[[], None], query: str = "query-1") -> Plans:
        made = Plans(self.store, fence)
        made.query.set_result(query)
        return made

    def parquet(self, fence: Callable[[], None] = in_charge, by: tuple[str, ...] = ("odd",)) -> ParquetTable:
        return ParquetTable(str(self.path), by, {}, self.plans(fence))

    def iceberg(self, fence: Callable[[], None] = in_charge, query: str = "query-1") -> IcebergTable:
        self._open.append(IcebergTable(str(self.path), "rows", {}, self.plans(fence, query)))
        return self._open[-1]

    def rows(self, first: int, last: int) -> DataFrame:
        return self.spark.range(first, last, numPartitions=2).selectExpr("id", "id % 2 = 1 as odd")

    def found(self) -> list[int]:
        data = ds.dataset(self.path, partitioning="hive")
        return sorted(data.to_table(columns=["id"]).column("id").to_pylist())

    def staged(self) -> list[str]:
        return [one.name for one in (self.path / STAGING).iterdir()]


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> Iterator[World]:
    with closing(World(spark, tmp_path)) as made:
        yield made


def test_a_batch_is_written_once_by_any_number_of_runs(world: World) -> None:
    world.parquet().add(world.rows(0, 10), 0)
    world.parquet().add(world.rows(0, 10), 0)
    after = world.parquet()
    after.add(world.rows(0, 10), 0)
    after.add(world.rows(10, 20), 1)
    assert world.found() == list(range(20))
    assert world.staged() == []


def test_a_run_that_died_after_its_plan_is_finished_by_the_next(world: World) -> None:
    with pytest.raises(ReplacedError):
        world.parquet(replaced).add(world.rows(0, 10), 0)
    assert not list(world.path.glob("odd=*"))
    # Which rows a micro-batch has was decided by the first, also where a function would make others now.
    world.parquet().add(world.rows(100, 110), 0)
    assert world.found() == list(range(10))
    assert world.staged() == []


def test_a_run_that_is_paused_before_it_moves_files_and_wakes_up_late_adds_nothing(world: World) -> None:
    def pause() -> None:
        """It has looked, and is in charge. Others replace it now, and go far beyond its micro-batch."""
        other = world.parquet()
        for batch in range(PLANS_KEPT + 2):
            other.add(world.rows(batch * 10, batch * 10 + 10), batch)

    world.parquet(pause).add(world.rows(0, 10), 0)
    assert world.found() == list(range((PLANS_KEPT + 2) * 10))
    assert world.staged() == []


def test_a_run_that_wakes_up_after_its_plan_was_forgotten_moves_nothing(world: World) -> None:
    other = world.parquet(by=())
    for batch in range(PLANS_KEPT + 1):
        other.add(world.rows(batch, batch + 1), batch)
    with pytest.raises(ReplacedError):
        world.parquet(replaced, by=()).add(world.rows(0, 1), 0)
    assert world.found() == list(range(PLANS_KEPT + 1))


def test_what_dead_runs_staged_goes_when_it_cannot_matter(world: World) -> None:
    for name in ("0-dead", "1-dead", "7-alive"):
        orphan = world.path / STAGING / name / "part-0.parquet"
        orphan.parent.mkdir(parents=True)
        orphan.write_bytes(b"half a file")
    world.parquet().add(world.rows(0, 10), 1)
    assert world.staged() == ["7-alive"]
    assert world.found() == list(range(10))


def test_an_iceberg_table_has_a_batch_once_whoever_is_paused(world: World) -> None:
    pytest.importorskip("pyiceberg")

    def pause() -> None:
        other = world.iceberg()
        other.add(world.rows(0, 10), 0)
        other.add(world.rows(10, 20), 1)

    world.iceberg(pause).add(world.rows(0, 10), 0)
    again = world.iceberg()
    again.add(world.rows(10, 20), 1)
    again.add(world.rows(20, 30), 2)
    assert iceberg_rows(world.path) == list(range(30))


def test_another_query_adds_to_an_iceberg_table_from_its_own_first_batch(world: World) -> None:
    """As when somebody deleted the checkpoint, or gave the table to another pipeline."""
    pytest.importorskip("pyiceberg")
    world.iceberg().add(world.rows(0, 10), 0)
    world.iceberg(query="query-2").add(world.rows(10, 20), 0)
    assert iceberg_rows(world.path) == list(range(20))


def test_an_iceberg_table_gets_the_columns_that_its_function_makes_now(world: World) -> None:
    """Also if a run died between its plan and its commit, and the next one has the old function again."""
    pytest.importorskip("pyiceberg")
    world.iceberg().add(world.rows(0, 2), 0)
    wider = world.rows(2, 4).selectExpr("id", "odd", "'x' as more")
    with pytest.raises(ReplacedError):
        world.iceberg(replaced).add(wider, 1)
    world.iceberg().add(world.rows(2, 4), 1)
    world.iceberg().add(world.rows(4, 6).drop("odd"), 2)
    assert iceberg_table(world.path, ("id", "odd", "more")) == [
        (0, False, None), (1, True, None), (2, False, "x"), (3, True, "x"), (4, None, None), (5, None, None),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["iceberg", "parquet"])
def test_columns_of_another_type_are_refused_before_anything_is_planned(world: World, kind: str) -> None:
    if kind == "iceberg":
        pytest.importorskip("pyiceberg")
    opened: Callable[[], IcebergTable | ParquetTable] = getattr(world, kind)
    opened().add(world.rows(0, 2), 0)
    why = f"^The table at {world.path} cannot take what its function makes now: .*string"
    with pytest.raises(PipelineError, match=why):
        opened().add(world.rows(2, 4).selectExpr("string(id) as id", "odd"), 1)
    opened().add(world.rows(2, 4), 1)
    found = iceberg_rows(world.path) if kind == "iceberg" else world.found()
    assert found == [0, 1, 2, 3]


def test_a_file_that_is_no_parquet_does_not_stop_a_table(world: World) -> None:
    world.path.mkdir()
    (world.path / "batch-of-somebody.parquet").write_bytes(b"half a file")
    world.parquet(by=()).add(world.rows(0, 2), 0)
    world.parquet(by=()).add(world.rows(2, 4), 1)
    files = [str(file) for file in world.path.glob("batch-0*.parquet")]
    assert sorted(ds.dataset(files).to_table().column("id").to_pylist()) == [0, 1, 2, 3]


def iceberg_rows(path: Path) -> list[int]:
    return [row[0] for row in iceberg_table(path, ("id",))]


def iceberg_table(path: Path, columns: tuple[str, ...]) -> list[tuple[Any, ...]]:
    from pyiceberg.catalog import load_catalog

    place = f"sqlite:///{path}/catalog.db"
    with closing(load_catalog("penstock", type="sql", uri=place, warehouse=f"file://{path}")) as catalog:
        found = catalog.load_table("penstock.rows").scan(selected_fields=columns).to_arrow()
    return sorted(tuple(row[name] for name in columns) for row in found.to_pylist())
