"""Writes the decoder of one message at one version as straight-line Python, and compiles it.

Consecutive values of fixed size, and the length that follows them, are read by one `struct` call. Nothing is
allocated on the word of a count or a length before it has been compared with the bytes that remain. An item
takes three bytes on the wire and hundreds in memory, and each costs time in which nobody else is served, so
the items of what clients send are bounded, too. So are their strings: a compact length could be any, and
older versions, answers and stored records have two bytes for it.
"""

from collections.abc import Callable
from struct import Struct, unpack_from
from struct import error as struct_error
from typing import Any

from penstock.wire import varint
from penstock.wire.errors import WireError
from penstock.wire.layout import FIXED, Field, Layout, WireType, smallest
from penstock.wire.source import Source
from penstock.wire.texts import STRING_BYTES_MAX

Decoder = Callable[[memoryview, int], tuple[Any, int]]


def make_decoder(layout: Layout, items_max: int | None = None) -> Decoder:
    """`items_max`: for what clients send. A message whose arrays hold more than so many items together, or
    with a string that is longer than any may be, is malformed."""
    return _DecoderSource(layout, items_max).compile()


class _DecoderSource(Source):
    def __init__(self, layout: Layout, items_max: int | None) -> None:
        super().__init__()
        self.layout = layout
        self.items_max = items_max
        self.pending: list[tuple[str, int, str]] = []
        """Format, size and variable of fixed-size values that are still to be read, together."""
        self.scope |= {
            "WireError": WireError,
            "broken": (struct_error, IndexError, UnicodeDecodeError),
            "more": varint.unsigned_rest,
            "uvarint": varint.read_unsigned,
            "skip": varint.skip_tags,
            "unpack_from": unpack_from,
        }

    def compile(self) -> Decoder:
        result = self.structure(self.layout)
        self.flush()
        name = self.layout.cls.__name__
        source = "\n".join(
            [
                "def decode(buf, pos):",
                "    end = len(buf)",
                f"    left = {self.items_max}",
                "    try:",
                *self.lines,
                f"        return {result}, pos",
                "    except broken as error:",
                f"        raise WireError('{name}: ' + str(error)) from None",
            ]
        )
        exec(compile(source, f"<decode {name}>", "exec"), self.scope)
        decoder: Decoder = self.scope["decode"]
        return decoder

    def structure(self, layout: Layout) -> str:
        """Read all the fields; the result is the expression that builds the structure."""
        values = {field.name: self.value(field.type, field.name) for field in layout.plain}
        if layout.flexible:
            self.tags(layout.tagged, values)
        arguments = [values.get(field.name) or self.default(field) for field in layout.fields]
        while arguments and layout.fields[len(arguments) - 1].name not in values:
            arguments.pop()
        return f"{self.bind(layout.cls)}({', '.join(arguments)})"

    def value(self, wire_type: WireType, what: str, *, tagged: bool = False) -> str:
        kind = wire_type.kind
        if kind in FIXED:
            return self.fixed(*FIXED[kind])
        if kind == "struct":
            assert wire_type.layout is not None
            return self.struct(wire_type.layout, wire_type.nullable, tagged)
        length = self.length(kind, what)
        result = self.name()
        if wire_type.nullable:
            self.line(f"if {length} < 0: {result} = None")
            self.line("else:")
            self.depth += 1
        else:
            self.line(f"if {length} < 0: raise WireError('{what} must not be null')")
        if kind == "array":
            assert wire_type.element is not None
            self.array(wire_type.element, length, result, what)
        else:
            self.line(f"stop = pos + {length}")
            self.line(f"if stop > end: raise WireError('{what} is longer than the message')")
            self.line(f"{result} = {_TAKE[kind]}; pos = stop")
        if wire_type.nullable:
            self.depth -= 1
        return result

    def struct(self, layout: Layout, nullable: bool, tagged: bool) -> str:
        """A byte before a nullable structure says whether it is there: null is -1, in a tagged field 0."""
        if not nullable:
            return self.structure(layout)
        marker = self.fixed("b", 1)
        self.flush()
        result = self.name()
        self.line(f"if {marker} < {int(tagged)}: {result} = None")
        self.line("else:")
        self.depth += 1
        expression = self.structure(layout)
        self.flush()
        self.line(f"{result} = {expression}")
        self.depth -= 1
        return result

    def array(self, element: WireType, count: str, result: str, what: str) -> None:
        least = max(1, smallest(element, self.layout.flexible))
        self.line(f"if {count} * {least} > end - pos: raise WireError('{what} has more than fits')")
        if self.items_max is not None:
            self.line(f"left -= {count}")
            self.line(f"if left < 0: raise WireError('more than {self.items_max} items')")
        if element.kind in FIXED:
            code, size = FIXED[element.kind]
            if element.kind == "uuid":
                self.line(f"stop = pos + 16 * {count}")
                self.line(f"{result} = [bytes(buf[at:at + 16]) for at in range(pos, stop, 16)]; pos = stop")
            else:
                self.line(f"{result} = list(unpack_from(f'>{{{count}}}{code}', buf, pos))")
                self.line(f"pos += {size} * {count}")
            return
        if element.layout is not None and self.rows(element.layout, count, result):
            return
        self.line(f"{result} = []")
        self.line(f"for _ in range({count}):")
        self.depth += 1
        expression = self.value(element, what)
        self.flush()
        self.line(f"{result}.append({expression})")
        self.depth -= 1

    def rows(self, layout: Layout, count: str, result: str) -> bool:
        """Structures of fixed size, one after the other, are read by one iterator."""
        plain = layout.plain
        if layout.flexible or not plain or any(field.type.kind not in FIXED for field in plain):
            return False
        layout_struct = Struct(">" + "".join(FIXED[field.type.kind][0] for field in plain))
        variables = {field.name: self.name() for field in plain}
        arguments = ", ".join(variables.get(field.name) or self.default(field) for field in layout.fields)
        self.line(f"stop = pos + {layout_struct.size} * {count}")
        self.line(
            f"{result} = [{self.bind(layout.cls)}({arguments}) for {', '.join(variables.values())}, "
            f"in {self.bind(layout_struct.iter_unpack)}(buf[pos:stop])]; pos = stop"
        )
        return True

    def tags(self, tagged: list[Field], values: dict[str, str]) -> None:
        count = self.fixed("B", 1)
        self.flush()
        if not tagged:
            self.line(f"if {count}: pos = skip(buf, pos - 1)")
            return
        for field in tagged:
            values[field.name] = self.name()
            self.line(f"{values[field.name]} = {self.default(field)}")
        self.line(f"if {count}:")
        self.depth += 1
        self.line(f"if {count} > 127: {count}, pos = more(buf, pos, {count})")
        tag, size, stop = self.name(), self.name(), self.name()
        self.line(f"for _ in range({count}):")
        self.depth += 1
        self.line(f"{tag}, pos = uvarint(buf, pos); {size}, pos = uvarint(buf, pos)")
        self.line(f"{stop} = pos + {size}")
        self.line(f"if {stop} > end: raise WireError('a tagged field is longer than the message')")
        for field in tagged:
            self.line(f"if {tag} == {field.tag}:")
            self.depth += 1
            expression = self.value(field.type, field.name, tagged=True)
            self.flush()
            self.line(f"{values[field.name]} = {expression}")
            self.line(f"if pos != {stop}: raise WireError('{field.name} has another size than its tag says')")
            self.depth -= 1
        self.line(f"pos = {stop}")
        self.depth -= 2

    def length(self, kind: str, what: str) -> str:
        """A variable that holds a length or count; below zero it means null."""
        if not self.layout.flexible:
            length = self.fixed("h", 2) if kind == "string" else self.fixed("i", 4)
            self.flush()
            return length
        length = self.fixed("B", 1)
        self.flush()
        self.line(f"if {length} > 127:")
        self.line(f"    {length}, pos = more(buf, pos, {length})")
        if kind == "string" and self.items_max is not None:
            self.line(f"    if {length} > {STRING_BYTES_MAX + 1}: raise WireError('{what} is too long')")
        self.line(f"{length} -= 1")
        return length

    def fixed(self, code: str, size: int) -> str:
        variable = self.name()
        self.pending.append((code, size, variable))
        return variable

    def flush(self) -> None:
        pending, self.pending = self.pending, []
        if not pending:
            return
        if len(pending) == 1 and pending[0][0] == "B":
            self.line(f"{pending[0][2]} = buf[pos]; pos += 1")
            return
        variables = ", ".join(variable for _, _, variable in pending)
        unpack = self.bind(Struct(">" + "".join(code for code, _, _ in pending)).unpack_from)
        size = sum(size for _, size, _ in pending)
        self.line(f"{variables}, = {unpack}(buf, pos); pos += {size}")

    def default(self, field: Field) -> str:
        """A literal where there is one; a new object for what could be changed by its owner."""
        if isinstance(field.default, list):
            return "[]"
        if field.default is None or isinstance(field.default, int | float | str | bytes):
            return repr(field.default)
        return f"{self.bind(type(field.default))}()"


_TAKE = {
    "string": "str(buf[pos:stop], 'utf-8')",
    "bytes": "bytes(buf[pos:stop])",
    "records": "buf[pos:stop]",
}
