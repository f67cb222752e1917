"""Send the same requests to Apache Kafka and to Penstock and compare the answers field by field."""

import argparse
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import NamedTuple

from conformance import parts
from conformance.differential.compare import Difference, Mismatch, deliberate, differences, report
from conformance.differential.mode import Mode, open_mode, secured_mode
from conformance.differential.normalise import normalise
from conformance.differential.scenario import Draw, Step
from conformance.differential.scenarios.base import SetupFailed
from conformance.differential.world import Answer, World, is_change, pin
from conformance.server import ServerFailed, interrupted_cleanly
from conformance.target import add_against
from conformance.wire.connection import Closed, Silent

# Groups are assigned at once, so that answers do not depend on when they were asked for. Transactions that are
# open for too long are aborted within a moment, so that nobody has to wait for it.
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.assignment.interval.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
}
Plan = list[tuple[str, int, str]]


class Run:
    """One pair of brokers, asked the same things."""

    def __init__(self, mode: Mode, kafka: World, other: World, seed: int) -> None:
        self.mode = mode
        self.kafka = kafka
        self.other = other
        self.seed = seed
        self.now_ms = int(time.time() * 1000)
        self.requests = 0
        self.found: list[Mismatch] = []
        self.passing: list[Mismatch] = []
        """What differed once and then no more."""
        self.pool = ThreadPoolExecutor(2)
        for world in (kafka, other):
            try:
                mode.setup(world, self.now_ms)
            except (Closed, Silent) as why:
                raise SetupFailed(
                    f"{world.name} gave no answer while its topics were prepared: {why!r}"
                ) from why

    def plan(self, apis: list[str], version: int | None, scenario: str | None, skip: Plan) -> Plan:
        """Every scenario at every version that both serve."""
        chosen = []
        for api in apis:
            for at in range(40):
                if version in (None, at) and self.kafka.serves(api, at) and self.other.serves(api, at):
                    chosen += [
                        (api, at, name) for name in self.mode.scenarios[api] if scenario in (None, name)
                    ]
        passed = set(skip)
        return [each for each in chosen if each not in passed]

    def play(self, api: str, version: int, name: str, again: int) -> None:
        label = f"{name.replace('_', '-')}-v{version}" + (f"-{again}" if again else "")
        self._play(api, version, name, label, label)

    def play_until_sure(self, api: str, version: int, name: str, known: list[Difference]) -> None:
        """Both brokers do much by themselves, so an answer may hang on the moment. A scenario in which something
        differs without a reason is played twice more, with the same choices. What differs then again counts."""
        before = len(self.found)
        self.play(api, version, name, 0)
        told = self.found[before:]
        if all(_covered(each, known) for each in told):
            return
        label = f"{name.replace('_', '-')}-v{version}"
        for again in ("b", "c"):
            self._play(api, version, name, label, f"{label}-{again}")
        if all(_covered(each, known) for each in self.found[before + len(told) :]):
            self.passing += [each for each in told if not _covered(each, known)]
            self.found[before:] = [each for each in told if _covered(each, known)]
        else:
            del self.found[before + len(told) :]

    def _play(self, api: str, version: int, name: str, chance: str, label: str) -> None:
        draw = Draw(random.Random(f"{self.seed} {chance}"), self.now_ms, label)
        for step in self.mode.scenarios[api][name](draw, version):
            self.ask(name, *pin(step, api, version))
        for world in (self.kafka, self.other):
            world.hang_up()

    def ask(self, name: str, api: str, version: int, step: Step) -> None:
        worlds = (self.kafka, self.other)
        raw = [_only(world.ask(api, version, step), step.only) for world in worlds]
        self.requests += 1
        if is_change(api, step):  # before anything is compared, so that new topic ids are known
            list(self.pool.map(World.catch_up, worlds))
        answers = [normalise(answer, world) for answer, world in zip(raw, worlds, strict=True)]
        for path, kafka, other in differences(*answers):
            shown = str(step.frame) if step.frame is not None else _brief(step.body)
            self.found.append(Mismatch(api, version, name, path, kafka, other, shown, step.note))


def _covered(found: Mismatch, known: list[Difference]) -> bool:
    return any(difference.covers(found) for difference in known)


def _only(answer: Answer, prefix: str) -> Answer:
    if not prefix or isinstance(answer, str):
        return answer
    return {**answer, "Groups": [each for each in answer["Groups"] if each["GroupId"].startswith(prefix)]}


def _brief(value: object) -> str:
    if isinstance(value, bytes):
        return f"({len(value)} bytes)"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_brief(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_brief(inner) for inner in value) + "]"
    return repr(value)


class Compared(NamedTuple):
    requests: int
    found: list[Mismatch]
    passing: list[Mismatch]
    notes: list[str]


def compare(mode: Mode, options: argparse.Namespace, known: list[Difference]) -> Compared:
    """Kafka's newest for every version it serves, then the last 3.9 for the versions that are left."""
    apis = options.api or list(mode.scenarios)
    found: list[Mismatch] = []
    passing: list[Mismatch] = []
    notes: list[str] = []
    done: Plan = []
    requests = 0
    for kafka_version in options.kafka:
        with ExitStack() as stack:
            kafka = stack.enter_context(mode.server(f"kafka:{kafka_version}", SETTINGS))
            other = stack.enter_context(mode.server(options.against, SETTINGS))
            run = Run(mode, mode.world(kafka), mode.world(other), options.seed)
            plan = run.plan(apis, options.version, options.scenario, done)
            if options.short:
                newest = {api: version for api, version, _ in plan}
                plan = [each for each in plan if each[1] == newest[each[0]]]
            for api, version, name in plan:
                run.play_until_sure(api, version, name, known)
            chance = random.Random(options.seed)
            again = 0
            while plan and requests + run.requests < options.requests:
                again += 1
                run.play(*chance.choice(plan), again)
            done += plan
            requests += run.requests
            found += run.found
            passing += run.passing
            unserved = [api for api in apis if not any(each[0] == api for each in done)]
            notes.append(f"{run.requests} requests to {kafka.name} and {other.name}")
            if not other.alive() and not options.against.count(":"):
                notes.append(f"{other.name} DIED during the run:\n{other.tail()}")
    if unserved:
        notes.append(f"not compared, since not served by both: {', '.join(unserved)}")
    return Compared(requests, found, passing, notes)


def sort_out(found: list[Mismatch], known: list[Difference]) -> list[Mismatch]:
    """What no deliberate difference covers."""
    left = []
    for each in found:
        cover = next((difference for difference in known if difference.covers(each)), None)
        if cover is None:
            left.append(each)
        else:
            cover.used += 1
    return left


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m conformance.differential", description=__doc__)
    add_against(parser)
    parser.add_argument(
        "--api",
        action="append",
        metavar="API",
        help="only this API; may be repeated",
    )
    parser.add_argument(
        "--secured",
        action="store_true",
        help="both with logins and the authorizer: each API asked by users who may, may not and may in part",
    )
    parser.add_argument("--short", action="store_true", help="only the newest version of each API")
    parser.add_argument("--version", type=int, help="only this version")
    parser.add_argument("--scenario", help="only the scenario of this name")
    parser.add_argument(
        "--seed", type=int, default=1, help="chooses names, values and what is repeated (default 1)"
    )
    parser.add_argument(
        "--requests", type=int, default=0, help="go on with scenarios drawn by the seed up to so many"
    )
    parser.add_argument(
        "--kafka",
        action="append",
        metavar="VERSION",
        help=f"the oracle (default {parts.KAFKA_NEWEST}, then {parts.KAFKA_OLD} for what is left)",
    )
    parser.add_argument("--verbose", action="store_true", help="print whole requests and every scenario")
    parser.add_argument("--all", action="store_true", help="also print deliberate differences")
    options = parser.parse_args(arguments)
    newest_only = [parts.KAFKA_NEWEST]
    options.kafka = options.kafka or (newest_only if options.short else [*newest_only, parts.KAFKA_OLD])
    return options


def main() -> int:
    options = options_of()
    mode = secured_mode() if options.secured else open_mode()
    if unknown := set(options.api or ()) - set(mode.scenarios):
        print(f"differential: nothing is asked of {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    known = deliberate(mode.differences)
    all_known = [*known, *(each for name in mode.also for each in deliberate(name))]
    try:
        with interrupted_cleanly():
            requests, found, passing, notes = compare(mode, options, all_known)
    except parts.PartMissing as why:
        return parts.not_run(why)
    except (ServerFailed, SetupFailed) as why:
        print(f"differential: {why}", file=sys.stderr)
        return 2
    left = sort_out(found, all_known)
    report(found if options.all else left, options.against, options.verbose)
    if passing:
        print(f"\n{len(passing)} differed at one moment, and in two more plays of the scenario no more:")
        report(passing, options.against, options.verbose)
    print()
    for note in notes:
        print(note)
    partial = options.short or options.api or options.version is not None or options.scenario
    for difference in known:
        if difference.used == 0 and not partial:
            print(f"no longer seen, remove it: {difference.api} {difference.field}: {difference.reason}")
    died = any("DIED" in note for note in notes)
    print(
        f"seed {options.seed}: {requests} requests, {len(found) - len(left)} deliberate differences, "
        f"{len(left)} mismatches"
    )
    return 1 if left or died or not requests else 0


if __name__ == "__main__":
    raise SystemExit(main())
