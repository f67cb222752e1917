"""Feature levels: a new cluster has the newest, an old one is raised when all can read it, and never back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest

from penstock.cli import cluster
from penstock.client import Client
from penstock.clock import SystemClock
from penstock.cluster.leases import Lease, encode_lease, lease_key
from penstock.cluster.metadata_log import MetadataLog, MetadataUnavailableError
from penstock.cluster.snapshots import entry_key
from penstock.log.manifest import decode_manifest
from penstock.metadata import preconditions
from penstock.metadata.apply import apply
from penstock.metadata.codec import Entry, decode_entry
from penstock.metadata.commands import (
    LEVEL_OF,
    Command,
    CreateTopic,
    DeleteTopic,
    FenceBroker,
    RegisterBroker,
    SetLevel,
)
from penstock.metadata.image import ClusterImage, Listener, WalRef
from penstock.metadata.levels import FEATURE, GROUP_FEATURE, LEVEL_MAX, TRANSACTION_FEATURE
from penstock.metadata.refusal import Refusal
from penstock.storage.stores.directory import DirectoryStore
from penstock.testing.ports import consecutive
from penstock.wire.api.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.api.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.wire.api.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from penstock.wire.checksum import crc32c
from penstock.wire.errors import ErrorCode

from ..broker.rig import batch
from .nodes import Nodes
from .rig import creating, registering

LISTENERS = (Listener("PLAINTEXT", "h", 1),)


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    made = Nodes(tmp_path / "store", broker_session_timeout_ms="6000")
    yield made
    await made.close()


async def old_cluster(nodes: Nodes, directory: Path) -> None:
    """A cluster that a broker of level 1 founded."""
    store = DirectoryStore(str(directory))
    log = MetadataLog(store, SystemClock())
    await log.open()
    await log.propose(registering(7))
    assert log.image.level == 1
    await log.close()
    await store.close()


async def update(nodes: Nodes, level: int, *, version: int = 2, **more: object) -> UpdateFeaturesResponse:
    key = FeatureUpdateKey(feature=FEATURE, max_version_level=level)
    message = UpdateFeaturesRequest(feature_updates=[key], **more)  # type: ignore[arg-type]
    return await nodes.ask(1, message, UpdateFeaturesResponse, version)


async def test_a_new_cluster_is_founded_at_the_newest_level(nodes: Nodes, tmp_path: Path) -> None:
    await nodes.start(1, 2)
    image = nodes.image(2)
    assert (image.level, image.level_since) == (LEVEL_MAX, 1)
    # In the entry that registers its first broker: founding costs no more than it did.
    first = decode_entry((tmp_path / "store" / entry_key(1)).read_bytes(), 1)
    assert [type(command) for command in first.commands] == [SetLevel, RegisterBroker]
    answer = await nodes.ask(2, ApiVersionsRequest("a", "1"), ApiVersionsResponse, 4)
    assert shown(answer) == (
        {FEATURE: (1, LEVEL_MAX), TRANSACTION_FEATURE: (0, 2), GROUP_FEATURE: (0, 1)},
        {FEATURE: (LEVEL_MAX, LEVEL_MAX), TRANSACTION_FEATURE: (2, 2), GROUP_FEATURE: (1, 1)},
    )
    assert answer.finalized_features_epoch == 1
    # Clients before version 4 cannot read a feature that is supported from 0 on.
    answer = await nodes.ask(2, ApiVersionsRequest("a", "1"), ApiVersionsResponse, 3)
    supported, finalized = shown(answer)
    assert supported == {FEATURE: (1, LEVEL_MAX)}
    assert finalized[TRANSACTION_FEATURE] == (2, 2)


def shown(answer: ApiVersionsResponse) -> tuple[dict[str, tuple[int, int]], dict[str, tuple[int, int]]]:
    """The features that are supported, and those in force."""
    return (
        {one.name: (one.min_version, one.max_version) for one in answer.supported_features},
        {one.name: (one.min_version_level, one.max_version_level) for one in answer.finalized_features},
    )


async def test_the_version_of_groups_is_there_and_stays(nodes: Nodes) -> None:
    await nodes.start(1)

    async def told(version: int, upgrade_type: int) -> str:
        key = FeatureUpdateKey(
            feature=GROUP_FEATURE, max_version_level=version, upgrade_type=upgrade_type, allow_downgrade=False
        )
        answer = await nodes.ask(1, UpdateFeaturesRequest(feature_updates=[key]), UpdateFeaturesResponse, 2)
        assert answer.error_code == (ErrorCode.INVALID_UPDATE_VERSION if answer.error_message else 0)
        return answer.error_message or ""

    assert await told(1, 1) == ""
    assert (await told(2, 1)).endswith("This broker only supports versions 0-1.")
    assert "upgrade type" in await told(0, 1)
    assert (await told(0, 2)).endswith(
        "It cannot be lowered: groups of both protocols are served side by side."
    )


async def test_the_version_of_transactions_comes_with_the_level(nodes: Nodes, tmp_path: Path) -> None:
    await old_cluster(nodes, tmp_path / "store")
    await nodes.start(1)

    async def told(version: int, upgrade_type: int = 1) -> tuple[int, str]:
        key = FeatureUpdateKey(
            feature=TRANSACTION_FEATURE, max_version_level=version, upgrade_type=upgrade_type
        )
        message = UpdateFeaturesRequest(feature_updates=[key])
        answer = await nodes.ask(1, message, UpdateFeaturesResponse, 2)
        return answer.error_code, answer.error_message or ""

    refused = ErrorCode.INVALID_UPDATE_VERSION
    answer = await nodes.ask(1, ApiVersionsRequest("a", "1"), ApiVersionsResponse, 4)
    assert TRANSACTION_FEATURE not in shown(answer)[1]
    code, sentence = await told(2)
    assert code == refused
    assert sentence.endswith(f"It comes with {FEATURE} 3: run `penstock cluster upgrade`.")
    assert nodes.nodes[1].broker.membership is not None
    (tmp_path / "store" / lease_key(7)).unlink(missing_ok=True)
    for process in (tmp_path / "store" / "presence").glob("7-*"):
        process.unlink()
    assert await nodes.nodes[1].broker.membership.unregister(7) is None
    assert (await update(nodes, LEVEL_MAX)).error_code == 0
    answer = await nodes.ask(1, ApiVersionsRequest("a", "1"), ApiVersionsResponse, 4)
    assert shown(answer)[1][TRANSACTION_FEATURE] == (2, 2)
    assert answer.finalized_features_epoch > 0
    assert await told(2) == (0, "")
    code, sentence = await told(3)
    assert (code, sentence.endswith("This broker only supports versions 0-2.")) == (refused, True)
    assert "upgrade type" in (await told(1))[1]
    code, sentence = await told(1, upgrade_type=2)
    assert code == refused
    assert sentence.endswith(
        "It cannot be lowered: clients of version 1 are served beside those of version 2."
    )


async def test_an_old_cluster_stays_at_its_level_until_it_is_raised(nodes: Nodes, tmp_path: Path) -> None:
    await old_cluster(nodes, tmp_path / "store")
    await nodes.start(1, 2)
    assert nodes.image(1).level == 1
    # Broker 7 is of the old version: it is registered, and its lease says nothing of levels.
    (tmp_path / "store" / lease_key(7)).write_bytes(b'{"epoch":1,"counter":1}')
    refused = await update(nodes, 2)
    assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert refused.error_message == (
        "The update failed for all features since the following feature had an error: Invalid update version "
        f"2 for feature {FEATURE}. Broker 7 does not support it."
    )
    assert nodes.image(1).level == 1
    # It is replaced.
    for process in (tmp_path / "store" / "presence").glob("7-*"):
        process.unlink()
    assert nodes.nodes[1].broker.membership is not None
    assert await nodes.nodes[1].broker.membership.unregister(7) is None
    assert (await update(nodes, 2, validate_only=True, version=1)).error_code == 0
    assert nodes.image(1).level == 1
    assert (await update(nodes, 2)).error_code == 0
    image = nodes.image(1)
    assert (image.level, image.level_since) == (2, image.version)
    for _ in range(2):
        assert (await update(nodes, 2)).error_code == 0, "it is there already"
    assert nodes.image(1).version == image.version
    answer = await nodes.ask(1, ApiVersionsRequest("a", "1"), ApiVersionsResponse, 3)
    assert answer.finalized_features[0].max_version_level == 2
    assert answer.finalized_features_epoch == image.version


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_what_cannot_be(nodes: Nodes, version: int) -> None:
    await nodes.start(1)

    async def refused(*updates: FeatureUpdateKey) -> UpdateFeaturesResponse:
        message = UpdateFeaturesRequest(feature_updates=list(updates))
        answer = await nodes.ask(1, message, UpdateFeaturesResponse, version)
        assert answer.error_code
        assert not answer.results
        return answer

    def one(level: int, upgrade_type: int = 1, feature: str = FEATURE) -> FeatureUpdateKey:
        if version == 0:
            return FeatureUpdateKey(
                feature=feature, max_version_level=level, allow_downgrade=upgrade_type > 1
            )
        return FeatureUpdateKey(feature=feature, max_version_level=level, upgrade_type=upgrade_type)

    def says(answer: UpdateFeaturesResponse, sentence: str) -> None:
        assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert answer.error_message is not None and sentence in answer.error_message

    says(await refused(one(LEVEL_MAX + 1)), f"only supports versions 1-{LEVEL_MAX}")
    says(await refused(one(1)), "Can't downgrade the version of this feature without")
    for kind in (2, 3):
        says(await refused(one(1, kind)), "what was written since cannot be read by brokers of a lower level")
        says(await refused(one(0, kind)), "cannot be read")
    says(await refused(one(20, feature="metadata.version")), "does not support this feature")
    if version:
        says(await refused(one(2, 9)), "does not support the given upgrade type")
    assert (await refused(one(2), one(2))).error_code == ErrorCode.INVALID_REQUEST
    assert nodes.image(1).level == LEVEL_MAX
    nothing = await nodes.ask(1, UpdateFeaturesRequest(), UpdateFeaturesResponse, version)
    assert (nothing.error_code, nothing.results) == (0, [])
    same = await update(nodes, LEVEL_MAX, version=version)
    assert [one.feature for one in same.results] == ([FEATURE] if version < 2 else [])


async def test_who_registers_meanwhile_is_asked_too(tmp_path: Path) -> None:
    image = ClusterImage()
    command = SetLevel(2, (WalRef(1, 1),))
    image = apply(image, RegisterBroker(1, LISTENERS))
    assert preconditions.check(image, command) is None
    image = apply(image, RegisterBroker(2, LISTENERS))
    refusal = preconditions.check(image, command)
    assert isinstance(refusal, Refusal) and "Broker 2 does not support it" in refusal.message
    assert preconditions.check(image, SetLevel(2, (WalRef(1, 1), WalRef(2, 2)))) is None
    # Another incarnation of broker 2 may be of another version.
    assert preconditions.check(image, SetLevel(2, (WalRef(1, 1), WalRef(2, 1)))) is not None


def test_a_command_is_refused_below_its_level(monkeypatch: pytest.MonkeyPatch) -> None:
    kind: type[Command] = DeleteTopic
    monkeypatch.setitem(LEVEL_OF, kind, 2)
    refusal = preconditions.check(ClusterImage(), DeleteTopic(bytes(16)))
    assert refusal is not None and refusal.code == ErrorCode.UNSUPPORTED_VERSION
    assert "needs feature level 2, and the cluster is at 1" in refusal.message
    above = preconditions.check(ClusterImage(level=2), DeleteTopic(bytes(16)))
    assert above is not None and above.code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_manifests_are_written_for_the_level(nodes: Nodes, tmp_path: Path) -> None:
    """At level 1 a broker of the version before may lead the partition next."""
    await old_cluster(nodes, tmp_path / "store")
    await nodes.start(1)
    broker = nodes.nodes[1].broker
    assert broker.membership is not None
    assert await broker.membership.unregister(7) is None
    command = CreateTopic(b"t" * 16, "t", ((1,),))
    assert not isinstance(await broker.metadata.propose(lambda _: [command]), Refusal)
    for level in (1, 2):
        if level == 2:
            assert (await update(nodes, 2)).error_code == 0
        data = PartitionProduceData(index=0, records=bytes(batch(b"v")))
        message = ProduceRequest(acks=-1, topic_data=[TopicProduceData(name="t", partition_data=[data])])
        answer = await nodes.ask(1, message, ProduceResponse, 9)
        assert answer.responses[0].partition_responses[0].error_code == 0
        assert await broker.ledger.settle()
        found = broker.image.topics["t"].partitions[0].manifest
        assert found is not None
        stored = (tmp_path / "store" / found.key).read_bytes()[found.start : found.start + found.length]
        assert decode_manifest(stored).format == level


async def test_the_command_line(nodes: Nodes, tmp_path: Path) -> None:
    await old_cluster(nodes, tmp_path / "store")
    await nodes.start(1)
    broker = nodes.nodes[1].broker
    assert broker.membership is not None
    assert await broker.membership.unregister(7) is None
    (address,) = nodes.nodes[1].addresses

    async def run(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "penstock", "cluster", *arguments, "--bootstrap", address]
        done = await asyncio.to_thread(
            subprocess.run, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        return done.returncode, done.stdout

    code, said = await run("upgrade", "--to", str(LEVEL_MAX + 1))
    assert code == 1 and f"only supports versions 1-{LEVEL_MAX}" in said
    dry = f'{{"before": 1, "level": {LEVEL_MAX}, "dry_run": true}}\n'
    assert await run("upgrade", "--dry-run") == (0, dry)
    assert nodes.image(1).level == 1
    done = f'{{"before": 1, "level": {LEVEL_MAX}, "dry_run": false}}\n'
    assert await run("upgrade") == (0, done)
    code, said = await run("status", "--json")
    assert code == 0 and json.loads(said)["feature_level"] == LEVEL_MAX

    def ask() -> cluster.Features:
        with Client(address) as client:
            return cluster.features(client.any())

    assert await asyncio.to_thread(ask) == cluster.Features(LEVEL_MAX, LEVEL_MAX)


# What a broker cannot read.


def future_entry(number: int, commands: Sequence[object]) -> bytes:
    """An entry as a later version would write it, in a frame that this one reads."""
    body = msgspec.msgpack.encode({"number": number, "author": "later", "time_ms": 0, "commands": commands})
    return b"PSme\x00\x01" + crc32c(body).to_bytes(4, "big") + body


@pytest.mark.parametrize("brokers", [1, 2])
def test_an_entry_from_the_future_ends_a_broker(tmp_path: Path, brokers: int) -> None:
    """From outside: it says why, ends with a code that its supervisor obeys, and cannot be started again."""
    store = tmp_path / "store"
    command = [sys.executable, "-m", "penstock", "start", "--store", str(store)]
    with consecutive(brokers) as port, contextlib.ExitStack() as stack:
        command += ["--listen", f"127.0.0.1:{port}", "--brokers", str(brokers)]
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        stack.callback(running.communicate)
        stack.callback(running.kill)
        assert running.stdout is not None
        for _ in range(brokers):
            assert "is serving on" in running.stdout.readline()
        number = leave_future_entry(store)
        said = running.communicate(timeout=30)[1]
        assert running.returncode == (3 if brokers == 1 else 1)
        sentence = f"penstock: Broker 1 cannot follow the cluster any more: metadata entry {number} holds"
        assert said.count(sentence) == 1
        assert said.count("and is not started again") == (brokers if brokers > 1 else 0)
        again = subprocess.run(command[:-2], check=False, capture_output=True, text=True, timeout=30)
        assert again.returncode == 1
        assert again.stderr.startswith(f"penstock: The store {store} cannot be used: metadata entry {number}")


def leave_future_entry(store: Path) -> int:
    """Write the next entry, as a broker of a later version would; its number."""
    unknown = [{"kind": "delete_topic", "topic_id": bytes(16), "more": 1}]
    while True:
        number = max(int(path.name) for path in (store / "meta" / "log").iterdir()) + 1
        whole = store / "tmp" / "later"
        whole.write_bytes(future_entry(number, unknown))
        with contextlib.suppress(FileExistsError):
            (store / entry_key(number)).hardlink_to(whole)
            return number


def test_what_an_older_broker_says_of_itself_can_be_read() -> None:
    assert msgspec.json.decode(b'{"epoch":3,"counter":4,"version":1}', type=Lease).level == 1
    assert json.loads(encode_lease(Lease(3, 4, level=2)))["level"] == 2


async def test_creating_at_level_one_writes_what_level_one_reads(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path))
    log = MetadataLog(store, SystemClock())
    await log.open()
    await log.propose(registering(1))
    await log.propose(creating("t"))
    await log.propose(lambda image: [SetLevel(2, (WalRef(1, 1),))])
    frames = [(tmp_path / entry_key(number)).read_bytes()[5] for number in (1, 2, 3)]
    assert frames == [1, 1, 2]
    assert isinstance(decode_entry((tmp_path / entry_key(3)).read_bytes(), 3), Entry)
    await log.close()
    await store.close()


async def test_a_broker_that_was_fenced_meanwhile_ends_too(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would register again for ever, and say so each time."""
    await nodes.start(1)
    broker = nodes.nodes[1].broker
    fence = FenceBroker(1, broker.broker_epoch, 0)
    begin_again = nodes.nodes[1]._begin_again
    number = 0

    async def beginning() -> None:
        nonlocal number
        number = number or leave_future_entry(tmp_path / "store")
        await begin_again()

    monkeypatch.setattr(nodes.nodes[1], "_begin_again", beginning)
    with contextlib.suppress(MetadataUnavailableError):  # It may be stopping before it is answered.
        await broker.metadata.propose(lambda _: [fence])
    reason = await asyncio.wait_for(nodes.runs[1], 30)
    assert reason is not None
    assert reason.startswith(f"Broker 1 cannot follow the cluster any more: metadata entry {number} ")
