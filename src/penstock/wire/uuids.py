"""Topic ids are sixteen raw bytes everywhere. Only people see Kafka's text form, base64 for URLs unpadded."""

import binascii


def uuid_text(raw: bytes) -> str:
    text = binascii.b2a_base64(raw, newline=False)[:22]
    return text.replace(b"+", b"-").replace(b"/", b"_").decode("ascii")


def uuid_bytes(text: str) -> bytes:
    """The inverse of `uuid_text`. Raises ValueError for what is not an id."""
    try:
        raw = binascii.a2b_base64(text.replace("-", "+").replace("_", "/") + "==", strict_mode=True)
    except ValueError as error:
        raise ValueError(f"not an id: {text!r}") from error
    if len(raw) != 16 or len(text) != 22:
        raise ValueError(f"not an id: {text!r}")
    return raw
