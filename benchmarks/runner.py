"""Run scenarios on all brokers, rounds interleaved, and collect the figures.

Within a round each broker gets the same load one after the other, and the next round starts with another
broker. So other work of the machine falls on all of them. A ratio is the median of the ratios of rounds.
"""

import contextlib
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from conformance.parts import PartMissing
from conformance.server import Server, ServerFailed

from benchmarks import brokers, clients, control, profile, scenarios, secured
from benchmarks.scenarios import Row, Scenario, Size, Target

NAMES = ("penstock", "kafka", "null", "file")
# Long enough for a JVM to finish its own start; then its memory counts as idle.
REST_S = 1.5

Say = Callable[[str], None]


@dataclass(slots=True)
class Figures:
    """Every figure of one row, by broker, in the order of rounds."""

    row: Row
    by_broker: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    # Processor seconds of the broker in each run of the row's scenario.
    processor: dict[str, list[float]] = field(default_factory=dict)
    profile: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run."""

    size: Size
    rounds: int
    names: Sequence[str] = NAMES
    durabilities: Sequence[str] = ("os", "fsync")
    only: Sequence[str] = ()
    profiled: bool = False

    def wants(self, scenario: Scenario) -> bool:
        labels = [scenario.key, *(row.label for row in scenario.rows), *(row.key for row in scenario.rows)]
        return not self.only or any(word in label for word in self.only for label in labels)


def run(plan: Plan, say: Say) -> list[Figures]:
    """All figures, in the order of the table."""
    table: list[Figures] = []
    for durability in plan.durabilities:
        chosen = [one for one in scenarios.scenarios(durability, plan.size) if plan.wants(one)]
        running = [one for one in chosen if not one.starts]
        if running:
            table += run_on_running(plan, durability, running, say)
        for scenario in chosen:
            if scenario.starts:
                table += run_starting(plan, durability, scenario, say)
    return table


def run_on_running(plan: Plan, durability: str, chosen: Sequence[Scenario], say: Say) -> list[Figures]:
    """Start each broker once, warm it up, and measure all scenarios on it."""
    with contextlib.ExitStack() as stack:
        targets = []
        for name in plan.names:
            say(f"start {name}, durability {durability}")
            try:
                server = secured.broker_for(name, durability)
            except PartMissing as missing:
                say(f"without {name}: {missing}")
                continue
            targets.append(Target(name, stack.enter_context(server)))
            if isinstance(server, secured.Secured):
                server.add_user()
        time.sleep(REST_S)
        bulk = any("/bulk/" in scenario.key for scenario in chosen)
        idle, loaded = (Figures(row) for row in scenarios.memory_rows(durability))
        read_memory(idle, targets)
        for target in targets:
            warm(target, plan.size, say)
        table: list[Figures] = []
        for scenario in chosen:
            if bulk and not loaded.by_broker and "/bulk/" not in scenario.key:
                read_memory(loaded, targets)
            table += run_scenario(plan, scenario, targets, say)
        if bulk and not loaded.by_broker:
            read_memory(loaded, targets)
        return [*table, idle, *([loaded] if bulk else [])] if durability == "os" else table


def warm(target: Target, size: Size, say: Say) -> None:
    """Let a JIT compiler see both kinds of load before anything is measured; the others get the same."""
    say(f"warm up {target.name}")
    for workload in ("16K-d5", "1K-8x1"):
        topic = target.unused_topic()
        where = target.server.bootstrap
        with contextlib.suppress(clients.ClientFailed, PartMissing):
            clients.raw().alone(where, topic, workload, size.warm_seconds, 1024, verify=target.keeps)
    if isinstance(target.server, secured.Secured):
        with contextlib.suppress(clients.ClientFailed, PartMissing):
            warm_doors(target, target.server, size)
    target.forget_topics()


def warm_doors(target: Target, server: secured.Secured, size: Size) -> None:
    """The same for TLS and logins: bulk, small requests, and connections."""
    client = clients.franz_go().with_login(server.login)
    topic, records = target.topic(), size.bulk_bytes // 1024
    client.produce(server.door, topic, records, 1024)
    client.consume(server.door, topic, records, 1024)
    client.small(server.door, target.topic(8), 8, size.warm_seconds, 1024, verify=False)
    client.connect(server.door, scenarios.CONNECTIONS)


def run_scenario(plan: Plan, scenario: Scenario, targets: Sequence[Target], say: Say) -> list[Figures]:
    table = [Figures(row) for row in scenario.rows]
    for number in range(plan.rounds):
        turn = number % len(targets)
        for target in [*targets[turn:], *targets[:turn]]:
            if target.name == "file" and not scenario.heavy:
                continue  # It differs from the null broker only where much is written.
            if scenario.keeps and not target.keeps:
                continue
            if any(target.name in figures.failures for figures in table):
                continue
            say(f"{scenario.key}: round {number + 1} of {plan.rounds}, {target.name}")
            if scenario.heavy:
                brokers.touch_memory(plan.size.touched_bytes)
            measure(scenario, target, table)
    if plan.profiled:
        for target in targets:
            if target.name == "penstock" and target.server.alive():
                say(f"{scenario.key}: profile")
                written = profile.record(target.server.pid, scenario.key, partial(scenario.run, target))
                for figures in table:
                    figures.profile = written
                target.forget_topics()
    return table


def measure(scenario: Scenario, target: Target, table: Sequence[Figures]) -> None:
    """One run on one broker; a failure is kept as its sentence and does not end the others."""
    try:
        before = brokers.processor_seconds(target.server.pid) if target.server.alive() else 0.0
        figures = scenario.run(target)
        spent = brokers.processor_seconds(target.server.pid) - before
    except (clients.ClientFailed, control.Refused, PartMissing, ServerFailed, OSError) as failure:
        for line in table:
            line.failures[target.name] = str(failure) or type(failure).__name__
        return
    finally:
        with contextlib.suppress(OSError, control.Refused):
            target.forget_topics()
    for line in table:
        if line.row.key in figures:
            line.by_broker.setdefault(target.name, []).append(figures[line.row.key])
        line.processor.setdefault(target.name, []).append(round(spent, 3))


def run_starting(plan: Plan, durability: str, scenario: Scenario, say: Say) -> list[Figures]:
    """Scenarios that need a broker of their own for each run."""
    table = [Figures(row) for row in scenario.rows]
    for number in range(plan.rounds + 1):  # one more, not counted: the first finds files and caches cold
        for name in plan.names:
            if name == "file":
                continue
            say(f"{scenario.key}: round {number} of {plan.rounds}, {name}")
            try:
                server = brokers.broker_named(name, brokers.durability_settings(name, durability))
            except PartMissing:
                continue
            try:
                server.prepare()
                figures = scenario.run(Target(name, server))
                for line in table:
                    if number:
                        line.by_broker.setdefault(name, []).append(figures[line.row.key])
            except (control.Refused, ServerFailed, OSError) as failure:
                for line in table:
                    line.failures[name] = f"{failure}: {last_words(server)}"
            finally:
                server.kill()
                shutil.rmtree(server.folder, ignore_errors=True)
    return table


def last_words(server: Server) -> str:
    lines = server.tail(1)
    return lines or "it printed nothing"


def read_memory(figures: Figures, targets: Sequence[Target]) -> None:
    for target in targets:
        if target.server.alive():
            figures.by_broker[target.name] = [target.server.rss_bytes() / 1e6]
