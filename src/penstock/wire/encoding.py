"""Writes the encoder of one message at one version as straight-line Python, and compiles it.

The result is collected as a list of pieces. Consecutive values of fixed size, and the length that follows
them, are one piece, packed by one `struct` call.

An error message repeats what a client sent, and a few words more. It is the one text that is cut where it
does not fit: an answer that cannot be read would hide what became of the rest of the request.

An answer may be far larger than its request: a name of one letter stands for a group with a thousand members,
and may be said a thousand times. So answers are bounded, and the pieces of a long one are joined on the way.
"""

from collections.abc import Callable
from struct import Struct, pack
from struct import error as struct_error
from typing import Any

from penstock.wire import varint
from penstock.wire.buffers import Buffer
from penstock.wire.layout import FIXED, Field, Layout, WireType
from penstock.wire.source import Source
from penstock.wire.texts import fitting

Encoder = Callable[[Any], list[Buffer]]

_CUT = "error_message"
ANSWER_BYTES_MAX = 256 << 20
"""Room for all settings of 50,000 topics with their documentation."""
_PIECES_MAX = 4_096
_OF_BROKERS = "Response"


class AnswerTooLargeError(Exception):
    """An answer would have more than ANSWER_BYTES_MAX."""


def make_encoder(layout: Layout, version: int) -> Encoder:
    return _EncoderSource(layout, version).compile()


class _EncoderSource(Source):
    def __init__(self, layout: Layout, version: int) -> None:
        super().__init__()
        self.layout = layout
        self.version = version
        self.is_answer = layout.cls.__name__.endswith(_OF_BROKERS)
        self.gathers = False
        """It is an answer whose pieces may become many."""
        self.out = "put"
        self.pending: list[tuple[str, str]] = []
        """Format and expression of fixed-size values that are still to be written, together."""
        self.scope |= {
            "broken": (struct_error, TypeError, AttributeError),
            "small": varint.SMALL,
            "fitting": fitting,
            "gather": _gathered,
            "uvarint": varint.unsigned,
            "pack": pack,
        }

    def compile(self) -> Encoder:
        self.structure(self.layout, "m")
        self.flush()
        name = f"{self.layout.cls.__name__} version {self.version}"
        source = "\n".join(
            [
                "def encode(m):",
                "    out = []",
                "    put = out.append",
                *(["    done = []; size = 0"] * self.gathers),
                "    try:",
                *(self.lines or ["        pass"]),
                "    except broken as error:",
                f"        raise ValueError('{name}: ' + str(error)) from error",
                *(["    if len(out) > 64 or size: gather(out, done, size); return done"] * self.gathers),
                "    return out",
            ]
        )
        exec(compile(source, f"<encode {name}>", "exec"), self.scope)
        encoder: Encoder = self.scope["encode"]
        return encoder

    def structure(self, layout: Layout, owner: str) -> None:
        for field in layout.fields:
            if not field.present and not field.ignorable:
                self.refuse(field, layout, owner)
        for field in layout.plain:
            self.value(field.type, f"{owner}.{field.name}", field.name)
        if layout.flexible:
            self.tags(layout.tagged, owner)

    def refuse(self, field: Field, layout: Layout, owner: str) -> None:
        """A version that lacks the field must not lose a value that matters."""
        self.line(f"if {self.differs(f'{owner}.{field.name}', field)}:")
        self.line(
            f"    raise ValueError('{layout.cls.__name__}.{field.name} cannot be written at version "
            f"{self.version}')"
        )

    def value(self, wire_type: WireType, source: str, what: str, *, tagged: bool = False) -> None:
        kind = wire_type.kind
        if kind in FIXED:
            self.pending.append((FIXED[kind][0], source))
            return
        if "." in source:
            variable = self.name()
            self.line(f"{variable} = {source}")
            source = variable
        if wire_type.nullable:
            self.flush()
            self.line(f"if {source} is None: {self.null(kind, tagged)}")
            self.line("else:")
            self.depth += 1
        elif wire_type.optional:
            self.line(f"if {source} is None: raise ValueError('{what} is null at version {self.version}')")
        if kind == "struct":
            assert wire_type.layout is not None
            if wire_type.nullable:
                self.pending.append(("b", "1"))
            self.structure(wire_type.layout, source)
        elif kind == "array":
            assert wire_type.element is not None
            self.array(wire_type.element, source, what)
        else:
            if kind == "string":
                self.line(f"{source} = {f'fitting({source})' if what == _CUT else source}.encode()")
            self.length(kind, source)
            self.flush()
            self.line(f"{self.out}({source})")
        if wire_type.nullable:
            self.flush()
            self.depth -= 1

    def array(self, element: WireType, source: str, what: str) -> None:
        self.length("array", source)
        self.flush()
        if element.kind in FIXED:
            if element.kind == "uuid":
                self.line(f"{self.out}(b''.join({source}))")
            else:
                code = FIXED[element.kind][0]
                self.line(f"{self.out}(pack(f'>{{len({source})}}{code}', *{source}))")
            return
        item = self.name()
        self.line(f"for {item} in {source}:")
        self.depth += 1
        if self.is_answer and self.out == "put" and element.kind == "struct":
            self.gathers = True
            self.line(f"if len(out) > {_PIECES_MAX}: size = gather(out, done, size)")
        before = len(self.lines)
        self.value(element, item, what)
        self.flush()
        if len(self.lines) == before:
            self.line("pass")
        self.depth -= 1

    def tags(self, tagged: list[Field], owner: str) -> None:
        if not tagged:
            self.pending.append(("x", ""))
            return
        self.flush()
        found, inner = self.name(), self.name()
        self.line(f"{found} = []")
        for field in tagged:
            self.line(f"if {self.differs(f'{owner}.{field.name}', field)}:")
            self.depth += 1
            self.line(f"{inner} = []")
            outer, self.out = self.out, f"{inner}.append"
            self.value(field.type, f"{owner}.{field.name}", field.name, tagged=True)
            self.flush()
            self.out = outer
            self.line(f"{inner} = b''.join({inner})")
            self.line(f"{found}.append(uvarint({field.tag}) + uvarint(len({inner})) + {inner})")
            self.depth -= 1
        self.line(f"{self.out}(uvarint(len({found})) + b''.join({found}))")

    def length(self, kind: str, source: str) -> None:
        if not self.layout.flexible:
            self.pending.append(("h" if kind == "string" else "i", f"len({source})"))
            return
        self.flush()
        length = self.name()
        self.line(f"{length} = len({source}) + 1")
        self.line(f"{self.out}(small[{length}] if {length} < 128 else uvarint({length}))")

    def null(self, kind: str, tagged: bool) -> str:
        if kind == "struct":
            code = r"b'\0'" if tagged else r"b'\xff'"
        elif self.layout.flexible:
            code = r"b'\0'"
        else:
            code = r"b'\xff\xff'" if kind == "string" else r"b'\xff\xff\xff\xff'"
        return f"{self.out}({code})"

    def flush(self) -> None:
        pending, self.pending = self.pending, []
        if not pending:
            return
        if all(code == "x" for code, _ in pending):
            self.line(f"{self.out}({bytes(len(pending))!r})")
            return
        pack = self.bind(Struct(">" + "".join(code for code, _ in pending)).pack)
        arguments = ", ".join(expression for code, expression in pending if code != "x")
        self.line(f"{self.out}({pack}({arguments}))")

    def differs(self, source: str, field: Field) -> str:
        default = field.default
        if default is None:
            return f"{source} is not None"
        if default is False:
            return source
        if default is True:
            return f"not {source}"
        if isinstance(default, list):
            return f"{source} or {source} is None" if field.type.nullable else source
        if isinstance(default, int | float | str | bytes):
            return f"{source} != {default!r}"
        return f"{source} != {self.bind(default)}"


def _gathered(out: list[Buffer], done: list[Buffer], size: int) -> int:
    """Join the pieces of an answer so far: the size of all of it."""
    size += sum(map(len, out))
    if size > ANSWER_BYTES_MAX:
        raise AnswerTooLargeError
    done.append(b"".join(out))
    out.clear()
    return size
