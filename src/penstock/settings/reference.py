"""The table of settings as a person reads it: docs/settings.md, and the lines of `penstock settings`."""

from collections.abc import Iterable, Mapping

from penstock.settings.brokers import BROKER_SETTINGS
from penstock.settings.foreign import KEPT, REFUSED
from penstock.settings.groups import GROUP_SETTINGS
from penstock.settings.setting import DOUBLE_MAX, INT_MAX, LONG_MAX, Setting, value_text
from penstock.settings.topics import TOPIC_SETTINGS

_INTRODUCTION = """\
# Settings

Written by `make reference` from the table in `src/penstock/settings/`; a test fails while the two differ.

A broker takes its settings, later ones winning, from their defaults, from a file (`--config FILE`, TOML) and
from the command line (`--set NAME=VALUE`). An unknown name or a bad value is refused at the start with one
sentence. Names, types and values are Kafka's where Kafka has the setting. `penstock settings TEXT` shows the
rows of this page whose names contain TEXT.

*Changes*: `read-only` settings are taken at the start of a broker; `cluster-wide` ones can be changed while
brokers run (`kafka-configs`, AlterConfigs), for one broker or for all, `per-broker` ones for one at a time.
Settings of a topic or a group change at any time. *Holds for*: every broker of a cluster should have the same
value of a `cluster` setting; each can have its own of a `broker` setting. No answer and no log line has the
value of a secret, or the credentials in a URL.
"""

_DURATIONS = {".ms": 1, ".seconds": 1000, ".minutes": 60_000, ".hours": 3_600_000}
_UNITS = (("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000), ("seconds", 1000))
_SIZES = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_ENDLESS = {str(INT_MAX), str(LONG_MAX), value_text(DOUBLE_MAX)}


def tables() -> dict[str, list[Setting]]:
    """What a person can set, by title: the sections of brokers' settings, topics, groups."""
    found: dict[str, list[Setting]] = {}
    for setting in BROKER_SETTINGS.values():
        found.setdefault(setting.section, []).append(setting)
    found["Topics' own"] = list(TOPIC_SETTINGS.values())
    found["Groups' own"] = list(GROUP_SETTINGS.values())
    return {title: [one for one in rows if not one.internal] for title, rows in found.items()}


def kind_words(setting: Setting) -> str:
    """The type of a setting and the values that it takes."""
    kind = setting.kind.name.lower()
    return f"{kind}, {setting.check.words}" if setting.check is not None else kind


def default_words(setting: Setting) -> str:
    """The default, with numbers that nobody reads at a glance in other units as well."""
    text = setting.default
    if not text:
        return "none" if text is None else "empty"
    if text in _ENDLESS:
        return f"{text} (no limit)"
    words = _in_words(setting.name, int(text)) if text.isdigit() else ""
    return f"{text} ({words})" if words else text


def about(setting: Setting) -> str:
    """What a setting does, why that is nothing, and what it is in Kafka."""
    parts = [setting.explained, setting.unlike]
    if setting.ours:
        nearest = f"; the nearest: {', '.join(setting.kafka)}" if setting.kafka else ""
        parts.append(f"Kafka has no setting of this name{nearest}.")
    elif setting.kafka:
        parts.append(f"Kafka also calls it {', '.join(setting.kafka)}.")
    if setting.synonyms and setting.scope in ("topic", "group"):
        parts.append(f"Its default is the broker's {', '.join(setting.synonyms)}.")
    return " ".join(filter(None, parts))


def change_words(setting: Setting) -> str:
    """How a value changes while brokers run."""
    return setting.update if setting.scope in ("broker", "cluster") else "at any time"


def markdown() -> str:
    """The whole of docs/settings.md."""
    parts = [_INTRODUCTION]
    for title, rows in tables().items():
        parts.append(f"## {title}\n\n" + "\n".join(_rows(rows)) + "\n")
    parts.append(
        "## Kafka's settings that nothing here reads\n\n"
        "No broker starts with one of these. Tools may set the first ones while brokers run: they are "
        "checked for their type, kept, shown and logged as without effect. The others are refused.\n\n"
        + "\n".join(_reasons({name: setting.moot for name, setting in KEPT.items()}, "kept"))
        + "\n"
        + "\n".join(_reasons(REFUSED, "refused"))
        + "\n"
    )
    return "\n".join(parts)


def _rows(settings: Iterable[Setting]) -> Iterable[str]:
    yield "| setting | what it does | type and values | default | changes | holds for |"
    yield "|---|---|---|---|---|---|"
    for setting in settings:
        cells = (
            f"`{setting.name}`",
            about(setting),
            kind_words(setting),
            default_words(setting),
            change_words(setting),
            setting.scope,
        )
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _reasons(why_by_name: Mapping[str, str], what: str) -> Iterable[str]:
    by_reason: dict[str, list[str]] = {}
    for name, why in why_by_name.items():
        by_reason.setdefault(why, []).append(f"`{name}`")
    return (f"- *{what}* {why} {', '.join(sorted(names))}" for why, names in by_reason.items())


def _in_words(name: str, number: int) -> str:
    factor = next((factor for unit, factor in _DURATIONS.items() if name.endswith(unit)), 0)
    for unit, size in _UNITS if factor else _SIZES:
        amount = number * (factor or 1)
        if amount and amount % size == 0 and not name.endswith(f".{unit}"):
            return f"{amount // size} {unit if amount != size or not factor else unit.removesuffix('s')}"
    return ""
