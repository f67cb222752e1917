"""The two ways to run: brokers that are open to everybody, and brokers with logins and the authorizer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from conformance import parts
from conformance.differential import scenarios as _scenarios
from conformance.differential.scenario import SCENARIOS, Scenario
from conformance.differential.scenarios import base
from conformance.differential.secured import derived, servers
from conformance.differential.world import World
from conformance.server import Server
from conformance.target import server_named

assert _scenarios.__all__, "importing the package registers the scenarios"


@dataclass(frozen=True, slots=True)
class Mode:
    scenarios: Mapping[str, Mapping[str, Scenario]]
    """By API and name."""
    server: Callable[[str, dict[str, str]], Server]
    """Makes the broker that is named as `--against` names it."""
    world: Callable[[Server], World]
    setup: Callable[[World, int], None]
    differences: str
    also: tuple[str, ...] = ()
    """Deliberate differences of other modes, of which some may be seen in this one."""


def open_mode() -> Mode:
    return Mode(SCENARIOS, server_named, World, base.setup, "differences.toml")


def secured_mode() -> Mode:
    def server(name: str, settings: dict[str, str]) -> Server:
        if name == "penstock":
            return servers.SecuredPenstock(settings)
        if not name.startswith("kafka"):
            raise parts.PartMissing("the users that the run needs are known only to brokers that it starts.")
        return servers.SecuredKafka(name.partition(":")[2] or parts.KAFKA_NEWEST, settings)

    return Mode(
        derived.derived(),
        server,
        servers.SecuredWorld,
        derived.setup,
        "differences-secured.toml",
        ("differences.toml",),
    )
