"""A setting is one row of the table of all settings.

The table is made of `Settings` (brokers), `TopicConfig` and the groups' settings; `foreign` has the settings
of Kafka that nothing here reads. From a row come parsing (--set, files, AlterConfigs), DescribeConfigs,
`penstock settings` and docs/settings.md.

Values travel and are stored as text. `Setting.parse` turns text into a value or raises `ValueProblem` with
the sentence that Kafka's own brokers answer with. `Setting.text` is the inverse, in Java's spelling, because
tools compare with that.
"""

import math
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from penstock.settings.checks import Check, Fault, Value

T = TypeVar("T", bound=bool | int | float | str | None)

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
DOUBLE_MAX: Final = 1.7976931348623157e308
VALUE_LENGTH_MAX = 32767
HIDDEN = "[hidden]"
"""What stands for a secret where a person reads."""

Scope = Literal["broker", "cluster", "topic", "group"]
"""What one value holds for. Every broker of a cluster should have the same value of a "cluster" setting."""

Update = Literal["read-only", "per-broker", "cluster-wide"]
"""How a value changes while brokers run: not at all, for one broker at a time, or for one or all."""


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


class SettingsError(ValueError):
    """A broker cannot start with these settings. The message is one sentence for a person."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
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
    scope: Scope = "broker"
    update: Update = "read-only"
    section: str = ""
    """What the setting is about, where a person reads the table."""
    synonyms: tuple[str, ...] = ()
    """Topic and group settings: the broker settings that give its default, the strongest first."""
    ours: bool = False
    """Kafka has no setting of this name."""
    kafka: tuple[str, ...] = ()
    """Other names that Kafka has for it, or for what comes next to it."""
    unlike: str = ""
    """Why the default differs from Kafka's."""
    place: bool = False
    """A URL, which may have credentials in it: these are not shown."""
    internal: bool = False
    """Accepted, but not shown."""
    moot: str = ""
    fixed: str = ""

    @property
    def dynamic(self) -> bool:
        """May be changed while brokers run."""
        return self.update != "read-only"

    @property
    def sensitive(self) -> bool:
        """That it is set is all that is told: it is a secret, or may be one, because nobody here knows it."""
        return self.kind is Kind.PASSWORD or self.kind is Kind.UNKNOWN

    @property
    def field(self) -> str:
        """The attribute that holds the value."""
        return self.name.replace(".", "_")

    @property
    def explained(self) -> str:
        """What it does, and why it does nothing or never changes, if that is so."""
        return " ".join(filter(None, (self.doc, self.moot, self.fixed)))

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
        problem = None if self.check is None else self.check.problem(value)
        if isinstance(problem, Fault):
            raise ValueProblem(self._sentence(*problem))
        if problem is not None:
            raise ValueProblem(self._sentence(value_text(value), problem))
        if self.fixed and self.default is not None and value_text(value) != self.default:
            raise ValueProblem(self.fixed)
        return value

    def typed(self, text: str) -> bool | int | float | str:
        """The value as its attribute holds it: lists are held as text."""
        value = self.parse(text)
        return value_text(value) if isinstance(value, tuple) else value

    def text(self, text: str) -> str:
        """The one spelling of a value that may be spelled in several ways."""
        try:
            return value_text(self.parse(text))
        except ValueProblem:
            # Stored by a version that took it, and shown as it is.
            return text

    def shown(self, text: str | None) -> str | None:
        """What others may see of a value: nothing of a secret, and of a URL not its credentials."""
        if text is None or self.sensitive:
            return None
        if self.place and "@" in text:
            scheme, separator, rest = text.partition("://")
            return scheme + separator + rest.rpartition("@")[2]
        return text

    def _sentence(self, shown: str, problem: str) -> str:
        # Problems of whole lists are sentences of their own.
        if problem.startswith("Configuration "):
            return problem.replace("{name}", self.name)
        shown = HIDDEN if self.sensitive else self.shown(shown) or shown
        return f"Invalid value {shown} for configuration {self.name}: {problem.replace('{name}', self.name)}"

    def _list(self, text: str) -> tuple[str, ...]:
        """The parts of a list. Repeated ones count once, except where they are replicas."""
        parts = [part.strip() for part in text.split(",")] if text else []
        return tuple(parts if self.check is not None and self.check.repeats else dict.fromkeys(parts))

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


class Rows:
    """The rows of a table while its class is written down.

    In the class body a field's default is `row(...)`: that notes the row and returns the default, so a type
    checker sees an ordinary field. `named` then gives each row its field's name.
    """

    def __init__(self, scope: Scope, update: Update) -> None:
        self._scope: Scope = scope
        self._update: Update = update
        self._section = ""
        self._rows: list[Setting] = []

    def section(self, title: str) -> None:
        """What the next rows are about."""
        self._section = title

    def __call__(
        self,
        kind: Kind,
        default: T,
        doc: str,
        check: Check | None = None,
        *synonyms: str,
        scope: Scope | None = None,
        update: Update | None = None,
        ours: bool = False,
        kafka: tuple[str, ...] = (),
        unlike: str = "",
        place: bool = False,
        internal: bool = False,
    ) -> T:
        setting = Setting(
            name="",
            kind=kind,
            default=None if default is None else value_text(default),
            doc=doc,
            check=check,
            scope=scope or self._scope,
            update=update or self._update,
            section=self._section,
            synonyms=synonyms,
            ours=ours,
            kafka=kafka,
            unlike=unlike,
            place=place,
            internal=internal,
        )
        self._rows.append(setting)
        return default

    def named(self, table: type[msgspec.Struct], besides: tuple[str, ...] = ()) -> dict[str, Setting]:
        """The settings by name. A field that has no row and is not one of `besides` is a mistake."""
        fields = (field for field in table.__annotations__ if field not in besides)
        names = (field.replace("_", ".") for field in fields)
        return by_name(replace(row, name=name) for name, row in zip(names, self._rows, strict=True))


def by_name(settings: Iterable[Setting]) -> dict[str, Setting]:
    return {setting.name: setting for setting in settings}


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
