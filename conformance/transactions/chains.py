"""Consume, transform, produce: chains of several kinds of client, under kills, pauses and hand-overs.

A source writes numbered values. Links of librdkafka, franz-go and Java, members of one group, turn each into a
value in two topics; links of aiokafka turn those of the first into values of a third (librdkafka in the short form).
Each does so in transactions that hold its outputs and the offsets of its input, and aborts some of them on purpose.
In each round something happens to a broker (kill -9, SIGSTOP, a controlled stop) or to a link (kill -9, SIGSTOP for
longer than its transaction may take, so that it wakes as a zombie). Both stages must go on.

Groups have an offset before their links begin, because aiokafka cannot tell a group that has none from a coordinator
that does not answer yet (`conformance/clients/aiokafka_transactions.py`).

Apache Kafka 4.3.1 does not pass when it is killed: when its coordinator is loaded before the other partitions have
leaders again, it takes these for deleted and completes transactions without their markers (KAFKA-20734). Their
records then share the fate of the producer's next transaction. Those of an aborted one become visible, so that their
inputs are there twice, and a producer without a next one holds the last stable offset back for ever.

Every few rounds the chain is drained. Then each input must be in each output exactly once, for several readers;
the last stable offset is the end of each partition; and the whole history is checked by `conformance.histories`:
what the links said, what a reader at read_committed was shown meanwhile and when, what groups were told of their
offsets. A failing run is repeated with its seed, though not to the millisecond; its history is kept as JSON in
conformance/out.
"""

import argparse
import random
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import msgspec

from conformance import parts
from conformance.client import BY_NAME
from conformance.histories.checking import check
from conformance.server import ServerFailed, interrupted_cleanly
from conformance.transactions.account import exactly_once
from conformance.transactions.act import Act
from conformance.transactions.faults import FAULTS, SHORT_FAULTS, Fault, come_to_rest
from conformance.transactions.places import Place, place_named
from penstock.testing.waiting import Late

KEPT = parts.ROOT / "conformance" / "out" / "chain-history.json"
ROUNDS_AN_ACT = 20
FINDINGS_SHOWN = 10

FIRST = ("confluent-kafka", "franz-go", "java")
READERS = ("confluent-kafka", "aiokafka", "franz-go")
SECOND = "aiokafka"
SHORT_FIRST = ("confluent-kafka", "confluent-kafka")
SHORT_SECOND = "confluent-kafka"
SHORT_READERS = ("confluent-kafka", "aiokafka")


@dataclass(slots=True)
class Totals:
    rounds: Counter[str] = field(default_factory=Counter)
    pauses: list[float] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    clients: Counter[str] = field(default_factory=Counter)
    inputs: int = 0
    readings: int = 0
    offsets: int = 0
    why: Counter[str] = field(default_factory=Counter)
    ended: list[str] = field(default_factory=list)
    hung: list[str] = field(default_factory=list)


def play(act: Act, faults: Sequence[Fault], options: argparse.Namespace, totals: Totals) -> list[str]:
    """What is wrong."""
    problems: list[str] = []
    source = act.begin(options.first, options.second)
    try:
        act.go_on()
        for fault in faults:
            fault.act(act)
            act.tend()
            come_to_rest(act)
            took = act.go_on()
            totals.rounds[fault.name] += 1
            totals.pauses.append(took)
            number = sum(totals.rounds.values())
            done = act.account.counts()
            print(
                f"round {number}: {fault.name}, both stages went on after {took:.1f} s, {dict(done)}",
                flush=True,
            )
        act.drain(source)
    except Late as why:
        problems.append(str(why))
    finally:
        act.close()
    problems += act.read(options.readers)
    history = act.account.history()
    problems += map(str, check(history))
    problems += map(str, exactly_once(history, act.outputs, source.values))
    for helper in act.helpers:
        if helper.failure is not None:
            problems.append(f"{helper.name}: {helper.failure!r}")
    if problems:
        KEPT.parent.mkdir(parents=True, exist_ok=True)
        KEPT.write_bytes(msgspec.json.encode(history))
    totals.outcomes += act.account.counts()
    totals.clients += act.account.by_client()
    totals.inputs += len(source.values)
    totals.readings += len(history.readings)
    totals.offsets += len(history.offsets)
    totals.why += act.account.why
    totals.ended += [why for link in act.links for why in link.failures]
    totals.hung += [name for link in act.links for name in link.hung]
    return problems


def run(place: Place, options: argparse.Namespace, totals: Totals) -> list[str]:
    chance = random.Random(options.seed)
    usable = [fault for fault in FAULTS if place.cluster is not None or not fault.cluster]
    if options.only:
        usable = [fault for fault in usable if fault.name == options.only]
    if options.short:
        plan = [next(fault for fault in usable if fault.name == name) for name in SHORT_FAULTS]
    else:
        plan = chance.choices(usable, [fault.weight for fault in usable], k=options.rounds)
    problems: list[str] = []
    for number, start in enumerate(range(0, len(plan), ROUNDS_AN_ACT), 1):
        act = Act(number, place, chance)
        problems += play(act, plan[start : start + ROUNDS_AN_ACT], options, totals)
        if problems:
            break
    return problems + place.problems()


def report(totals: Totals) -> None:
    print("  " + ", ".join(f"{count} {what}" for what, count in sorted(totals.clients.items())))
    for why, count in totals.why.most_common(8):
        print(f"  {count} times {why}")
    for why in totals.ended[:8]:
        print(f"  a link ended by itself: {why[:200]}")
    if totals.hung:
        print(
            f"  {len(totals.hung)} times a link hung in a transaction and was killed: {', '.join(totals.hung[:5])}"
        )
    totals.pauses.sort()
    if totals.pauses:
        middle, last = totals.pauses[len(totals.pauses) // 2], totals.pauses[-1]
        print(f"both stages went on within {middle:.1f} s in the median, {last:.1f} s at most")
    kinds = ", ".join(f"{count} x {name}" for name, count in totals.rounds.items())
    print(
        f"{sum(totals.rounds.values())} rounds ({kinds}): {totals.inputs} inputs, transactions "
        f"{dict(totals.outcomes)}, {totals.readings} readings of partitions, {totals.offsets} offsets told"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m conformance.transactions.chains", description=summary)
    parser.add_argument(
        "--against", default="penstock", metavar="BROKERS", help="penstock or kafka (%(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=1000)
    names = [fault.name for fault in FAULTS]
    parser.add_argument("--only", choices=names, metavar="FAULT", help=f"one of: {', '.join(names)}")
    parser.add_argument(
        "--first", nargs="+", choices=FIRST, default=None, metavar="CLIENT", help="links in front"
    )
    parser.add_argument(
        "--second", choices=(SECOND, SHORT_SECOND), metavar="CLIENT", help="links behind them"
    )
    parser.add_argument("--readers", nargs="+", choices=READERS, default=None, metavar="CLIENT")
    parser.add_argument("--short", action="store_true", help="a few rounds of clients in Python: for CI")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    options.first = options.first or (SHORT_FIRST if options.short else FIRST)
    options.second = options.second or (SHORT_SECOND if options.short else SECOND)
    options.readers = options.readers or (SHORT_READERS if options.short else READERS)
    totals = Totals()
    try:
        for name in {*options.first, options.second, *options.readers}:
            BY_NAME[name].program()
        with interrupted_cleanly(), ExitStack() as stack:
            place = stack.enter_context(place_named(options.against))
            problems = run(place, options, totals)
    except parts.PartMissing as why:
        return parts.not_run(why)
    except (AssertionError, ServerFailed) as why:
        problems = [str(why)]
    report(totals)
    for problem in problems[:FINDINGS_SHOWN]:
        print(f"FAILED with seed {options.seed}: {problem}")
    if not problems:
        print("each input exactly once in all outputs, no transaction in part, nothing aborted seen")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
