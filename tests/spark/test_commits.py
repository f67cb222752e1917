"""A micro-batch is written once, whatever fails and however often it is committed. No Spark needed."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import msgspec
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from penstock.client import ClientError
from penstock.spark.options import WriteOptions
from penstock.spark.write import commits, sending
from penstock.spark.write.commits import Committer, plan_key
from penstock.spark.write.sending import Sender, WriteError
from penstock.spark.write.sink import stage_rows
from penstock.spark.write.staging import STAGE_PREFIX, StagedRun, job_of
from penstock.storage.stores.blocking import BlockingStore
from penstock.testing import Broker
from tests.spark.test_batch import create


@pytest.fixture(scope="module")
def store(broker: Broker) -> Iterator[BlockingStore]:
    opened = BlockingStore(broker.store)
    yield opened
    opened.close()


class Target:
    """A topic to write to, and what it holds."""

    def __init__(
        self,
        broker: Broker,
        store: BlockingStore,
        topic: str,
        partitions: int = 3,
        config: dict[str, str] | None = None,
    ) -> None:
        create(broker, topic, partitions, config)
        self.broker = broker
        self.store = store
        self.topic = topic
        self.options = WriteOptions(topic=topic, store=broker.store, bootstrap=broker.bootstrap_servers)
        self.query = f"query-{topic}"

    @property
    def job(self) -> str:
        return job_of(self.query, self.topic)

    def committer(self, query: str = "") -> Committer:
        return Committer(self.store, self.options, query or self.query)

    def stage(self, values: Sequence[str], batch: int = 0, size: int = 0) -> list[StagedRun]:
        """As two tasks would: half of the rows each. Each value is a record; `size` makes them larger."""
        runs: list[StagedRun] = []
        for part in (values[::2], values[1::2]):
            keys = pa.array([value.encode() for value in part], pa.binary())
            rows = pa.record_batch({"key": keys, "value": pa.array([v.ljust(size) for v in part])})
            runs += stage_rows(iter([rows]), self.options, self.query, batch)
        return runs

    def values(self) -> list[str]:
        """Everything in the topic, by key order of partitions."""
        from penstock.arrow.planning import OffsetRange
        from penstock.arrow.reading import ReadSettings, read_stretches
        from penstock.arrow.session import ReadSession
        from penstock.log.isolation import Isolation
        from penstock.spark.options import read_options
        from penstock.storage.reader.stretches import stretch_of

        options = read_options({"store": self.broker.store, "subscribe": self.topic}, streaming=False)
        views = ReadSession(self.store, options).refresh().values()
        ranges = [OffsetRange(view, view.log_start, view.end) for view in views]
        settings = ReadSettings(self.broker.store, ("value",), Isolation.READ_COMMITTED, True, True)
        found = read_stretches([stretch_of(*one, Isolation.READ_COMMITTED) for one in ranges], settings)
        return [value.decode().rstrip() for batch in found for value in batch.column(0).to_pylist()]

    def objects(self, prefix: str) -> list[str]:
        async def collect() -> list[str]:
            return [info.key async for info in self.store.store.list(prefix)]

        return self.store.run(collect())


def alter(broker: Broker, topic: str, config: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    changes = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in config.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(30)


def numbers(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last)]


def test_commits_in_order(broker: Broker, store: BlockingStore) -> None:
    target = Target(broker, store, "in-order")
    for batch in range(5):
        target.committer().commit(batch, target.stage(numbers(batch * 100, batch * 100 + 100), batch))
    assert sorted(target.values(), key=int) == numbers(0, 500)


def test_a_commit_that_is_asked_for_again_writes_nothing(broker: Broker, store: BlockingStore) -> None:
    """Killed between the commit and the checkpoint: the same batch comes again, staged anew."""
    target = Target(broker, store, "again")
    target.committer().commit(0, target.stage(numbers(0, 50)))
    for _ in range(2):
        target.committer().abort(0, [])
        target.committer().commit(0, target.stage(["other", "contents"]))
    target.committer().commit(1, target.stage(numbers(50, 60), 1))
    target.committer().commit(1, target.stage(numbers(50, 60), 1))
    assert sorted(target.values(), key=int) == numbers(0, 60)


@pytest.mark.parametrize("remembered", [True, False])
@pytest.mark.parametrize("fails_after", [0, 1, 2, 3, 5])
def test_a_driver_that_dies_while_it_writes(
    broker: Broker, store: BlockingStore, fails_after: int, remembered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some batches are in the log; the next driver finds the plan and writes the rest, and only that, also
    if partitions have forgotten the producer meanwhile."""
    target = Target(broker, store, f"dies-{fails_after}-{remembered}")
    target.committer().commit(0, target.stage(numbers(0, 10)))
    values = numbers(10, 50)
    whole_request = Sender._request
    requests = 0

    def mortal(self: Sender, leader: int, places: Sequence[tuple[str, int]]) -> bool:
        nonlocal requests
        requests += 1
        if requests > fails_after:
            raise KeyboardInterrupt
        # One partition at a time, so that the plan is carried out in part.
        return whole_request(self, leader, places[:1])

    with monkeypatch.context() as patched:
        patched.setattr(Sender, "_request", mortal)
        with pytest.raises(KeyboardInterrupt):
            target.committer().commit(1, target.stage(values, 1, size=60_000))
    if not remembered:
        monkeypatch.setattr(commits, "last_sequences", lambda *_: {})
    again = target.stage(["never", "written"], 1)
    target.committer().commit(1, again)
    target.committer().commit(2, target.stage(numbers(50, 60), 2))
    found = target.values()
    assert sorted(found, key=int) == numbers(0, 60)
    assert target.objects(f"{STAGE_PREFIX}{target.job}/") == []


def test_answers_that_are_lost(broker: Broker, store: BlockingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker wrote, and the answer did not arrive: sent again, refused as a duplicate."""
    target = Target(broker, store, "lost-answers")
    whole_request = Sender._request
    dice = random.Random(5)

    def flaky(self: Sender, leader: int, places: Sequence[tuple[str, int]]) -> bool:
        queues = {place: list(queue) for place, queue in self._queues.items()}
        written = whole_request(self, leader, places)
        if dice.random() < 0.5:
            for place, queue in queues.items():
                self._queues[place].clear()
                self._queues[place].extend(queue)
            raise ClientError("the answer was lost")
        return written

    monkeypatch.setattr(sending, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(Sender, "_request", flaky)
    for batch in range(3):
        values = numbers(batch * 40, batch * 40 + 40)
        target.committer().commit(batch, target.stage(values, batch, size=50_000))
    assert sorted(target.values(), key=int) == numbers(0, 120)


def test_two_drivers_at_once(broker: Broker, store: BlockingStore) -> None:
    """Only one plan can be made; both carry it out, and the partitions take each batch once."""
    target = Target(broker, store, "two-drivers")
    first, second = target.committer(), target.committer()
    one, two = target.stage(numbers(0, 20)), target.stage(numbers(100, 120))
    first.commit(0, one)
    second.commit(0, two)
    assert sorted(target.values(), key=int) == numbers(0, 20)
    late = target.stage(numbers(20, 30), 1)
    first.commit(1, late)
    # A driver that slept through it all.
    target.committer().commit(0, target.stage(["zombie", "rows"]))
    assert sorted(target.values(), key=int) == numbers(0, 30)


def test_a_copy_of_a_checkpoint_that_writes_to_another_topic(broker: Broker, store: BlockingStore) -> None:
    """To Spark it is the same query, with the same numbers of micro-batches."""
    first, copy = Target(broker, store, "copied-from"), Target(broker, store, "copied-to")
    copy.query = first.query
    first.committer().commit(0, first.stage(numbers(0, 10)))
    for batch in (1, 2):
        first.committer().commit(batch, first.stage(numbers(batch * 10, batch * 10 + 10), batch))
        copy.committer().commit(batch, copy.stage(numbers(batch * 10, batch * 10 + 10), batch))
        copy.committer().commit(batch, copy.stage(["other", "contents"], batch))
    assert sorted(first.values(), key=int) == numbers(0, 30)
    assert sorted(copy.values(), key=int) == numbers(10, 30)


def test_a_plan_that_has_the_name_of_its_query_alone(
    broker: Broker, store: BlockingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As older versions named them. One for another topic is not this job's."""
    target, other = Target(broker, store, "older"), Target(broker, store, "older-other")
    other.query = target.query
    with monkeypatch.context() as patched:
        patched.setattr(commits, "job_of", lambda query, _topic: query)
        target.committer().commit(3, target.stage(numbers(0, 10), 3))
    target.committer().commit(3, target.stage(["never", "written"], 3))
    target.committer().commit(4, target.stage(numbers(10, 20), 4))
    other.committer().commit(3, other.stage(numbers(0, 10), 3))
    assert sorted(target.values(), key=int) == numbers(0, 20)
    assert sorted(other.values(), key=int) == numbers(0, 10)


def test_batches_without_rows_and_numbers_that_are_left_out(broker: Broker, store: BlockingStore) -> None:
    target = Target(broker, store, "gaps", 1)
    target.committer().commit(0, [])
    target.committer().commit(1, target.stage(numbers(0, 5), 1))
    target.committer().commit(2, [])
    target.committer().commit(7, target.stage(numbers(5, 9), 7))
    target.committer().commit(8, target.stage(numbers(9, 12), 8))
    assert sorted(target.values(), key=int) == numbers(0, 12)


def test_an_aborted_batch_leaves_nothing(broker: Broker, store: BlockingStore) -> None:
    target = Target(broker, store, "aborted")
    runs = target.stage(numbers(0, 20), size=60_000)
    assert target.objects(f"{STAGE_PREFIX}{target.job}/")
    target.committer().abort(0, runs)
    assert target.objects(f"{STAGE_PREFIX}{target.job}/") == []
    assert target.values() == []


def test_an_abort_after_a_commit_undoes_nothing(
    broker: Broker, store: BlockingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit failed after its plan was made; Spark aborts; the next driver needs what was staged."""
    target = Target(broker, store, "abort-late")
    runs = target.stage(numbers(0, 20), size=60_000)
    with monkeypatch.context() as patched:
        patched.setattr(sending, "DELIVERY_SECONDS", 0.0)
        patched.setattr(Sender, "_request", lambda *_: False)
        with pytest.raises(WriteError, match="could not be written"):
            target.committer().commit(0, runs)
    target.committer().abort(0, runs)
    target.committer().commit(0, target.stage(["other"]))
    assert sorted(target.values(), key=int) == numbers(0, 20)


def test_little_is_kept(broker: Broker, store: BlockingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "PLANS_KEPT", 3)
    target = Target(broker, store, "kept", 1)
    for batch in range(8):
        target.committer().commit(batch, target.stage([str(batch)], batch))
    kept = target.objects(f"spark/plan/{target.job}/")
    assert kept == [plan_key(target.job, batch) for batch in (5, 6, 7)]
    assert all(len(store.run(store.store.get(key)) or b"") < 400 for key in kept)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_topic_that_takes_small_batches(broker: Broker, store: BlockingStore, codec: str) -> None:
    """Rows that fit are written, in batches that fit, also if the topic came to take less since they were
    staged."""
    target = Target(broker, store, f"small-{codec}", 1, {"max.message.bytes": "20000"})
    target.options = msgspec.structs.replace(target.options, codec=codec)
    runs = target.stage(numbers(0, 500), size=700)
    alter(broker, target.topic, {"max.message.bytes": "3000"})
    target.committer().commit(0, runs)
    target.committer().commit(1, target.stage(numbers(500, 600), 1, size=700))
    found = target.values()
    assert found[0:250] + found[500:550] == numbers(0, 600)[::2]
    assert found[250:500] + found[550:] == numbers(0, 600)[1::2]


@pytest.mark.parametrize("fails_after", range(1, 12, 2))
def test_a_driver_that_dies_while_batches_are_parted(
    broker: Broker, store: BlockingStore, fails_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one goes on in the middle of a batch as it was staged."""
    target = Target(broker, store, f"parted-{fails_after}", 1)
    runs = target.stage(numbers(0, 40), size=500)
    alter(broker, target.topic, {"max.message.bytes": "3000"})
    whole_request = Sender._request
    requests = 0

    def mortal(self: Sender, leader: int, places: Sequence[tuple[str, int]]) -> bool:
        nonlocal requests
        requests += 1
        if requests > fails_after:
            raise KeyboardInterrupt
        return whole_request(self, leader, places)

    with monkeypatch.context() as patched:
        patched.setattr(Sender, "_request", mortal)
        with pytest.raises(KeyboardInterrupt):
            target.committer().commit(0, runs)
    target.committer().commit(0, target.stage(["other"]))
    target.committer().commit(1, target.stage(numbers(40, 44), 1))
    assert target.values() == [*numbers(0, 40)[::2], *numbers(0, 40)[1::2], "40", "42", "41", "43"]


def rows_of(values: Sequence[str], **columns: pa.Array) -> pa.RecordBatch:
    keys = pa.array([value.encode() for value in values], pa.binary())
    return pa.record_batch({"key": keys, "value": pa.array(values), **columns})


@pytest.mark.parametrize(
    ("name", "config", "bad", "sentence"),
    [
        ("large", {}, rows_of(["1", "x" * 2_000_000]), "max.message.bytes is 1048588."),
        ("keyless", {"cleanup.policy": "compact"}, rows_of(["1"]).drop_columns(["key"]), "it has no key"),
        (
            "old",
            {"message.timestamp.before.max.ms": "3600000"},
            rows_of(["1"], timestamp=pa.array([datetime(2020, 1, 1, tzinfo=UTC)])),
            "is older than message.timestamp.before.max.ms allows.",
        ),
        (
            "late",
            {"message.timestamp.after.max.ms": "1000"},
            rows_of(["1"], timestamp=pa.array([datetime(2120, 1, 1, tzinfo=UTC)])),
            "is later than message.timestamp.after.max.ms allows.",
        ),
    ],
)
def test_a_row_that_the_topic_would_refuse(
    broker: Broker,
    store: BlockingStore,
    name: str,
    config: dict[str, str],
    bad: pa.RecordBatch,
    sentence: str,
) -> None:
    """Nothing of the micro-batch is written, and a job that leaves the row out goes on with this batch."""
    target = Target(broker, store, f"minded-{name}", 1, config)
    with pytest.raises(WriteError, match=re.escape(sentence)):
        target.committer().commit(0, list(stage_rows(iter([bad]), target.options, target.query, 0)))
    assert target.values() == []
    target.committer().commit(0, target.stage(["2"]))
    assert target.values() == ["2"]


def test_brokers_of_another_cluster_than_the_store_s(broker: Broker, store: BlockingStore) -> None:
    target = Target(broker, store, "elsewhere", 1)
    with Broker() as other:
        there = Target(other, store, "elsewhere", 1)
        options = WriteOptions(topic="elsewhere", store=broker.store, bootstrap=other.bootstrap_servers)
        runs = target.stage(["1"])
        with pytest.raises(
            WriteError, match=r"^The brokers at 127\.0\.0\.1:\d+ are not those of the cluster in "
        ):
            Committer(store, options, "q").commit(0, runs)
        there.store = BlockingStore(other.store)
        assert there.values() == [] and target.values() == []
        there.store.close()
    target.committer("q").commit(0, runs)
    assert target.values() == ["1"]


def test_no_broker_to_write_to(broker: Broker, store: BlockingStore) -> None:
    target = Target(broker, store, "no-broker", 1)
    options = WriteOptions(topic="no-broker", store=broker.store, bootstrap="127.0.0.1:1")
    runs = target.stage(["1"])
    with pytest.raises(WriteError, match=r"No broker answers at 127\.0\.0\.1:1"):
        Committer(store, options, "q").commit(0, runs)
