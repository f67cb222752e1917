"""Stores that earlier versions wrote open, give back what they held, go on and are upgraded."""

from __future__ import annotations

import asyncio
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from conformance import parts
from penstock.client import Client
from penstock.cluster.reading import ImageReader
from penstock.metadata.image import OFFSETS_TOPIC, ClusterImage
from penstock.metadata.levels import FEATURE, LEVEL_MAX
from penstock.storage.stores.opening import open_store
from penstock.testing import Broker
from penstock.testing.waiting import until
from penstock.wire.api.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

from .make import FOLDER, GROUP, LOG_TOPIC, PARTITIONS, contents, produce

STORES = sorted(FOLDER.glob("v*/*.tar.gz"))
LEVELS = {"v1": 1, "v2": 2, "v3": 3}
Topics = dict[str, dict[str, list[list[Any]]]]


@pytest.fixture(params=STORES, ids=lambda path: f"{path.parent.name}-{path.name.partition('.')[0]}")
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, dict[str, Any], int]]:
    """A store, what it holds, and its level."""
    archive: Path = request.param
    with tarfile.open(archive) as opened:
        parts.unpack(opened, tmp_path / "store")
    held = json.loads(archive.with_name(archive.name.replace(".tar.gz", ".json")).read_text())
    yield tmp_path / "store", held, LEVELS[archive.parent.name]


def image_of(store: Path) -> ClusterImage:
    async def look() -> ClusterImage:
        opened = open_store(str(store))
        try:
            return await ImageReader(opened).refresh()
        finally:
            await opened.close()

    return asyncio.run(look())


def read_from_store(store: Path, topics: list[str]) -> Topics:
    """As Spark reads, without a broker."""
    from penstock.arrow.planning import Deal, OffsetRange, splits
    from penstock.arrow.reading import ReadSettings, open_blocking, read_stretches
    from penstock.arrow.session import ReadSession
    from penstock.spark.options import read_options

    columns = ("topic", "partition", "offset", "key", "value")
    options = read_options({"store": str(store), "subscribe": ",".join(topics)}, streaming=False)
    session = ReadSession(open_blocking(str(store)), options)
    views = session.refresh()
    starts, ends = session.starts(views), session.ends(views)
    ranges = [OffsetRange(view, starts[key], ends[key]) for key, view in views.items()]
    found: Topics = {topic: {str(index): [] for index in range(PARTITIONS)} for topic in topics}
    settings = ReadSettings(str(store), columns, options.isolation, True, True)
    for stretches in splits(ranges, Deal(options.split_bytes)):
        for batch in read_stretches(stretches, settings):
            for row in batch.to_pylist():
                record = [row["offset"], row["key"].decode(), row["value"].decode()]
                found[row["topic"]][str(row["partition"])].append(record)
    return found


def check(found: Topics, held: dict[str, Any]) -> None:
    for topic, partitions in held["topics"].items():
        for index, records in partitions.items():
            given = found[topic][index]
            if topic in held["compacted"]:
                # It may have been compacted further since.
                last = {key: [offset, key, value] for offset, key, value in records}
                assert all(record in given for record in last.values())
                assert all(record in records for record in given)
            else:
                assert given == records


def upgrade(broker: Broker) -> int:
    with Client(broker.bootstrap_servers) as client:
        update = FeatureUpdateKey(feature=FEATURE, max_version_level=LEVEL_MAX)
        request = UpdateFeaturesRequest(feature_updates=[update])
        return client.any().ask(request, UpdateFeaturesResponse).error_code


def test_there_are_stores_of_each_version() -> None:
    names = {f"{path.parent.name}/{path.name}" for path in STORES}
    assert names >= {f"{version}/{name}.tar.gz" for version in LEVELS for name in ("fresh", "rich")}
    assert f"v{LEVEL_MAX}/locked.tar.gz" in names


def test_a_rich_store_is_what_it_says() -> None:
    """So that the tests below do not pass over stores that hold little."""
    for archive in STORES:
        with tarfile.open(archive) as opened:
            names = opened.getnames()
        if archive.name == "rich.tar.gz":
            assert any(name.startswith("meta/snapshot/") for name in names)
            assert "meta/log/000000000001" not in names
            assert any(name.startswith("segments/") for name in names)


def test_it_is_read_without_a_broker(stored: tuple[Path, dict[str, Any], int]) -> None:
    store, held, level = stored
    assert image_of(store).level == level
    check(read_from_store(store, list(held["topics"])), held)


def test_it_opens_goes_on_and_is_upgraded(stored: tuple[Path, dict[str, Any], int]) -> None:
    store, held, level = stored
    topics = list(held["topics"])
    quick = {"broker.session.timeout.ms": "1000", "wal.settle.interval.ms": "200"}
    with Broker(store=store, settings=quick) as broker:
        where = broker.bootstrap_servers
        found = contents(where, topics)
        check(found["topics"], held)  # type: ignore[arg-type]
        assert found["groups"] == held["groups"]
        produce(where, LOG_TOPIC, [(f"k{number}", f"later-{number}") for number in range(10)])
        _append_to(held, "later")
        check(contents(where, topics)["topics"], held)  # type: ignore[arg-type]
        assert image_of(store).level == level
        assert upgrade(broker) == 0
        produce(where, LOG_TOPIC, [(f"k{number}", f"upgraded-{number}") for number in range(10)])
        _append_to(held, "upgraded")
    # It left in order, so everything is settled now, in the new format.
    image = image_of(store)
    assert image.level == LEVEL_MAX and image.topic(OFFSETS_TOPIC) is not None
    check(read_from_store(store, topics), held)
    with Broker(store=store, settings=quick) as broker:
        found = contents(broker.bootstrap_servers, topics)
        check(found["topics"], held)  # type: ignore[arg-type]
        assert found["groups"] == held["groups"]
        _group_goes_on(broker.bootstrap_servers, held)


def test_a_locked_store_keeps_its_rules_users_and_open_transactions(tmp_path: Path) -> None:
    with tarfile.open(FOLDER / "v3" / "locked.tar.gz") as opened:
        parts.unpack(opened, tmp_path / "store")
    image = image_of(tmp_path / "store")
    assert [(rule.principal, rule.name) for rule in image.access_rules] == [("User:reader", LOG_TOPIC)]
    ((user, _mechanism),) = image.credentials
    assert user == "reader" and list(image.quotas.values()) == [{"consumer_byte_rate": 1e6}]
    with Broker(store=tmp_path / "store", settings={"broker.session.timeout.ms": "1000"}) as broker:
        settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "others"}
        ends = []
        for level in ("read_committed", "read_uncommitted"):
            consumer = Consumer({**settings, "isolation.level": level})
            ends.append(consumer.get_watermark_offsets(TopicPartition("open", 0), 30)[1])
            consumer.close()
        assert ends == [0, 1]
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "open"})
        producer.init_transactions(30)  # Which ends what the one before had begun.
        consumer = Consumer(settings)
        until(lambda: consumer.get_watermark_offsets(TopicPartition("open", 0), 30)[1] == 2, 30, "its end")
        consumer.close()


def _append_to(held: dict[str, Any], prefix: str) -> None:
    """What `produce` adds: ten records, spread over the partitions."""
    for number in range(10):
        records = held["topics"][LOG_TOPIC][str(number % PARTITIONS)]
        records.append([records[-1][0] + 1, f"k{number}", f"{prefix}-{number}"])


def _group_goes_on(bootstrap: str, held: dict[str, Any]) -> None:
    """A consumer of the group begins where its group had come to, or behind what was aborted there."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "enable.auto.commit": False})
    place = consumer.committed([TopicPartition(LOG_TOPIC, 0)], 30)[0]
    consumer.assign([place])
    (first,) = consumer.consume(1, 30.0)
    committed = held["groups"][GROUP][f"{LOG_TOPIC}-0"]
    records = held["topics"][LOG_TOPIC]["0"]
    assert first.offset() == min(offset for offset, _, _ in records if offset >= committed)
    consumer.close()
