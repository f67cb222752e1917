"""What the tests of one library are: which of them are run, where, and what came out."""

import xml.etree.ElementTree
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from conformance.server import Server
from conformance.target import server_named

TIMEOUT_S = 1500
# The release of Kafka that the advertised versions must be taken for.
TAKEN_FOR = "4.3"
LOGIN = "needs a listener with a login, which is not started here; conformance.security.clients logs in"
OWN_BROKERS = (
    "all its tests: they start Apache Kafka themselves; conformance.security.clients logs in as they do"
)
WITH_RULES = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


@dataclass
class Outcome:
    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


class Suite(ABC):
    """The tests of one library."""

    name: str
    reasons: dict[str, str]
    """Why tests are left out, by pattern of their names."""

    settings: dict[str, str] = {}  # noqa: RUF012
    """Settings that the library's own fixtures give their brokers."""

    node_id = 0
    """The id that its tests expect of their broker."""

    def __init__(self, only: str) -> None:
        self.only = only

    def split(self, tests: list[str]) -> tuple[list[str], dict[str, str]]:
        """The tests to run, and why the others are not."""
        chosen, left = [], {}
        for test in tests:
            reason = next((why for pattern, why in self.reasons.items() if fnmatchcase(test, pattern)), None)
            if reason is None and fnmatchcase(test, self.only):
                chosen.append(test)
            elif reason is not None:
                left[test] = reason
        return chosen, left

    @abstractmethod
    def run_against(self, against: str) -> Outcome:
        """Start the brokers that this names, and run the tests against them."""


class OneBroker(Suite):
    """Tests that are content with one broker."""

    def run_against(self, against: str) -> Outcome:
        # The suites expect that the broker's id and the address it advertises are set by hand.
        with server_named(against, self.settings, self.node_id) as server:
            return self.run(server)

    @abstractmethod
    def run(self, server: Server) -> Outcome: ...


def read_junit(path: Path) -> Outcome:
    outcome = Outcome()
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname', '').rsplit('.', 1)[-1]}::{case.get('name')}"
        problem = next((each for each in case if each.tag in ("failure", "error")), None)
        skip = case.find("skipped")
        if problem is not None:
            outcome.failed[name] = (problem.get("message") or "").split("\n")[0][:300]
        elif skip is not None:
            outcome.skipped[name] = skip.get("message") or ""
        else:
            outcome.passed.append(name)
    return outcome


def report(name: str, outcome: Outcome) -> None:
    print(
        f"\n{name}: {len(outcome.passed)} passed, {len(outcome.failed)} failed, "
        f"{len(outcome.skipped)} skipped by themselves"
    )
    for test in sorted(outcome.passed):
        print(f"  passed   {test}")
    for test, why in sorted(outcome.skipped.items()):
        print(f"  skipped  {test}: {why}")
    for test, why in sorted(outcome.left_out.items()):
        print(f"  left out {test.rsplit('::', 1)[-1]}: {why}")
    for test, why in sorted(outcome.failed.items()):
        print(f"  FAILED   {test}: {why}")
