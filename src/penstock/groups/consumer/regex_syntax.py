"""RE2's syntax, as far as it can say something about topic names, parsed to a tree.

Topic names are ASCII, so a character class is a set of ASCII codes, held as a bit mask; a character outside
of ASCII matches nothing. RE2 leaves out back-references, look-around and possessive repetition, because they
cannot be matched in linear time. This module refuses them too.
"""

from typing import NamedTuple

PATTERN_LENGTH_MAX = 1_000
REPEAT_MAX = 1_000
"""RE2's own limit for {n,m}."""
DEPTH_MAX = 50
"""Parentheses within parentheses: the parser and the compiler recurse that deep."""

ASCII = (1 << 128) - 1


class RegexError(ValueError):
    """The pattern is not one that groups can use; the message says why."""


class Chars(NamedTuple):
    """One character out of a set."""

    mask: int


class Assert(NamedTuple):
    """A position: "start", "end", "word" (boundary) or "inside" (no boundary)."""

    kind: str


class Concat(NamedTuple):
    parts: "tuple[Node, ...]"


class Either(NamedTuple):
    options: "tuple[Node, ...]"


class Repeat(NamedTuple):
    part: "Node"
    least: int
    most: int | None


Node = Chars | Assert | Concat | Either | Repeat


def _span(first: str, last: str) -> int:
    return sum(1 << code for code in range(ord(first), ord(last) + 1))


def _set(chars: str) -> int:
    return sum(1 << ord(char) for char in set(chars))


_UPPER, _LOWER, _DIGIT = _span("A", "Z"), _span("a", "z"), _span("0", "9")
_LETTER = _UPPER | _LOWER
_WORD = _LETTER | _DIGIT | _set("_")
_SPACE = _set("\t\n\f\r ")
_PUNCT = _span("!", "/") | _span(":", "@") | _span("[", "`") | _span("{", "~")

_PERL = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_POSIX = {
    "alnum": _LETTER | _DIGIT,
    "alpha": _LETTER,
    "ascii": ASCII,
    "blank": _set("\t "),
    "cntrl": (1 << 32) - 1 | 1 << 127,
    "digit": _DIGIT,
    "graph": _span("!", "~"),
    "lower": _LOWER,
    "print": _span(" ", "~"),
    "punct": _PUNCT,
    "space": _SPACE | _set("\v"),
    "upper": _UPPER,
    "word": _WORD,
    "xdigit": _DIGIT | _span("A", "F") | _span("a", "f"),
}
_UNICODE = {
    "L": _LETTER,
    "Lu": _UPPER,
    "Ll": _LOWER,
    "Latin": _LETTER,
    "N": _DIGIT,
    "Nd": _DIGIT,
    "P": _PUNCT & ~_set("$+<=>^`|~"),
    "S": _set("$+<=>^`|~"),
}
_CONTROL = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ASSERTS = {"A": "start", "z": "end", "b": "word", "B": "inside"}
_EMPTY = Concat(())


def fold(mask: int) -> int:
    """The set with the other case of each letter added."""
    return mask | (mask & _UPPER) << 32 | (mask & _LOWER) >> 32


def parse(pattern: str) -> Node:
    if len(pattern) > PATTERN_LENGTH_MAX:
        raise RegexError(f"longer than {PATTERN_LENGTH_MAX} characters")
    parser = _Parser(pattern)
    node = parser.alternation(0)
    if not parser.at_end:
        raise RegexError("unmatched closing parenthesis")
    return node


class _Parser:
    __slots__ = ("_at", "_fold", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._fold = False

    @property
    def at_end(self) -> bool:
        return self._at >= len(self._text)

    def _peek(self, what: str) -> bool:
        return self._text.startswith(what, self._at)

    def _take(self, what: str) -> bool:
        if not self._peek(what):
            return False
        self._at += len(what)
        return True

    def _next(self) -> str:
        if self.at_end:
            raise RegexError("ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _until(self, end: str) -> str:
        found = self._text.find(end, self._at)
        if found < 0:
            raise RegexError(f"missing {end}")
        text = self._text[self._at : found]
        self._at = found + len(end)
        return text

    def alternation(self, depth: int) -> Node:
        if depth > DEPTH_MAX:
            raise RegexError("nested too deep")
        options = [self._concat(depth)]
        while self._take("|"):
            options.append(self._concat(depth))
        return options[0] if len(options) == 1 else Either(tuple(options))

    def _concat(self, depth: int) -> Node:
        parts: list[Node] = []
        while not self.at_end and not self._peek("|") and not self._peek(")"):
            atom = self._atom(depth)
            parts.append(self._repeated(atom))
        return Concat(tuple(parts))

    def _repeated(self, atom: Node) -> Node:
        bounds = self._bounds()
        if bounds is None:
            return atom
        if isinstance(atom, Assert):
            raise RegexError("repetition of a position")
        self._take("?")  # Laziness changes which match is found, never whether there is one.
        if self._peek("*") or self._peek("+") or self._peek("?") or self._bounds() is not None:
            raise RegexError("repetition of a repetition")
        return Repeat(atom, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        if not self._peek("{"):
            return None
        inside, closed, _ = self._text[self._at + 1 :].partition("}")
        least, comma, most = inside.partition(",")
        if not closed or not least.isdecimal() or (most and not most.isdecimal()):
            return None  # A brace that is no repetition stands for itself.
        self._at += len(inside) + 2
        low = int(least)
        high = low if not comma else int(most) if most else None
        if low > REPEAT_MAX or (high is not None and (high > REPEAT_MAX or high < low)):
            raise RegexError("bad repetition count")
        return low, high

    def _atom(self, depth: int) -> Node:
        char = self._next()
        match char:
            case "(":
                return self._group(depth)
            case "[":
                return self._class()
            case ".":
                return Chars(ASCII & ~_set("\n"))
            case "^":
                return Assert("start")
            case "$":
                return Assert("end")
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                raise RegexError("nothing to repeat")
        return self._literal(char)

    def _literal(self, char: str) -> Chars:
        mask = 1 << ord(char) if ord(char) < 128 else 0
        return Chars(fold(mask) if self._fold else mask)

    def _group(self, depth: int) -> Node:
        before = self._fold
        if self._take("?"):
            if self._take("P<") or (self._peek("<") and not self._peek("<=") and not self._peek("<!")):
                self._take("<")
                if not self._until(">").isidentifier():
                    raise RegexError("bad group name")
            elif not self._flags():
                return _EMPTY  # (?i) holds from here to the end of the group around it.
        node = self.alternation(depth + 1)
        if not self._take(")"):
            raise RegexError("missing )")
        self._fold = before
        return node

    def _flags(self) -> bool:
        """True if a group follows: (?i:...)."""
        on = True
        while True:
            match self._next():
                case "i":
                    self._fold = on
                case "m" | "s" | "U":
                    pass  # No line ends in a topic name, and greed does not change whether it matches.
                case "-" if on:
                    on = False
                case ":":
                    return True
                case ")":
                    return False
                case _:
                    raise RegexError("look-around and such groups are not supported")

    def _escape(self) -> Node:
        char = self._next()
        if char in _ASSERTS:
            return Assert(_ASSERTS[char])
        if char == "Q":
            end = self._text.find("\\E", self._at)
            text = self._text[self._at : end if end >= 0 else len(self._text)]
            self._at += len(text) + (2 if end >= 0 else 0)
            return Concat(tuple(self._literal(c) for c in text))
        mask = self._class_escape(char)
        return Chars(mask) if mask is not None else self._literal(self._char_escape(char))

    def _class_escape(self, char: str) -> int | None:
        if char.lower() in _PERL:
            mask = _PERL[char.lower()]
            return ASCII & ~mask if char.isupper() else mask
        if char not in "pP":
            return None
        name = self._until("}") if self._take("{") else self._next()
        negated = (char == "P") != name.startswith("^")
        known = _UNICODE.get(name.removeprefix("^"))
        if known is None:
            raise RegexError(f"unknown character class {name}")
        return ASCII & ~known if negated else known

    def _char_escape(self, char: str) -> str:
        if char in _CONTROL:
            return _CONTROL[char]
        if char == "x":
            digits = self._until("}") if self._take("{") else self._next() + self._next()
            try:
                return chr(int(digits, 16))
            except (ValueError, OverflowError):
                raise RegexError("bad hexadecimal escape") from None
        if char == "0":
            digits = "0"
            while len(digits) < 3 and not self.at_end and self._text[self._at] in "01234567":
                digits += self._next()
            return chr(int(digits, 8))
        if char.isalnum():
            raise RegexError(f"unknown escape \\{char}")  # Among them back-references.
        return char

    def _class(self) -> Chars:
        negated = self._take("^")
        mask = 0
        first = True
        while first or not self._take("]"):
            first = False
            if self._take("[:"):
                name = self._until(":]")
                known = _POSIX.get(name.removeprefix("^"))
                if known is None:
                    raise RegexError(f"unknown character class {name}")
                mask |= ASCII & ~known if name.startswith("^") else known
                continue
            char = self._next()
            if char == "\\":
                char = self._next()
                escaped = self._class_escape(char)
                if escaped is not None:
                    mask |= escaped
                    continue
                char = self._char_escape(char)
            mask |= self._range(char)
        if self._fold:
            mask = fold(mask)
        return Chars(ASCII & ~mask if negated else mask)

    def _range(self, low: str) -> int:
        high = low
        if self._peek("-") and not self._peek("-]"):
            self._take("-")
            high = self._next()
            if high == "\\":
                high = self._char_escape(self._next())
            if high < low:
                raise RegexError("bad character range")
        return sum(1 << code for code in range(ord(low), min(ord(high), 127) + 1))
