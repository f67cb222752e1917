"""Client programs that stay in a group, and the history of their events."""

import json
import os
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from conformance import parts
from conformance.client import BY_NAME
from conformance.groups.history import Event

ANSWER_TIMEOUT_S = 60.0
COMPLAINT_BYTES_MAX = 1 << 20


class MemberFailed(Exception):
    """A member ended or complained although nobody told it to go."""


@dataclass
class History:
    """All events of members, in the order in which they are heard. One lock for all of it."""

    events: list[Event] = field(default_factory=list)
    owned: dict[str, set[int]] = field(default_factory=dict)
    heard: threading.Condition = field(default_factory=threading.Condition)

    def add(self, event: Event) -> None:
        with self.heard:
            self.events.append(event)
            mine = self.owned.setdefault(event.member, set())
            match event.kind:
                case "assigned":
                    mine.update(event.partitions)
                case "revoked" | "lost":
                    mine.difference_update(event.partitions)
                case "died":
                    mine.clear()
            self.heard.notify_all()

    def consumed(self) -> dict[int, set[int]]:
        with self.heard:
            found: dict[int, set[int]] = {}
            for event in self.events:
                if event.kind == "consumed":
                    found.setdefault(event.partitions[0], set()).update(event.offsets)
            return found


class Member:
    """One program, started but not yet joined."""

    def __init__(
        self,
        name: str,
        client: str,
        variant: str,
        bootstrap: str,
        history: History,
        security: Path | None = None,
    ) -> None:
        self.name = name
        self.variant = variant
        self.history = history
        self.failure: str | None = None
        self._ending = False
        self._left = threading.Event()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        login = [] if security is None else ["--security", str(security)]
        self.process = subprocess.Popen(
            [*BY_NAME[client].program(), "--bootstrap", bootstrap, *login],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=parts.ROOT,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def alive(self) -> bool:
        return not self._ending

    @property
    def complaint(self) -> str:
        """What it last said to standard error."""
        said = os.pread(self._errors.fileno(), COMPLAINT_BYTES_MAX, 0).decode(errors="replace")
        return " | ".join(said.strip().splitlines()[-3:])

    def join(self, group: str, topic: str, instance: str | None = None) -> None:
        with self.history.heard:
            self.history.owned[self.name] = set()
        asked = {
            "do": "member",
            "group": group,
            "topic": topic,
            "variant": self.variant,
            "instance": instance,
        }
        self._send(asked)

    def ask_to_leave(self) -> None:
        self._ending = True
        self._send({"do": "leave"})

    def await_left(self) -> None:
        if not self._left.wait(ANSWER_TIMEOUT_S):
            raise MemberFailed(f"{self.name} did not leave within {ANSWER_TIMEOUT_S:.0f} s")
        if self.failure:
            raise MemberFailed(self.failure)

    def kill(self) -> None:
        """kill -9; what it said before is heard to the end first."""
        self._ending = True
        self.process.kill()
        died = time.time() * 1000
        self.process.wait()
        self._reader.join(ANSWER_TIMEOUT_S)
        self.history.add(Event(self.name, "died", died))

    def close(self) -> None:
        self._ending = True
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(ANSWER_TIMEOUT_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self._errors.close()

    def _send(self, command: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(command).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise MemberFailed(f"{self.name} ended: {self.failure}") from None

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.endswith(b"\n"):
                break  # killed in the middle of a word
            said = json.loads(line)
            if "event" in said:
                if said["event"] == "lost" and self._ending:
                    said["event"] = "revoked"  # how Java says goodbye if it leaves while the group rebalances
                self.history.add(_event(self.name, said))
            else:
                if "error" in said:
                    self.failure = f"{self.name}: {said['error']}"
                elif not self._ending:
                    self.failure = f"{self.name} left, which nobody told it to"
                break
        else:
            if not self._ending:
                self.failure = f"{self.name} ended: {self.complaint}"
        self._left.set()
        with self.history.heard:
            self.history.heard.notify_all()


def _event(member: str, said: dict[str, Any]) -> Event:
    if said["event"] == "consumed":
        return Event(member, "consumed", said["at"], (said["partition"],), tuple(said["offsets"]))
    return Event(member, said["event"], said["at"], tuple(said["partitions"]))
