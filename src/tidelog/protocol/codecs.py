"""Compiles message declarations to readers and writers, each version at its first use.

For each message, the reader is one Python function, and the writer is one Python function. These
functions also read and write the nested structs.

- Reading: one call unpacks neighboring values of fixed size and the length or count that follows
  them. The call fails if the buffer is too short for these values. Lengths and counts are compared
  with the remaining bytes before anything is sliced or allocated.
- Allowance: objects take more memory than their encoded bytes (a list of empty strings takes eight
  times as much). So the reader charges the memory of each object to the message's allowance, and
  refuses the message if the allowance is exceeded. Lists and structs are charged before their
  allocation. Strings, bytes and ids are charged right after their allocation. The objects of a
  request may take 7 bytes of memory per byte of the request, plus nearly 1 MiB (16 MiB in the
  sliced form), but at most 128 MiB. The objects of a response may take 63 bytes per byte of the
  response plus nearly 1 MiB. A string is charged with four times its encoded length, because the
  widest characters take four bytes of memory.
- Long messages: if a message has more list elements and tagged fields than `Reader.items`,
  TooManyItems is raised before the elements and fields beyond this number are read. The sliced form
  of a reader or writer is a generator that yields after every `SLICE_ITEMS` elements, so that an
  event loop can do other work.
- Writing: neighboring values are packed together into small pieces; record batches are added
  without a copy. A writer can also take a list whose elements are already encoded (`WrittenItems`).

Source: docs/protocol.md.
"""

from collections.abc import Callable, Generator
from functools import cache
from struct import calcsize, pack, unpack_from
from struct import error as struct_error
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar, cast

from tidelog.lazy_dataclass import dataclass
from tidelog.protocol import codec_source
from tidelog.protocol.codec_source import (
    FIXED,
    Source,
    item_of,
    plain_fields,
    struct_of,
    tagged_fields,
)
from tidelog.protocol.schema import Field, Form, Kind, fields_of
from tidelog.protocol.wire import (
    COPY_LIMIT_BYTES,
    NO_UUID,
    REPLACE_INVALID,
    STRING_BYTES_MAX,
    TAGS_MAX,
    Reader,
    TooManyItems,
    Writer,
    pieces_size,
    read_varint,
    skip_tags,
    text_varint,
    uuid_of,
    varint_bytes,
)
from tidelog.types import Buffer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


Message = TypeVar("Message", bound="DataclassInstance")

# Number of bytes of memory that the objects of a request may take, per byte of the request.
# Together, the request, its objects and temporary objects take at most 8 bytes per byte of the
# request plus 1 MiB. The temporary objects are strings: a string is decoded before its memory is
# charged, and may be copied for a moment.
ALLOWANCE_PER_BYTE: Final = 7

ALLOWANCE_BYTES: Final = 2**20 - 3 * 2**16

# Maximum number of bytes of memory that the objects of a request may take, however long the request
# is. Creating more objects would block the event loop for about a second.
ALLOWANCE_BYTES_MAX: Final = 2**27

# Value that replaces `ALLOWANCE_BYTES` in the sliced form of a reader. The sliced form may use more
# memory, because only a few long requests are read at the same time. For example, a Fetch request
# of 30,000 partitions has 500 KB, and its objects take 9 MB.
LONG_ALLOWANCE_BYTES: Final = 2**24

# Number of bytes of memory that the objects of a response may take, per byte of the response. The
# number is large, because a response may describe thousands of partitions. This is safe, because
# the client trusts the broker that it has chosen. For example, a partition in a Metadata response
# has 26 bytes and takes about 500 bytes of memory.
ANSWER_ALLOWANCE_PER_BYTE: Final = 63

# Number of list elements between two yields of a sliced reader or writer; reading or writing these
# elements takes about 0.2 ms.
SLICE_ITEMS: Final = 128

_FIXED_SLICE_ITEMS: Final = 8192

# Memory in bytes that one value takes in CPython. Small numbers, empty strings and defaults are
# shared objects, so they need no memory of their own.
_NUMBER_BYTES: Final = 32

_INT64_BYTES: Final = 36
_UUID_BYTES: Final = 112
_STRING_BYTES: Final = 80
_VIEW_BYTES: Final = 208
_LIST_BYTES: Final = 72
_OBJECT_BYTES: Final = 32
_SLOT_BYTES: Final = 8


@cache
def _reader(
    kind: "type[DataclassInstance]", version: int, flexible: bool, sliced: bool
) -> Callable[[Reader], object]:
    """Compile the function that reads a message at a reader's position.

    If `sliced`, it is a generator function: the generator yields None after every `SLICE_ITEMS`
    elements, and returns the message at the end.
    """
    code = _ReadCode(version, flexible=flexible, sliced=sliced)
    what = f"{kind.__name__} v{version}"
    with code.block("def read(reader):"):
        code.line(f"items = {SLICE_ITEMS}" if sliced else "items = reader.items")
        code.line("view = reader.view")
        code.line("at = reader.at")
        code.line("end = len(view)")
        code.line(f"left = {_allowance(kind, sliced=sliced)}")
        with code.block("try:"):
            instance = code.struct(kind)
            if sliced:
                # makes the function a generator, even for a message without a list
                code.line("yield")
        with code.block(f"except ({code.name(struct_error)}, IndexError):"):
            code.line(f"raise {code.name(codec_source.cut)}({what!r}, at, end) from None")
        code.line("reader.at = at")
        code.line(f"return {instance}")
    return code.function("read", f"read {what}")


def _allowance(kind: "type[DataclassInstance]", *, sliced: bool) -> str:
    """Return a Python expression of the number of bytes that a message's objects may take."""
    if kind.__name__.endswith("Response"):
        return f"end * {ANSWER_ALLOWANCE_PER_BYTE} + {ALLOWANCE_BYTES}"
    some = LONG_ALLOWANCE_BYTES if sliced else ALLOWANCE_BYTES
    whole = (ALLOWANCE_BYTES_MAX - some) // ALLOWANCE_PER_BYTE
    return f"end * {ALLOWANCE_PER_BYTE} + {some} if end < {whole} else {ALLOWANCE_BYTES_MAX}"


def least_bytes(kind: Kind[object], version: int, *, flexible: bool) -> int:
    """Return the size in bytes of the type's shortest encoded value, at least 1."""
    if kind.form in FIXED:
        return calcsize(f">{kind.form.value}")
    if kind.form is Form.STRUCT:
        if kind.may_be_null(version):
            return 1
        return struct_least_bytes(struct_of(kind), version, flexible=flexible)
    if flexible:
        return 1
    return 2 if kind.form is Form.STRING else 4


def struct_least_bytes(kind: "type[DataclassInstance]", version: int, *, flexible: bool) -> int:
    """Return the size in bytes of the struct's shortest encoding, at least 1."""
    fields = plain_fields(kind, version)
    return max(sum(least_bytes(f.kind, version, flexible=flexible) for f in fields) + flexible, 1)


_FORM_BYTES: Final = {
    Form.ARRAY: _LIST_BYTES,
    Form.UUID: 0,
    Form.INT64: _INT64_BYTES,
    Form.STRING: 0,
    Form.BYTES: 0,
}


def _memory_bytes(kind: Kind[object], version: int) -> int:
    """Return the maximum memory of one value's objects, in bytes.

    The result does not include the memory of strings, views, ids, list elements and tagged fields.
    The compiled reader charges their memory when it reads them.
    """
    if kind.form is Form.STRUCT:
        fields = fields_of(struct_of(kind), version)
        fields_bytes = sum(_memory_bytes(f.kind, version) for f in fields if _takes_memory(f))
        return _OBJECT_BYTES + _SLOT_BYTES * len(fields) + fields_bytes
    return _FORM_BYTES.get(kind.form, _NUMBER_BYTES)


def _takes_memory(field: Field) -> bool:
    return (field.is_there and field.tag is None) or callable(field.default)


class _ReadCode(Source):
    def __init__(self, version: int, *, flexible: bool, sliced: bool) -> None:
        super().__init__(version, flexible=flexible)
        self._sliced = sliced
        self._run: list[tuple[str, str]] = []
        self._after: list[str] = []
        self._varint = self.name(read_varint, "varint")

    # -- neighboring values of fixed size

    def _take(self, letter: str, stem: str) -> str:
        target = self.fresh(stem)
        self._run.append((letter, target))
        return target

    def _flush(self) -> None:
        """Append the line that unpacks the collected values."""
        run, self._run = self._run, []
        if run:
            letters = "".join(letter for letter, _ in run)
            targets = ", ".join(target for _, target in run)
            if letters == "B":
                self.line(f"{targets} = view[at]")
            else:
                unpack = self.layout(letters, "unpack_from")
                self.line(f"{targets}{',' * (len(run) == 1)} = {unpack}(view, at)")
            self.line(f"at += {_size(letters)}")
        after, self._after = self._after, []
        for text in after:
            self.line(text)

    # -- values

    def struct(self, kind: "type[DataclassInstance]") -> str:
        """Append the lines that read a struct; return the name of the object."""
        values = {field.name: self._value(field.kind) for field in plain_fields(kind, self.version)}
        if self.flexible:
            values.update(self._tags(tagged_fields(kind, self.version)))
        self._flush()
        return self._blank(kind, values)

    def _blank(self, kind: "type[DataclassInstance]", values: dict[str, str]) -> str:
        """Append lines that create an object, without a call of `__init__`, and set its fields."""
        instance = self.fresh("o")
        self.line(f"{instance} = {self.name(object.__new__, 'new')}({self.name(kind)})")
        for field in fields_of(kind, self.version):
            value = values.get(field.name) or self._default(field)
            self.line(f"{instance}.{field.name} = {value}")
        return instance

    def _default(self, field: Field) -> str:
        if field.default is list:
            return "[]"
        if field.kind.form is Form.STRUCT and field.default is not None:
            return self._blank(struct_of(field.kind), {})
        if field.default is None or type(field.default) in (int, bool):
            return repr(field.default)
        return self.name(field.default)

    def _value(self, kind: Kind[object]) -> str:
        if kind.form is Form.UUID:
            return self._uuid()
        if kind.form in FIXED:
            return self._take(kind.form.value, "v")
        if kind.form is Form.STRUCT:
            return self._inner(kind)
        if kind.form is Form.ARRAY:
            return self._array(kind)
        return self._bytes(kind)

    def _uuid(self) -> str:
        raw = self._take(Form.UUID.value, "v")
        uuid, none = self.name(uuid_of, "uuid"), self.name(NO_UUID, "none")
        self._after += [
            f"if {raw} == {self.name(NO_UUID.bytes, 'zeros')}:",
            f"    {raw} = {none}",
            "else:",
            f"    {raw} = {uuid}({raw})",
            f"    left -= {_UUID_BYTES}",
            "    if left < 0:",
            f"        raise {self.name(codec_source.too_much)}('uuid', at, end, left)",
        ]
        return raw

    def _inner(self, kind: Kind[object], first_there: int = 0) -> str:
        inner = struct_of(kind)
        if not kind.may_be_null(self.version):
            return self.struct(inner)
        flag, target = self._take("b", "n"), self.fresh("v")
        self._flush()
        self.line(f"{target} = None")
        with self.block(f"if {flag} >= {first_there}:"):
            self.line(f"{target} = {self.struct(inner)}")
        return target

    def _length(self, letter: str) -> str:
        """Append lines that read a length or count into a variable; return the variable's name.

        The variable is negative for null.
        """
        if not self.flexible:
            length = self._take(letter, "n")
            self._flush()
            return length
        length = self._take("B", "n")
        self._flush()
        with self.block(f"if {length} > 127:"):
            self.line(f"{length}, at = {self._varint}(view, at - 1)")
        self.line(f"{length} -= 1")
        return length

    def _bytes(self, kind: Kind[object]) -> str:
        is_text = kind.form is Form.STRING
        length = self._length("h" if is_text else "i")
        target = self.fresh("v")
        # Without compact lengths, a string's length is an int16 and can't exceed STRING_BYTES_MAX.
        limit = f" and {length} <= {STRING_BYTES_MAX}" if is_text and self.flexible else ""
        with self.block(f"if 0 < {length} <= end - at and left >= 0{limit}:"):
            part = f"view[at : at + {length}]"
            self.line(
                f"{target} = " + (f"str({part}, 'utf-8', {REPLACE_INVALID!r})" if is_text else part)
            )
            charge = f"({length} << 2) + {_STRING_BYTES}" if is_text else f"{_VIEW_BYTES}"
            self.line(f"left -= {charge}")
            self.line(f"at += {length}")
        with self.block(f"elif {length} == 0:"):
            self.line(f"{target} = " + ("''" if is_text else "b''"))
        self._or_null(kind, length, target, 1)
        return target

    def _or_null(self, kind: Kind[object], length: str, target: str, least: int) -> None:
        if kind.may_be_null(self.version):
            # Any negative length means null, as in Kafka's readers. Kafka's writers write -1.
            with self.block(f"elif {length} < 0:"):
                self.line(f"{target} = None")
        with self.block("else:"):
            if kind.form is Form.ARRAY and not self._sliced:
                # The list is too long for this form of the reader, but perhaps not for the sliced
                # form, which has no limit of elements and a higher memory limit. After
                # TooManyItems, the caller uses the sliced form.
                with self.block(f"if items < {length} and {length} * {least} <= end - at:"):
                    self.line(f"raise {self.name(TooManyItems)}")
            refuse = self.name(codec_source.bad_length)
            self.line(f"raise {refuse}({kind.form.value!r}, {length}, {least}, at, end, left)")

    def _array(self, kind: Kind[object]) -> str:
        item = item_of(kind)
        least = least_bytes(item, self.version, flexible=self.flexible)
        # Numbers are unpacked to a tuple first, then copied to a list.
        slots = 2 if item.form in FIXED else 1
        charge = _SLOT_BYTES * slots + _memory_bytes(item, self.version)
        count, target = self._length("i"), self.fresh("v")
        fits = f"0 <= {count} * {least} <= end - at"
        with self.block(f"if {fits} and (left := left - {count} * {charge}) >= 0:"):
            self._count(count)
            if item.form in FIXED and item.form is not Form.UUID:
                self._numbers(item, count, target, least)
            else:
                self._items(item, count, target)
        self._or_null(kind, count, target, least)
        return target

    def _count(self, count: str) -> None:
        """Append lines that count elements or tagged fields and raise TooManyItems for too many."""
        if not self._sliced:
            self.line(f"items -= {count}")
            with self.block("if items < 0:"):
                self.line(f"raise {self.name(TooManyItems)}")

    def _stop(self, count: str = "1") -> None:
        """In the sliced form, append the lines that yield after every `SLICE_ITEMS` elements."""
        if self._sliced:
            self.line(f"items -= {count}")
            with self.block("if items < 0:"):
                self.line(f"items = {SLICE_ITEMS}")
                self.line("yield")

    def _numbers(self, item: Kind[object], count: str, target: str, least: int) -> None:
        unpack, letter = self.name(unpack_from), item.form.value
        if not self._sliced:
            layout = f'f">{{{count}}}{letter}"'
            self.line(f"{target} = list({unpack}({layout}, view, at))")
            self.line(f"at += {count} * {least}")
            return
        left, part = self.fresh("i"), self.fresh("n")
        self.line(f"{target}, {left} = [], {count}")
        with self.block(f"while {left}:"):
            self.line(f"{part} = min({left}, {_FIXED_SLICE_ITEMS})")
            layout = f'f">{{{part}}}{letter}"'
            self.line(f"{target} += {unpack}({layout}, view, at)")
            self.line(f"at += {part} * {least}")
            self.line(f"{left} -= {part}")
            self._stop(f"{part} // 32 + 1")

    def _items(self, item: Kind[object], count: str, target: str) -> None:
        number = self.fresh("i")
        self.line(f"{target} = [None] * {count}")
        with self.block(f"for {number} in range({count}):"):
            value = self._value(item)
            self._flush()
            self.line(f"{target}[{number}] = {value}")
            self._stop()

    # -- tagged fields

    def _tags(self, fields: list[Field]) -> dict[str, str]:
        """Append the lines that read tagged fields in any order; unknown fields are skipped."""
        count = self._take("B", "n")
        values = {field.name: self.fresh("v") for field in fields}
        self._flush()
        if not fields:
            with self.block(f"if {count}:"):
                self.line(f"at = {self.name(skip_tags, 'skip')}(view, at - 1)")
                self._count(count)
                self._stop(count)
            return {}
        for field in fields:
            default = self._default(field)
            self.line(f"{values[field.name]} = {default}")
        with self.block(f"if {count}:"):
            self.line(f"{count}, at = {self._varint}(view, at - 1)")
            with self.block(f"if {count} > {TAGS_MAX}:"):
                self.line(f"raise {self.name(codec_source.too_many_tags)}({count}, at)")
            self._count(count)
            self._stop(count)
            with self.block(f"for _ in range({count}):"):
                self._tag(fields, values)
        return values

    def _tag(self, fields: list[Field], values: dict[str, str]) -> None:
        tag, stop = self.fresh("tag"), self.fresh("stop")
        self.line(f"{tag}, at = {self._varint}(view, at)")
        self.line(f"{stop}, at = {self._varint}(view, at)")
        with self.block(f"if {stop} > end - at:"):
            self.line(f"raise {self.name(codec_source.cut)}('tagged field', at, end)")
        self.line(f"{stop} += at")
        for field in fields:
            with self.block(f"if {tag} == {field.tag}:"):
                self._charge(_memory_bytes(field.kind, self.version))
                self.line(f"{values[field.name]} = {self._tagged(field.kind)}")
                with self.block(f"if at != {stop}:"):
                    self.line(f"raise {self.name(codec_source.bad_tag)}({tag}, at, {stop})")
        self.line(f"at = {stop}")

    def _charge(self, size: int) -> None:
        self.line(f"left -= {size}")
        with self.block("if left < 0:"):
            self.line(f"raise {self.name(codec_source.too_much)}('tagged field', at, end, left)")

    def _tagged(self, kind: Kind[object]) -> str:
        """Append lines that read a tagged field's value.

        In a tagged field, 0 means a null struct.
        """
        if kind.form is not Form.STRUCT:
            return self._value_now(kind)
        value = self._inner(kind, first_there=1)
        self._flush()
        return value

    def _value_now(self, kind: Kind[object]) -> str:
        value = self._value(kind)
        self._flush()
        return value


def _size(letters: str) -> int:
    return calcsize(f">{letters}")


_BUFFERS: Final = frozenset((bytes, bytearray, memoryview))

# Varints of one byte, by value.
_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(128))


@dataclass(slots=True)
class WrittenItems:
    """Already encoded elements of a list at the top level of a message, and their number."""

    count: int
    pieces: list[Buffer]

    def __len__(self) -> int:
        """Return the number of elements."""
        return self.count


@cache
def _writer(
    kind: "type[DataclassInstance]",
    version: int,
    flexible: bool,
    sliced: bool,
    written: str | None = None,
) -> Callable[[Writer, "DataclassInstance"], object]:
    """Compile the function that encodes a message into a `Writer`.

    Args:
        kind: Declaration of the message.
        version: Version to write.
        flexible: Whether lengths are compact and structs have tagged fields.
        sliced: Whether to compile a generator function, which yields after every `SLICE_ITEMS`
            elements.
        written: Name of the list field whose items are already encoded (`WrittenItems`); None if
            there is no such field.
    """
    code = _WriteCode(version, flexible=flexible, sliced=sliced, written=written)
    with code.block("def write(writer, message):"):
        code.line("add = writer.add")
        if sliced:
            code.line(f"items = {SLICE_ITEMS}")
        with code.block("try:"):
            code.struct(kind, "message")
            code.flush()
            # A message can have no fields.
            code.line("yield" if sliced else "pass")
        problems = f"{code.name(struct_error)}, TypeError, AttributeError, ValueError"
        with code.block(f"except ({problems}) as problem:"):
            refusal = code.name(codec_source.refusal)
            code.line(f"fault = {refusal}({code.name(kind)}, {version}, message)")
            with code.block("if fault is None:"):
                code.line("raise")
            code.line("raise fault from problem")
    what = f"write {kind.__name__} v{version}"
    return code.function("write", what)


class _WriteCode(Source):
    def __init__(self, version: int, *, flexible: bool, sliced: bool, written: str | None) -> None:
        super().__init__(version, flexible=flexible)
        self._sliced = sliced
        self._written = None if written is None else f"message.{written}"
        self._run: list[tuple[str, str]] = []
        self._varint = self.name(varint_bytes, "varint")
        self._small = self.name(_ONE_BYTE, "small")
        self._in_tag = False

    # -- neighboring values of fixed size

    def _put(self, letter: str, value: str) -> None:
        self._run.append((letter, value))

    def flush(self) -> None:
        """Append the line that packs the collected values."""
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
        """Append lines that write a varint.

        A varint of one byte is packed together with the values collected so far.
        """
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
        """Append lines that write a length or count, compact or of fixed size.

        `letter` is `h` for the length of a string.
        """
        if self.flexible:
            text_length = self.name(text_varint, "varint")
            self._put_varint(length, text_length if letter == "h" else self._varint)
        else:
            self._put(letter, length)
            self.flush()

    # -- values

    def struct(self, kind: "type[DataclassInstance]", value: str) -> None:
        """Append the lines that write a struct."""
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

    def _counted(self, kind: Kind[object], value: str, length: str, size: str, empty: str) -> None:
        """Append lines that set `length` to `size`, or to the length that means null."""
        more = " + 1" * self.flexible
        if not kind.may_be_null(self.version):
            self.line(f"{length} = {size}{more}")
            return
        with self.block(f"if {value} is None:"):
            self.line(f"{length} = {0 if self.flexible else -1}")
            self.line(f"{value} = {empty}")
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
            # A tagged field's size precedes its value, so the whole value is collected before the
            # size is written.
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
        """Append lines that write the tagged fields with values other than the defaults, by tag."""
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
        """Return a Python condition that is true if a field differs from its default.

        The condition is always true for a nullable struct, because Kafka always writes such a
        struct.
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


class Codec(NamedTuple, Generic[Message]):
    """Reader and writer of a message in one version. Each function is compiled at its first use.

    Attributes:
        kind: Declaration of the message.
        version: Version to read and write.
        flexible: Whether lengths are compact and structs have tagged fields.
    """

    kind: type[Message]
    version: int
    flexible: bool

    @property
    def read(self) -> Callable[[Reader], Message]:
        """Function that reads a message at a reader's position; raises CorruptMessage."""
        reader = _reader(self.kind, self.version, self.flexible, False)
        return cast("Callable[[Reader], Message]", reader)

    @property
    def write(self) -> Callable[[Writer, Message], None]:
        """Function that adds a message to a writer; raises InvalidRequest for invalid values."""
        writer = _writer(self.kind, self.version, self.flexible, False)
        return cast("Callable[[Writer, Message], None]", writer)

    @property
    def read_sliced(self) -> Callable[[Reader], Generator[None, None, Message]]:
        """Generator form of `read`, which yields after every `SLICE_ITEMS` list elements."""
        reader = _reader(self.kind, self.version, self.flexible, True)
        return cast("Callable[[Reader], Generator[None, None, Message]]", reader)

    @property
    def write_sliced(self) -> Callable[[Writer, Message], Generator[None, None, None]]:
        """Generator form of `write`, which yields after every `SLICE_ITEMS` list elements."""
        writer = _writer(self.kind, self.version, self.flexible, True)
        return cast("Callable[[Writer, Message], Generator[None, None, None]]", writer)

    def write_around(self, written: str) -> Callable[[Writer, Message], None]:
        """Return a variant of `write` for messages whose field `written` holds `WrittenItems`."""
        writer = _writer(self.kind, self.version, self.flexible, False, written)
        return cast("Callable[[Writer, Message], None]", writer)

    @property
    def min_bytes(self) -> int:
        """Size in bytes of the shortest encoded message, at least 1."""
        return struct_least_bytes(self.kind, self.version, flexible=self.flexible)


def struct_codec(kind: type[Message], version: int, flexible: bool) -> Codec[Message]:
    """Return the codec of a declaration in one version."""
    return cast("Codec[Message]", _codec(kind, version, flexible))


@cache
def _codec(kind: "type[DataclassInstance]", version: int, flexible: bool) -> object:
    return Codec(kind, version, flexible)
