"""Kafka's `sasl.jaas.config`: who logs in, or who may, in the syntax of Java's login modules.

    org.apache.kafka.common.security.plain.PlainLoginModule required
        username="broker" password="secret" user_alice="her secret";

Java reads it by its StreamTokenizer: names and values may stand in double or in single quotes, and comments
are those of Java. Only the class name's last part counts here, and it must fit the mechanism. No class is
ever loaded. No problem quotes a value, because values are secrets.
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
_SPACE = r"(?>(?:\s|//[^\r\n]*|/\*.*?\*/)*)"
_QUOTED = r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
_TOKEN = re.compile(
    rf"(?P<name>{_QUOTED}|[\w.$\-][\w.$\-/]*){_SPACE}={_SPACE}(?P<value>{_QUOTED}|[^\s;\"'=]+)|"
    r"(?P<word>[\w.$]+)|(?P<end>;)",
    re.DOTALL,
)
_SKIPPED = re.compile(_SPACE, re.DOTALL)
_ESCAPE = re.compile(r"\\(?:([0-3]?[0-7]{1,2})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}


def parse_jaas(text: str, mechanism: str, name: str) -> Mapping[str, str]:
    """The options of the one login module in `text`. SettingsError, about the setting `name`, if it does not
    have the form, or its module does not fit the mechanism."""
    words: list[str] = []
    options: dict[str, str] = {}
    at = _skipped(text, 0)
    ended = False
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None or ended:
            raise SettingsError(f"{name} is not one login module in Kafka's syntax, with a ; at its end.")
        at = _skipped(text, found.end())
        if found["name"] is not None:
            options[_unquoted(found["name"])] = _unquoted(found["value"])
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


def _skipped(text: str, at: int) -> int:
    """Where the next token begins."""
    found = _SKIPPED.match(text, at)
    return at if found is None else found.end()


def _unquoted(token: str) -> str:
    return _ESCAPE.sub(_unescaped, token[1:-1]) if token[0] in "\"'" else token


def _unescaped(found: re.Match[str]) -> str:
    octal, letter = found.groups()
    return chr(int(octal, 8)) if octal else _ESCAPED.get(letter, letter)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
