"""Makes the function that reads a declaration in one version.

All of a message becomes one function without calls between structs. What follows each other with
fixed sizes, lengths and counts in front of it included, is unpacked at once; a buffer that ends too
early shows as an error of the unpacking. Lengths and counts are compared with the bytes left before
anything is sliced or allocated.

Objects take more memory than the bytes that they come from (a list of empty strings: eight times),
so what is made is charged against an allowance: for a request 7 bytes per byte (itself is the
eighth) and a mebibyte, and never more than 128 MiB; for an answer 63 and a mebibyte. Who exceeds it
is refused before it is allocated. Strings count four times their length, which the widest
characters need.

A message of more list elements than `Reader.items` says raises TooManyItems before they are read.
The sliced form of a reader is a generator for such messages: it yields after every
`SLICE_ITEMS` elements, so that a loop can do other work in between.

Over 400 lines because each form of the protocol has its few lines, twice where slices differ.
"""

from collections.abc import Callable, Generator
from struct import calcsize
from struct import error as struct_error
from typing import TYPE_CHECKING, Final, TypeVar, cast

from tidelog.protocol import faults
from tidelog.protocol.schema import Field, Form, Kind, fields_of
from tidelog.protocol.source import (
    FIXED,
    Source,
    item_of,
    plain_fields,
    struct_of,
    tagged_fields,
)
from tidelog.protocol.wire import (
    NO_UUID,
    STRING_BYTES_MAX,
    TAGS_MAX,
    Reader,
    TooManyItems,
    read_varint,
    skip_tags,
    uuid_of,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Message = TypeVar("Message", bound="DataclassInstance")

# What the message itself and what happens while one is read leave of 8 bytes per byte and 1 MiB:
# a string is decoded before it is charged, and may be copied while it is.
ALLOWANCE_PER_BYTE: Final = 7
ALLOWANCE_BYTES: Final = 2**20 - 3 * 2**16
# However long a request is: to make more objects than this would stop a loop for a second.
ALLOWANCE_BYTES_MAX: Final = 2**27
# Of long requests few are read at a time. A Fetch of 30,000 partitions takes 9 MB, of 500 KB.
LONG_ALLOWANCE_BYTES: Final = 2**24
# Answers come from brokers that we chose to ask, and tell of thousands of partitions: one in
# Metadata has 26 bytes and takes some 500 of memory.
ANSWER_ALLOWANCE_PER_BYTE: Final = 63

# List elements between two stops of a sliced reader or writer: some 0.2 ms.
SLICE_ITEMS: Final = 128
_FIXED_SLICE_ITEMS: Final = 8192

# Bytes that CPython takes for values. Small numbers, empty strings and defaults are shared.
_NUMBER_BYTES: Final = 32
_INT64_BYTES: Final = 36
_UUID_BYTES: Final = 112
_STRING_BYTES: Final = 80
_VIEW_BYTES: Final = 208
_LIST_BYTES: Final = 72
_OBJECT_BYTES: Final = 32
_SLOT_BYTES: Final = 8


def make_reader(
    kind: type[Message], version: int, *, flexible: bool
) -> Callable[[Reader], Message]:
    """The function that reads a message where a reader stands."""
    return cast("Callable[[Reader], Message]", _made(kind, version, flexible, sliced=False))


def make_sliced_reader(
    kind: type[Message], version: int, *, flexible: bool
) -> Callable[[Reader], Generator[None, None, Message]]:
    """A generator function that reads a message and stops after every `SLICE_ITEMS` elements."""
    made = _made(kind, version, flexible, sliced=True)
    return cast("Callable[[Reader], Generator[None, None, Message]]", made)


def _made(kind: type[Message], version: int, flexible: bool, *, sliced: bool) -> object:
    code = _ReadCode(version, flexible=flexible, sliced=sliced)
    what = f"{kind.__name__} v{version}"
    with code.block("def read(reader):"):
        code.line(f"items = {SLICE_ITEMS}" if sliced else "items = reader.items")
        code.line("view = reader.view")
        code.line("at = reader.at")
        code.line("end = len(view)")
        code.line(f"left = {_allowance(kind, sliced=sliced)}")
        with code.block("try:"):
            made = code.struct(kind)
            if sliced:
                code.line("yield")  # a generator even where there is no list
        with code.block(f"except ({code.name(struct_error)}, IndexError):"):
            code.line(f"raise {code.name(faults.cut)}({what!r}, at, end) from None")
        code.line("reader.at = at")
        code.line(f"return {made}")
    return code.made("read", f"read {what}")


def _allowance(kind: "type[DataclassInstance]", *, sliced: bool) -> str:
    """How much memory the objects of a message may take, by its bytes, `end`."""
    if kind.__name__.endswith("Response"):
        return f"end * {ANSWER_ALLOWANCE_PER_BYTE} + {ALLOWANCE_BYTES}"
    some = LONG_ALLOWANCE_BYTES if sliced else ALLOWANCE_BYTES
    whole = (ALLOWANCE_BYTES_MAX - some) // ALLOWANCE_PER_BYTE
    return f"end * {ALLOWANCE_PER_BYTE} + {some} if end < {whole} else {ALLOWANCE_BYTES_MAX}"


def least_bytes(kind: Kind[object], version: int, *, flexible: bool) -> int:
    """What the shortest value takes on the wire, at least 1."""
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
    """What the shortest message takes on the wire, at least 1."""
    fields = plain_fields(kind, version)
    return max(sum(least_bytes(f.kind, version, flexible=flexible) for f in fields) + flexible, 1)


def _memory_bytes(kind: Kind[object], version: int) -> int:
    """What one value takes as objects at most.

    Left out is what is charged where it is read: strings, views, ids, items, tagged fields.
    """
    if kind.form is Form.STRUCT:
        fields = fields_of(struct_of(kind), version)
        held = sum(_memory_bytes(f.kind, version) for f in fields if _takes_memory(f))
        return _OBJECT_BYTES + _SLOT_BYTES * len(fields) + held
    others = {
        Form.ARRAY: _LIST_BYTES,
        Form.UUID: 0,
        Form.INT64: _INT64_BYTES,
        Form.STRING: 0,
        Form.BYTES: 0,
    }
    return others.get(kind.form, _NUMBER_BYTES)


def _takes_memory(field: Field) -> bool:
    return (field.is_there and field.tag is None) or callable(field.default)


class _ReadCode(Source):
    def __init__(self, version: int, *, flexible: bool, sliced: bool) -> None:
        super().__init__(version, flexible=flexible)
        self._sliced = sliced
        self._run: list[tuple[str, str]] = []
        self._after: list[str] = []
        self._varint = self.name(read_varint, "varint")

    # -- runs of fixed sizes

    def _take(self, letter: str, stem: str) -> str:
        target = self.fresh(stem)
        self._run.append((letter, target))
        return target

    def _flush(self) -> None:
        """Unpack what has been collected."""
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
        """Lines that read a struct; the name of what they make."""
        values = {field.name: self._value(field.kind) for field in plain_fields(kind, self.version)}
        if self.flexible:
            values.update(self._tags(tagged_fields(kind, self.version)))
        self._flush()
        return self._blank(kind, values)

    def _blank(self, kind: "type[DataclassInstance]", values: dict[str, str]) -> str:
        """An object made without a call of its `__init__`: all its fields are set one by one."""
        made = self.fresh("o")
        self.line(f"{made} = {self.name(object.__new__, 'new')}({self.name(kind)})")
        for field in fields_of(kind, self.version):
            value = values.get(field.name) or self._default(field)
            self.line(f"{made}.{field.name} = {value}")
        return made

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
            f"        raise {self.name(faults.too_much)}('uuid', at, end, left)",
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
        """A length or count in its two forms; -1 for null."""
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
        # In the old form no length of a string can say more.
        limit = f" and {length} <= {STRING_BYTES_MAX}" if is_text and self.flexible else ""
        with self.block(f"if 0 < {length} <= end - at and left >= 0{limit}:"):
            part = f"view[at : at + {length}]"
            self.line(f"{target} = " + (f"str({part}, 'utf-8', 'replace')" if is_text else part))
            taken = f"({length} << 2) + {_STRING_BYTES}" if is_text else f"{_VIEW_BYTES}"
            self.line(f"left -= {taken}")
            self.line(f"at += {length}")
        with self.block(f"elif {length} == 0:"):
            self.line(f"{target} = " + ("''" if is_text else "b''"))
        self._or_null(kind, length, target, 1)
        return target

    def _or_null(self, kind: Kind[object], length: str, target: str, least: int) -> None:
        if kind.may_be_null(self.version):
            # As Kafka; it writes -1.
            with self.block(f"elif {length} < 0:"):
                self.line(f"{target} = None")
        with self.block("else:"):
            if kind.form is Form.ARRAY and not self._sliced:
                # The sliced form has more memory.
                with self.block(f"if items < {length} and {length} * {least} <= end - at:"):
                    self.line(f"raise {self.name(TooManyItems)}")
            refuse = self.name(faults.bad_length)
            self.line(f"raise {refuse}({kind.form.value!r}, {length}, {least}, at, end, left)")

    def _array(self, kind: Kind[object]) -> str:
        item = item_of(kind)
        least = least_bytes(item, self.version, flexible=self.flexible)
        # Numbers are unpacked to a tuple before they are a list.
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
        """Count so many elements or tagged fields that come next."""
        if not self._sliced:
            self.line(f"items -= {count}")
            with self.block("if items < 0:"):
                self.line(f"raise {self.name(TooManyItems)}")

    def _stop(self, taken: str = "1") -> None:
        """In the sliced form: stop where enough was read since the last time."""
        if self._sliced:
            self.line(f"items -= {taken}")
            with self.block("if items < 0:"):
                self.line(f"items = {SLICE_ITEMS}")
                self.line("yield")

    def _numbers(self, item: Kind[object], count: str, target: str, least: int) -> None:
        unpack, letter = self.name(faults.unpack_from), item.form.value
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
        """Lines for the tagged fields, in any order; those nobody knows are stepped over."""
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
                self.line(f"raise {self.name(faults.too_many_tags)}({count}, at)")
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
            self.line(f"raise {self.name(faults.cut)}('tagged field', at, end)")
        self.line(f"{stop} += at")
        for field in fields:
            with self.block(f"if {tag} == {field.tag}:"):
                self._charge(_memory_bytes(field.kind, self.version))
                self.line(f"{values[field.name]} = {self._tagged(field.kind)}")
                with self.block(f"if at != {stop}:"):
                    self.line(f"raise {self.name(faults.bad_tag)}({tag}, at, {stop})")
        self.line(f"at = {stop}")

    def _charge(self, taken: int) -> None:
        self.line(f"left -= {taken}")
        with self.block("if left < 0:"):
            self.line(f"raise {self.name(faults.too_much)}('tagged field', at, end, left)")

    def _tagged(self, kind: Kind[object]) -> str:
        """A tagged field's value; a struct that may be null has 0 there, not -1, where it is."""
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
