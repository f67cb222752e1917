"""Principals of certificates: the distinguished name as Java writes it, and the rules that map it to a user.

Kafka's rules and mappings are written for Java's text of a name (RFC 2253), so ours is the same: the most
specific part first; CN, C, L, ST, O, OU, STREET, DC and UID by name, every other part as OID=#hex.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cryptography.x509 import Name, NameAttribute

ANONYMOUS: Final = "User:ANONYMOUS"
"""Who did not say who they are."""

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "2.5.4.9": "STREET",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_ENCODINGS: Final = {
    "UTF8String": "utf-8",
    "PrintableString": "ascii",
    "IA5String": "ascii",
    "NumericString": "ascii",
    "VisibleString": "ascii",
    "T61String": "latin-1",
    "BMPString": "utf-16-be",
    "UniversalString": "utf-32-be",
}
_WRITTEN_AS_TEXT: Final = frozenset(_ENCODINGS) - {"NumericString", "VisibleString"}


class BadMappingError(ValueError):
    """A mapping rule that cannot be understood. One sentence for a person."""


# -- distinguished names ---------------------------------------------------------------------------------


def distinguished_name(subject: Name) -> str:
    """The text of a certificate's subject, as Java's X500Principal gives it."""
    return ",".join("+".join(_attribute(one) for one in rdn) for rdn in reversed(list(subject.rdns)))


def _attribute(attribute: NameAttribute[str | bytes]) -> str:
    oid, kind = attribute.oid.dotted_string, attribute._type.name
    keyword = _KEYWORDS.get(oid)
    value = attribute.value
    if keyword is not None and isinstance(value, str) and kind in _WRITTEN_AS_TEXT:
        return f"{keyword}={_escaped(value)}"
    raw = value.encode(_ENCODINGS.get(kind, "utf-8")) if isinstance(value, str) else value
    return f"{keyword or oid}=#{(bytes((attribute._type.value,)) + _length(len(raw)) + raw).hex()}"


def _length(size: int) -> bytes:
    if size < 0x80:
        return bytes((size,))
    digits = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((0x80 | len(digits),)) + digits


def _escaped(value: str) -> str:
    text = "".join("\\" + c if c in _ESCAPED else "\\00" if c == "\0" else c for c in value)
    inner = text.strip(" \r")
    if not inner:
        return "".join("\\" + c for c in text)
    lead = len(text) - len(text.lstrip(" \r"))
    trail = text[lead + len(inner) :]
    return "".join("\\" + c for c in text[:lead]) + inner + "".join("\\" + c for c in trail)


# -- mapping rules ---------------------------------------------------------------------------------------

_RULE = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLITTER = re.compile(rf"\s*({_RULE})\s*(,\s*|$)")
_PARSER = re.compile(_RULE)
_REFERENCE = re.compile(r"\\(.)|\$(\d+)", re.DOTALL)


class PrincipalMapping:
    """`ssl.principal.mapping.rules`: the first rule whose pattern is the whole name says what it becomes."""

    def __init__(self, setting: str = "DEFAULT") -> None:
        self._rules: list[tuple[re.Pattern[str], str, str] | None] = []
        """Pattern, replacement, case; None: the name itself."""
        for split in _SPLITTER.finditer(setting.strip()):
            text = split.group(1)
            found = _PARSER.match(text)
            if found is None or found.end() != len(text):
                raise BadMappingError(f"{text!r} is neither DEFAULT nor RULE:pattern/replacement/[LU]")
            default, pattern, replacement, case = found.group(1, 2, 3, 4)
            if default:
                self._rules.append(None)
            elif pattern is not None:
                try:
                    # As Java's: \w and \d are ASCII's alone, or more names would pass than the rule means.
                    self._rules.append((re.compile(pattern, re.ASCII), replacement, case))
                except re.error as error:
                    raise BadMappingError(f"{pattern!r} is not a regular expression: {error}") from error

    def name_of(self, distinguished: str) -> str | None:
        """The user that a name stands for; None: no rule applies, and the login fails."""
        for rule in self._rules:
            if rule is None:
                return distinguished
            pattern, replacement, case = rule
            if pattern.fullmatch(distinguished):
                name = pattern.sub(partial(_filled, replacement), distinguished)
                return name.lower() if case == "L" else name.upper() if case == "U" else name
        return None


def _filled(replacement: str, found: re.Match[str]) -> str:
    """A replacement with the groups of a match in it: `$1`. A number that is no group is itself."""
    groups = len(found.groups())

    def fill(one: re.Match[str]) -> str:
        if one.group(1) is not None:
            return one.group(1)
        digits = one.group(2)
        used = digits
        while used and int(used) > groups:
            used = used[:-1]
        if not used:
            return "$" + digits
        return (found.group(int(used)) or "") + digits[len(used) :]

    return _REFERENCE.sub(fill, replacement)
