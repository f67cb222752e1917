"""What a setting is: its name, type, default, and which values it takes, in Kafka's words where Kafka has it.

Values travel and are stored as text. `Definition.parse` turns text into a value or raises `ValueProblem`
with the sentence that Kafka's own brokers answer with; `Definition.text` is the inverse, in Java's spelling,
because that is what tools compare with.
"""

import math
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

import msgspec

Value = bool | int | float | str | tuple[str, ...]


class Fault(NamedTuple):
    """What is wrong with a part of a value: the part as it is shown, and the sentence about it."""

    shown: str
    problem: str


Check = Callable[[Value], str | Fault | None]

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
DOUBLE_MAX = "1.7976931348623157E308"
VALUE_LENGTH_MAX = 32767


class Kind(IntEnum):
    """The types of settings; the numbers are those of DescribeConfigs."""

    UNKNOWN = 0
    """Of a setting that nobody here defines: any text, which is not shown."""
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ValueProblem(ValueError):
    """A value that a setting cannot have. The message is one sentence for a person."""


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """One setting.

    `moot` says why the setting has no meaning over shared storage: it is accepted and shown, so that
    tools that set it keep working, and nothing depends on it. `fixed` says why it cannot be changed from
    its default. At most one of the two.
    """

    name: str
    kind: Kind
    default: str | None
    doc: str
    check: Check | None = None
    synonyms: tuple[str, ...] = ()
    """Topic and group settings: the broker settings that give its default, the strongest first."""
    dynamic: bool = False
    """Broker settings: may be changed while brokers run."""
    internal: bool = False
    """Accepted, but not shown."""
    moot: str = ""
    fixed: str = ""

    @property
    def veiled(self) -> bool:
        """Nobody here knows what the value is, so it may be a secret: that it is set is all that is told."""
        return self.kind is Kind.UNKNOWN

    def parse(self, text: str) -> Value:
        """The value that `text` stands for; ValueProblem if the setting cannot have it."""
        text = text.strip()
        value: Value
        match self.kind:
            case Kind.BOOLEAN:
                value = self._boolean(text)
            case Kind.INT | Kind.SHORT | Kind.LONG:
                value = self._integer(text)
            case Kind.DOUBLE:
                value = self._double(text)
            case Kind.LIST:
                value = self._list(text)
            case _:
                value = text
        problem = None if self.check is None else self.check(value)
        if isinstance(problem, Fault):
            raise ValueProblem(self._sentence(*problem))
        if problem is not None:
            raise ValueProblem(self._sentence(value_text(value), problem))
        if self.fixed and self.default is not None and value_text(value) != self.default:
            raise ValueProblem(self.fixed)
        return value

    def text(self, text: str) -> str:
        """The one spelling of a value that may be spelled in several ways."""
        try:
            return value_text(self.parse(text))
        except ValueProblem:
            # Stored by a version that took it, and shown as it is.
            return text

    def _sentence(self, shown: str, problem: str) -> str:
        # Problems of whole lists are sentences of their own.
        if problem.startswith("Configuration "):
            return problem.replace("{name}", self.name)
        return f"Invalid value {shown} for configuration {self.name}: {problem.replace('{name}', self.name)}"

    def _list(self, text: str) -> tuple[str, ...]:
        """The parts of a list. Repeated ones count once, except where they are replicas."""
        parts = [part.strip() for part in text.split(",")] if text else []
        return tuple(parts if self.check is throttled_replicas else dict.fromkeys(parts))

    def _boolean(self, text: str) -> bool:
        lowered = text.lower()
        if lowered not in {"true", "false"}:
            raise ValueProblem(self._sentence(text, "Expected value to be either true or false"))
        return lowered == "true"

    def _integer(self, text: str) -> int:
        digits = text[1:] if text[:1] in {"+", "-"} else text
        bits = {Kind.INT: 31, Kind.SHORT: 15}.get(self.kind, 63)
        # The length is looked at first: turning very long texts into numbers takes very long.
        if not (digits.isascii() and digits.isdigit() and len(digits) < 40):
            raise self._not_a_number(text)
        value = int(text)
        if not -(2**bits) <= value < 2**bits:
            raise self._not_a_number(text)
        return value

    def _double(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise self._not_a_number(text) from None
        if "_" in text or math.isnan(value):
            raise self._not_a_number(text)
        return value

    def _not_a_number(self, text: str) -> ValueProblem:
        return ValueProblem(self._sentence(text, f"Not a number of type {self.kind.name}"))


def value_text(value: Value) -> str:
    """A value as Java writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _double_text(value)
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def _double_text(value: float) -> str:
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    mantissa, _, exponent = f"{value:e}".partition("e")
    if float(f"{mantissa}e{exponent}") != value:
        digits = repr(value).lower().partition("e")[0].replace(".", "").replace("-", "").strip("0")
        mantissa = ("-" if value < 0 else "") + digits[0] + "." + (digits[1:] or "0")
    else:
        mantissa = mantissa.rstrip("0")
        mantissa += "0" if mantissa.endswith(".") else ""
    return f"{mantissa}E{int(exponent)}"


def at_least(minimum: int) -> Check:
    def check(value: Value) -> str | None:
        assert isinstance(value, int | float)
        return None if value >= minimum else f"Value must be at least {minimum}"

    return check


def between(minimum: int, maximum: int) -> Check:
    def check(value: Value) -> str | None:
        assert isinstance(value, int | float)
        if value < minimum:
            return f"Value must be at least {minimum}"
        return None if value <= maximum else f"Value must be no more than {maximum}"

    return check


def between_or(minimum: int, maximum: int, other: int) -> Check:
    def check(value: Value) -> str | None:
        assert isinstance(value, int | float)
        if minimum <= value <= maximum or value == other:
            return None
        return f"Value must be between {minimum} and {maximum} or equal to {other}"

    return check


def one_of(*allowed: str) -> Check:
    def check(value: Value) -> str | None:
        return None if value in allowed else f"String must be one of: {', '.join(allowed)}"

    return check


def one_of_any_case(*allowed: str) -> Check:
    def check(value: Value) -> str | None:
        if isinstance(value, str) and value.upper() in allowed:
            return None
        return f"String must be one of (case insensitive): {', '.join(allowed)}"

    return check


def list_of(*allowed: str, empty: bool = True) -> Check:
    """A list without empty parts, of `allowed` ones (of any if none are named)."""

    def check(value: Value) -> str | Fault | None:
        assert isinstance(value, tuple)
        if not value and not empty:
            choices = f"[{', '.join(allowed)}]" if allowed else "any non-empty value"
            return f"Configuration '{{name}}' must not be empty. Valid values include: {choices}"
        for part in value:
            if not part:
                return "Configuration '{name}' values must not be empty."
            if allowed and part not in allowed:
                return Fault(part, f"String must be one of: {', '.join(allowed)}")
        return None

    return check


def throttled_replicas(value: Value) -> Fault | None:
    assert isinstance(value, tuple)
    if "".join(value) == "*" or all(_is_replica(part) for part in value):
        return None
    return Fault(
        f"[{', '.join(value)}]",
        "{name} must be the literal '*' or a list of replicas in the following format: "
        "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
    )


def _is_replica(part: str) -> bool:
    partition, colon, broker = part.partition(":")
    return not part or bool(colon and _is_digits(partition) and _is_digits(broker))


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit()
