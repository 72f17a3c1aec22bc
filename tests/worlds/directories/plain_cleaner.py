"""A slow and short cleaner in plain Python, to test swaps of segments and the passes of a cleaning.

This cleaner supports only the offset strategy and CreateTime, and keeps every marker. It stores
whole keys, so its results don't depend on hashes of keys. The model tests run with this cleaner and
with the real cleaner.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidelog.config import TopicConfig
from tidelog.env import Env
from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import walk
from tidelog.record.builder import build_batch, build_empty_batch
from tidelog.record.record import Record
from tidelog.storage import files, log_files
from tidelog.storage.clocks.append_times import AppendTimes
from tidelog.storage.compaction.job import (
    CleanedGroup,
    CleanedSource,
    CleaningJob,
    CleaningResult,
    Group,
    SourceSegment,
)
from tidelog.storage.segment.append_time_trust import fingerprint
from tidelog.storage.segment.index_loading import IndexBuilder
from tidelog.storage.segment.txn_index import TxnIndex
from tidelog.types import INT64_MAX


@dataclass(slots=True)
class PlainWorker:
    """Runs jobs. A map has at most `map_keys` keys, so a job may need several passes."""

    env: Env
    map_keys: int = 1 << 30

    def clean(self, job: CleaningJob) -> CleaningResult:
        """Clean a job's segments, see `Worker.clean`."""
        latest, mapped_to = self._map(job)
        groups = [
            _Rewrite(self.env, job, group, latest, mapped_to).run()
            for group in job.groups
            if group.bases[0] < mapped_to or job.map_from == job.map_to
        ]
        read = sum(source.size_bytes for source in job.sources)
        written = sum(group.bytes_after for group in groups)
        self.env.files.sync_dir(job.directory)
        return CleaningResult(
            groups=tuple(groups),
            mapped_to=mapped_to,
            keys=len(latest),
            bytes_read=read,
            bytes_written=written,
        )

    def _map(self, job: CleaningJob) -> tuple[dict[bytes, int], int]:
        latest: dict[bytes, int] = {}
        for source in job.sources:
            for batch in batches_of(self.env, job, source):
                if batch.is_control or is_aborted(job, batch):
                    continue
                for record in batch.records():
                    if record.key is None or not job.map_from <= record.offset < job.map_to:
                        continue
                    if record.key not in latest and len(latest) >= self.map_keys:
                        return latest, record.offset
                    latest[record.key] = record.offset
        return latest, job.map_to


def batches_of(env: Env, job: CleaningJob, source: SourceSegment) -> Iterator[RecordBatch]:
    """Yield the checked batches of a source."""
    path = f"{job.directory}/{log_files.log_file_name(source.base_offset)}"
    for batch in walk(files.read_file(env.files, path)):
        assert isinstance(batch, RecordBatch)
        batch.ensure_valid()
        yield batch


def is_aborted(job: CleaningJob, batch: RecordBatch) -> bool:
    """Whether the batch belongs to an aborted transaction."""
    return batch.is_transactional and any(
        txn.producer_id == batch.producer_id
        and txn.first_offset <= batch.base_offset <= txn.last_offset
        for txn in job.aborted
    )


@dataclass(slots=True)
class _Rewrite:
    """Rewrites one group of segments."""

    env: Env
    job: CleaningJob
    group: Group
    latest: dict[bytes, int]
    mapped_to: int

    def run(self) -> CleanedGroup:
        base = self.group.bases[0]
        config = TopicConfig(index_interval_bytes=self.job.rules.index_interval_bytes)
        indexes, data = IndexBuilder(config, base), bytearray()
        times, named = AppendTimes(base, self.job.topic_id), 0
        found, end = [], base
        for source in self._sources():
            known, _ = AppendTimes.decode(
                self._sidecar(source), source.base_offset, self.job.topic_id, open_end=True
            )
            tally = [0, 0, 0, 0, 0]
            for batch in batches_of(self.env, self.job, source):
                kept = self._kept(batch)
                tally[0] += batch.record_count
                encoded = self._encoded(batch, kept)
                if encoded is None:
                    continue
                tally[1] += len(encoded)
                tally[2] += len(kept)
                tally[3] += sum(r.value is None for r in kept if not batch.is_control)
                tally[4] += len(kept) if batch.is_control else 0
                view = next(walk(encoded))
                indexes.add(view, len(data))
                ms = known.time_at(batch.base_offset)
                if ms is None or batch.base_offset >= source.append_end:
                    times.mark_unknown(end, named)
                else:
                    times.note(batch.base_offset, ms, fingerprint(view))
                data += encoded
                end, named = view.next_offset, fingerprint(view)
            found.append(_told(source, tally))
        times.close(end, named)
        return self._write(base, indexes, times, data, found)

    def _sources(self) -> list[SourceSegment]:
        return [each for each in self.job.sources if each.base_offset in self.group.bases]

    def _sidecar(self, source: SourceSegment) -> bytes:
        name = log_files.file_name(source.base_offset, log_files.APPEND_TIME_SUFFIX)
        try:
            return files.read_file(self.env.files, f"{self.job.directory}/{name}")
        except FileNotFoundError:
            return b""

    def _kept(self, batch: RecordBatch) -> list[Record]:
        if is_aborted(self.job, batch) and not batch.is_control:
            return []
        return [record for record in batch.records() if self._stays(batch, record)]

    def _stays(self, batch: RecordBatch, record: Record) -> bool:
        if batch.is_control or record.offset >= self.mapped_to:
            return True
        if record.key is None or record.offset < self.latest.get(record.key, -1):
            return False
        horizon = batch.delete_horizon_ms
        is_over = horizon is not None and horizon <= self.job.now_ms and self.group.drop_expired
        is_over = is_over and batch.last_offset < self.mapped_to
        return record.value is not None or not is_over

    def _encoded(self, batch: RecordBatch, kept: Sequence[Record]) -> bytes | bytearray | None:
        """Return the batch with only the kept records; None if the batch is dropped."""
        horizon = batch.delete_horizon_ms
        tombstones = any(r.value is None and r.offset < self.mapped_to for r in kept)
        if horizon is None and (tombstones or batch.is_control):
            horizon = min(self.job.now_ms + self.job.rules.delete_retention_ms, INT64_MAX)
        if len(kept) == batch.record_count and horizon == batch.delete_horizon_ms:
            return bytes(batch.view)
        if kept:
            return self._rebuilt(batch, kept, horizon)
        last, _ = self.job.active_producers.get(batch.producer_id, (-1, -1))
        is_named = batch.has_producer_id and batch.last_offset == last
        if not is_named and batch.next_offset != self.job.upper_bound_offset:
            return None
        return build_empty_batch(
            base_offset=batch.base_offset,
            last_offset=batch.last_offset,
            max_timestamp=batch.max_timestamp,
            leader_epoch=batch.leader_epoch,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
            transactional=batch.is_transactional,
            control=batch.is_control,
        )

    def _rebuilt(
        self, batch: RecordBatch, kept: Sequence[Record], horizon: int | None
    ) -> bytearray:
        return build_batch(
            kept,
            base_offset=batch.base_offset,
            leader_epoch=batch.leader_epoch,
            codec=batch.codec,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
            transactional=batch.is_transactional,
            control=batch.is_control,
            delete_horizon_ms=horizon,
            offset_deltas=[record.offset - batch.base_offset for record in kept],
            last_offset_delta=batch.last_offset_delta,
        )

    def _write(
        self,
        base: int,
        indexes: IndexBuilder,
        times: AppendTimes,
        data: bytearray,
        found: list[CleanedSource],
    ) -> CleanedGroup:
        offset_index, time_index = indexes.finish()
        end = self._sources()[-1].end_offset
        aborted = [txn for txn in self.job.aborted if base <= txn.last_offset < end]
        contents = {
            log_files.LOG_SUFFIX: bytes(data),
            log_files.OFFSET_INDEX_SUFFIX: bytes(offset_index.encoded),
            log_files.TIME_INDEX_SUFFIX: bytes(time_index.encoded),
        }
        if aborted:
            contents[log_files.TXN_INDEX_SUFFIX] = bytes(TxnIndex(base, aborted).encoded)
        if times.row_count:
            contents[log_files.APPEND_TIME_SUFFIX] = times.encode()
        for suffix, content in contents.items():
            name = log_files.file_name(base, suffix) + log_files.CLEANED_SUFFIX
            file = self.env.files.open(f"{self.job.directory}/{name}", create=True)
            file.truncate(0)
            files.write_fully(file, content, 0)
            file.sync()
            file.close()
        return CleanedGroup(
            base_offset=base, end_offset=end, sources=tuple(found), suffixes=tuple(contents)
        )


def _told(source: SourceSegment, tally: Sequence[int]) -> CleanedSource:
    before, size, after, tombstones, markers = tally
    return CleanedSource(
        base_offset=source.base_offset,
        bytes_before=source.size_bytes,
        bytes_after=size,
        records_before=before,
        records_after=after,
        tombstones_after=tombstones,
        markers_after=markers,
    )
