"""Writes a micro-batch once, however often Spark asks for it.

Spark may run a micro-batch again after its records were written: the driver died before it noted so in the
checkpoint. The second run stages new objects, perhaps with other contents. These objects decide once:

    spark/producer/<job>         the producer id of the job, created once
    spark/plan/<job>/<batch>     what the micro-batch writes, created once: staged batches, their order,
                                 and the sequence number of the first record for each partition

The first commit creates the plan; a later commit finds it and carries that one out. Sequence numbers run on
from plan to plan, so partitions refuse a batch that they have. A commit that finds a plan learns from the
partitions how far it was carried out: from their memory of the producer or, if they forgot it, from the log
itself, from its end at the time of the plan.

A job is a query that writes to a topic, or to those that rows name (`job_of`).

A plan that was carried out is kept for a while without its data: a driver that was paused and wakes up late
still finds it, and writes nothing.
"""

import logging
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from penstock.arrow.asked import Selection
from penstock.arrow.planning import choose
from penstock.arrow.session import reach
from penstock.client import Client, ClientError
from penstock.cluster.reading import ImageReader, view_of
from penstock.log.isolation import Isolation
from penstock.metadata.image import ClusterImage, PartitionKey
from penstock.spark.brokers import CONNECT_SECONDS, addresses
from penstock.spark.options import WriteOptions
from penstock.spark.write.demands import require_acceptable
from penstock.spark.write.sending import SEQUENCES, Place, Sender, WriteError, last_sequences, new_producer_id
from penstock.spark.write.staging import STAGE_PREFIX, StagedRun, job_of, keys_of, read_runs
from penstock.storage.reader.stretches import stretch_of, windows
from penstock.storage.reader.view import Chosen, PartitionView
from penstock.storage.stores.blocking import BlockingStore
from penstock.wire.batch import iter_batches

T = TypeVar("T")

logger = logging.getLogger(__name__)

PLANS_KEPT = 100
SWEEP_EVERY = 100
"""Batches between searches for staged objects that nobody will commit."""


class PlannedRun(msgspec.Struct, frozen=True, array_like=True):
    run: StagedRun
    base_sequence: int


class PlannedPartition(msgspec.Struct, frozen=True, array_like=True):
    topic_id: bytes
    end_offset: int
    """Where the partition ended when the plan was made: nothing of the plan lies before."""
    base_sequence: int
    records: int


class Plan(msgspec.Struct, frozen=True, array_like=True):
    job: str
    """Older plans have the query alone here, and in their names."""
    batch: int
    producer_id: int
    producer_epoch: int
    runs: tuple[PlannedRun, ...]
    partitions: dict[str, PlannedPartition]
    """By `_name`."""
    next_sequences: dict[str, int]
    """By topic id and partition, of everything that this job ever wrote to."""


class Producer(msgspec.Struct, frozen=True):
    producer_id: int
    producer_epoch: int


def plan_key(job: str, batch: int) -> str:
    return f"spark/plan/{job}/{batch:012d}"


def producer_key(job: str) -> str:
    return f"spark/producer/{job}"


class Committer:
    """Commits the micro-batches of one query."""

    def __init__(self, store: BlockingStore, options: WriteOptions, query: str) -> None:
        self._store = store
        self._options = options
        self._query = query
        self._job = job_of(query, options.topic)
        self._cluster_id = ""

    def commit(self, batch: int, staged: Sequence[StagedRun]) -> None:
        """Write what this micro-batch's plan says; `staged` becomes the plan if there is none."""
        plan = self._find(batch)
        if plan is None and not staged:
            return
        try:
            with self._client() as client:
                fresh = False
                if plan is None:
                    plan, fresh = self._make(client, batch, staged)
                self._carry_out(client, plan, fresh=fresh)
        except ClientError as error:
            raise WriteError(f"Records could not be written: {error}") from None
        self._tidy(plan, staged)

    def abort(self, batch: int, staged: Sequence[StagedRun]) -> None:
        """Forget what was staged, unless a plan counts on it: a commit that took effect is not undone."""
        plan = self._find(batch)
        planned = keys_of(one.run for one in plan.runs) if plan is not None else set()
        for key in keys_of(staged) - planned:
            self._run_delete(key)

    def forget(self) -> None:
        """The query will never write again: for a write that is not a stream."""
        for key in (plan_key(self._job, 0), producer_key(self._job)):
            self._run_delete(key)

    # Plans.

    def _find(self, batch: int) -> Plan | None:
        return self._read(plan_key(self._job, batch))

    def _read(self, key: str) -> Plan | None:
        stored = self._get(key)
        return None if stored is None else msgspec.msgpack.decode(stored, type=Plan)

    def _find_older(self, batch: int) -> Plan | None:
        """The plan of a micro-batch under the name of the query alone, if it is one of this job."""
        plan = self._read(plan_key(self._query, batch))
        if plan is None or any(_place(name)[0] != self._options.topic for name in plan.partitions):
            return None
        return plan

    def _previous(self, batch: int) -> Plan | None:
        if batch == 0:
            return None
        plan = self._find(batch - 1)
        if plan is not None:
            return plan
        prefix = f"spark/plan/{self._job}/"
        numbers = [int(key[len(prefix) :]) for key in self._list(prefix)]
        earlier = [number for number in numbers if number < batch]
        return self._find(max(earlier)) if earlier else None

    def _make(self, client: Client, batch: int, staged: Sequence[StagedRun]) -> tuple[Plan, bool]:
        """The plan, and whether it is the one made here."""
        views = self._views({run.topic for run in staged})
        self._require_same_cluster(client)
        require_acceptable(client, staged)
        previous = self._previous(batch)
        if previous is None and (older := self._find_older(batch)) is not None:
            return older, False
        producer = self._producer(client)
        sequences = dict(previous.next_sequences) if previous is not None else {}
        runs: list[PlannedRun] = []
        partitions: dict[str, PlannedPartition] = {}
        for run in sorted(staged, key=lambda one: (one.topic, one.partition)):
            view = views.get((run.topic, run.partition))
            if view is None:
                raise WriteError(f"The topic {run.topic!r} has no partition {run.partition} any more.")
            key = f"{view.topic_id.hex()}/{run.partition}"
            sequence = sequences.get(key, 0)
            runs.append(PlannedRun(run, sequence))
            sequences[key] = (sequence + run.records) % SEQUENCES
            name = _name(run.topic, run.partition)
            known = partitions.get(name)
            if known is None:
                known = PlannedPartition(view.topic_id, view.end, sequence, 0)
            partitions[name] = msgspec.structs.replace(known, records=known.records + run.records)
        plan = Plan(
            self._job, batch, producer.producer_id, producer.producer_epoch,
            tuple(runs), partitions, sequences,
        )  # fmt: skip
        if self._create(plan_key(self._job, batch), msgspec.msgpack.encode(plan)):
            return plan, True
        found = self._find(batch)
        assert found is not None, "a plan that exists was read"
        return found, False

    def _producer(self, client: Client) -> Producer:
        key = producer_key(self._job)
        stored = self._get(key)
        if stored is None:
            self._create(key, msgspec.json.encode(Producer(*new_producer_id(client))))
            stored = self._get(key)
        assert stored is not None, "it was created, by us or by somebody else"
        return msgspec.json.decode(stored, type=Producer)

    # Carrying out.

    def _carry_out(self, client: Client, plan: Plan, *, fresh: bool) -> None:
        done: dict[Place, int] = {} if fresh else self._done(client, plan)
        sender = Sender(client, plan.producer_id, plan.producer_epoch)
        left = []
        for one in plan.runs:
            place = (one.run.topic, one.run.partition)
            skip = min(done.get(place, 0), one.run.records)
            done[place] = done.get(place, 0) - skip
            if skip < one.run.records:
                left.append((one, skip))
        for (one, skip), (run, data) in zip(
            left, read_runs(self._store, [one.run for one, _skip in left]), strict=True
        ):
            sender.add(run.topic, run.partition, data, one.base_sequence, skip)
            sender.send_beyond()
        sender.send()

    def _done(self, client: Client, plan: Plan) -> dict[Place, int]:
        """How many records of the plan each partition has."""
        places = {_place(name): planned for name, planned in plan.partitions.items()}
        views = self._views({topic for topic, _partition in places})
        for (topic, partition), planned in places.items():
            view = views.get((topic, partition))
            if view is None or view.topic_id != planned.topic_id:
                raise WriteError(
                    f"The topic {topic!r} was deleted while a micro-batch was being written to it."
                )
        remembered = last_sequences(client, plan.producer_id, list(places))
        done: dict[Place, int] = {}
        for place, planned in places.items():
            last = remembered.get(place)
            if last is None:
                last = self._last_in_log(plan, views[place], planned)
            if last is not None:
                done[place] = _count_done(planned, last)
        return done

    def _last_in_log(self, plan: Plan, view: PartitionView, planned: PlannedPartition) -> int | None:
        """The last sequence number of the producer in the log, from where the plan found its end."""
        if view.log_start > planned.end_offset:
            raise WriteError(
                f"Whether topic {view.topic!r} partition {view.index} has the records of a micro-batch is not"
                f" known: those from offset {planned.end_offset} on are gone, and so is what the partition"
                " knew of the query."
            )
        stretch = stretch_of(view, planned.end_offset, view.end, Isolation.READ_UNCOMMITTED)
        last: int | None = None
        for wanted, data in self._store.read(windows(self._store, stretch, planned.end_offset)):
            for start, length in wanted.about.pieces:
                for _at, header in iter_batches(memoryview(data)[start : start + length]):
                    if header.producer_id == plan.producer_id:
                        last = header.last_sequence
        return last

    # Afterwards.

    def _tidy(self, plan: Plan, staged: Sequence[StagedRun]) -> None:
        """Nothing of this matters to anybody's records."""
        try:
            bare = tuple(
                msgspec.structs.replace(one, run=msgspec.structs.replace(one.run, inline=b""))
                for one in plan.runs
            )
            stub = msgspec.structs.replace(plan, runs=bare)
            self._store.run(
                self._store.store.put(plan_key(plan.job, plan.batch), msgspec.msgpack.encode(stub))
            )
            for key in keys_of(one.run for one in plan.runs) | keys_of(staged):
                self._run_delete(key)
            if plan.batch >= PLANS_KEPT:
                self._run_delete(plan_key(plan.job, plan.batch - PLANS_KEPT))
            if plan.batch % SWEEP_EVERY == 0:
                self._sweep(plan.batch)
        except Exception as error:
            logger.warning("could not tidy up after batch %d of job %s: %s", plan.batch, plan.job, error)

    def _sweep(self, batch: int) -> None:
        """Delete what was staged for earlier micro-batches and never committed."""
        prefix = f"{STAGE_PREFIX}{self._job}/"
        for key in self._list(prefix):
            number = key[len(prefix) :].partition("/")[0]
            if number.isdigit() and int(number) < batch:
                self._run_delete(key)

    # The store and the brokers.

    def _client(self) -> Client:
        bootstrap = self._options.bootstrap
        if not bootstrap:
            image = self._reach(ImageReader(self._store.store).refresh())
            bootstrap = addresses(image)
            if not bootstrap:
                raise WriteError(f"No broker of the cluster in {self._store.location} is alive to write to.")
        return Client(bootstrap, CONNECT_SECONDS, self._options.security)

    def _require_same_cluster(self, client: Client) -> None:
        """Whoever names store and brokers may name those of different clusters. What is known of partitions
        would then be of others than those that are written to."""
        if not self._options.bootstrap:
            return
        if client.retry(lambda: client.metadata([]).cluster_id) != self._cluster_id:
            raise WriteError(
                f"The brokers at {self._options.bootstrap} are not those of the cluster in"
                f" {self._store.location}."
            )

    def _views(self, topics: Iterable[str]) -> Mapping[Place, PartitionView]:
        selection = Selection(names=tuple(topics))

        def chosen(image: ClusterImage) -> dict[PartitionKey, Chosen]:
            return choose(selection, image, missing_ok=True)

        look = view_of(self._store.store, chosen)
        views = self._reach(look.refresh())
        self._cluster_id = look.image.cluster_id
        return {(view.topic, view.index): view for view in views.values()}

    def _get(self, key: str) -> bytes | None:
        return self._reach(self._store.store.get(key))

    def _create(self, key: str, data: bytes) -> bool:
        return self._reach(self._store.store.create(key, data))

    def _run_delete(self, key: str) -> None:
        self._reach(self._store.store.delete(key))

    def _list(self, prefix: str) -> list[str]:
        async def collect() -> list[str]:
            return [info.key async for info in self._store.store.list(prefix)]

        return self._reach(collect())

    def _reach(self, work: Coroutine[Any, Any, T]) -> T:
        return reach(self._store.location, lambda: self._store.run(work))


def _count_done(planned: PlannedPartition, last_sequence: int) -> int:
    """How many of the plan's records have sequence numbers up to the last one that was seen."""
    ahead = (last_sequence + 1 - planned.base_sequence) % SEQUENCES
    if ahead >= SEQUENCES // 2:
        return 0  # Only records from before the plan were seen.
    return min(ahead, planned.records)


def _name(topic: str, partition: int) -> str:
    return f"{topic}/{partition}"


def _place(name: str) -> Place:
    topic, _slash, partition = name.rpartition("/")
    return topic, int(partition)
