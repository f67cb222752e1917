"""What a task leaves in the store until it is committed. No Spark needed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import msgspec
import pyarrow as pa
import pytest

from penstock.spark.write import staging
from penstock.spark.write.sending import WriteError
from penstock.spark.write.sink import stage_rows
from penstock.spark.write.staging import STAGE_PREFIX
from penstock.storage.stores.blocking import BlockingStore
from penstock.testing import Broker
from tests.spark.test_commits import Target, numbers, rows_of, store

__all__ = ["store"]


def test_a_task_with_much_to_write_keeps_a_part_of_it_in_memory(
    broker: Broker, store: BlockingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "OBJECT_BYTES", 200_000)
    target = Target(broker, store, "much", 2)
    rows = [rows_of([str(number).ljust(30_000)]) for number in range(40)]
    runs = stage_rows(iter(rows), target.options, target.query, 0)
    sizes: dict[str, int] = {}
    for run in runs:
        sizes[run.key] = sizes.get(run.key, 0) + run.length
    inline = sizes.pop("", 0)
    assert sorted(sizes) == sorted(target.objects(f"{STAGE_PREFIX}{target.job}/0/"))
    assert len(sizes) >= 5 and inline < 200_000
    assert max(sizes.values()) < 200_000 + 61_000
    assert sum(run.records for run in runs) == 40
    target.committer().commit(0, runs)
    found = [int(value) for value in target.values()]
    assert sorted(found) == list(range(40))
    # In order within each of the two partitions.
    assert sum(after < before for before, after in pairwise(found)) <= 1


def test_a_task_that_fails_leaves_nothing(
    broker: Broker, store: BlockingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "OBJECT_BYTES", 50_000)
    target = Target(broker, store, "fails", 1)
    prefix = f"{STAGE_PREFIX}{target.job}/"

    def rows() -> Iterator[pa.RecordBatch]:
        yield rows_of(["x" * 60_000])
        assert len(target.objects(prefix)) == 1
        raise KeyError("a row of a user's own")

    with pytest.raises(KeyError):
        stage_rows(rows(), target.options, target.query, 0)
    assert target.objects(prefix) == []


@pytest.mark.parametrize("size", [10, 60_000])
def test_rows_that_are_hurt_before_they_are_written(broker: Broker, store: BlockingStore, size: int) -> None:
    """Inside of their message, and in an object: they do not get a new checksum."""
    target = Target(broker, store, f"hurt-{size}", 1)
    (run, *more) = target.stage(numbers(0, 20), size=size)
    if run.key:
        data = bytearray(store.run(store.store.get(run.key)) or b"")
        data[run.position + run.length - 5] ^= 0x10
        store.run(store.store.put(run.key, bytes(data)))
    else:
        data = bytearray(run.inline)
        data[-5] ^= 0x10
        run = msgspec.structs.replace(run, inline=bytes(data))
    with pytest.raises(WriteError, match=f"^Rows for topic 'hurt-{size}' partition 0 are damaged where they"):
        target.committer().commit(0, [run, *more])
    assert target.values() == []
