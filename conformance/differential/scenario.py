"""A scenario is a generator of steps, registered under the API that it is about.

A scenario runs once for every version of its API that both brokers serve. The steps that it yields are sent
to both brokers in the same order. Values that differ between brokers (topic ids, producer ids, fetch
sessions) are written as `Ref`, and filled in for each broker from its earlier answers.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from conformance.wire.codec import Value

if TYPE_CHECKING:
    from conformance.differential.world import World

Learn = Callable[["World", Value], None]


@dataclass(frozen=True, slots=True)
class Ref:
    """A value that each broker fills in for itself."""

    name: str
    get: Callable[["World"], Any]

    def __repr__(self) -> str:
        return f"<{self.name}>"


@dataclass(frozen=True, slots=True)
class Step:
    """One request. Without an API it is the scenario's own, at the version under test."""

    body: Value
    api: str | None = None
    version: int | None = None
    learn: Learn | None = None
    answered: bool = True
    """False for a produce with acks 0, after which the broker must stay silent."""
    frame: bytes | None = None
    """A whole frame to send instead of a body; an answer is read as the API and version named here."""
    on: str = ""
    """Another connection, by any name: a request that waits on one holds up what follows on the same one."""
    later: bool = False
    """Do not wait for the answer: a step that collects takes it."""
    collect: bool = False
    """Send nothing; take the answer to what was sent on this connection before."""
    until: "Callable[[World], bool] | None" = None
    """Go on when this holds: what is under way on another connection has arrived."""
    only: str = ""
    """Of the groups that are listed, compare those whose id begins so: others come and go by themselves."""
    catch_up: bool = False
    """Wait afterwards until what was changed can be seen: some changes come without asking to change."""
    note: str = ""


@dataclass(slots=True)
class Draw:
    """The seeded source of everything a scenario chooses."""

    chance: random.Random
    now_ms: int
    label: str
    counter: Iterator[int] = field(default_factory=lambda: iter(range(1 << 30)))

    def fresh(self, stem: str = "topic") -> str:
        """A name that no other step uses, the same for both brokers."""
        return f"{self.label}-{stem}-{next(self.counter)}"

    def pick(self, *choices: Any) -> Any:
        return self.chance.choice(choices)

    def past_ms(self) -> int:
        """A timestamp inside the default retention and clearly before this run."""
        return self.now_ms - 3_600_000 - self.chance.randrange(3_600_000)


Scenario = Callable[[Draw, int], Iterator[Step]]
SCENARIOS: dict[str, dict[str, Scenario]] = {}


def scenario(api: str) -> Callable[[Scenario], Scenario]:
    """Register a scenario under its API and its function's name."""

    def register(function: Scenario) -> Scenario:
        SCENARIOS.setdefault(api, {})[function.__name__] = function
        return function

    return register


def topic_id(name: str) -> Ref:
    return Ref(f"id of {name}", lambda world: world.topic_id(name))


def learned(name: str, default: int | str = -1) -> Ref:
    return Ref(name, lambda world: world.learned.get(name, default))


def remember(**names: str) -> Learn:
    """Keep fields of the answer under names for `learned`: `remember(ProducerId="pid")`."""

    def learn(world: "World", answer: Value) -> None:
        for source, name in names.items():
            if source in answer:
                world.learned[name] = answer[source]

    return learn


UNKNOWN_ID = bytes.fromhex("00112233445566778899aabbccddeeff")
