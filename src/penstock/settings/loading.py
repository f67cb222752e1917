"""From files and NAME=VALUE texts to the settings of a broker."""

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.settings.brokers import Settings
from penstock.settings.properties import FileValues, kafka_values
from penstock.settings.setting import SettingsError, ValueProblem

TEXT = "utf-8-sig"
"""How files of settings are read: editors of Windows write a mark before the first letter."""


def load(assignments: Iterable[str] = (), *, toml: bytes | None = None) -> Settings:
    """Settings from the contents of a TOML file and from NAME=VALUE texts, the later ones winning."""
    return Settings().with_values({**({} if toml is None else toml_values(toml)), **assigned(assignments)})


def assigned(assignments: Iterable[str]) -> dict[str, str]:
    """Values by name, from NAME=VALUE texts."""
    values: dict[str, str] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise SettingsError(f"--set takes NAME=VALUE, not {assignment!r}.")
        values[name.strip()] = text.strip()
    return values


def file_values(name: str, data: bytes) -> FileValues:
    """The settings in a file: Kafka's properties if it is called so, else TOML."""
    if not name.endswith(".properties"):
        return FileValues(toml_values(data))
    try:
        text = data.decode(TEXT)
    except UnicodeDecodeError as error:
        raise SettingsError(f"{name} is not text: {error}.") from None
    try:
        return kafka_values(text)
    except ValueProblem as problem:
        raise SettingsError(f"{str(problem).rstrip('.')}.") from None


def toml_values(toml: bytes) -> dict[str, str]:
    """The settings in a TOML document, by name. Tables and dotted names are the same thing there."""
    import tomllib

    try:
        document = tomllib.loads(toml.decode(TEXT))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"The configuration file is not TOML: {error}.") from error
    values: dict[str, str] = {}
    _flatten("", document, values)
    return values


def _flatten(prefix: str, table: Mapping[str, Any], values: dict[str, str]) -> None:
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            _flatten(f"{name}.", value, values)
        elif isinstance(value, bool):
            values[name] = "true" if value else "false"
        elif isinstance(value, list):
            values[name] = ",".join(str(part) for part in value)
        else:
            values[name] = str(value)
