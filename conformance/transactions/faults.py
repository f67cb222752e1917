"""What happens in the rounds of a chain: to a broker, to a link, or to both."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from conformance.cluster.processes import Member
from conformance.cluster.views import wait_for_brokers
from conformance.transactions.act import Act
from conformance.transactions.links import TIMEOUT_MS

PAUSED_LINK_S = TIMEOUT_MS / 1000 + 2.5
SESSION_TIMEOUT_S = 3.0
BLINK_S = 1.0
AGREED_WITHIN_S = 60.0
"""A bound for machines that do much else. How soon the chain goes on is what is measured."""


def kill_broker(act: Act) -> None:
    cluster = act.place.cluster
    if cluster is None:
        assert act.place.server is not None
        act.place.server.kill()
        act.place.server.start()
        return
    victim = _broker(act)
    victim.kill()
    if act.chance.random() < 0.5:
        wait_for_brokers(
            cluster.running, (), [one.broker for one in cluster.running], AGREED_WITHIN_S, patient=True
        )
    victim.start()


def stop_broker(act: Act) -> None:
    if act.place.cluster is None:
        assert act.place.server is not None
        act.place.server.stop()
        act.place.server.start()
        return
    victim = _broker(act)
    victim.stop()
    victim.start()


def pause_broker(act: Act) -> None:
    victim = _broker(act)
    victim.pause()
    time.sleep(SESSION_TIMEOUT_S + act.chance.uniform(-0.5, 1.0))
    victim.resume()


def blink_broker(act: Act) -> None:
    victim = _broker(act)
    victim.pause()
    time.sleep(BLINK_S)
    victim.resume()


def kill_all(act: Act) -> None:
    assert act.place.cluster is not None
    act.place.cluster.kill()
    act.place.cluster.start()


def kill_link(act: Act) -> None:
    act.chance.choice(act.links).kill()


def pause_link(act: Act) -> None:
    """It wakes when its transaction has timed out, and others may have its share."""
    victim = act.chance.choice(act.links)
    victim.pause()
    time.sleep(PAUSED_LINK_S)
    victim.resume()


def kill_both(act: Act) -> None:
    kill_link(act)
    kill_broker(act)


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    act: Callable[[Act], None]
    weight: int
    cluster: bool = False
    """It needs several brokers."""


FAULTS = (
    Fault("kill a broker", kill_broker, 5),
    Fault("stop a broker", stop_broker, 2),
    Fault("pause a broker", pause_broker, 3, cluster=True),
    Fault("blink", blink_broker, 2, cluster=True),
    Fault("kill all brokers", kill_all, 1, cluster=True),
    Fault("kill a link", kill_link, 5),
    Fault("pause a link", pause_link, 2),
    Fault("kill a link and a broker", kill_both, 2),
)
SHORT_FAULTS = ("kill a broker", "kill a link", "pause a link", "stop a broker")


def _broker(act: Act) -> Member:
    assert act.place.cluster is not None
    return act.chance.choice(act.place.cluster.running)


def come_to_rest(act: Act) -> None:
    cluster = act.place.cluster
    if cluster is not None:
        wait_for_brokers(cluster.running, (), cluster.members, AGREED_WITHIN_S, patient=True)
