"""Subscriptions by regular expression, matched in time linear in the name.

A client chooses the pattern, and the coordinator matches it against every topic, on the loop that serves all
clients. Python's `re` backtracks: one pattern could stop the broker for hours. So this module compiles a
pattern to a non-deterministic automaton. It runs it as a deterministic one, which it builds as it is needed,
under a budget of steps. As in Kafka, a pattern must match the whole name.
"""

from collections.abc import Iterable

from penstock.groups.consumer.regex_syntax import (
    Assert,
    Chars,
    Concat,
    Either,
    Node,
    RegexError,
    Repeat,
    parse,
)

NODES_MAX = 5_000
"""Repetition counts multiply: ((a{1000}){1000}) is a million nodes in 16 characters."""
STATES_MAX = 2_000
"""Deterministic states kept; past that the cache is emptied and built again."""
STEPS_MAX = 2_000_000
"""Work on automaton nodes for one resolution, a second or so. Transitions that are cached are free."""

_END = -1
_WORD = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")
_MATCH = 0
_CHARACTER = "character"
"""The position of a node that is passed only by a character that it takes."""


class _Nodes:
    """The automaton: node 0 accepts; every other consumes a character, asserts, or forks."""

    __slots__ = ("masks", "positions", "targets")

    def __init__(self) -> None:
        self.masks: list[int] = [0]
        self.positions: list[str] = [_CHARACTER]
        self.targets: list[tuple[int, ...]] = [()]

    def add(self, mask: int, position: str, targets: tuple[int, ...]) -> int:
        if len(self.targets) >= NODES_MAX:
            raise RegexError("too large")
        self.masks.append(mask)
        self.positions.append(position)
        self.targets.append(targets)
        return len(self.targets) - 1

    def compile(self, node: Node, then: int) -> int:
        """Where to begin so that `node` is matched and `then` follows."""
        match node:
            case Chars(mask):
                return self.add(mask, _CHARACTER, (then,))
            case Assert(kind):
                return self.add(0, kind, (then,))
            case Concat(parts):
                for part in reversed(parts):
                    then = self.compile(part, then)
                return then
            case Either(options):
                return self.add(0, "", tuple(self.compile(option, then) for option in options))
            case Repeat(part, least, most):
                return self._compile_repeat(part, least, most, then)

    def _compile_repeat(self, part: Node, least: int, most: int | None, then: int) -> int:
        if most is None:
            loop = self.add(0, "", ())
            self.targets[loop] = (self.compile(part, loop), then)
            then = loop
        else:
            for _ in range(most - least):
                then = self.add(0, "", (self.compile(part, then), then))
        for _ in range(least):
            then = self.compile(part, then)
        return then


class _State:
    __slots__ = ("kernel", "next", "previous")

    def __init__(self, kernel: frozenset[int], previous: int) -> None:
        self.kernel = kernel
        self.previous = previous
        """The character before: _END at the start, 1 for a word character, 0 for another."""
        self.next: dict[int, _State | bool] = {}


class TopicPattern:
    """A compiled pattern. Compiling raises RegexError; so does matching, if it would take too long."""

    __slots__ = ("_nodes", "_start", "_states", "_steps_left", "pattern")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        nodes = self._nodes = _Nodes()
        start = nodes.compile(parse(pattern), _MATCH)
        self._start = _State(frozenset((start,)), _END)
        self._states: dict[tuple[frozenset[int], int], _State] = {}
        self._steps_left = STEPS_MAX

    def select(self, names: Iterable[str]) -> frozenset[str]:
        self._steps_left = STEPS_MAX
        return frozenset(name for name in names if self._matches(name))

    def _matches(self, name: str) -> bool:
        state = self._start
        for code in name.encode("utf-8"):
            found = state.next.get(code)
            if found is None:
                found = self._step(state, code)
            if isinstance(found, bool):
                return False  # Nothing can match any more.
            state = found
        accepted = state.next.get(_END)
        if accepted is None:
            accepted = state.next[_END] = _MATCH in self._closure(state, _END)
        return accepted is True

    def _step(self, state: _State, code: int) -> _State | bool:
        masks = self._nodes.masks
        bit = 1 << code if code < 128 else 0
        kernel = frozenset(
            target
            for node in self._closure(state, code)
            if masks[node] & bit
            for target in self._nodes.targets[node]
        )
        if not kernel:
            state.next[code] = False
            return False
        key = (kernel, 1 if code in _WORD else 0)
        known = self._states.get(key)
        if known is None:
            if len(self._states) >= STATES_MAX:
                self._states.clear()
                self._start.next.clear()
                state.next.clear()
            known = self._states[key] = _State(*key)
        state.next[code] = known
        return known

    def _closure(self, state: _State, following: int) -> set[int]:
        """All nodes that can be reached without a character, given the characters on both sides."""
        nodes = self._nodes
        boundary = (state.previous == 1) != (following in _WORD)
        holds = {
            "": True,
            _CHARACTER: False,
            "start": state.previous == _END,
            "end": following == _END,
            "word": boundary,
            "inside": not boundary,
        }
        seen: set[int] = set()
        waiting = list(state.kernel)
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            if holds[nodes.positions[node]]:
                waiting.extend(nodes.targets[node])
        self._steps_left -= len(seen)
        if self._steps_left < 0:
            raise RegexError("takes too long to match")
        return seen
