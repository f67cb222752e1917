"""Values as people read them: a document says on the page what its writer wrote."""

from __future__ import annotations

import pytest

from penstock.console.decoding import Decoding


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (b'{"a":1,"b":[1.5,"\\u00e9"]}', '{"a": 1, "b": [1.5, "\u00e9"]}'),
        (b'{"price":123456789012345.123456789}', '{"price": 123456789012345.123456789}'),
        (b'{"far":1e400}', '{"far": 1e400}'),
        (b'{"a":1,"a":2}', '{"a": 1, "a": 2}'),
        (b'{"a":1.10}', '{"a": 1.1}'),
        (b'{"a":NaN}', '{"a": NaN}'),
    ],
)
def test_a_document_says_what_its_writer_wrote(value: bytes, line: str) -> None:
    shown = Decoding("").shown(value)
    assert (shown.kind, shown.line) == ("json", line)
    assert "".join(shown.text.split()) == "".join(line.split())


@pytest.mark.parametrize("value", [b'{"a":1e400,"b":NaN}', b'{"a":1,"a":NaN}', b'{"a":1,"a":'])
def test_what_is_no_document_is_text(value: bytes) -> None:
    shown = Decoding("").shown(value)
    assert (shown.kind, shown.text) == ("text", value.decode())
