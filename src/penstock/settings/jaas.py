"""Kafka's `sasl.jaas.config`: who logs in, or who may, in the syntax of Java's login modules.

    org.apache.kafka.common.security.plain.PlainLoginModule required
        username="broker" password="secret" user_alice="her secret";

Only the class name's last part counts here, and it must fit the mechanism. No class is ever loaded. No
problem quotes a value, because values are secrets.
"""

import re
from collections.abc import Mapping

from penstock.settings.setting import SettingsError

_FLAGS = ("required", "requisite", "sufficient", "optional")
_MODULES = {
    "PLAIN": "PlainLoginModule",
    "SCRAM-SHA-256": "ScramLoginModule",
    "SCRAM-SHA-512": "ScramLoginModule",
    "OAUTHBEARER": "OAuthBearerLoginModule",
}
_TOKEN = re.compile(
    r'\s*(?:(?P<name>[\w.$\-/]+)\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>[^\s;"=]+))|'
    r"(?P<word>[\w.$]+)|(?P<end>;))",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


def parse_jaas(text: str, mechanism: str, name: str) -> Mapping[str, str]:
    """The options of the one login module in `text`. SettingsError, about the setting `name`, if it does not
    have the form, or its module does not fit the mechanism."""
    words: list[str] = []
    options: dict[str, str] = {}
    at = 0
    ended = False
    while text[at:].strip():
        found = _TOKEN.match(text, at)
        if found is None or ended:
            raise SettingsError(f"{name} is not one login module in Kafka's syntax, with a ; at its end.")
        at = found.end()
        if found["name"] is not None:
            quoted = found["quoted"]
            options[found["name"]] = found["bare"] if quoted is None else _unescaped(quoted)
        elif found["word"] is not None:
            words.append(found["word"])
        else:
            ended = True
    if not ended or len(words) != 2 or words[1].lower() not in _FLAGS:
        raise SettingsError(f"{name} is not one login module in Kafka's syntax, with a ; at its end.")
    if words[0].rpartition(".")[2] != _MODULES[mechanism]:
        raise SettingsError(f"{name} is for {mechanism}, whose login module is {_MODULES[mechanism]}.")
    return options


def jaas_users(options: Mapping[str, str]) -> dict[str, str]:
    """Passwords by user: what PLAIN takes from `user_NAME`."""
    return {name.removeprefix("user_"): value for name, value in options.items() if name.startswith("user_")}


def jaas_text(mechanism: str, options: Mapping[str, str]) -> str:
    """The login module of a mechanism with these options, for a client's properties."""
    package = {"PLAIN": "plain", "OAUTHBEARER": "oauthbearer"}.get(mechanism, "scram")
    shown = "".join(f' {name}="{_escaped(value)}"' for name, value in options.items())
    return f"org.apache.kafka.common.security.{package}.{_MODULES[mechanism]} required{shown};"


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[1]), text)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
