"""Who logs in with a name that nobody has is answered alike by all brokers, and costs as little as others."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from penstock.entropy import SystemEntropy
from penstock.metadata.access import SCRAM_SHA_256, ScramCredential
from penstock.metadata.image import ClusterImage
from penstock.node.entrances import Entrances
from penstock.security.credentials import Mechanism, derived
from penstock.security.sasl.exchange import Challenge
from penstock.settings import load
from tests.clocks import AheadClock

Users = dict[tuple[str, int], ScramCredential]


class CountedUsers(Users):
    """Counts how often somebody looks at all of them."""

    walks = 0

    def __iter__(self) -> Iterator[tuple[str, int]]:
        self.walks += 1
        return super().__iter__()


def users(*names: str) -> CountedUsers:
    made = CountedUsers()
    for name in names:
        made[name, SCRAM_SHA_256] = derived(Mechanism.SCRAM_SHA_256, name, name.encode(), 4096)
    return made


class Brokers:
    """Listeners of several brokers, which have one image."""

    def __init__(self, count: int) -> None:
        self.image = ClusterImage()
        settings = load(
            [
                "listeners=SASL_PLAINTEXT://127.0.0.1:0",
                "sasl.enabled.mechanisms=SCRAM-SHA-256",
            ]
        )
        self.all = [
            Entrances(settings, AheadClock(), SystemEntropy(), lambda: self.image) for _ in range(count)
        ]

    async def open(self) -> None:
        for one in self.all:
            await one.open()

    async def close(self) -> None:
        for one in self.all:
            await one.close()

    def salts(self, name: str) -> set[str]:
        """The salts that the brokers tell somebody."""
        told = set()
        for one in self.all:
            logins = one.of("SASL_PLAINTEXT").logins
            assert logins is not None
            step = logins.exchange("SCRAM-SHA-256").respond(f"n,,n={name},r=mine".encode(), 0)
            assert isinstance(step, Challenge)
            told.add(step.token.decode().split(",")[1])
        return told


async def test_users_are_looked_at_once_however_many_strangers_come() -> None:
    brokers = Brokers(2)
    await brokers.open()
    first = users("alice", "bob")
    brokers.image = msgspec.structs.replace(brokers.image, credentials=first)
    salts = brokers.salts("mallory")
    assert len(salts) == 1
    for _ in range(10):
        assert brokers.salts("mallory") == salts
    assert first.walks == len(brokers.all)
    brokers.image = msgspec.structs.replace(brokers.image, credentials=users("bob", "carol"))
    others = brokers.salts("mallory")
    assert len(others) == 1
    assert others != salts
    await brokers.close()
