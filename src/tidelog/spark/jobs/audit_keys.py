"""The second look of an audit: keys as they are, of the records that were found, and nothing else.

Hashes stand for keys until here. Of each key that was found one record is read again, by its
offset: some kilobytes around an index entry.
"""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.errors import OffsetOutOfRange
from tidelog.spark.jobs.audit_state import Run
from tidelog.spark.jobs.latency import directory_env
from tidelog.spark.places import Place
from tidelog.types import IsolationLevel, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.storage.log_dir import LogDir

KEYS: Final = "keys string, log_bytes bigint"
# Of one partition in one task.
OFFSETS_AT_ONCE: Final = 500
_COLUMNS: Final = ("offset", "createTimestamp", "key")


class Seen(NamedTuple):
    """Where a record is: its side, topic, partition and offset."""

    side: str
    topic: str
    partition: int
    offset: int


def key_parts(wanted: Sequence[Seen], topic_ids: Mapping[tuple[str, str], str]) -> list[str]:
    """The parts for `KeyPart` that read these records.

    Args:
        wanted: Records.
        topic_ids: By side and topic.
    """
    parts: list[str] = []
    by_name: dict[tuple[str, str, int], list[int]] = {}
    for seen in sorted(set(wanted)):
        by_name.setdefault(seen[:3], []).append(seen.offset)
    for name, offsets in by_name.items():
        topic_id = topic_ids.get(name[:2], "")
        parts += [
            json.dumps([*name, topic_id, offsets[at : at + OFFSETS_AT_ONCE]])
            for at in range(0, len(offsets), OFFSETS_AT_ONCE)
        ]
    return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPart:
    """Reads the keys of some records of one partition; a `Work`.

    Attributes:
        places: Of both sides, by letter.
        isolation: What is seen of transactions.
    """

    places: tuple[tuple[str, Place], ...]
    isolation: IsolationLevel

    def __call__(self, part: str) -> tuple[object, ...]:
        """See `Work`; `part` is a JSON list: side, topic, partition, topic id, offsets."""
        side, topic, partition, topic_id, offsets = json.loads(part)
        place = dict(self.places)[side]
        if place.is_broker:
            run = Run(
                side=side, topic=topic, partition=partition, start=0, end=0, topic_id=topic_id
            )
            found, log_bytes = self._from_brokers(place, run, offsets), 0
        else:
            found, log_bytes = _from_directory(place, TopicPartition(topic, partition), offsets)
        cells = [
            [side, topic, partition, offset, create_ms, _text(key)]
            for offset, create_ms, key in found
        ]
        return json.dumps(cells), log_bytes

    def _from_brokers(self, place: Place, run: Run, offsets: Sequence[int]) -> "list[Found]":
        from tidelog.spark.jobs.audit_reduce import broker_task

        found: list[Found] = []
        for offset in offsets:
            # What was deleted since is found without its key.
            task = broker_task(
                place,
                run,
                offset,
                offset + 1,
                self.isolation,
                _COLUMNS,
                fail_on_data_loss=False,
            )
            for batch in task.read():
                found += _rows(batch)
        return found


Found = tuple[int, int | None, bytes | None]


def _from_directory(
    place: Place, name: TopicPartition, offsets: Sequence[int]
) -> tuple[list[Found], int]:
    from tidelog.scan.plan import with_directory

    def look(log_dir: "LogDir") -> tuple[list[Found], int]:
        reader = log_dir.reader(name.topic, name.partition)
        found: list[Found] = []
        log_bytes = 0
        for offset in offsets:
            # What was deleted since is found without its key.
            with suppress(OffsetOutOfRange):
                for part in reader.slices(offset, offset + 1):
                    data = part.segment.view(part.start_position, part.end_position)
                    log_bytes += len(data)
                    for batch in _decoded(data, offset):
                        found += _rows(batch)
        return found, log_bytes

    return with_directory(place.address, directory_env(place), look)


def _decoded(data: memoryview, offset: int) -> "Iterator[pa.RecordBatch]":
    from tidelog.record.columns import decode

    return decode(data, columns=_COLUMNS, offset_start=offset, offset_end=offset + 1)


def _rows(batch: "pa.RecordBatch") -> Iterator[Found]:
    import pyarrow as pa

    times = batch.column("createTimestamp").cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    columns = (batch.column("offset"), times, batch.column("key"))
    yield from zip(*(column.to_pylist() for column in columns), strict=True)


def _text(key: bytes | None) -> str | None:
    return None if key is None else base64.b64encode(key).decode("ascii")


def read_cells(text: str) -> Iterator[tuple[Seen, int | None, bytes | None]]:
    """Records with create time and key, as `KeyPart` tells them."""
    for side, topic, partition, offset, create_ms, key in json.loads(text):
        content = None if key is None else base64.b64decode(key)
        yield Seen(side, topic, partition, offset), create_ms, content
