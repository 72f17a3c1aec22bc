"""When a record was appended: what the log knows of it, or the stamp that the record bears."""

from dataclasses import replace

from tidelog.record.record import Record
from tidelog.types import TimestampType


def stamp_of(record: Record) -> int | None:
    """The append time in ms that a LogAppendTime record bears itself, None for CreateTime."""
    is_stamped = record.timestamp_type is TimestampType.LOG_APPEND_TIME
    return record.timestamp if is_stamped else None


def appended_at(record: Record, append_ms: int | None) -> Record:
    """The record with the append time that is known of it, else with the stamp that it bears."""
    found = stamp_of(record) if append_ms is None else append_ms
    return record if found is None else replace(record, append_timestamp=found)
