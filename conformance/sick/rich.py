"""A store with something of everything: topics, a compacted one, transactions, a group, the logs of two brokers,
segments, snapshots. And what clients know of it."""

import copy
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from conformance.cluster.streams import QUIET
from conformance.sick.speaker import KEY_BYTES
from conformance.sick.stage import SETTINGS, UNSETTLED, Failed, Stage, on_directory
from conformance.sick.verdict import Expected, Place, Told
from penstock.client import ClientError
from penstock.wire.api.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

PLAIN = (Place("plain", 0), Place("plain", 1))
COMPACTED = Place("compacted", 0)
TRANSACTIONAL = Place("transactional", 0)
GROUP = "group"
SMALL = {
    "metadata.snapshot.entries": "5",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
ROUNDS = 4
RECORDS = 8
ANSWER_S = 8.0
HURT_ANSWER_S = 2.0
"""The same where a coordinator may be unable to answer."""
HEARTBEATS_S = 2.5
"""After so long leases say of all that was written."""
COMPACTION = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "1000"}


@dataclass(slots=True)
class Known:
    """What clients were told beside records."""

    committed: set[bytes] = field(default_factory=set)
    """Values of transactions that are committed."""
    uncommitted: set[bytes] = field(default_factory=set)
    """Values of transactions that are aborted or open: no careful reader ever sees them."""
    offsets: dict[Place, int] = field(default_factory=dict)
    """What the group committed last."""
    producers: set[int] = field(default_factory=set)
    """Producer ids that were given."""


@dataclass(frozen=True, slots=True)
class Rich:
    store: Path
    told: Told
    known: Known

    @contextmanager
    def copied(self, brokers: int = 1) -> Iterator["RichStage"]:
        """A cluster on a copy of it that is not started yet."""
        with tempfile.TemporaryDirectory(prefix="conformance-hurt-") as folder:
            store = Path(folder) / "store"
            shutil.copytree(self.store, store)
            with on_directory(brokers, {**SETTINGS, **SMALL}, store=store, start=False) as stage:
                stage.told = copy.deepcopy(self.told)
                stage.speaker = stage.new_speaker()
                yield RichStage(stage, copy.deepcopy(self.known))


class RichStage:
    """A stage, and the clients that know of transactions and groups."""

    def __init__(self, stage: Stage, known: Known) -> None:
        self.stage = stage
        self.known = known

    # -- writing ------------------------------------------------------------------------------------------

    def transact(self, name: str, count: int, *, end: str) -> None:
        """One transaction of `count` records; `end`: commit, abort, or leave it open."""
        producer = Producer(
            {
                "bootstrap.servers": self.stage.bootstrap,
                "transactional.id": name,
                "transaction.timeout.ms": 600_000,
                "linger.ms": 0,
                "socket.timeout.ms": 5000,
                **QUIET,
            }
        )
        producer.init_transactions(ANSWER_S)
        producer.begin_transaction()
        values = [self.stage.speaker.value() for _ in range(count)]
        self.stage.told.doubtful.update(values)
        (self.known.committed if end == "commit" else self.known.uncommitted).update(values)
        for value in values:
            producer.produce(
                TRANSACTIONAL.topic,
                value,
                value[:KEY_BYTES],
                TRANSACTIONAL.partition,
                on_delivery=partial(self._delivered, value),
            )
        producer.flush(ANSWER_S)
        try:
            if end == "commit":
                producer.commit_transaction(ANSWER_S)
            elif end == "abort":
                producer.abort_transaction(ANSWER_S)
        except KafkaException:
            self.known.committed.difference_update(values)
            raise

    def _delivered(self, value: bytes, error: object, message: Message) -> None:
        offset = message.offset()
        if error is None and offset is not None:
            self.stage.told.doubtful.discard(value)
            self.stage.told.acknowledge(TRANSACTIONAL, offset, value)

    def commit(self, offsets: dict[Place, int]) -> None:
        with self._consumer() as consumer:
            for answer in consumer.commit(offsets=_positions(offsets), asynchronous=False):
                if answer.error:
                    raise KafkaException(answer.error)
        self.known.offsets.update(offsets)

    @contextmanager
    def _consumer(self) -> Iterator[Consumer]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.stage.bootstrap,
                "group.id": GROUP,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "socket.timeout.ms": 5000,
                **QUIET,
            }
        )
        try:
            yield consumer
        finally:
            consumer.close()

    # -- judging ------------------------------------------------------------------------------------------

    def problems_of_group(self, seconds: float = ANSWER_S) -> tuple[list[str], list[str]]:
        """What is wrong with the group's offsets; what is said about them."""
        wanted = dict.fromkeys(self.known.offsets, 0)
        try:
            with self._consumer() as consumer:
                answers = consumer.committed(_positions(wanted), timeout=seconds)
        except KafkaException as error:
            return [], [f"group: {error.args[0].name()}"]
        wrong, said = [], []
        for answer in answers:
            place = Place(answer.topic, answer.partition)
            if answer.error:
                said.append(f"group: {answer.error.name()}")
            elif answer.offset != self.known.offsets[place]:
                wrong.append(
                    f"the group committed {self.known.offsets[place]} of {place.topic}-{place.partition}, and is told"
                    f" {answer.offset}"
                )
        return wrong, said[:1]

    def problems_of_transactions(self, *, whole: bool) -> tuple[list[str], list[str]]:
        """What a reader sees that should not, or does not see that should."""
        found: set[bytes] = set()
        errors: list[str] = []
        with self._consumer() as consumer:
            try:
                end = consumer.get_watermark_offsets(TopicPartition(*TRANSACTIONAL), timeout=ANSWER_S)[1]
            except KafkaException as error:
                return [], [f"transactional: {error.args[0].name()}"]
            consumer.assign([TopicPartition(*TRANSACTIONAL, 0)])
            deadline = time.monotonic() + (ANSWER_S if whole else HURT_ANSWER_S)
            while time.monotonic() < deadline:
                for message in consumer.consume(500, 0.3):
                    wrong_answer = message.error()
                    if wrong_answer is None:
                        found.add(message.value() or b"")
                    else:
                        errors.append(f"transactional: {wrong_answer.name()}")
                position = consumer.position([TopicPartition(*TRANSACTIONAL)])[0].offset
                if position >= end or errors or (found and self.known.committed <= found):
                    break
        wrong = []
        if found & self.known.uncommitted:
            wrong.append(
                f"{len(found & self.known.uncommitted)} records that are not committed are read as committed"
            )
        missing = self.known.committed - found
        if missing and whole:
            wrong.append(f"{len(missing)} of {len(self.known.committed)} committed records are not read")
        return wrong, errors[:1]

    def problems_of_producers(self, count: int = 2) -> tuple[list[str], list[str]]:
        """Producer ids are new ones."""
        for _ in range(count):
            try:
                with self.stage.speaker.client() as client:
                    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
                    answer = client.any().ask(request, InitProducerIdResponse)
            except ClientError as error:
                return [], [f"producer id: {error}"]
            if answer.error_code:
                return [], [f"producer id: error {answer.error_code}"]
            if answer.producer_id in self.known.producers:
                return [f"producer id {answer.producer_id} was given twice"], []
            self.known.producers.add(answer.producer_id)
        return [], []

    def write_on(self) -> None:
        """Write where a partition is open: no offset is one that somebody was given."""
        for place in list(self.stage.told.acknowledged):
            self.stage.speaker.write([place], 2, within_s=1.0)
        if self.stage.told.twice:
            raise Failed("; ".join(self.stage.told.twice[:3]))

    def go_on(self) -> None:
        """Everything is served: records, transactions, also the one that was left open, and groups."""
        self.stage.check_goes_on(2)
        try:
            self.transact("first", 2, end="commit")
            self.transact("open", 2, end="abort")
            self.commit({place: offset + 1 for place, offset in self.known.offsets.items()})
        except KafkaException as error:
            raise Failed(f"clients cannot go on: {error.args[0].name()}") from None

    def judge(self, *, whole: bool, within_s: float = 8.0) -> str:
        """Compare all that clients know with what they are told now; what is hurt, in words."""
        hurt = self.stage.check(Expected(whole=whole), within_s=within_s)
        said = [f"{hurt} records"] if hurt else []
        wrong: list[str] = []
        for problems, words in (
            self.problems_of_group(ANSWER_S if whole else HURT_ANSWER_S),
            self.problems_of_transactions(whole=whole and not hurt),
            self.problems_of_producers(),
        ):
            wrong += problems
            said += words
        if whole:
            wrong += said
        if wrong:
            raise Failed("; ".join(wrong[:4]))
        return ", ".join(said)


def _positions(offsets: dict[Place, int]) -> list[TopicPartition]:
    return [TopicPartition(place.topic, place.partition, offset) for place, offset in offsets.items()]


def _write_all(rich: RichStage, *, settled: bool) -> None:
    stage = rich.stage
    places = [*PLAIN, COMPACTED, TRANSACTIONAL]
    if settled:
        stage.settled_write(places, RECORDS)
    else:
        stage.speaker.write(places, RECORDS // 2)
    rich.transact("first", 3, end="commit")
    rich.transact("second", 3, end="abort")
    rich.transact("first", 3, end="commit")
    rich.commit({PLAIN[0]: rich.known.offsets.get(PLAIN[0], 0) + 2, PLAIN[1]: 1})
    # These keys are written again and again: compaction takes the older ones.
    producer = Producer({"bootstrap.servers": stage.bootstrap, **QUIET})
    for _ in range(5):
        value = stage.speaker.value()
        stage.told.doubtful.add(value)
        producer.produce(COMPACTED.topic, value, b"again", 0)
        producer.flush(10)
    wrong, said = rich.problems_of_producers()
    if wrong or said:
        raise Failed(f"the store could not be built: {wrong or said}")


@contextmanager
def rich_store() -> Iterator[Rich]:
    """Build one, and kill its brokers."""
    with tempfile.TemporaryDirectory(prefix="conformance-hurt-") as folder:
        store = Path(folder) / "store"
        known = Known()
        with on_directory(2, {**SETTINGS, **SMALL}, store=store) as stage:
            rich = RichStage(stage, known)
            stage.speaker.create("plain", 2)
            stage.speaker.create("compacted", 1, COMPACTION)
            stage.speaker.create("transactional", 1)
            for _ in range(ROUNDS):
                _write_all(rich, settled=True)
            stage.cluster.kill()
            told = stage.told
        with on_directory(2, {**UNSETTLED, **SMALL}, store=store) as stage:
            stage.told = told
            stage.speaker = stage.new_speaker()
            rich = RichStage(stage, known)
            _write_all(rich, settled=False)
            rich.transact("open", 3, end="leave")
            time.sleep(HEARTBEATS_S)
            stage.cluster.kill()
            yield Rich(store, stage.told, known)
