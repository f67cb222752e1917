"""What a page shows, as commands to copy, quoted for a shell: groups and keys may have any character."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.admin.resetting import WayError, datetime_ms
from penstock.settings.clients import OPEN_CLIENT

if TYPE_CHECKING:
    from penstock.console.reading import Found
    from penstock.console.visit import Visit

PROPERTIES = "client.properties"
"""How the command reaches a secured cluster; the console does not give its own secrets away."""


def penstock(visit: Visit, words: Sequence[str], name: str = "") -> str:
    """A line for a shell. `name`: the argument, which may begin as options do."""
    secured = ("--command-config", PROPERTIES) if _secured(visit) else ()
    last = ("--", name) if name.startswith("-") else (name,) if name else ()
    return shlex.join(["penstock", *words, "--bootstrap", visit.cluster.bootstrap, *secured, *last])


def kcat(visit: Visit, words: Sequence[str]) -> str:
    secured = ("-F", PROPERTIES) if _secured(visit) else ()
    return shlex.join(["kcat", "-C", "-b", visit.cluster.bootstrap, *secured, *words])


def one_record(visit: Visit, partition: int, offset: int) -> str:
    where = ["--partition", str(partition), "--from", str(offset), "--max", "1", "--json"]
    return penstock(visit, ["consume", *where], visit.argument("name"))


def records(visit: Visit, start: str, count: int, shown: Sequence[Found]) -> list[tuple[str, str]]:
    """The records of a page: whose command it is, and the line."""
    name, partition, find = visit.argument("name"), visit.query("partition"), visit.query("find")
    ours = ["consume", "--json", *(["--partition", partition] if partition else ())]
    theirs = ["-t", name, *(["-p", partition] if partition else ())]
    if find:
        return [("penstock", penstock(visit, [*ours, *_filter(visit.query("by", "key"), find)], name))]
    begin = _begin(start, visit.query("at"), count, shown)
    if begin is not None:
        # The last so many are the last of each partition for both, and end by themselves.
        most = [] if start == "newest" else [str(count)]
        ours += ["--from", begin, *("--max" for _ in most), *most]
        theirs += ["-o", begin.replace("@", "s@"), "-e", *("-c" for _ in most), *most]
    return [("penstock", penstock(visit, ours, name)), ("kcat", kcat(visit, theirs))]


def _begin(start: str, at: str, count: int, shown: Sequence[Found]) -> str | None:
    """As both commands take it: an offset, a number from the end, or @ and milliseconds."""
    if start == "newest":
        return f"-{count}"
    if start == "oldest":
        return "beginning"
    if start == "offset" and at:
        return at
    if start == "time" and at:
        try:
            return f"@{at}" if at.isascii() and at.isdigit() else f"@{datetime_ms(at)}"
        except WayError:
            return None
    if start in ("from", "before") and shown:
        return f"@{min(one.record.timestamp for one in shown)}"
    return None


def _filter(by: str, find: str) -> list[str]:
    if by == "text":
        return ["--grep", f"(?i){re.escape(find)}"]
    return ["--field" if by == "json" else "--key", find]


def reset(visit: Visit, group: str) -> str:
    """The move of offsets that a page previews."""
    way, value, topic = visit.query("way"), visit.query("value"), visit.query("topic")
    option = {
        "offset": ["--to-offset", value],
        "shift": ["--shift-by", value],
        "time": ["--to" if value.startswith("@") else "--to-datetime", value],
        "duration": ["--by-duration", value],
        "plan": ["--from-file", "plan.csv"],
    }.get(way, [f"--to-{way}"])
    where = [] if way == "plan" else ["--topic", topic] if topic else ["--all-topics"]
    return penstock(visit, ["groups", "reset-offsets", *where, *option, "--execute"], group)


def _secured(visit: Visit) -> bool:
    return visit.cluster.security != OPEN_CLIENT
