"""Makes the function that writes a declaration in one version.

All of a message becomes one function without calls between structs: values of fixed size, and the
lengths and counts between them, are packed together and added to the writer's list of small pieces;
records go in as they are.

The sliced form of a writer is a generator that yields after every `SLICE_ITEMS` list elements. A
writer can also be made for a list whose elements were written before (`WrittenItems`).
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from struct import error as struct_error
from struct import pack
from typing import TYPE_CHECKING, Final, TypeVar, cast

from tidelog.protocol import faults
from tidelog.protocol.read_code import SLICE_ITEMS
from tidelog.protocol.schema import Field, Form, Kind
from tidelog.protocol.source import (
    FIXED,
    Source,
    item_of,
    plain_fields,
    struct_of,
    tagged_fields,
)
from tidelog.protocol.wire import COPY_LIMIT_BYTES, Writer, pieces_size, text_varint, varint_bytes
from tidelog.types import Buffer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Message = TypeVar("Message", bound="DataclassInstance")

_BUFFERS: Final = frozenset((bytes, bytearray, memoryview))
# Values of a varint that are one byte.
_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(128))


@dataclass(slots=True)
class WrittenItems:
    """Elements of a message's outermost list that are bytes already, and how many they are."""

    count: int
    pieces: list[Buffer]

    def __len__(self) -> int:
        """How many elements."""
        return self.count


def make_writer(
    kind: type[Message], version: int, *, flexible: bool, written: str | None = None
) -> Callable[[Writer, Message], None]:
    """The function that puts a message into a writer.

    Args:
        kind: The declaration.
        version: The version.
        flexible: Whether lengths are compact and structs have tagged fields.
        written: The list whose elements are `WrittenItems`, None for none.
    """
    made = _made(kind, version, flexible, sliced=False, written=written)
    return cast("Callable[[Writer, Message], None]", made)


def make_sliced_writer(
    kind: type[Message], version: int, *, flexible: bool
) -> Callable[[Writer, Message], Generator[None, None, None]]:
    """A generator function that writes a message and stops after every `SLICE_ITEMS` elements."""
    made = _made(kind, version, flexible, sliced=True)
    return cast("Callable[[Writer, Message], Generator[None, None, None]]", made)


def _made(
    kind: type[Message], version: int, flexible: bool, *, sliced: bool, written: str | None = None
) -> object:
    code = _WriteCode(version, flexible=flexible, sliced=sliced, written=written)
    with code.block("def write(writer, message):"):
        code.line("add = writer.add")
        if sliced:
            code.line(f"items = {SLICE_ITEMS}")
        with code.block("try:"):
            code.struct(kind, "message")
            code.flush()
            # A message may have no fields.
            code.line("yield" if sliced else "pass")
        problems = f"{code.name(struct_error)}, TypeError, AttributeError, ValueError"
        with code.block(f"except ({problems}) as problem:"):
            refusal = code.name(faults.refusal)
            code.line(f"found = {refusal}({code.name(kind)}, {version}, message)")
            with code.block("if found is None:"):
                code.line("raise")
            code.line("raise found from problem")
    what = f"write {kind.__name__} v{version}"
    return code.made("write", what)


class _WriteCode(Source):
    def __init__(self, version: int, *, flexible: bool, sliced: bool, written: str | None) -> None:
        super().__init__(version, flexible=flexible)
        self._sliced = sliced
        self._written = None if written is None else f"message.{written}"
        self._run: list[tuple[str, str]] = []
        self._varint = self.name(varint_bytes, "varint")
        self._small = self.name(_ONE_BYTE, "small")
        self._in_tag = False

    # -- runs of fixed sizes

    def _put(self, letter: str, value: str) -> None:
        self._run.append((letter, value))

    def flush(self) -> None:
        """Pack what has been collected."""
        self._pack(self._run)
        self._run = []

    def _pack(self, run: list[tuple[str, str]]) -> None:
        letters = "".join(letter for letter, _ in run)
        values = ", ".join(value for letter, value in run if letter != "x")
        if letters and not letters.strip("x"):
            self.line(f"add({self.name(bytes(len(letters)))})")
        elif letters:
            self.line(f"add({self.layout(letters, 'pack')}({values}))")

    def _put_varint(self, value: str, varint: str) -> None:
        """A length as a varint, with what has been collected where it is one byte."""
        run, self._run = self._run, []
        if not run:
            self.line(f"add({self._small}[{value}] if {value} < 128 else {varint}({value}))")
            return
        with self.block(f"if {value} < 128:"):
            self._pack([*run, ("B", value)])
        with self.block("else:"):
            self._pack(run)
            self.line(f"add({varint}({value}))")

    def _put_length(self, letter: str, length: str) -> None:
        """A length or count in its two forms; `h` is that of a string."""
        if self.flexible:
            text_length = self.name(text_varint, "varint")
            self._put_varint(length, text_length if letter == "h" else self._varint)
        else:
            self._put(letter, length)
            self.flush()

    # -- values

    def struct(self, kind: "type[DataclassInstance]", value: str) -> None:
        """Lines that write a struct."""
        for field in plain_fields(kind, self.version):
            self._value(field.kind, f"{value}.{field.name}")
        if self.flexible:
            self._tags(tagged_fields(kind, self.version), value)

    def _value(self, kind: Kind[object], value: str) -> None:
        if kind.form is Form.UUID:
            self._put(kind.form.value, f"{value}.bytes")
        elif kind.form in FIXED:
            self._put(kind.form.value, value)
        elif kind.form is Form.STRUCT:
            self._inner(kind, value)
        elif kind.form is Form.ARRAY:
            self._array(kind, value)
        elif kind.form is Form.STRING:
            self._string(kind, value)
        else:
            self._bytes(kind, value)

    def _inner(self, kind: Kind[object], value: str, none: bytes = b"\xff") -> None:
        inner = self.fresh("o")
        self.line(f"{inner} = {value}")
        if not kind.may_be_null(self.version):
            self.struct(struct_of(kind), inner)
            return
        self.flush()
        with self.block(f"if {inner} is None:"):
            self.line(f"add({self.name(none)})")
        with self.block("else:"):
            self._put("b", "1")
            self.struct(struct_of(kind), inner)
            self.flush()

    def _counted(self, kind: Kind[object], found: str, length: str, size: str, empty: str) -> None:
        """Lines that set `length`, with null where the version knows it."""
        more = " + 1" * self.flexible
        if not kind.may_be_null(self.version):
            self.line(f"{length} = {size}{more}")
            return
        with self.block(f"if {found} is None:"):
            self.line(f"{length} = {0 if self.flexible else -1}")
            self.line(f"{found} = {empty}")
        with self.block("else:"):
            self.line(f"{length} = {size}{more}")

    def _string(self, kind: Kind[object], value: str) -> None:
        text, length = self.fresh("s"), self.fresh("n")
        if kind.may_be_null(self.version):
            self.line(f"{text} = {value}")
            with self.block(f"if {text} is not None:"):
                self.line(f"{text} = {text}.encode()")
        else:
            self.line(f"{text} = {value}.encode()")
        self._counted(kind, text, length, f"len({text})", 'b""')
        self._put_length("h", length)
        self.line(f"add({text})")

    def _bytes(self, kind: Kind[object], value: str) -> None:
        data, length = self.fresh("d"), self.fresh("n")
        self.line(f"{data} = {value}")
        buffers = self.name(_BUFFERS, "buffers")
        several = f"{self.name(pieces_size, 'size')}({data})"
        size = f"(len({data}) if {data}.__class__ in {buffers} else {several})"
        self._counted(kind, data, length, size, 'b""')
        self._put_length("i", length)
        if self._in_tag:
            # The tag's size comes before it: all of it is collected first.
            joined = f'b"".join({data})'
            self.line(f"add({data} if {data}.__class__ in {buffers} else {joined})")
            return
        with self.block(f"if {length} < {COPY_LIMIT_BYTES} and {data}.__class__ in {buffers}:"):
            self.line(f"add({data})")
        with self.block("else:"):
            self.line(f"writer.pieces({data})")

    def _array(self, kind: Kind[object], value: str) -> None:
        items, length, item = self.fresh("a"), self.fresh("n"), item_of(kind)
        self.line(f"{items} = {value}")
        self._counted(kind, items, length, f"len({items})", "()")
        self._put_length("i", length)
        if value == self._written:
            self.line(f"writer.pieces({items}.pieces)")
            return
        if item.form in FIXED and item.form is not Form.UUID:
            layout = f'f">{{len({items})}}{item.form.value}"'
            self.line(f"add({self.name(pack)}({layout}, *{items}))")
            return
        each = self.fresh("o")
        with self.block(f"for {each} in {items}:"):
            self._value(item, each)
            self.flush()
            if self._sliced:
                self.line("items -= 1")
                with self.block("if items < 0:"):
                    self.line(f"items = {SLICE_ITEMS}")
                    self.line("yield")

    # -- tagged fields

    def _tags(self, fields: list[Field], value: str) -> None:
        """The tagged fields that differ from their defaults, by rising numbers."""
        if not fields:
            self._put("x", "")
            return
        differs = [self._differs(field, f"{value}.{field.name}") for field in fields]
        run, self._run = self._run, []
        with self.block(f"if {' or '.join(differs)}:"):
            self._pack(run)
            count = " + ".join(f"(1 if {differ} else 0)" for differ in differs)
            self.line(f"add({self._varint}({count}))")
            for field, differ in zip(fields, differs, strict=True):
                with self.block(f"if {differ}:"):
                    self._tag(field, f"{value}.{field.name}")
        with self.block("else:"):
            self._pack([*run, ("x", "")])

    def _tag(self, field: Field, value: str) -> None:
        inner, outer = self.fresh("inner"), self.fresh("add")
        self.line(f"{inner} = []")
        self.line(f"{outer} = add")
        self.line(f"add = {inner}.append")
        was_in_tag, self._in_tag = self._in_tag, True
        if field.kind.form is Form.STRUCT:
            self._inner(field.kind, value, none=b"\0")
        else:
            self._value(field.kind, value)
        self._in_tag = was_in_tag
        self.flush()
        self.line("add = " + outer)
        self.line(f'{inner} = b"".join({inner})')
        self.line(f"add({self._varint}({field.tag}) + {self._varint}(len({inner})))")
        self.line(f"add({inner})")

    def _differs(self, field: Field, value: str) -> str:
        """A condition: the field has not its default.

        A struct that may be null has none: Kafka writes it always.
        """
        if field.kind.form is Form.STRUCT and field.kind.may_be_null(self.version):
            return "True"
        if field.default is None:
            return f"{value} is not None"
        if field.default is list:
            return f"{value}"
        if field.kind.form is Form.STRUCT:
            kind = struct_of(field.kind)
            inner = plain_fields(kind, self.version)
            return "(" + " or ".join(self._differs(f, f"{value}.{f.name}") for f in inner) + ")"
        if type(field.default) in (int, bool):
            return f"{value} != {field.default!r}"
        return f"{value} != {self.name(field.default)}"
