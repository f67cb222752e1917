"""Every API at every version, asked by strangers, by nobody in particular, and by each actor that its row derives."""

from collections.abc import Iterator

from conformance.differential.scenario import Draw, Scenario, Step
from conformance.differential.scenarios.base import setup as base_setup
from conformance.differential.scenarios.topics import create, new_topic
from conformance.differential.secured.actors import FIRST, NOBODY, SECOND, STRANGER, cases, derived_actor
from conformance.differential.secured.mixtures import MIXTURES
from conformance.differential.secured.requests import variants
from conformance.differential.secured.servers import SecuredWorld
from conformance.differential.world import World
from penstock.broker.registry import APIS, Api

UNDOING = {
    "CreatePartitions", "DeleteTopics", "DeleteRecords", "DeleteGroups", "OffsetDelete", "AlterConfigs",
    "IncrementalAlterConfigs", "Produce", "TxnOffsetCommit", "OffsetCommit",
}  # fmt: skip
"""Requests to these may change what others ask about: it is put back afterwards."""
SEEN_LATER = {
    "AlterClientQuotas",
    "AlterUserScramCredentials",
    "CreateAcls",
    "CreateDelegationToken",
    "DeleteAcls",
}
"""What these change is seen by Kafka's brokers a while later: it derives keys for each token."""
OFFSET = 3


def restored() -> Iterator[Step]:
    """Topics, and groups with offsets."""
    yield create(new_topic(FIRST, 2), new_topic(SECOND, 2))
    partitions = [{"PartitionIndex": at, "CommittedOffset": OFFSET} for at in range(2)]
    topics = [{"Name": name, "Partitions": partitions} for name in (FIRST, SECOND)]
    for group in (FIRST, SECOND):
        yield Step({"GroupId": group, "Topics": topics}, api="OffsetCommit", version=8)


def setup(world: World, now_ms: int) -> None:
    """What both brokers have before anything is compared."""
    assert isinstance(world, SecuredWorld)
    base_setup(world, now_ms)
    world.add_user(NOBODY)
    world.add_rules()
    for step in restored():
        world.ask(step.api or "", step.version or 0, step)
        world.catch_up()
    for name in (FIRST, SECOND):
        world.await_transactions(name)


def _asked_by(row: Api, user: str, *, strange: bool = False) -> Scenario:
    def asked(draw: Draw, version: int) -> Iterator[Step]:
        for word, body in variants(row.name, version):
            # Who did not log in has said too much after one request.
            on = f"{user}/{row.name}-{version}-{word}" if strange else user
            yield Step(body, on=on, note=word, catch_up=row.name in SEEN_LATER and not strange)
            if row.name in UNDOING and not strange:
                yield from restored()

    return asked


def derived() -> dict[str, dict[str, Scenario]]:
    found: dict[str, dict[str, Scenario]] = {}
    for row in APIS.values():
        asked = found.setdefault(row.name, {})
        asked["stranger"] = _asked_by(row, STRANGER, strange=True)
        asked["nobody"] = _asked_by(row, NOBODY)
        for case, _rules in cases(row):
            asked[case] = _asked_by(row, derived_actor(row, case))
        asked.update(MIXTURES.get(row.name, {}))
    return found
