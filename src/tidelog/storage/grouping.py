"""Cuts a run of records into batches of a size."""

from collections.abc import Iterable

from tidelog.errors import InvalidRequest
from tidelog.types import NewRecord


def group_records(records: Iterable[NewRecord], batch_bytes: int) -> Iterable[list[NewRecord]]:
    """Records in lists of about `batch_bytes` of keys, values and headers."""
    group: list[NewRecord] = []
    size = 0
    for record in records:
        bytes_of = record_bytes(record)
        if group and size + bytes_of > batch_bytes:
            yield group
            group, size = [], 0
        group.append(record)
        size += bytes_of
    if not group:
        raise InvalidRequest("an append needs at least one record")
    yield group


def record_bytes(record: NewRecord) -> int:
    """About how many bytes a record takes in a batch."""
    headers = sum(len(h.key) + len(h.value or b"") + 4 for h in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers + 12
