"""How long a string of the protocol may be, and texts that are made to fit."""

from typing import Final

STRING_BYTES_MAX: Final = 32_767
"""Of any string, as Kafka's clients read them. Older versions have two bytes for its length."""


def fitting(text: str, most: int = STRING_BYTES_MAX) -> str:
    """As much of a text as `most` bytes hold, without a piece of a character at its end."""
    if 4 * len(text) <= most:
        return text
    return text.encode()[:most].decode(errors="ignore")


def java_length(text: str) -> int:
    """String.length() of Java, in UTF-16 units: what is beyond U+FFFF, such as most emoji, counts twice."""
    return len(text) if text.isascii() else len(text.encode("utf-16-be", "surrogatepass")) // 2
