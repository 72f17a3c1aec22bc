"""Row templates, by which repeated requests are decoded and their responses encoded faster.

A consumer or producer sends the same request again and again. Only the rows differ. A row is a
partition of a topic, with an offset, a time or a batch. A `Template` keeps the bytes before and
after the rows. The template reads and writes rows with a `Struct` that is derived from the
message's declaration. `Templates` holds the last template of each API for one connection.

The module handles bytes only. A row is processed by the API's row function (`server/api`), which
makes every check that the API's handler makes. The caller of the row function applies authorization
and quotas. A frame with any unusual byte (a tagged field, a truncated row, a changed setting) does
not match the template, and is decoded by the API's codec.

Invariants:

- A template is checked before it is used. For a request without records, the template must read the
  same rows as the codec, from the frame and from a copy of the frame in which every field of every
  row is changed. For a request with records, the records are replaced in a copy of the frame, and
  the codec must decode the copy to the new records and otherwise to the same request. For a
  response with changed rows, the template must write the same bytes as the codec.
- Every length is compared with the rest of the frame before bytes are taken.
- Memory is bounded: one template per API and connection, of at most `FRAME_BYTES_MAX` bytes.
- Learning a template (creating it from a request and its response) takes as much time as the
  template later saves in some tens of requests. So each API of a connection has a credit, at first
  `CREDIT_MAX`. Learning a template costs `LEARNING_CREDIT`. If the credit is too low, no template
  is learned, and the credit increases by 1. So templates are rarely learned for a client whose
  requests all differ.

Source: `protocol.messages`; KIP-482 (compact lengths, tagged fields).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby
from operator import itemgetter
from struct import Struct, error
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, cast
from uuid import UUID

from tidelog.errors import CorruptMessage, TidelogError
from tidelog.protocol.framing import LENGTH_BYTES
from tidelog.protocol.messages import BY_KEY
from tidelog.protocol.requests import ReceivedRequest, read_request, write_response
from tidelog.protocol.schema import Field, Form, fields_of
from tidelog.protocol.wire import read_varint, varint_bytes
from tidelog.types import Buffer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FRAME_BYTES_MAX: Final = 64 << 10
# Maximum number of bytes before the records of a request.
LEAD_BYTES_MAX: Final = 1024
# Maximum number of topics whose names or ids a template caches.
TOPICS_MAX: Final = 100
CREDIT_MAX: Final = 128
LEARNING_CREDIT: Final = 64
# Size in bytes below which the records of a row are copied into the preceding piece.
COPIED_BELOW: Final = 16 << 10

# Beginning of a request: API key, version, correlation id, and the length of the client id.
_REQUEST_HEAD: Final = Struct(">hhih")
_HEAD_BYTES: Final = 4
# Position of the correlation id: in a request without its length prefix, and in a response with its
# length prefix.
CORRELATION_ID: Final = slice(4, 8)
_BODY_AT: Final = 8
_UUID_BYTES: Final = 16
_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
# Bytes that replace a request's records in the copy of the frame with which a template is checked.
_OTHER_RECORDS: Final = b"\xc0\xc1\xf5"
_OTHER_THROTTLE_MS: Final = 0x0102_0304

# Fixed-size values of a request's row, as in the API's newest version, followed by the row's
# records, if any.
Row: TypeAlias = tuple[int, ...]
# Fixed-size values at the beginning of a response's row, as in the API's newest version.
Facts: TypeAlias = Sequence[int]
# Name or id of a topic.
TopicRef: TypeAlias = str | UUID

# Topic of a request: its name or id as bytes of the frame, and its rows. A plain tuple is used,
# because it is cheap to create, and each topic of each request needs one.
RequestTopic: TypeAlias = tuple[bytes, Sequence[Row]]
# For each topic of a response, in the request's order: the fixed-size values of its rows, and the
# rows' records (None for a row without records). `AllRecords` is None if responses have no records.
AllFacts: TypeAlias = Sequence[Sequence[Facts]]
AllRecords: TypeAlias = Sequence[Sequence[Buffer | None]] | None


# -- rows of a declaration -------------------------------------------------------------------------


class _Rows(NamedTuple):
    """Fields of a message that contain its topics and their rows, in one version.

    Attributes:
        topics: Name of the field with the message's list of topics.
        partitions: Name of the field with a topic's list of rows.
        key: Name of the field with a topic's name or id.
        is_by_id: Whether that field is an id.
        before: Fields before the list of topics.
        behind: Fields after the list of topics.
        names: Leading fixed-size fields of a row, as in the newest version.
        present: The fields of `names` that exist in this version.
        missing: The fields of `names` that do not exist in this version, with their default values.
        struct: Layout of the fields in `present`.
        between: Fields between the fields in `present` and the records.
        records: Name of the field with a row's records; None if rows have no records.
    """

    topics: str
    partitions: str
    key: str
    is_by_id: bool
    before: Sequence[Field]
    behind: Sequence[Field]
    names: Sequence[str]
    present: Sequence[str]
    missing: Mapping[str, object]
    struct: Struct
    between: Sequence[Field]
    records: str | None

    def keys_and_rows(
        self, message: "DataclassInstance"
    ) -> "list[tuple[bytes, list[DataclassInstance]]]":
        """Return the name or id of each topic in a message, as bytes, and the topic's rows."""
        return [
            (_key_bytes(getattr(topic, self.key)), getattr(topic, self.partitions))
            for topic in getattr(message, self.topics)
        ]

    def values(self, row: "DataclassInstance") -> tuple[int, ...]:
        """Return a row's fixed-size values, in the order of `names`."""
        return tuple(getattr(row, name) for name in self.names)


def _key_bytes(key: TopicRef) -> bytes:
    return key.bytes if isinstance(key, UUID) else key.encode()


def _fields(declaration: "type[DataclassInstance]", version: int) -> list[Field]:
    fields = fields_of(declaration, version)
    return [field for field in fields if field.is_there and field.tag is None]


def _is_fixed(field: Field) -> bool:
    return len(field.kind.form.value) == 1


def _leading(fields: Sequence[Field]) -> list[Field]:
    """Return the fixed-size fields at the beginning of a declaration."""
    count = next((n for n, field in enumerate(fields) if not _is_fixed(field)), len(fields))
    return list(fields[:count])


def _item(field: Field) -> "type[DataclassInstance] | None":
    """Return the declaration of a list's items; None if the field is not a list of structs."""
    return None if field.kind.item is None else field.kind.item.struct


@cache
def _rows_of(declaration: "type[DataclassInstance]", version: int, newest: int) -> _Rows:
    """Find the list of topics and the list of rows in a message.

    The list of topics is the first list whose items have a list of structs as their last field.
    Each item is a topic, and the structs in its last field are the topic's rows.
    """
    fields = _fields(declaration, version)
    for field in fields:
        topic = _item(field)
        partitions = None if topic is None else _fields(topic, version)[-1]
        row = None if partitions is None else _item(partitions)
        if topic is not None and partitions is not None and row is not None:
            break
    else:
        raise ValueError(f"{declaration.__name__} has no rows")
    at = fields.index(field)
    key, here = _fields(topic, version)[0], _fields(row, version)
    names = [each.name for each in _leading(_fields(row, newest))]
    leading, rest = _leading(here), here[len(_leading(here)) :]
    has_records = bool(rest) and rest[-1].kind.form is Form.BYTES
    return _Rows(
        topics=field.name,
        partitions=partitions.name,
        key=key.name,
        is_by_id=key.kind.form is Form.UUID,
        before=fields[:at],
        behind=fields[at + 1 :],
        names=names,
        present=[each.name for each in leading],
        missing={
            each.name: each.default
            for each in fields_of(row, version)
            if each.name in names and not each.is_there
        },
        struct=Struct(">" + "".join(each.kind.form.value for each in leading)),
        between=rest[:-1] if has_records else rest,
        records=rest[-1].name if has_records else None,
    )


class _Unusual(Exception):
    """Raised if a template can't read a frame, or can't write a response."""


class _Layout:
    """Encoding of the requests and responses of one API in one version."""

    def __init__(self, key: int, version: int) -> None:
        api = BY_KEY[key]
        self.is_flexible = api.is_flexible(version)
        self.request = _rows_of(api.request, version, api.last)
        self.response = _rows_of(api.response, version, api.last)
        self.tags = b"\0" if self.is_flexible else b""
        rows = self.request
        # In flexible versions each row is followed by the number of its tagged fields.
        self.row = Struct(rows.struct.format + ("x" if self.is_flexible else ""))
        order = [*rows.present, *rows.missing]
        self._pick = itemgetter(*map(order.index, rows.names)) if rows.missing else None
        self._defaults = tuple(rows.missing.values())

    # -- requests ----------------------------------------------------------------------------

    def topics_at(self, request: ReceivedRequest) -> int:
        """Return the position of the list of topics in a frame, computed from earlier fields."""
        at = _REQUEST_HEAD.size + len((request.client_id or "").encode()) + len(self.tags)
        message = request.message
        return at + len(self.constant(self.request.before, message))

    def topics(self, data: bytes, at: int) -> tuple[list[RequestTopic], list[int], int]:
        """Decode the list of topics at position `at` of a frame.

        Returns the topics, the position of each topic's first row, and the position after the list.

        Raises:
            _Unusual: The bytes are not a list of topics with rows.
        """
        topics, positions = [], []
        try:
            count, at = self._count(data, at)
            if not 0 < count <= len(data) - at:
                raise _Unusual
            for _ in range(count):
                size = _UUID_BYTES
                if not self.request.is_by_id:
                    size, at = self._text_size(data, at)
                if not 0 <= size <= len(data) - at:
                    raise _Unusual
                key, at = data[at : at + size], at + size
                count, at = self._count(data, at)
                end = at + count * self.row.size
                if not 0 < count <= len(data) or end > len(data):
                    raise _Unusual
                topics.append((key, self.rows(data[at:end])))
                positions.append(at)
                at = end + len(self.tags)
                if data[end:at] != self.tags:
                    raise _Unusual
        except (IndexError, error, CorruptMessage):
            raise _Unusual from None
        return topics, positions, at

    def rows(self, data: bytes) -> Sequence[Row]:
        """Decode the rows of one topic; raises _Unusual for a row with tagged fields."""
        size = self.row.size
        if self.is_flexible and any(data[size - 1 :: size]):
            raise _Unusual
        rows = self.row.iter_unpack(data)
        pick, defaults = self._pick, self._defaults
        return list(rows) if pick is None else [pick(row + defaults) for row in rows]

    def _count(self, data: bytes, at: int) -> tuple[int, int]:
        if not self.is_flexible:
            return _INT32.unpack_from(data, at)[0], at + _INT32.size
        count, at = read_varint(memoryview(data), at)
        return count - 1, at

    def _text_size(self, data: bytes, at: int) -> tuple[int, int]:
        if not self.is_flexible:
            return _INT16.unpack_from(data, at)[0], at + _INT16.size
        size, at = read_varint(memoryview(data), at)
        return size - 1, at

    # -- responses ---------------------------------------------------------------------------

    def list_size(self, count: int) -> bytes:
        """Encode the number of items in a list; -1 stands for a null list."""
        return varint_bytes(count + 1) if self.is_flexible else _INT32.pack(count)

    def key(self, key: bytes) -> bytes:
        """Encode a topic's key (its name or id) for a response."""
        if self.response.is_by_id:
            return key
        size = len(key)
        return (varint_bytes(size + 1) if self.is_flexible else _INT16.pack(size)) + key

    def records_size(self, size: int) -> bytes:
        """Encode the length field that precedes a row's records."""
        if not self.is_flexible:
            return _INT32.pack(size)
        coded = size + 1
        if 1 << 14 <= coded < 1 << 21:  # the usual case
            return bytes((coded & 0x7F | 0x80, coded >> 7 & 0x7F | 0x80, coded >> 14))
        return varint_bytes(coded)

    def constant(self, fields: Sequence[Field], message: object) -> bytes:
        """Encode the given fields of a message; their values are the same in all repetitions.

        Raises:
            _Unusual: A field is not a value of fixed size, a string, an empty list or a null list.
        """
        parts = []
        for field in fields:
            value = getattr(message, field.name)
            if _is_fixed(field):
                parts.append(Struct(">" + field.kind.form.value).pack(value))
            elif field.kind.form is Form.STRING:
                text = None if value is None else value.encode()
                size = -1 if text is None else len(text)
                head = varint_bytes(size + 1) if self.is_flexible else _INT16.pack(size)
                parts.append(head + (text or b""))
            elif field.kind.form is Form.ARRAY and not value:
                parts.append(self.list_size(-1 if value is None else 0))
            else:
                raise _Unusual
        return b"".join(parts)


_layout_of: Final = cache(_Layout)


# -- templates -------------------------------------------------------------------------------------


class _Response:
    """Constant bytes of the responses to a request, and the encoder of the responses' rows."""

    def __init__(self, layout: _Layout, response: "DataclassInstance") -> None:
        """Take the constant bytes from `response`, which must have at least one row.

        Raises:
            _Unusual: The response can't be a template for other responses.
        """
        names, tags = layout.response, layout.tags
        rows = [row for _, rows in names.keys_and_rows(response) for row in rows]
        if not rows:
            raise _Unusual
        response = replace(response, **_throttle_of(response, 0))
        self._layout = layout
        self.header_bytes = CORRELATION_ID.stop - CORRELATION_ID.start + len(tags)
        header = bytes(LENGTH_BYTES + self.header_bytes)
        self._head = header + layout.constant(names.before, response)
        self._tail = layout.constant(names.behind, response) + tags
        self._facts = names.struct
        self._facts_count = len(names.present)
        self._between = layout.constant(names.between, rows[0])
        # Position of the throttle time. If the field is before the topics, the position is counted
        # from the start of the response. If the field is behind the topics, the position is
        # negative and counted from the end.
        self._throttle_at: int | None = None
        if any(field.name == "throttle_time_ms" for field in names.before):
            self._throttle_at = LENGTH_BYTES + self.header_bytes
        elif any(field.name == "throttle_time_ms" for field in names.behind):
            self._throttle_at = -len(self._tail)
        self._one: tuple[bytes | None, bytes, int] = (None, b"", 0)

    def encode(
        self,
        correlation_id: Buffer,
        topics: Sequence[tuple[bytes, object]],
        all_facts: AllFacts,
        records: AllRecords,
    ) -> list[Buffer]:
        """Return the pieces of a response, including its length.

        Only the key (the first element) of each tuple in `topics` is used.
        """
        if records is not None or len(topics) > 1 or len(all_facts[0]) > 1:
            return self._encode(correlation_id, topics, all_facts, records)
        # If the response has one row, the bytes of the last response are copied and then changed.
        key, facts = topics[0][0], all_facts[0][0]
        last_key, last, at = self._one
        if last_key != key:
            (encoded,) = self._encode(correlation_id, topics, all_facts, records)
            behind = len(self._layout.tags) * 2 + len(self._between) + len(self._tail)
            self._one = key, bytes(encoded), len(encoded) - behind - self._facts.size
            return [encoded]
        out = bytearray(last)
        out[CORRELATION_ID] = correlation_id
        if len(facts) > self._facts_count:
            facts = facts[: self._facts_count]
        self._facts.pack_into(out, at, *facts)
        return [out]

    def _encode(
        self,
        correlation_id: Buffer,
        topics: Sequence[tuple[bytes, object]],
        all_facts: AllFacts,
        records: AllRecords,
    ) -> list[Buffer]:
        layout, pack, count = self._layout, self._facts.pack, self._facts_count
        between, sized, tags = self._between, layout.records_size, layout.tags
        out = bytearray(self._head)
        first, size = out, 0
        pieces: list[Buffer] = [out]
        out += layout.list_size(len(topics))
        for at, (key, _) in enumerate(topics):
            out += layout.key(key) + layout.list_size(len(all_facts[at]))
            for number, row in enumerate(all_facts[at]):
                out += pack(*row[:count]) + between
                if records is not None:
                    data = records[at][number]
                    if data is None:
                        out += sized(0)
                    elif (nbytes := len(data)) < COPIED_BELOW:
                        out += sized(nbytes)
                        out += data
                    else:
                        out += sized(nbytes)
                        out = bytearray()
                        pieces += (data, out)
                        size += nbytes
                out += tags
            out += tags
        out += self._tail
        size += sum(len(each) for each in pieces[::2])
        _INT32.pack_into(first, 0, size - LENGTH_BYTES)
        first[CORRELATION_ID] = correlation_id
        if not out:
            pieces.pop()
        return pieces

    def set_throttle(self, pieces: Sequence[Buffer], throttle_ms: int) -> None:
        """Set the throttle time; in a version without this field, do nothing."""
        at = self._throttle_at
        if at is not None:
            _INT32.pack_into(pieces[0 if at >= 0 else -1], at, throttle_ms)


class Template:
    """Repeated request without its rows, and the constant part of its responses.

    Attributes:
        request: Decoded request, without topics.
        encode: Encodes a response.
        set_throttle: Sets the throttle time of a response.
        header_bytes: Size of a response's header, without the length before it.
        references: Name or id of each topic that `reference` has looked up, by the topic's key.
    """

    __slots__ = (
        "_head",
        "_last",
        "_layout",
        "_lead",
        "_one",
        "_row_bytes",
        "_tail",
        "_unpack",
        "encode",
        "header_bytes",
        "references",
        "request",
        "set_throttle",
    )

    def __init__(
        self,
        request: ReceivedRequest,
        layout: _Layout,
        lead: bytes,
        tail: bytes,
        response: _Response,
    ) -> None:
        """Create a template from the frame's bytes before (`lead`) and after (`tail`) the rows."""
        self.request = request
        self._layout = layout
        self._head = lead[:_HEAD_BYTES]
        self._lead = lead[_BODY_AT:]
        self._tail = tail
        # Parts of the last frame with one topic: the frame's size, the bytes before the rows
        # (without the correlation id), the positions at which the rows start and end, the bytes
        # after the rows, and the topic's key.
        self._last: tuple[int, bytes, int, int, bytes, bytes] = (0, b"", 0, 0, b"", b"")
        self._row_bytes = layout.request.struct.size
        self._unpack = None if layout.request.missing else layout.request.struct.unpack_from
        # Topic key and partition index of the only partition, if the request has records; else
        # None.
        self._one: tuple[bytes, int] | None = None
        self.references: dict[bytes, TopicRef] = {}
        self.encode = response.encode
        self.set_throttle = response.set_throttle
        self.header_bytes = response.header_bytes

    def use_partition(self, key: bytes, index: int) -> None:
        """Set the topic's key and the index of the partition, for a request with one partition."""
        self._one = key, index

    def rows(self, frame: Buffer) -> list[RequestTopic] | None:
        """Return a frame's topics with their rows; None if the frame doesn't match the template."""
        try:
            if self._one is not None:
                return self._records(frame, *self._one)
            size, start, at, end, tail, key = self._last
            if len(frame) == size:  # often only the values in the rows have changed
                data = bytes(frame)
                if data[:_HEAD_BYTES] + data[_BODY_AT:at] == start and data[end:] == tail:
                    if self._unpack is not None and end - at == self._row_bytes:
                        return [(key, [self._unpack(data, at)])]
                    return [(key, self._layout.rows(data[at:end]))]
            return None if len(frame) > FRAME_BYTES_MAX else self._topics(bytes(frame))
        except _Unusual:
            return None

    def reference(self, key: bytes) -> TopicRef:
        """Return the name or id of the topic with this key."""
        reference = self.references.get(key)
        if reference is None:
            by_id = self._layout.request.is_by_id
            reference = UUID(bytes=key) if by_id else str(key, "utf-8", "replace")
            if len(self.references) >= TOPICS_MAX:
                self.references.clear()
            self.references[key] = reference
        return reference

    def _topics(self, data: bytes) -> list[RequestTopic]:
        at = _BODY_AT + len(self._lead)
        if not data.startswith(self._head) or data[_BODY_AT:at] != self._lead:
            raise _Unusual
        topics, positions, end = self._layout.topics(data, at)
        if data[end:] != self._tail:
            raise _Unusual
        if len(topics) == 1:
            key, rows = topics[0]
            at, end = positions[0], positions[0] + len(rows) * self._layout.row.size
            if len(rows) == 1 and self._unpack is not None:
                # The number of the row's tagged fields is not decoded here, but compared as the
                # first of the constant bytes after the row.
                end -= len(self._layout.tags)
            self._last = len(data), self._head + data[_BODY_AT:at], at, end, data[end:], key
        return topics

    def _records(self, frame: Buffer, key: bytes, index: int) -> list[RequestTopic]:
        """Return the topic of a frame with one partition.

        The topic's only row has the partition's index and the records.
        """
        at, end = _BODY_AT + len(self._lead), len(frame) - len(self._tail)
        head = bytes(frame[:at])
        if head[_BODY_AT:] != self._lead or not head.startswith(self._head):
            raise _Unusual
        try:
            if self._layout.is_flexible:
                size, at = read_varint(memoryview(frame), at)
                size -= 1
            else:
                (size,) = _INT32.unpack_from(frame, at)
                at += _INT32.size
        except (IndexError, error, CorruptMessage):
            raise _Unusual from None
        if size <= 0 or at + size != end or bytes(frame[end:]) != self._tail:
            raise _Unusual
        return [(key, [(index, frame[at:end])])]  # type: ignore[list-item] # the only row: index, records


class Templates:
    """Last template of each API on one connection. Used only in the event loop's thread."""

    __slots__ = ("_credit", "_templates")

    def __init__(self) -> None:
        self._templates: dict[int, Template] = {}
        self._credit: dict[int, int] = {}

    def find(self, key: int) -> Template | None:
        """Return the template of an API; None if no template was learned."""
        return self._templates.get(key)

    def learn(
        self,
        frame: Buffer,
        request: ReceivedRequest,
        response: "DataclassInstance",
        served: Mapping[int, tuple[int, int]],
    ) -> None:
        """Create a template from a request that succeeded, if there is enough credit.

        Args:
            frame: Bytes of the request.
            request: Request as decoded by the codec.
            response: Response to the request.
            served: First and last supported version (inclusive) by API key.
        """
        key, names = request.api.key, _layout_of(request.api.key, request.version).response
        existing = self._templates.get(key)
        if existing is not None and existing.rows(frame) is not None:
            return
        if any(row.error_code for _, rows in names.keys_and_rows(response) for row in rows):  # type: ignore[attr-defined] # all have one
            return
        credit = self._credit.setdefault(key, CREDIT_MAX)
        if credit < LEARNING_CREDIT:
            self._credit[key] = credit + 1
            return
        self._credit[key] = credit - LEARNING_CREDIT
        try:
            self._templates[key] = learned(frame, request, response, served)
        except (_Unusual, TidelogError, error):
            self._templates.pop(key, None)


# -- learning a template ---------------------------------------------------------------------------


def learned(
    frame: Buffer,
    request: ReceivedRequest,
    response: "DataclassInstance",
    served: Mapping[int, tuple[int, int]],
) -> Template:
    """Create a template from a request and its response. Arguments: see `Templates.learn`.

    Raises:
        _Unusual: The request or response is not suitable.
        TidelogError: The changed request can't be decoded.
    """
    layout = _layout_of(request.api.key, request.version)
    written = _Response(layout, response)
    _prove_response(request, response, written, layout)
    if layout.request.records is not None:
        return _with_records(frame, request, written, served)
    if len(frame) > FRAME_BYTES_MAX:
        raise _Unusual
    data, at = bytes(frame), layout.topics_at(request)
    topics, positions, end = layout.topics(data, at)
    _ensure_same(topics, request, layout)
    changed = bytearray(data)
    for position, topic in zip(positions, topics, strict=True):
        for number, row in enumerate(
            layout.row.iter_unpack(data[position:][: _size(topic, layout)])
        ):
            row_at = position + number * layout.row.size
            layout.row.pack_into(changed, row_at, *(~value for value in row))
    decoded = read_request(changed, served)
    others, _, _ = layout.topics(bytes(changed), at)
    _ensure_same(others, decoded, layout)
    _ensure_same_settings(decoded, request, layout)
    template = Template(decoded, layout, data[:at], data[end:], written)
    for _ in range(2):  # the second call tests the fast path in `rows`
        if template.rows(frame) != topics:
            raise _Unusual
    return template


def _size(topic: RequestTopic, layout: _Layout) -> int:
    return len(topic[1]) * layout.row.size


def _with_records(
    frame: Buffer,
    request: ReceivedRequest,
    written: _Response,
    served: Mapping[int, tuple[int, int]],
) -> Template:
    """Create a template from a request with records for one partition."""
    layout = _layout_of(request.api.key, request.version)
    names = layout.request
    ((key, rows),) = names.keys_and_rows(request.message)
    (row,) = rows
    records = getattr(row, cast("str", names.records))
    if not records:
        raise _Unusual
    tail = layout.tags * 3  # empty tagged fields of the partition, the topic and the request
    at = len(frame) - len(tail) - len(records) - len(layout.records_size(len(records)))
    if not _BODY_AT < at <= LEAD_BYTES_MAX:
        raise _Unusual
    lead = bytes(frame[:at])
    size = layout.records_size(len(_OTHER_RECORDS))
    # A new buffer, because the template must not refer to a frame's buffer, which is reused.
    decoded = read_request(memoryview(lead + size + _OTHER_RECORDS + tail), served)
    ((other_key, others),) = names.keys_and_rows(decoded.message)
    (other,) = others
    is_same = other_key == key and names.values(other) == names.values(row)
    if not is_same or getattr(other, cast("str", names.records)) != _OTHER_RECORDS:
        raise _Unusual
    _ensure_same_settings(decoded, request, layout)
    template = Template(decoded, layout, lead, tail, written)
    template.use_partition(key, *names.values(row))
    if template.rows(frame) is None:
        raise _Unusual
    return template


def _ensure_same(topics: Sequence[RequestTopic], request: ReceivedRequest, layout: _Layout) -> None:
    """Raise _Unusual if `topics` differ from the topics and rows that the codec has decoded."""
    names = layout.request
    expected = [
        (key, [names.values(row) for row in rows])
        for key, rows in names.keys_and_rows(request.message)
    ]
    if expected != [(key, list(rows)) for key, rows in topics]:
        raise _Unusual


def _ensure_same_settings(
    decoded: ReceivedRequest, request: ReceivedRequest, layout: _Layout
) -> None:
    """Remove the rows of `decoded`; raise _Unusual if `decoded` and `request` differ elsewhere."""
    without: dict[str, object] = {layout.request.topics: []}
    decoded.message = replace(decoded.message, **without)
    if decoded.client_id != request.client_id or decoded.message != replace(
        request.message, **without
    ):
        raise _Unusual


def _prove_response(
    request: ReceivedRequest,
    response: "DataclassInstance",
    written: _Response,
    layout: _Layout,
) -> None:
    """Raise _Unusual if the codec and the template encode changed rows differently."""
    names = layout.response
    marks = {name: -2 - number for number, name in enumerate(names.present)}
    keys, facts, marked = [], [], []
    records: list[Sequence[Buffer | None]] = []
    for topic in getattr(response, names.topics):
        keys.append((_key_bytes(getattr(topic, names.key)), None))
        rows = [replace(row, **marks) for row in getattr(topic, names.partitions)]
        records.append([_one_buffer(row, names) for row in rows])
        facts.append([names.values(row) for row in rows])
        without: dict[str, object] = {names.partitions: rows}
        marked.append(replace(topic, **without))
    changes = {names.topics: marked, **_throttle_of(response, _OTHER_THROTTLE_MS)}
    pieces = written.encode(
        request.correlation_id.to_bytes(4, "big", signed=True),
        keys,
        facts,
        None if names.records is None else records,
    )
    written.set_throttle(pieces, _OTHER_THROTTLE_MS)
    if _joined(pieces) != _joined(write_response(request, replace(response, **changes))):
        raise _Unusual


def _throttle_of(response: "DataclassInstance", throttle_ms: int) -> dict[str, object]:
    return {"throttle_time_ms": throttle_ms} if hasattr(response, "throttle_time_ms") else {}


def _one_buffer(row: "DataclassInstance", names: _Rows) -> Buffer | None:
    """Return a row's records, None if there are none; raise _Unusual if they are in pieces."""
    records = None if names.records is None else getattr(row, names.records)
    if records is None or isinstance(records, bytes | bytearray | memoryview):
        return records or None
    if len(records) > 1:
        raise _Unusual
    return records[0] if records else None


def _joined(pieces: Sequence[Buffer]) -> list[object]:
    """Join neighboring pieces that are bytes; pieces that are parts of files stay as they are."""
    joined: list[object] = []
    for is_bytes, group in groupby(pieces, lambda piece: isinstance(piece, _BYTES)):
        same = list(group)
        joined += [b"".join(same)] if is_bytes else same
    return joined


_BYTES: Final = (bytes, bytearray, memoryview)
