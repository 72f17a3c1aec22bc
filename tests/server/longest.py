"""Requests in which one list is very long, for each list that the declared APIs have."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, cast
from uuid import UUID

from tidelog.protocol.messages import AnyApi
from tidelog.protocol.schema import Field, Form, Kind, fields_of
from tidelog.server.api.table import ROWS

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# Values for fields of the elements; with them, the request passes the broker's first checks.
VALUES: dict[str, object] = {
    "resource_type": 2,
    "pattern_type": 3,
    "resource_pattern_type": 3,
    "resource_type_filter": 2,
    "pattern_type_filter": 3,
    "operation": 3,
    "permission_type": 3,
    "principal": "User:a",
    "host": "*",
    "entity_type": "user",
    "num_partitions": 1,
    "replication_factor": 1,
    "count": 2,
    "mechanism": 1,
    "timeout_ms": 5000,
    "session_timeout_ms": 6000,
    "rebalance_timeout_ms": 6000,
    "protocol_type": "consumer",
    "producer_id": 1,
    "acks": 1,
    "timestamp": 5,
    "max_wait_ms": 0,
    "min_bytes": 0,
    "max_bytes": 1,
    "partition_max_bytes": 1,
    "replica_id": -1,
    "member_epoch": 0,
    "session_epoch": -1,
}


class Long(NamedTuple):
    """A list in an API's request: the API, its version, and the path of field names to the list."""

    api: AnyApi
    version: int
    path: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.api.name}-v{self.version}-{'.'.join(self.path)}"


def longest_lists() -> Iterator[Long]:
    """Yield every list of every API, with the last version in which requests have the list."""
    for row in ROWS:
        api = row.api
        versions = range(api.first, api.last + 1)
        last = {path: version for version in versions for path in _paths(api.request, version)}
        yield from (Long(api, version, path) for path, version in last.items())


def _paths(kind: "type[DataclassInstance]", version: int) -> Iterator[tuple[str, ...]]:
    for field in fields_of(kind, version):
        if not field.is_there:
            continue
        inner = field.kind.item if field.kind.form is Form.ARRAY else field.kind
        if field.kind.form is Form.ARRAY:
            yield (field.name,)
        if inner is not None and inner.struct is not None:
            for path in _paths(inner.struct, version):
                yield (field.name, *path)


def request_of(long: Long, count: int, name: str | None) -> "DataclassInstance":
    """Return a request with `count` elements in one list, and one element in every other list.

    Args:
        long: The list to fill, and its API and version.
        count: Number of its elements.
        name: Name of every element, whose numbers are then all 0. If None, the elements have
            different names and numbers.
    """
    return _struct(long.api.request, long.version, long.path, count, name, 0)


def _struct(
    kind: "type[DataclassInstance]",
    version: int,
    path: tuple[str, ...],
    count: int,
    name: str | None,
    number: int,
) -> "DataclassInstance":
    made = kind()
    for field in fields_of(kind, version):
        if not field.is_there:
            continue
        is_next = bool(path) and path[0] == field.name
        if field.tag is not None and not is_next:
            continue
        inner = path[1:] if is_next else ()
        size = count if is_next and len(path) == 1 else 1
        value = _value(field, version, inner, (count, size), name, number)
        setattr(made, field.name, value)
    return made


def _value(
    field: Field,
    version: int,
    path: tuple[str, ...],
    counts: tuple[int, int],
    name: str | None,
    number: int,
) -> object:
    kind, (count, size) = field.kind, counts
    if kind.form is Form.ARRAY:
        item = cast("Kind[object]", kind.item)
        if item.struct is not None:
            return [_struct(item.struct, version, path, count, name, i) for i in range(size)]
        return [_scalar(item, field.name, name, i) for i in range(size)]
    if kind.form is Form.STRUCT:
        assert kind.struct is not None
        if kind.may_be_null(version) and not path:
            return None
        return _struct(kind.struct, version, path, count, name, number)
    return _scalar(kind, field.name, name, number)


def _scalar(kind: Kind[object], field: str, name: str | None, number: int) -> object:
    value = VALUES.get(field)
    if kind.form is Form.STRING:
        return value if isinstance(value, str) else name or f"z{number:059}"
    fixed: dict[Form, object] = {
        Form.UUID: UUID(int=number + 1),
        Form.BYTES: b"",
        Form.BOOLEAN: False,
        Form.FLOAT64: 1.0,
    }
    if kind.form in fixed:
        return fixed[kind.form]
    limit = 127 if kind.form is Form.INT8 else 2**15
    return value if isinstance(value, int) else 0 if name is not None else number % limit
