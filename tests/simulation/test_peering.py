"""Brokers of the simulated world ask each other through its network, and share its fate."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest
from simulation.machines import Machine
from simulation.scene import Scene
from simulation.tempo import quick

from penstock.broker.peers.peers import PeerError
from penstock.wire.api.metadata import MetadataRequest, MetadataResponse

SEED = 4
"""Three brokers."""
SERVING_SECONDS = 5.0
"""After so long, simulated, all of them serve and know each other."""


@contextmanager
def _scene() -> Iterator[Scene]:
    with quick():
        scene = Scene(SEED, kind="objects", only=("clock",))
        yield scene
        scene.world.close()


def _run(course: Callable[[Scene, Machine, Machine], Awaitable[None]]) -> None:
    async def whole(scene: Scene) -> None:
        one, other = list(scene.machines.values())[:2]
        for machine in (one, other):
            machine.weather.stops = 0.0
            machine.start()
        await asyncio.sleep(SERVING_SECONDS)
        assert one.serving and other.serving
        await course(scene, one, other)

    with _scene() as scene:
        scene.world.run_until_complete(scene.world.create_task(whole(scene)))


async def _ask(one: Machine, other: Machine, seconds: float = 5.0) -> MetadataResponse:
    """The first broker asks the second one, as its own process."""
    assert one.node is not None and one.process is not None
    peers = one.node.broker.services.peers
    question = peers.ask(other.broker, MetadataRequest(topics=None), MetadataResponse, seconds=seconds)
    answer: MetadataResponse = await one.process.spawn(question)
    return answer


def test_a_broker_is_answered_by_another() -> None:
    async def course(scene: Scene, one: Machine, other: Machine) -> None:
        answer = await _ask(one, other)
        assert {one.broker, other.broker} <= {broker.node_id for broker in answer.brokers}

    _run(course)


def test_a_broker_that_is_cut_off_is_answered_late() -> None:
    async def course(scene: Scene, one: Machine, other: Machine) -> None:
        await _ask(one, other)
        scene.network.cut(one.host, other.host)
        with pytest.raises(PeerError, match="did not answer in 1 s"):
            await _ask(one, other, 1.0)
        scene.network.heal(one.host, other.host)
        await asyncio.sleep(1.0)
        assert (await _ask(one, other)).brokers

    _run(course)


def test_a_broker_that_is_far_away_is_answered_after_that_time() -> None:
    async def course(scene: Scene, one: Machine, other: Machine) -> None:
        await _ask(one, other)
        scene.network.slow_down(one.host, other.host, 1.0)
        began = scene.world.time()
        await _ask(one, other)
        assert 2.0 <= scene.world.time() - began < 2.5

    _run(course)


def test_an_answer_is_lost_with_its_connection_and_the_next_question_is_answered() -> None:
    async def course(scene: Scene, one: Machine, other: Machine) -> None:
        await _ask(one, other)
        asked = asyncio.ensure_future(_ask(one, other))
        await asyncio.sleep(0.001)
        scene.network.break_off(one.host, other.host)
        with pytest.raises(PeerError, match="reset"):
            await asked
        assert (await _ask(one, other)).brokers

    _run(course)


def test_a_broker_that_died_answers_nothing_and_one_that_sleeps_answers_when_it_wakes() -> None:
    async def course(scene: Scene, one: Machine, other: Machine) -> None:
        await _ask(one, other)
        other.pause()
        asked = asyncio.ensure_future(_ask(one, other))
        await asyncio.sleep(1.0)
        assert not asked.done()
        other.resume()
        assert (await asked).brokers
        asked = asyncio.ensure_future(_ask(one, other))
        await asyncio.sleep(0)
        other.crash()
        with pytest.raises(PeerError):
            await asked

    _run(course)


def test_connections_end_with_the_broker_that_made_them() -> None:
    async def course(scene: Scene, one: Machine, other: Machine) -> None:
        await _ask(one, other)
        (link,) = [link for link in scene.network._links if link.client.host == one.host]
        server = link.server
        assert len(server._connections) == 1
        one.crash()
        await asyncio.sleep(0.1)
        assert not server._connections

    _run(course)


def test_a_request_that_waited_for_a_cut_to_heal_comes_late_though_nobody_waits_for_it() -> None:
    async def course(scene: Scene, one: Machine, other: Machine) -> None:
        await _ask(one, other)
        (link,) = [link for link in scene.network._links if link.client.host == one.host]
        heard: list[int] = []
        real = link._transport.receive

        def receive(data: bytes | None) -> None:
            heard.append(len(data or b""))
            real(data)

        link._transport.receive = receive  # type: ignore[method-assign]
        scene.network.cut(one.host, other.host)
        with pytest.raises(PeerError):
            await _ask(one, other, 1.0)
        assert link.over and not heard
        scene.network.heal(one.host, other.host)
        await asyncio.sleep(0.1)
        assert len(heard) == 1
        assert link._transport._connection is None

    _run(course)


def test_a_connection_whose_maker_died_before_it_came_does_not_stay() -> None:
    async def course(scene: Scene, one: Machine, other: Machine) -> None:
        await _ask(one, other)
        (before,) = [link for link in scene.network._links if link.client.host == one.host]
        scene.network.break_off(one.host, other.host)
        await asyncio.sleep(0.1)
        scene.network.slow_down(one.host, other.host, 1.0)
        asked = asyncio.ensure_future(_ask(one, other))
        await asyncio.sleep(1.5)  # The connection is made; that it was is still on its way.
        links = [link for link in scene.network._links if link.client.host == one.host and not link.over]
        assert len(links) == 1 and not before.server._connections
        one.crash()
        await asyncio.sleep(2.0)
        assert not before.server._connections
        asked.cancel()

    _run(course)
