"""One walk over a staged log file that becomes a segment: checks, patches, what lies beside it.

Owned by `attach`, which says where the records begin and when they were appended.
"""

from typing import Final

from tidelog.env import File
from tidelog.errors import CorruptBatch, CorruptData, InvalidRequest
from tidelog.record.batch import RecordBatch, assign_offset, stamp_append_time
from tidelog.record.views import walk
from tidelog.storage import files
from tidelog.storage.adopting import Adoption
from tidelog.storage.append_time import AppendTimes
from tidelog.storage.index_files import IndexBuilder
from tidelog.storage.log import Log
from tidelog.storage.staging import StagedSegment
from tidelog.storage.trust import fingerprint
from tidelog.types import UNKNOWN_MS, Codec, TimestampType

CHUNK_BYTES: Final = 4 << 20


class SegmentPass:
    """One walk over a staged log file: checks it, patches it, and makes what lies beside it."""

    def __init__(
        self, segment: StagedSegment, base_offset: int, adoption: Adoption, log: Log
    ) -> None:
        self._segment = segment
        self._base_offset = base_offset
        self._adoption = adoption
        self._config = log.context.config
        self._topic_id = log.context.topic_id
        self._indexes = IndexBuilder(self._config, base_offset)
        self._next = 0
        self._first_named = self._last_named = 0

    def run(self, file: File, path: str) -> None:
        """Patch every batch in place.

        Raises:
            CorruptData: Not the batches that the writer has said.
            OSError: The disk failed.
        """
        position, size = 0, self._segment.size_bytes
        wanted = CHUNK_BYTES
        while position < size:
            chunk = bytearray(files.read_exactly(file, min(wanted, size - position), position))
            used = self._patch(chunk, path, position)
            if not used and wanted >= size - position:
                raise CorruptBatch("an incomplete batch", path=path, position=position)
            files.write_fully(file, memoryview(chunk)[:used], position)
            position += used
            wanted = CHUNK_BYTES if used else wanted * 2
        if self._next != self._segment.record_count:
            reason = f"{self._next} records, its writer has written {self._segment.record_count}"
            raise CorruptData(reason, path=path)

    def _patch(self, chunk: bytearray, path: str, position: int) -> int:
        """Patch the whole batches of a chunk; the bytes that they take."""
        used = 0
        try:
            for batch in walk(chunk):
                self._check(batch)
                used = self._patch_batch(chunk, batch.at, position)
        except CorruptData as error:
            raise error.located(path, position) from error
        return used

    def _check(self, batch: object) -> None:
        assert isinstance(batch, RecordBatch), "staged batches are of magic 2"
        batch.ensure_valid()
        if batch.base_offset != self._next or batch.is_control or batch.has_producer_id:
            raise CorruptBatch(
                f"a batch at offset {batch.base_offset} where {self._next} is next, or one that"
                " belongs to a producer",
                at=batch.at,
                offset=batch.base_offset,
            )
        target = self._config.compression_type.target_codec
        if target is not None and batch.codec is not target:
            raise InvalidRequest(
                f"{self._segment.topic_partition}: staged with codec {batch.codec.config_name},"
                f" but compression.type is {Codec(target).config_name} by now"
            )

    def _patch_batch(self, chunk: bytearray, at: int, position: int) -> int:
        """Give a batch its final header and note it in the indexes; the place behind it."""
        offset = self._base_offset + self._next
        assign_offset(chunk, at, offset, self._adoption.leader_epoch)
        if self._config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
            stamp_append_time(chunk, at, self._adoption.stamp_ms)
        final = RecordBatch(chunk, at)
        self._indexes.add(final, position + at)
        if not self._next:
            self._first_named = fingerprint(final)
        self._last_named = fingerprint(final)
        self._next += final.last_offset_delta + 1
        return at + final.size_bytes

    def sidecars(self) -> list[tuple[str, bytes | memoryview]]:
        """Suffix and content of the files beside the log file."""
        offset_index, time_index = self._indexes.finish()
        found: list[tuple[str, bytes | memoryview]] = [
            (files.OFFSET_INDEX_SUFFIX, offset_index.encoded),
            (files.TIME_INDEX_SUFFIX, time_index.encoded),
        ]
        if self._adoption.append_ms != UNKNOWN_MS:
            found.append((files.APPEND_TIME_SUFFIX, self._append_times()))
        return found

    def _append_times(self) -> bytes:
        """One row for all records, and one that ends it."""
        times = AppendTimes(self._base_offset, self._topic_id)
        times.note(self._base_offset, self._adoption.append_ms, self._first_named)
        times.close(self._base_offset + self._segment.record_count, self._last_named)
        return times.encode()
