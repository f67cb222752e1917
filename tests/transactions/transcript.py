"""Reads and replays transcripts of a shard of transactional ids.

A transcript is a text file of blocks. A block is one or more commands, a line of four dashes, and everything
that then happens, one line each:

    init x
    ----
    write x Empty 1/0
    init <- NONE 1/0

Commands: `init ID [PID/EPOCH] [timeout=MS]`, `add ID PID/EPOCH PLACES [v=2]`, `verify ID PID/EPOCH PLACES`,
`commit ID PID/EPOCH [v=5]` and `abort`, `marked [PLACES]` (of the oldest errand; none: all), `hold` (writes
stay under way), `flush`, `fail CODE`, `advance MS`, `restart`, `epoch ID PID/EPOCH STATE` (the log says so
from now on), `list`. PLACES are `t:0,1;u:2`. `PENSTOCK_REWRITE=1` writes the file anew with what happens now,
to be read in the diff.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from penstock.shards.shard import Record
from penstock.transactions.core import Marking, Told
from penstock.transactions.records import read_record, to_key, to_value
from penstock.transactions.transaction import NAMES, Given, Place, State, Transaction
from penstock.wire.errors import ErrorCode
from tests.transactions.world import World


class Transcript:
    def __init__(self) -> None:
        self.world = World(prompt=False)
        self.holds = False
        self.lines: list[str] = []
        self.waiting: dict[int, str] = {}
        self.to_mark: list[Marking] = []

    def run(self, commands: list[str]) -> list[str]:
        self.lines = []
        for command in commands:
            name, *words = command.split()
            getattr(self, "do_" + name)(*words)
            self._collect()
        return self.lines

    def _collect(self) -> None:
        world = self.world
        while True:
            for ticket, answer in list(world.answers.items()):
                del world.answers[ticket]
                self.lines.append(f"{self.waiting.pop(ticket)} <- {_show(answer)}")
            for marking in world.errands:
                self.to_mark.append(marking)
                ending = marking.ending
                self.lines.append(
                    f"mark {marking.transactional_id} {'commit' if ending.committed else 'abort'}"
                    f" {ending.producer_id}/{ending.producer_epoch} v={ending.version}"
                    f" coordinator={ending.coordinator_epoch} {_show_places(marking.places)}"
                )
            world.errands.clear()
            if world.in_flight is None or self.holds:
                return
            self._flush()

    def _flush(self) -> None:
        assert self.world.in_flight is not None
        self.lines.extend("write " + _show_record(record) for record in self.world.in_flight.records)
        self.world.flush()

    # -- commands ------------------------------------------------------------------------------------

    def do_init(self, name: str, *words: str) -> None:
        given = next((_given(word) for word in words if "/" in word), None)
        self.waiting[self.world.init(_name(name), given, int(_option(words, "timeout", "60000")))] = "init"
        self._collect()

    def do_add(self, name: str, given: str, places: str, *words: str) -> None:
        version = int(_option(words, "v", "0"))
        ticket = self.world.add(_given(given), *_places(places), name=_name(name), version=version)
        self.waiting[ticket] = "add"

    def do_verify(self, name: str, given: str, places: str) -> None:
        ticket = self.world.add(_given(given), *_places(places), name=_name(name), verify_only=True)
        self.waiting[ticket] = "verify"

    def do_commit(self, name: str, given: str, *words: str) -> None:
        self._end("commit", name, given, words)

    def do_abort(self, name: str, given: str, *words: str) -> None:
        self._end("abort", name, given, words)

    def _end(self, kind: str, name: str, given: str, words: tuple[str, ...]) -> None:
        bump = int(_option(words, "v", "4")) >= 5
        ticket = self.world.end(_given(given), commit=kind == "commit", bump=bump, name=_name(name))
        self.waiting[ticket] = kind

    def do_marked(self, places: str = "") -> None:
        marking = self.to_mark[0]
        self.world.marked(marking, *_places(places))
        if not places:
            del self.to_mark[0]

    def do_hold(self) -> None:
        self.holds = True

    def do_flush(self) -> None:
        self.holds = False

    def do_fail(self, code: str) -> None:
        self.holds = False
        self.world.fail(ErrorCode[code])

    def do_advance(self, ms: str) -> None:
        self.world.prompt = not self.holds
        before = len(self.world.log)
        self.world.advance(int(ms))
        self.world.prompt = False
        self.lines.extend("write " + _show_record(record) for record in self.world.log[before:])

    def do_restart(self) -> None:
        self.waiting.clear()
        self.to_mark.clear()
        self.holds = False
        self.world.restart()

    def do_epoch(self, name: str, given: str, state: str, places: str = "") -> None:
        producer_id, epoch = _given(given)
        stored = Transaction(
            producer_id=producer_id,
            epoch=epoch,
            timeout_ms=60_000,
            state=State[state],
            places=frozenset(_places(places)),
            start_ms=self.world.now.wall_ms,
            updated_ms=self.world.now.wall_ms,
        )
        self.world.log.append(Record(to_key(name), to_value(stored)))
        self.do_restart()

    def do_noids(self) -> None:
        self.world.ids_at_hand = False

    def do_list(self) -> None:
        for name, known in self.world.shard.listed():
            self.lines.append(_show_known(name, known))


def _name(text: str) -> str:
    return "" if text == "-" else text


def _given(text: str) -> Given:
    producer_id, _, epoch = text.partition("/")
    return Given(int(producer_id), int(epoch))


def _places(text: str) -> list[Place]:
    return [
        Place(topic, int(index))
        for topic, _, indexes in (part.partition(":") for part in filter(None, text.split(";")))
        for index in filter(None, indexes.split(","))
    ]


def _option(words: tuple[str, ...], name: str, default: str) -> str:
    return next((word.partition("=")[2] for word in words if word.startswith(name + "=")), default)


def _show(answer: Any) -> str:
    if isinstance(answer, Told):
        producer_id, epoch = answer.producer
        return answer.code.name + (f" {producer_id}/{epoch}" if producer_id >= 0 else "")
    codes: set[str] = {code.name for code in answer.values()}
    if len(codes) == 1:
        return codes.pop()
    return " ".join(f"{place.topic}:{place.partition}={code.name}" for place, code in answer.items())


def _show_places(places: frozenset[Place]) -> str:
    return ",".join(f"{place.topic}:{place.partition}" for place in sorted(places)) or "-"


def _show_record(record: Record) -> str:
    found = read_record(record.key, record.value)
    assert found is not None
    name, known = found
    return f"{name} tombstone" if known is None else _show_known(name, known)


def _show_known(name: str, known: Transaction) -> str:
    shown = f"{name} {NAMES[known.state]} {known.producer_id}/{known.epoch}"
    if known.previous_producer_id >= 0:
        shown += f" previous={known.previous_producer_id}"
    if known.next_producer_id >= 0:
        shown += f" next={known.next_producer_id}"
    return shown + (f" {_show_places(known.places)}" if known.places else "")


def check_transcript(path: Path) -> None:
    """Replay a file; what happens must be what it says."""
    transcript = Transcript()
    blocks = path.read_text().strip().split("\n\n")
    replayed = []
    for block in blocks:
        head, _, said = block.partition("\n----")
        commands = [line for line in head.splitlines() if line and not line.startswith("#")]
        replayed.append("\n".join([head, "----", *transcript.run(commands)]))
        if not os.environ.get("PENSTOCK_REWRITE"):
            assert replayed[-1].rstrip() == block.rstrip(), f"{path.name}: {commands}"
        del said
    if os.environ.get("PENSTOCK_REWRITE"):
        path.write_text("\n\n".join(replayed) + "\n")
