"""Requests with long lists, processed in parts so that no client blocks the event loop.

A request with more list elements than `Row.at_once` is read in slices and split along a list that
the table of APIs names (`Row.parts`). The guard and the handler get each part as a request of its
own, so rights, checks and errors are the same as for short requests. The responses are merged into
one response. Each element of the response is encoded as soon as no later part of the request can
add to the element. If the table names no list for an API, its long requests are refused. Exception:
`api.fetch.long_fetch` answers long Fetch requests.

The size of each part follows from the time that the previous part took, so that a part takes a few
milliseconds. Only a few long requests are read at a time, because the objects of a request may take
eight times as much memory as its bytes.
"""

from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from copy import copy
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar, cast

from tidelog.errors import CorruptMessage
from tidelog.protocol.codecs import Codec, WrittenItems, struct_codec
from tidelog.protocol.messages import ADD_PARTITIONS_TO_TXN, FETCH
from tidelog.protocol.messages import BY_KEY as APIS
from tidelog.protocol.messages.transactions import AddPartitionsToTxnResponse
from tidelog.protocol.requests import LongRequest
from tidelog.protocol.schema import Form, fields_of
from tidelog.protocol.wire import Writer
from tidelog.server.api.context import EncodedResponse, LargeResponse, RequestContext, Started
from tidelog.server.api.table import BY_KEY
from tidelog.server.runtime.loop import Slices
from tidelog.server.runtime.reply import Reply, Stopwatch, settled

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tidelog.types import Buffer


_Result = TypeVar("_Result")
Answering = Callable[[RequestContext, "DataclassInstance"], Started]
PART_ITEMS: Final = 32

# Maximum number of list elements in an object that can't be split further. Such an object is an
# element of the list along which the request is split, or the request without this list. Long texts
# count as list elements, too (`TEXT_CHARACTERS`).
ITEM_MAX: Final = 5000

# Number of text characters that take about as long to process as one element.
TEXT_CHARACTERS: Final = 256

PART_ITEMS_MAX: Final = 512
_PART_NS: Final = 4_000_000
_FIELDS: Final = "__dataclass_fields__"


async def answer_long(
    context: RequestContext, request: LongRequest, handle: Answering
) -> EncodedResponse | None:
    """Answer a request part by part.

    Args:
        context: Context of the request.
        request: The request, whose body is not decoded yet.
        handle: Answers a part; first checks the client's rights with the API's guard, if any.

    Raises:
        CorruptMessage: The request breaks a rule, or has too many elements that can't be split.
    """
    if request.api is FETCH:
        return await _answer_fetch(context, request)
    async with context.node.long_requests:
        clock = context.node.env.clock
        slices = Slices(clock)
        path = _paths(request)
        message = (await _through(request.read(), slices)).message
        response = _Response(context, path.response)
        parts = _Parts(message, path.request, request)
        del message
        if request.api is ADD_PARTITIONS_TO_TXN:
            await _add_partitions(context, parts, response, handle, slices)
        else:
            async for part_response, joins in _answers(context, parts, handle, slices):
                await response.add(part_response, joins, slices)
        written = await response.end(slices)
        if written is not None:
            written.task_ns = parts.task_ns
        return written


async def _answers(
    context: RequestContext, parts: "_Parts", handle: Answering, slices: Slices
) -> "AsyncIterator[tuple[DataclassInstance, int]]":
    """Yield the response to each part of the request, and the part's `joins` (see `Part`)."""
    clock = context.node.env.clock
    for part in parts:
        watch = Stopwatch(clock, clock.monotonic_ns())
        outcome = handle(context, part.message)
        watch.pause()
        first_step_ns = watch.used_ns
        if isinstance(outcome, Reply):
            outcome.measure(watch)
        handled = await settled(outcome)
        parts.task_ns += watch.used_ns - first_step_ns
        if watch.used_ns > _PART_NS:
            parts.shrink()
        else:
            parts.grow()
        if handled is not None:
            response = (
                handled.response
                if isinstance(handled, LargeResponse | EncodedResponse)
                else handled
            )
            yield response, part.joins
        await slices.rest()


async def _add_partitions(
    context: RequestContext,
    parts: "_Parts",
    response: "_Response",
    handle: Answering,
    slices: Slices,
) -> None:
    """Check the partitions of all parts, then add them to their transactions.

    For each transaction, either all of its partitions are added or none.
    """
    from tidelog.server.api.transactions import SplitAdd  # imported only for such long requests

    whole, checked = SplitAdd(context), []
    async for part_response, joins in _answers(whole.context, parts, handle, slices):
        assert isinstance(part_response, AddPartitionsToTxnResponse)
        whole.take(part_response, joins=joins > 0)
        checked.append((part_response, joins))
    await whole.finish(slices)
    for part_response, joins in checked:
        await response.add(part_response, joins, slices)


async def _answer_fetch(context: RequestContext, request: LongRequest) -> EncodedResponse | None:
    """Answer a Fetch.

    The request's maximum bytes and wait time apply to all partitions together. So the request is
    not split: `long_fetch` reads it whole and yields the response in parts.
    """
    from tidelog.server.api.fetch import long_fetch  # imported only for such long requests

    slices = Slices(context.node.env.clock)
    response = _Response(context, ("responses",))
    async for part in long_fetch(context, lambda: _through(request.read(), slices), slices):
        await response.add(part, 0, slices)
    return await response.end(slices)


class Paths(NamedTuple):
    """Paths to the list along which a request is split, and to the response's list.

    A path begins with the name of the outermost list.
    """

    request: tuple[str, ...]
    response: tuple[str, ...]


@cache
def _paths_of(key: int, version: int) -> Paths | None:
    row = BY_KEY[key]
    for text in row.parts:
        request_path, response_path = (tuple(part.split("/")) for part in text.split("="))
        api = APIS[key]
        if _has(api.request, request_path[0], version) and _has(
            api.response, response_path[0], version
        ):
            return Paths(request_path, response_path)
    return None


def _paths(request: LongRequest) -> Paths:
    paths = _paths_of(request.api.key, request.version)
    if paths is None:
        raise _too_long(request)
    return paths


def _too_long(request: LongRequest) -> CorruptMessage:
    return CorruptMessage(
        f"{request.api.name} v{request.version}: more than {request.items_max} list elements in"
        " one request; send several smaller requests"
    )


def _has(kind: "type[DataclassInstance]", name: str, version: int) -> bool:
    return any(field.name == name and field.is_there for field in fields_of(kind, version))


async def _through(steps: Generator[None, None, _Result], slices: Slices) -> _Result:
    """Run a generator to its end, yielding the event loop between its steps."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("_Result", end.value)
        await slices.rest()


# -- the request ---------------------------------------------------------------------------------


class Part(NamedTuple):
    """A part of a request.

    Attributes:
        message: The request with some of its elements.
        joins: Number of levels of nesting, counted from the outermost list, at which this part
            continues the last element of the previous part. 0 if this part begins with a new
            element of the outermost list.
    """

    message: "DataclassInstance"
    joins: int


class _Parts:
    """Parts of a message, which can be iterated over once.

    The iteration empties the message's lists.

    Attributes:
        task_ns: Time, in ns, that the event loop spent in the parts' own tasks.
    """

    def __init__(
        self, message: "DataclassInstance", path: tuple[str, ...], request: LongRequest
    ) -> None:
        self._request = request
        self._size = PART_ITEMS
        self.task_ns = 0
        self._parts = self._split(message, path)

    def grow(self) -> None:
        """Double the size of the next part, because the previous part took little time."""
        self._size = min(self._size * 2, PART_ITEMS_MAX)

    def shrink(self) -> None:
        """Divide the size of the next part by 4, because the previous part took long."""
        self._size = max(self._size // 4, 1)

    def __iter__(self) -> Iterator[Part]:
        """Iterate over the parts in the order of the request.

        An empty list gives one part without elements.
        """
        return self._parts

    def _split(self, message: "DataclassInstance", path: tuple[str, ...]) -> Iterator[Part]:
        name, inner = path[0], path[1:]
        items: list[object] | None = getattr(message, name)
        blank = _with(message, name, [] if items else items)
        if items_in(blank, ITEM_MAX) > ITEM_MAX:
            raise _too_long(self._request)  # each part would contain `blank`
        if not items:
            yield Part(blank, 0)
            return
        part: list[object] = []
        weight = 0
        for item in _drain(items):
            size = 1 + items_in(item, ITEM_MAX) + _texts_in(item)
            if part and weight + size > self._size:
                yield Part(_with(blank, name, part), 0)
                part, weight = [], 0
            if inner and size > self._size:
                yield from self._split_item(blank, name, item, inner)
            elif size > ITEM_MAX:
                raise _too_long(self._request)
            else:
                part.append(item)
                weight += size
        if part:
            yield Part(_with(blank, name, part), 0)

    def _split_item(
        self, blank: "DataclassInstance", name: str, item: object, inner: tuple[str, ...]
    ) -> Iterator[Part]:
        """Split one element along the list inside it."""
        for number, part in enumerate(self._split(cast("DataclassInstance", item), inner)):
            joins = 1 + part.joins if number else 0
            yield Part(_with(blank, name, [part.message]), joins)


def _drain(items: list[object]) -> Iterator[object]:
    """Yield the list's elements and remove them from the list; skip repeated names and numbers."""
    items.reverse()
    named: set[object] = set()
    while items:
        item = items.pop()
        if isinstance(item, str | int):
            if item in named:
                continue
            named.add(item)
        yield item


def _with(blank: "DataclassInstance", name: str, items: list[object] | None) -> "DataclassInstance":
    message = copy(blank)
    setattr(message, name, items)
    return message


def items_in(item: object, limit: int) -> int:
    """Return the number of list elements nested in an object.

    If there are more than `limit`, counting stops early, and the result is some number above
    `limit`.
    """
    names = _nested(type(item))
    count = 0
    for name in names:
        value = getattr(item, name)
        if type(value) is not list:
            if value is not None:
                count += items_in(value, limit - count)
            continue
        count += len(value)
        if count > limit:
            return count
        if value and _nested(type(value[0])):
            for each in value:
                count += items_in(each, limit - count)
                if count > limit:
                    return count
    return count


def _texts_in(item: object) -> int:
    """Return the processing time of an element's texts, as an equivalent number of elements."""
    if isinstance(item, str):
        return len(item) // TEXT_CHARACTERS
    if not hasattr(item, _FIELDS):
        return 0
    names = _TEXTS.get(type(item))
    if names is None:
        kinds = fields_of(cast("type[DataclassInstance]", type(item)), 0)
        names = tuple(field.name for field in kinds if field.kind.form is Form.STRING)
        _TEXTS[type(item)] = names
    return sum(len(getattr(item, name) or "") for name in names) // TEXT_CHARACTERS


_TEXTS: Final[dict[type, tuple[str, ...]]] = {}
_NESTED: Final[dict[type, tuple[str, ...]]] = {}


def _nested(kind: type) -> tuple[str, ...]:
    """Return the names of a message class's fields that are lists or contain lists.

    The result is empty for any other type.
    """
    names = _NESTED.get(kind)
    if names is None:
        names = _NESTED[kind] = tuple(_lists_of(kind)) if hasattr(kind, _FIELDS) else ()
    return names


def _lists_of(kind: "type[DataclassInstance]") -> Iterator[str]:
    for field in fields_of(kind, 0):
        struct = field.kind.struct
        is_list = field.kind.form is Form.ARRAY
        if is_list or (field.kind.form is Form.STRUCT and struct is not None and _nested(struct)):
            yield field.name


# -- the response --------------------------------------------------------------------------------


class _Response:
    """Merges the responses to the parts of a request into one response.

    An element is encoded as soon as no further part can add to it.
    """

    def __init__(self, context: RequestContext, path: tuple[str, ...]) -> None:
        self._path = path
        api, version = context.api, context.version
        self._flexible = api.is_flexible(version)
        self._version = version
        self._base: DataclassInstance | None = None
        self._last: DataclassInstance | None = None
        self._pieces: list[Buffer] = []
        self._count = 0

    async def add(self, response: "DataclassInstance", joins: int, slices: Slices) -> None:
        """Merge in the response to the next part of the request."""
        items: list[DataclassInstance] = getattr(response, self._path[0])
        if self._base is None or (_code(response) and not _code(self._base)):
            self._base = copy(response)
        if joins and self._last is not None and items:
            joined = _joined(self._last, items[0], self._path[1:], joins - 1)
            if joined:
                del items[0]
        if not items:
            return
        last = items.pop()
        await self._write(items if self._last is None else [self._last, *items], slices)
        self._last = last

    async def end(self, slices: Slices) -> EncodedResponse | None:
        """Return the whole response; None if no part had a response."""
        if self._last is not None:
            await self._write([self._last], slices)
        if self._base is None:
            return None
        setattr(self._base, self._path[0], WrittenItems(self._count, self._pieces))
        return EncodedResponse(self._base, self._path[0])

    async def _write(self, items: "Sequence[DataclassInstance]", slices: Slices) -> None:
        if not items:
            return
        codec: Codec[DataclassInstance] = struct_codec(
            type(items[0]), self._version, self._flexible
        )
        writer = Writer()
        for item in items:
            await _through(codec.write_sliced(writer, item), slices)
        self._count += len(items)
        self._pieces += writer.parts()


def _code(response: "DataclassInstance") -> int:
    code: int = getattr(response, "error_code", 0)
    return code


def _joined(
    last: "DataclassInstance", more: "DataclassInstance", path: tuple[str, ...], joins: int
) -> bool:
    """Append the lists of `more` to the lists of `last` if both are parts of one element.

    Returns whether `last` and `more` are parts of one element.
    """
    if not path:
        return False
    name = path[0]
    for field in fields(last):
        if field.name != name and getattr(last, field.name) != getattr(more, field.name):
            return False
    items: list[DataclassInstance] = getattr(last, name)
    added: list[DataclassInstance] = getattr(more, name)
    if joins and items and added and _joined(items[-1], added[0], path[1:], joins - 1):
        del added[0]
    items.extend(added)
    return True
