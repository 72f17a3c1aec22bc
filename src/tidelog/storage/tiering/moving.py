"""One run over a partition: copy what is finished, then let go of what may go.

1. The manifest in the store and the record beside the files are brought together (`merging`).
2. Finished segments that the tier lacks are copied and read back, oldest first. Every few of them
   go into the manifest by one compare-and-swap, then into the record.
3. Retention: the total one over both tiers, the local one over copies. Local files go only by the
   record, which names only what was read back.
4. What retention took from the tier leaves the manifest, and is removed once readers had time.

A crash between any two of these leaves whole answers: before the swap the local copy is the only
one and what was copied is an orphan; after it both are there and equal.
"""

import dataclasses
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tidelog.config import RetentionClock
from tidelog.errors import CorruptData, InvalidRequest, OffsetsGone, TierConflict
from tidelog.storage import files, zone_files
from tidelog.storage.closed import ClosedSegment
from tidelog.storage.handles import typed_reads
from tidelog.storage.log import Log
from tidelog.storage.retention import Deletion
from tidelog.storage.roll import RollReason
from tidelog.storage.segment import Segment
from tidelog.storage.segment_times import read_times
from tidelog.storage.tiering.copying import CopySource, copy_segment
from tidelog.storage.tiering.garbage import remove_garbage
from tidelog.storage.tiering.merging import OWN, Claim, merge
from tidelog.storage.tiering.partition_tier import PartitionTier, folder_of, writer_of
from tidelog.storage.tiers.manifest import Manifest
from tidelog.storage.tiers.record import TierRecord
from tidelog.storage.tiers.release import is_copied, is_followed_by_hole
from tidelog.storage.tiers.rows import TierNote, TierSegment, TierTimes
from tidelog.storage.tiers.tier_files import check_tier_url
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.log_dir import LogDir

# Readers that planned by an older manifest have so long to read what it names.
GRACE_MS: Final = 3_600_000
# From one manifest to the next.
PureChange = Callable[[Manifest], Manifest]
# So many copied segments go into the manifest together.
_ROWS_PER_SWAP: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveOptions:
    """How partitions are moved.

    Attributes:
        url: Of the store; None takes the topic's `tidelog.tier.url`.
        grace_ms: How long what left the manifest stays for readers that planned before.
        takes_over: Go on with a tier that another directory, or a copy of this one, has written.
        drops_theirs: While taking over, remove what the store has where local files have other
            records, or end before; refused without.
        roll: Finish the active segment first, so that all records there are can be copied.
        on_copied: Called after each segment with the bytes of log copied so far.
    """

    url: str | None = None
    grace_ms: int = GRACE_MS
    takes_over: bool = False
    drops_theirs: bool = False
    roll: bool = False
    on_copied: Callable[[int], None] | None = None


@dataclass(slots=True, kw_only=True)
class MoveReport:
    """What a run has done to a partition.

    Attributes:
        topic_partition: The partition.
        copied: Segments copied and in the manifest now.
        copied_bytes: Bytes of their objects.
        deleted: What total retention took, local or remote.
        released: Local segments that went because the tier has them.
        removed: Segments whose objects were removed from the store.
        stopped: Why a segment could not be copied, which ends the copying; None where all were.
        keeps_all_ages: Retention by age was left to the broker: the topic has no `retention.ms` of
            its own, and the broker's is not known here.
        told_deleted: How many `deleted` would name, where another process tells only that.
    """

    topic_partition: TopicPartition
    copied: int = 0
    copied_bytes: int = 0
    deleted: list[Deletion] = field(default_factory=list)
    released: int = 0
    removed: int = 0
    stopped: str | None = None
    keeps_all_ages: bool = False
    told_deleted: int = 0

    @property
    def deleted_count(self) -> int:
        """How many segments total retention took."""
        return len(self.deleted) or self.told_deleted


def tier_partition(
    log_dir: "LogDir", name: TopicPartition, options: MoveOptions | None = None
) -> MoveReport:
    """Move what may be moved of a partition.

    Args:
        log_dir: Open for writing.
        name: The partition.
        options: How.

    Raises:
        UnknownTopic, ReadOnly: As their names say.
        InvalidRequest: No store is named, another one was before, or the topic has no id.
        TierConflict: Somebody else has written this partition's tier.
        StorageFailure: Store or disk failed; what was done stays done, the next run goes on.
    """
    mover = Mover.open(log_dir, name, options or MoveOptions())
    return mover.run()


class Mover:
    """One run over one partition."""

    def __init__(
        self, log: Log, tier: PartitionTier, record: TierRecord, options: MoveOptions
    ) -> None:
        self.log = log
        self.tier = tier
        self.record = record
        self._options = options
        self._report = MoveReport(topic_partition=log.topic_partition)
        self._claim = Claim(options.takes_over, options.drops_theirs)
        self._drawn: set[str] = set()

    @classmethod
    def open(cls, log_dir: "LogDir", name: TopicPartition, options: MoveOptions) -> "Mover":
        """Make ready; nothing is asked of the store yet. Errors as `tier_partition`."""
        log = log_dir.log(name.topic, name.partition)
        record = _record_of(log_dir, log, options)
        store = log_dir.tier_files.store(record.url)
        mover = cls(log, PartitionTier(store, record.folder), record, options)
        # A default of seven days would delete for ever what the broker was told to keep.
        mover._report.keeps_all_ages = not log_dir.knows_age_limit(name.topic)
        return mover

    def run(self) -> MoveReport:
        """All steps."""
        self.settle()
        config = self.log.context.config
        if self._options.roll:
            self.log.roll()
        if config.remote_storage_enable and not config.remote_log_copy_disable:
            self._copy_all()
        if not config.remote_storage_enable and config.remote_log_delete_on_disable:
            self.log.advance_start(self.log.local_start_offset)
        self._retain()
        self._clean()
        return self._report

    # -- bringing store and record together --------------------------------------------------

    def settle(self) -> Manifest:
        """Let store and record say the same; the manifest that they agree on."""
        self._cut_stale()
        return self.swap(lambda manifest: manifest)

    def _cut_stale(self) -> None:
        """Forget copies of records that are no longer there: somebody else has cut the log."""
        local = {segment.base_offset: segment for segment in self.log.local_segments}
        first = min(local)
        for row in self.record.manifest.segments:
            if row.base_offset < first:
                continue
            segment = local.get(row.base_offset)
            if segment is not None and is_followed_by_hole(segment, row, self.record.manifest):
                raise TierConflict(
                    f"{segment.log_path}: the file of offset {row.end_offset}, which comes next, is"
                    " gone, and the tier has it; `tidelog tier TOPIC --restore` goes on with it"
                )
            if segment is None or segment.is_active or not is_copied(segment, row):
                self._cut_from(row.base_offset)
                return

    def _cut_from(self, offset: int) -> None:
        cut = self.record.with_cut(offset, _nothing, self._now_ms())
        # The log itself is not cut, so it starts where it did.
        self.record = dataclasses.replace(
            cut,
            local_start_offset=self.record.local_start_offset,
            log_start_offset=self.record.log_start_offset,
        )

    def forget_copies(self, offset: int) -> Manifest:
        """Let the tier count only below an offset, the base of a local segment.

        All that lies behind it is in local files: the next run copies it again.
        """
        assert offset >= self.log.local_start_offset
        self._cut_from(offset)
        return self.swap(lambda manifest: manifest)

    def swap(self, change: PureChange) -> Manifest:
        """Change the manifest in one step, the record after it."""
        local, drawn = self.log.local_segments, ""

        def changed(found: Manifest | None) -> Manifest:
            nonlocal drawn
            if found is not None and drawn and found.change == drawn:
                return found  # the request took effect, and only its answer was lost
            now_ms = self._now_ms()
            wanted = change(merge(found, self.record, local, now_ms, _same_bytes, self._claim))
            if wanted == found and not self._claim.takes_over:
                return wanted
            drawn = drawn or self._draw_change()
            return dataclasses.replace(wanted, change=drawn)

        with typed_reads(self.log.context.directory):
            written = self.tier.update(changed)
        self._claim = OWN
        record = self.record.with_manifest(written)
        if record != self.record or self.log.tier is None:
            self.log.take_tier(record)
        self.record = record
        return written

    def _draw_change(self) -> str:
        """Draw the name of the next manifest and note it, before the store is asked to take it."""
        drawn = uuid.UUID(int=self.log.context.env.random.getrandbits(128)).hex
        self.record = self.record.with_pending(drawn)
        self.log.take_tier(self.record)
        return drawn

    def _now_ms(self) -> int:
        return self.log.context.env.clock.now_ms()

    # -- copying -----------------------------------------------------------------------------

    def missing(self) -> list[ClosedSegment]:
        """Finished local segments that the tier lacks, oldest first."""
        end = self.record.manifest.end_offset
        return [
            segment
            for segment in self.log.local_segments
            if isinstance(segment, ClosedSegment)
            and segment.base_offset >= end
            and segment.end_offset <= self.log.high_watermark
            and segment.size_bytes
        ]

    def _copy_all(self) -> None:
        rows: list[TierSegment] = []
        done = 0
        for segment in self.missing():
            row = self._copy(segment)
            if row is None:
                break
            rows.append(row)
            done += row.log_bytes
            if self._options.on_copied is not None:
                self._options.on_copied(done)
            if len(rows) == _ROWS_PER_SWAP:
                self._add(rows)
                rows = []
        self._add(rows)

    def _copy(self, segment: ClosedSegment) -> TierSegment | None:
        try:
            with typed_reads(segment.log_path):
                return copy_segment(self.tier, self._source(segment))
        except (CorruptData, InvalidRequest, OffsetsGone) as error:
            # What lies behind stays, too: the tier has no holes of our making.
            self._report.stopped = str(error)
            return None

    def _source(self, segment: ClosedSegment) -> CopySource:
        log = self.log
        zone_files.build_missing([segment])
        note, seen_ms = log.note_of(segment)
        times = read_times(log, segment, clock=RetentionClock.RECORD_CAPPED, seen_ms=seen_ms)
        return CopySource(
            segment=segment,
            times=TierTimes.of(times),
            note=TierNote(
                RollReason.UNKNOWN if note is None else note.reason,
                -1 if note is None else note.roll_ms,
                seen_ms,
            ),
            uid=self.draw_uid(),
        )

    def draw_uid(self) -> str:
        """A name that no copy has; whose randomness begins anew would draw one again."""
        manifest = self.record.manifest
        rows = [*manifest.segments, *(one.segment for one in manifest.garbage)]
        taken = {row.uid for row in rows} | self._drawn
        while True:
            drawn = uuid.UUID(int=self.log.context.env.random.getrandbits(128)).hex
            if drawn not in taken:
                self._drawn.add(drawn)
                return drawn

    def _add(self, rows: list[TierSegment]) -> None:
        if not rows:
            return
        self.swap(lambda manifest: manifest.with_added(rows))
        self._report.copied += len(rows)
        self._report.copied_bytes += sum(row.size_bytes for row in rows)

    # -- letting go --------------------------------------------------------------------------

    def _retain(self) -> None:
        before = [segment.base_offset for segment in self.log.local_segments]
        by_age = not self._report.keeps_all_ages
        self._report.deleted = self.log.apply_retention(by_age=by_age)
        deleted = {deletion.base_offset for deletion in self._report.deleted}
        kept = {segment.base_offset for segment in self.log.local_segments}
        gone = [base for base in before if base not in kept and base not in deleted]
        self._report.released = len(gone)
        self._take_record()

    def _take_record(self) -> None:
        """The log has changed its record: its start moved, or copies went."""
        if self.log.tier is not None:
            self.record = self.log.tier.record
        if self.record.log_start_offset > self.record.manifest.log_start_offset:
            self.settle()

    def _clean(self) -> None:
        now_ms = self._now_ms()
        removed = remove_garbage(self.tier, self.record.manifest, now_ms - self._options.grace_ms)
        if removed:
            self.swap(lambda manifest: manifest.without_garbage(removed))
            self._report.removed = len(removed)


def _nothing(_row: TierSegment, _offset: int) -> None:
    """Of a copy that is stale nothing is left."""


def _same_bytes(segment: Segment, row: TierSegment) -> bool:
    """Whether a local log file has the row's length and checksum."""
    assert isinstance(segment, ClosedSegment)
    return zone_files.sum_file(segment.context, segment.log_path) == row.objects[files.LOG_SUFFIX]


def _record_of(log_dir: "LogDir", log: Log, options: MoveOptions) -> TierRecord:
    """The partition's record, or a first one."""
    name = log.topic_partition
    given = options.url or log.context.config.tidelog_tier_url
    url = check_tier_url(given) if given else None
    if log.tier is not None:
        record = log.tier.record
        if url not in (None, record.url):
            raise InvalidRequest(f"{name}: its tier is at {record.url}, not {url}")
        if options.takes_over:
            writer = writer_of(log_dir)
            return dataclasses.replace(
                record, manifest=dataclasses.replace(record.manifest, writer=writer)
            )
        return record
    if url is None:
        raise InvalidRequest(f"{name}: no store is named; `tidelog tier {name.topic} --to URL`")
    if not log.context.config.remote_storage_enable:
        raise InvalidRequest(
            f"{name}: remote.storage.enable is false; `tidelog tier {name.topic} --to URL` sets it"
        )
    return first_record(log_dir, log, url)


def first_record(log_dir: "LogDir", log: Log, url: str) -> TierRecord:
    """The record of a partition whose tier is empty; raises InvalidRequest without a topic id."""
    name = log.topic_partition
    topic_id = log_dir.topic(name.topic).topic_id
    if topic_id is None:
        raise InvalidRequest(
            f"{name}: the topic has no id, so its tier could be taken for another topic's;"
            f" `tidelog config {name.topic}` with any setting gives it one"
        )
    start = log.log_start_offset
    manifest = Manifest(
        topic=name.topic,
        topic_id=topic_id.hex,
        partition=name.partition,
        writer=writer_of(log_dir),
        log_start_offset=start,
    )
    return TierRecord(
        url=url,
        folder=folder_of(name, topic_id),
        manifest=manifest,
        local_start_offset=log.local_segments[0].base_offset,
        log_start_offset=start,
    )
