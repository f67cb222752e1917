"""The services of a broker: built once, each from what it needs, and stopped in order."""

from __future__ import annotations

import asyncio

import pytest

from penstock.metadata.image import OFFSETS_TOPIC
from tests.broker.rig import Rig


async def test_a_service_is_built_once(rig: Rig) -> None:
    services = rig.broker.services
    assert services.topic_configs is services.topic_configs
    assert services.groups is services.groups


async def test_the_last_one_that_was_built_is_stopped_first(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = rig.broker.services
    stopped = []
    for name, service in (("peers", services.peers), ("groups", services.groups)):

        async def stop(name: str = name) -> None:
            stopped.append(name)

        monkeypatch.setattr(service, "stop", stop)
    await rig.broker.stop()
    assert stopped == ["groups", "peers"]


async def test_groups_are_coordinated_as_soon_as_their_topic_is_led_here(rig: Rig) -> None:
    """A client need not ask first: members that were there before this broker led must time out."""
    services = rig.broker.services
    before = len(rig.broker.metadata._subscribers)
    services.start()
    assert "groups" not in vars(services)
    await rig.topic(OFFSETS_TOPIC, 2)
    await asyncio.gather(*rig.broker.tasks._running)
    assert len(list(vars(services)["groups"].live_shards())) == 2
    await rig.broker.stop()
    assert len(rig.broker.metadata._subscribers) == before


async def test_a_broker_that_leads_no_group_loads_nothing_of_them(rig: Rig) -> None:
    rig.broker.services.start()
    await rig.topic("t")
    await rig.broker.stop()
    assert "groups" not in vars(rig.broker.services)
