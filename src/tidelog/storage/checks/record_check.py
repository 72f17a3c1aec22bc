"""Damage inside a batch whose checksum is right: somebody built it wrong, or the codec disagrees.

Recovery does not look there (Kafka's neither); a reader would come upon it record by record.
"""

from typing import NamedTuple

from tidelog.errors import CorruptData, UnsupportedCompression
from tidelog.record.batch import RecordBatch
from tidelog.record.views import Batch
from tidelog.storage.body_check import BodyCheck, walk_body
from tidelog.types import NO_TIMESTAMP, TimestampType


class Inside(NamedTuple):
    """What is wrong in a batch.

    Attributes:
        broken: Why its records can't all be read, None where they can.
        misdated: What its header says wrongly of its records' times, None where it is right.
            Searches pass over a batch whose header says that it is too old.
    """

    broken: str | None = None
    misdated: str | None = None


def look_inside(batch: Batch, body_check: BodyCheck) -> Inside:
    """Read a batch's records; its checksum is known to be right.

    Args:
        batch: The batch.
        body_check: The pass over plain records, plain or a kernel.
    """
    try:
        if isinstance(batch, RecordBatch) and not batch.is_control:
            return _look_at_body(batch, body_check)
        for _ in batch.records(check_crc=False):
            pass
        if isinstance(batch, RecordBatch):
            batch.control_type()
    except CorruptData as error:
        return Inside(broken=error.reason)
    except UnsupportedCompression as error:
        return Inside(broken=str(error))
    return Inside()


def _look_at_body(batch: RecordBatch, body_check: BodyCheck) -> Inside:
    body = batch.body()
    largest, _, _, in_order = body_check(body, batch.record_count, batch.base_timestamp)
    if not in_order or batch.record_count > batch.last_offset_delta + 1:
        wrong = _delta_problem(batch, body)
        if wrong is not None:
            return Inside(broken=wrong)
    return Inside(misdated=_time_problem(batch, largest))


def _delta_problem(batch: RecordBatch, body: bytes | memoryview) -> str | None:
    last = -1
    for frame in walk_body(body, batch.record_count):
        if not last < frame.offset_delta <= batch.last_offset_delta:
            return (
                f"offset delta {frame.offset_delta} of a record, {last + 1} to"
                f" {batch.last_offset_delta} are possible there"
            )
        last = frame.offset_delta
    return None


def _time_problem(batch: RecordBatch, largest: int) -> str | None:
    """The header of a LogAppendTime batch is right by definition; that of an emptied one is old."""
    is_created = batch.timestamp_type is TimestampType.CREATE_TIME
    if (
        not is_created
        or not batch.record_count
        or largest == max(batch.max_timestamp, NO_TIMESTAMP)
    ):
        return None
    return f"its header says largest timestamp {batch.max_timestamp}, its records say {largest}"
