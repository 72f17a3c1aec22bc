"""The steps of a tier run over a partition, in order, and the status of a partition's tier.

1. The store's manifest and the directory's record of it (`tidelog-tier.json`) are reconciled. The
   record may have changes that the store lacks (a truncation, a log start). The store may have
   changes that the record lacks (after a crash between the write of the manifest and the write of
   the record). Reconciling does not bring deleted segments back, and a segment counts as copied
   only if the store has it.
2. Finished segments that the tier lacks are copied and read back, oldest first. After every few
   segments, the manifest is replaced by one compare-and-swap, and then the record is replaced.
3. The limits of total retention are applied to the whole log, the limits of local retention to the
   copied segments. Local files are deleted according to the record, which lists only segments that
   were read back.
4. Segments that retention removes leave the manifest, and their objects are deleted after a grace
   period for readers.

A crash between two steps leaves a complete log. Before the compare-and-swap, only the local copy of
a segment counts, because no manifest names its objects in the store. After the compare-and-swap,
both copies count, and they are equal.

A tier has one writer. Each change of the manifest has a random name, which is stored in the tier
record before the manifest is written. If the name in the store's manifest is not in the record, a
copy of the directory wrote this manifest, or this directory wrote it and was then restored from an
older backup. In this case the run changes nothing.

An exchange replaces segments of the tier by other segments with the same span of offsets. A single
compare-and-swap of the manifest replaces all of these segments. The old objects are kept for the
grace period, because readers with older plans may read them.
"""

import dataclasses
import uuid
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.amounts import bytes_text, offsets_text, plural, verb
from tidelog.config import RetentionClock
from tidelog.errors import (
    CorruptData,
    InvalidRequest,
    LostOffsets,
    MissingFile,
    OffsetsGone,
    TierConflict,
)
from tidelog.lazy_dataclass import dataclass
from tidelog.storage import log_files
from tidelog.storage.log.log import LogAccess
from tidelog.storage.log.log_reader import LogView
from tidelog.storage.log.segment_times import read_times
from tidelog.storage.open_files import typed_reads
from tidelog.storage.segment import zone_map_files
from tidelog.storage.segment.closed_segment import ClosedSegment, as_closed
from tidelog.storage.segment.deletion_history import StartRule
from tidelog.storage.segment.gaps import was_never_cleaned
from tidelog.storage.segment.lost_times import accepting, ensure_times
from tidelog.storage.segment.retention import Deletion
from tidelog.storage.segment.roll import RollReason
from tidelog.storage.segment.segment import Segment
from tidelog.storage.tier.log_tier import is_copied, is_followed_by_hole
from tidelog.storage.tier.manifest import Manifest, TierNote, TierSegment, missing_span
from tidelog.storage.tier.tier_files import check_tier_url
from tidelog.storage.tier.tier_record import TierRecord
from tidelog.storage.tier_manager.tier_store import (
    CopySource,
    PartitionTier,
    copy_segment,
    folder_of,
    remove_garbage,
    writer_of,
)
from tidelog.types import ClockName, TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.directory.log_dir import DirectoryAccess


# Returns whether a row has exactly the bytes of a local segment.
SameBytes = Callable[[Segment, TierSegment], bool]


@dataclass(frozen=True, slots=True)
class Claim:
    """Permissions to use a manifest if the tier record doesn't prove that this directory wrote it.

    Attributes:
        takes_over: Whether to use the manifest even if another directory wrote it; this directory
            becomes its writer.
        drops_theirs: Whether a segment of the tier is removed from the manifest if it has records
            that local files lack or contradict.
    """

    takes_over: bool = False
    drops_theirs: bool = False


OWN: Final = Claim()


def merge(
    stored: Manifest | None,
    record: TierRecord,
    local: Sequence[Segment],
    now_ms: int,
    same_bytes: SameBytes,
    claim: Claim = OWN,
) -> Manifest:
    """Return the store's manifest with all changes that the tier record has and the store lacks.

    Args:
        stored: The store's manifest, None if there is none.
        record: The directory's `tidelog-tier.json`.
        local: The log's local segments, the active one last.
        now_ms: Wall time in ms.
        same_bytes: Compares the bytes of a local segment with a row of the store's manifest that
            the tier record lacks.
        claim: Permissions to use a manifest if the tier record doesn't prove that this directory
            wrote it.

    Raises:
        TierConflict: This directory must not continue the store's manifest.
    """
    own = record.manifest
    name, where = f"{own.topic}:{own.partition}", f"{record.url}/{record.folder}"
    if stored is None:
        if own.generation:
            raise TierConflict(
                f"{where}: the manifest is missing, its last generation was {own.generation};"
                " restore it, or remove tidelog-tier.json from the partition if the tier is lost"
            )
        return own
    _check_topic(stored, own, where)
    if claim.takes_over:
        stored = dataclasses.replace(stored, writer=own.writer)
    else:
        _check_ours(stored, record, where)
    missing = missing_span(own.segments, stored.segments, stored.log_start_offset)
    if missing is not None:
        raise TierConflict(
            f"{where}: the manifest lacks {offsets_text(missing[0], missing[1] - 1)}, which the"
            " tier has according to this directory's tidelog-tier.json; restore the manifest, or,"
            f" if the tier's records are lost, remove that file from the partition and run `tidelog"
            f" tier {name} --restore`"
        )
    own_rows = {row.uid: row for row in own.segments}
    if record.cut_offset is not None:
        stored = stored.with_cut(record.cut_offset, lambda row, _: own_rows.get(row.uid), now_ms)
    new = [row for row in stored.segments if row.uid not in own_rows]
    refused = {row.uid for row in new if not _fits(row, local, same_bytes)}
    if refused and claim.takes_over and not claim.drops_theirs:
        first = next(row for row in new if row.uid in refused)
        raise TierConflict(
            f"{where}: the store has records from offset {first.base_offset} to"
            f" {stored.end_offset - 1} that local files lack or contradict; `tidelog tier {name}"
            f" --restore` keeps them, `tidelog tier {name} --take-over --drop-theirs` removes them"
        )
    if refused:
        retained = [row for row in stored.segments if row.uid not in refused]
        absent = [row for row in stored.segments if row.uid in refused]
        stored = stored.having(retained).discarding(absent, now_ms)
    local_start = local[0].base_offset if local else record.local_start_offset
    return stored.with_start(
        record.log_start_offset, local_start, now_ms, gaps_are_losses=_gaps_are_losses(local)
    )


def _gaps_are_losses(local: Sequence[Segment]) -> bool:
    """Return whether a gap in the log may be a loss; True if it is unknown; raises OSError."""
    if not local:
        return True
    context = local[0].context
    return was_never_cleaned(
        context.env.files, context.directory, context.config, context.topic_partition
    )


def _check_topic(stored: Manifest, own: Manifest, where: str) -> None:
    if (stored.topic_id, stored.partition) != (own.topic_id, own.partition):
        raise TierConflict(
            f"{where}: the manifest belongs to partition {stored.partition} of topic id"
            f" {stored.topic_id}, not {own.partition} of {own.topic_id}"
        )


def directory_named(writer: str) -> str:
    """Return a directory's name for errors; `writer` is its id in a manifest and can be empty."""
    return f"directory {writer}" if writer else "another directory"


def _check_ours(stored: Manifest, record: TierRecord, where: str) -> None:
    """Raise TierConflict unless the tier record proves that this directory wrote the manifest."""
    own = record.manifest
    name = f"{own.topic}:{own.partition}"
    if stored.writer != own.writer:
        own_writer = f"is {own.writer}" if own.writer else "has no id"
        raise TierConflict(
            f"{where}: {directory_named(stored.writer)} moves this partition's segments; this"
            f" directory {own_writer}. Stop the other one, then run `tidelog tier {name}"
            " --take-over` here"
        )
    if stored.generation < own.generation:
        raise TierConflict(
            f"{where}: the manifest has generation {stored.generation}, but {own.generation} was"
            " written: the store returns an older state, or was restored from a backup"
        )
    if not record.wrote(stored):
        raise TierConflict(
            f"{where}: the manifest of generation {stored.generation} was not written by this"
            f" directory, whose generation is {own.generation}: a copy of this directory writes"
            " to the same store, or this directory was restored from a backup. The store has"
            f" offsets {stored.log_start_offset} to {stored.end_offset - 1}. Stop the other copy,"
            f" then run `tidelog tier {name} --restore` here to continue with everything in the"
            " store"
        )
    named = {row.uid for row in stored.segments} | {one.segment.uid for one in stored.garbage}
    absent = next((row for row in own.segments if row.uid not in named), None)
    if absent is not None:
        raise TierConflict(
            f"{where}: the manifest lacks segment {absent.base_offset} (uid {absent.uid}), which"
            " this directory's tidelog-tier.json has; restore the manifest"
        )


def _fits(row: TierSegment, local: Sequence[Segment], same_bytes: SameBytes) -> bool:
    """Return whether a row that the tier record lacks matches the log's data.

    The row matches if it ends at or before the first local offset, or if a finished local segment
    has the row's offsets and bytes, or if there are no local segments.
    """
    if not local or row.end_offset <= local[0].base_offset:
        return True
    for segment in local[:-1]:
        if segment.base_offset == row.base_offset:
            return segment.end_offset == row.end_offset and same_bytes(segment, row)
    return False


# Time in ms for which objects of segments that left the manifest are kept for readers of older
# manifests.
GRACE_MS: Final = 3_600_000

# Changes one manifest into the next.
PureChange = Callable[[Manifest], Manifest]

# Added to the text of damage in a local file.
_LATER: Final = (
    "; this segment and all later ones stay local; `tidelog doctor` finds the damage and its remedy"
)

# Number of copied segments that are added to the manifest together.
_ROWS_PER_SWAP: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveOptions:
    """Options of a tier run.

    Attributes:
        url: URL of the store; the topic's `tidelog.tier.url` if None.
        grace_ms: Time in ms for which the objects of segments that left the manifest are kept for
            readers with older plans.
        takes_over: Whether to continue a tier that another directory, or a copy of this one, has
            written.
        drops_theirs: Whether, in a takeover, a segment of the tier is removed from the manifest if
            it has records that local files lack or contradict. If false, such a segment is an
            error.
        roll: Whether to roll the active segment first, so that all current records can be copied.
        accepts_lost_times: Whether a segment is copied although its append times are damaged or
            lost. If True, the append times that can't be read become unknown. If False, such a
            segment ends the copying.
        on_copied: Called after each segment; its argument is the number of log bytes copied so far.
    """

    url: str | None = None
    grace_ms: int = GRACE_MS
    takes_over: bool = False
    drops_theirs: bool = False
    roll: bool = False
    accepts_lost_times: bool = False
    on_copied: Callable[[int], None] | None = None


@dataclass(slots=True, kw_only=True)
class MoveReport:
    """Outcome of a tier run on a partition.

    Attributes:
        topic_partition: The partition.
        copied: Number of segments that were copied and added to the manifest.
        copied_bytes: Size of the objects of these segments in bytes.
        deleted: Local and remote segments that were deleted by total retention.
        released: Number of local segments that were deleted because the tier has them.
        removed: Number of segments whose objects were removed from the store.
        stopped: Reason why the run ended early: a segment could not be copied, or the tier must not
            be changed. None if the run copied all segments.
        keeps_all_ages: True if deletion by age was skipped, because the topic itself does not set
            `retention.ms` and the broker's setting is unknown.
        reported_deleted: Number of segments that total retention deleted, as reported by another
            process. Used only if `deleted` is empty.
    """

    topic_partition: TopicPartition
    copied: int = 0
    copied_bytes: int = 0
    deleted: list[Deletion] = field(default_factory=list)
    released: int = 0
    removed: int = 0
    stopped: str | None = None
    keeps_all_ages: bool = False
    reported_deleted: int = 0

    @property
    def deleted_count(self) -> int:
        """Number of segments that total retention deleted."""
        return len(self.deleted) or self.reported_deleted


def tier_partition(
    log_dir: "DirectoryAccess", name: TopicPartition, options: MoveOptions | None = None
) -> MoveReport:
    """Carry out a tier run: reconcile the manifest, copy, apply retention, and delete objects.

    Args:
        log_dir: The directory, open for writing.
        name: The partition.
        options: Options of the run.

    Raises:
        UnknownTopic, ReadOnly: Nothing was changed.
        InvalidRequest: No store is named; the partition's tier is in another store; the topic has
            no id; or the partition has no tier and the topic's `remote.storage.enable` is false.
        TierConflict: The store's manifest contradicts the directory's record. Another directory, or
            a copy of this one, wrote the manifest; or the manifest or the record was restored from
            an older state.
        CorruptFile, UnsupportedVersion: The manifest can't be read.
        ConfigError, MissingDependency: The store can't be opened; nothing was changed.
        StorageFailure: Store or disk failed; completed steps remain, and the next run continues.
    """
    mover = Mover.open(log_dir, name, options or MoveOptions())
    return mover.run()


class Mover:
    """One tier run over one partition."""

    def __init__(
        self, log: LogAccess, tier: PartitionTier, record: TierRecord, options: MoveOptions
    ) -> None:
        self.log = log
        self.tier = tier
        self.record = record
        self._options = options
        self._report = MoveReport(topic_partition=log.topic_partition)
        self._claim = Claim(options.takes_over, options.drops_theirs)
        self._drawn: set[str] = set()

    @classmethod
    def open(
        cls, log_dir: "DirectoryAccess", name: TopicPartition, options: MoveOptions
    ) -> "Mover":
        """Prepare a run, without a request to the store. Raises the errors of `tier_partition`."""
        log = log_dir.log(name.topic, name.partition)
        record = record_of(log_dir, log, options)
        store = log_dir.tier_files.store(record.url)
        mover = cls(log, PartitionTier(store, record.folder), record, options)
        # If `retention.ms` is unknown, nothing is deleted by age: Kafka's default is seven days,
        # but the broker may be configured to keep data for longer.
        mover._report.keeps_all_ages = not log_dir.knows_age_limit(name.topic)
        return mover

    def run(self) -> MoveReport:
        """Carry out all steps of the run, and return the outcome."""
        self.settle()
        config = self.log.context.config
        if self._options.roll:
            self.log.roll()
        if config.remote_storage_enable and not config.remote_log_copy_disable:
            self._copy_all()
        if not config.remote_storage_enable and config.remote_log_delete_on_disable:
            self.log.advance_start(self.log.local_start_offset, StartRule.TIER_DISABLED)
        self._retain()
        self._clean()
        return self._report

    # -- reconciling store and tier record ---------------------------------------------------

    def settle(self) -> Manifest:
        """Reconcile the tier's store with its tier record; return the resulting manifest."""
        self.record = _without_stale(self.record, self.log.local_segments, self._now_ms())
        return self.swap(lambda manifest: manifest)

    def forget_copies(self, offset: int) -> Manifest:
        """Drop the tier's copies of segments with offsets from `offset` on; return the manifest.

        No record is lost: local files have all records from `offset` on. The next run copies these
        segments again.
        """
        assert offset >= self.log.local_start_offset
        self.record = _cut(self.record, offset, self._now_ms())
        return self.swap(lambda manifest: manifest)

    def swap(self, change: PureChange) -> Manifest:
        """Change the manifest in the store in one step, then store it in `tidelog-tier.json`.

        Returns the new manifest.
        """
        local, drawn = self.log.local_segments, ""

        def changed(stored: Manifest | None) -> Manifest:
            nonlocal drawn
            if stored is not None and drawn and stored.change == drawn:
                return stored  # an earlier request succeeded; only its response was lost
            now_ms = self._now_ms()
            target = change(merge(stored, self.record, local, now_ms, _same_bytes, self._claim))
            if target == stored and not self._claim.takes_over:
                return target
            drawn = drawn or self._draw_change()
            return dataclasses.replace(target, change=drawn)

        with typed_reads(self.log.context.directory):
            written = self.tier.update(changed)
        self._claim = OWN
        record = self.record.with_manifest(written)
        if record != self.record or self.log.tier is None:
            self.log.take_tier(record)
        self.record = record
        return written

    def _draw_change(self) -> str:
        """Draw the name of the next manifest, store it in the tier record, and return it."""
        drawn = uuid.UUID(int=self.log.context.env.random.getrandbits(128)).hex
        self.record = self.record.with_pending(drawn)
        self.log.take_tier(self.record)
        return drawn

    def _now_ms(self) -> int:
        return self.log.context.env.clock.now_ms()

    # -- copying -----------------------------------------------------------------------------

    def missing(self) -> list[ClosedSegment]:
        """Return the local segments to copy, oldest first.

        Segments to copy are finished, not empty, below the high watermark, and after the tier's
        end.
        """
        end = self.record.manifest.end_offset
        return [
            segment
            for segment in self.log.finished_segments()
            if not segment.is_tiered
            and segment.base_offset >= end
            and segment.end_offset <= self.log.high_watermark
            and segment.size_bytes
        ]

    def _copy_all(self) -> None:
        rows: list[TierSegment] = []
        done = 0
        if (lost := self._lost_behind_tier()) is not None:
            self._report.stopped = str(lost)
            return
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

    def _lost_behind_tier(self) -> LostOffsets | None:
        """Return the lost offsets between the tier's end and the first local file, if any.

        Segments after these offsets are not copied; neither are segments after lost offsets between
        two local segments.
        """
        tiered = [segment for segment in self.log.segments if segment.is_tiered]
        return tiered[-1].lost_at_end if tiered else None

    def _copy(self, segment: ClosedSegment) -> TierSegment | None:
        try:
            with typed_reads(segment.log_path):
                return copy_segment(self.tier, self._source(segment))
        except FileNotFoundError as error:
            if isinstance(error, MissingFile):
                raise
            path = str(error.filename or segment.log_path)
            raise MissingFile(path, "read", error.strerror or str(error)) from error
        except (CorruptData, InvalidRequest, OffsetsGone) as error:
            # Later segments are not copied either, so that the tier gets no holes.
            self._report.stopped = f"{error}{_LATER}" if _is_local_damage(error) else str(error)
            return None

    def _source(self, segment: ClosedSegment) -> CopySource:
        log = self.log
        if not self._options.accepts_lost_times:
            ensure_times(segment, "a move to the tier", accepting("tier", segment))
        if segment.zones_on(ClockName.APPEND) is None:
            zone_map_files.unchanged_map(segment)
            zone_map_files.build_missing([segment])
        note, seen_ms = log.note_of(segment)
        times = read_times(log, segment, clock=RetentionClock.RECORD_CAPPED, seen_ms=seen_ms)
        return CopySource(
            segment=segment,
            times=times,
            note=TierNote(
                RollReason.UNKNOWN if note is None else note.reason,
                -1 if note is None else note.roll_ms,
                seen_ms,
            ),
            uid=self.draw_uid(),
        )

    def draw_uid(self) -> str:
        """Return a random uid that no existing copy of a segment has."""
        manifest = self.record.manifest
        rows = [*manifest.segments, *(one.segment for one in manifest.garbage)]
        uids = {row.uid for row in rows} | self._drawn
        while True:
            drawn = uuid.UUID(int=self.log.context.env.random.getrandbits(128)).hex
            if drawn not in uids:
                self._drawn.add(drawn)
                return drawn

    def _add(self, rows: list[TierSegment]) -> None:
        if not rows:
            return
        self.swap(lambda manifest: manifest.with_added(rows))
        self._report.copied += len(rows)
        self._report.copied_bytes += sum(row.size_bytes for row in rows)

    # -- retention ---------------------------------------------------------------------------

    def _retain(self) -> None:
        before = [segment.base_offset for segment in self.log.local_segments]
        by_age = not self._report.keeps_all_ages
        self._report.deleted = self.log.apply_retention(by_age=by_age)
        deleted = {deletion.base_offset for deletion in self._report.deleted}
        local_bases = {segment.base_offset for segment in self.log.local_segments}
        released = [base for base in before if base not in local_bases and base not in deleted]
        self._report.released = len(released)
        self._take_record()

    def _take_record(self) -> None:
        """Take over the log's tier record. If the log start rose, update the manifest, too."""
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


def _is_local_damage(error: Exception) -> bool:
    """Return whether an error is the damage of a local file, not of an object that was written."""
    return isinstance(error, CorruptData) and "://" not in str(error.path)


def _nothing(_row: TierSegment, _offset: int) -> None:
    """Return None: no part of a stale copy is kept (see `Clip`)."""


def _same_bytes(segment: Segment, row: TierSegment) -> bool:
    """Return whether the log file of a local segment has the row's length and checksum."""
    return (
        zone_map_files.sum_file(segment.context, segment.log_path)
        == row.objects[log_files.LOG_SUFFIX]
    )


def settled_manifest(log: LogView, tier: PartitionTier, record: TierRecord) -> Manifest:
    """Return the manifest that `Mover.settle` would write; raises the errors of `Mover.settle`."""
    local, now_ms = log.local_segments, log.context.env.clock.now_ms()
    kept = _without_stale(record, local, now_ms)
    with typed_reads(log.context.directory):
        stored, _ = tier.read()
        return merge(stored, kept, local, now_ms, _same_bytes, OWN)


def _without_stale(record: TierRecord, segments: Sequence[Segment], now_ms: int) -> TierRecord:
    """Return the record without rows of copied segments that another program truncated.

    If there are no local segments, a truncation can't be detected, and the record is returned
    unchanged. A reader may find a partition in this state.
    """
    if not segments:
        return record
    local = {segment.base_offset: segment for segment in segments}
    first = min(local)
    for row in record.manifest.segments:
        if row.base_offset < first:
            continue
        segment = local.get(row.base_offset)
        if segment is not None and is_followed_by_hole(segment, row, record.manifest):
            raise TierConflict(
                f"{segment.log_path}: the next file, of offset {row.end_offset}, is missing,"
                f" but the tier has this file; run `tidelog tier"
                f" {record.manifest.topic}:{record.manifest.partition} --restore`"
            )
        if segment is None or segment.is_active or not is_copied(segment, row):
            return _cut(record, row.base_offset, now_ms)
    return record


def _cut(record: TierRecord, offset: int, now_ms: int) -> TierRecord:
    """Return the record without rows from `offset` on."""
    # Only the tier is truncated, not the log, so the log start is unchanged.
    return dataclasses.replace(
        record.with_cut(offset, _nothing, now_ms),
        local_start_offset=record.local_start_offset,
        log_start_offset=record.log_start_offset,
    )


def record_of(log_dir: "DirectoryAccess", log: LogView, options: MoveOptions) -> TierRecord:
    """Return the partition's tier record; if there is none, create one.

    Raises InvalidRequest if the options or the topic's settings name a store that is not the store
    of the record. Without a record, raises InvalidRequest if no store is named, the topic has no
    id, or remote.storage.enable is false.
    """
    name = log.topic_partition
    configured_url = options.url or log.context.config.tidelog_tier_url
    url = check_tier_url(configured_url) if configured_url else None
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
        raise InvalidRequest(
            f"{name}: no store is configured; run `tidelog tier {name.topic} --to URL`"
        )
    if not log.context.config.remote_storage_enable:
        raise InvalidRequest(
            f"{name}: remote.storage.enable is false; `tidelog tier {name.topic} --to"
            " URL` enables it"
        )
    return first_record(log_dir, log, url)


def first_record(log_dir: "DirectoryAccess", log: LogView, url: str) -> TierRecord:
    """Create the record of an empty tier; raises InvalidRequest if the topic has no id."""
    name = log.topic_partition
    topic_id = log_dir.topic(name.topic).topic_id
    if topic_id is None:
        raise InvalidRequest(
            f"{name}: the topic has no id, so its tier could be confused with another topic's;"
            f" `tidelog config {name.topic}` with any setting assigns one"
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


class TierStatus(NamedTuple):
    """Status of a partition's tier and of its local files.

    Attributes:
        topic_partition: The partition.
        url: URL of the partition's folder in the store; "" if the partition has no tier.
        log_start_offset: Log start offset of the whole log, in the tier and in local files.
        local_start_offset: First offset in local files.
        tier_end_offset: End of the tier's segments, exclusive; the log start if there is no tier.
        log_end_offset: Log end offset.
        tier_segments: Number of segments in the tier.
        tier_bytes: Size in bytes of the objects of the tier's segments.
        local_segments: Number of segments in the directory.
        local_bytes: Size in bytes of the local segments' log files.
        waiting_segments: Number of finished local segments that the tier lacks.
        waiting_bytes: Size in bytes of these segments' log files.
        garbage_segments: Number of segments that left the manifest and whose objects are not
            removed yet.
        refused: Text of the error with which a run would refuse to copy a segment whose append
            times are damaged or lost. None if there is no such segment, or if append times were not
            checked.
    """

    topic_partition: TopicPartition
    url: str
    log_start_offset: int
    local_start_offset: int
    tier_end_offset: int
    log_end_offset: int
    tier_segments: int
    tier_bytes: int
    local_segments: int
    local_bytes: int
    waiting_segments: int
    waiting_bytes: int
    garbage_segments: int
    refused: str | None = None


def tier_status(
    log_dir: "DirectoryAccess", name: TopicPartition, *, checks_times: bool = False
) -> TierStatus:
    """Return the status of a partition's tier and of its local files.

    Args:
        log_dir: The directory, open for reading or writing.
        name: The partition.
        checks_times: Whether to read the append times of the segments to copy, for `refused`.

    Raises:
        UnknownTopic: No such partition.
        CorruptFile, UnsupportedVersion: The record of the tier can't be read.
        StorageFailure: The disk failed.
    """
    log = log_dir.reader(name.topic, name.partition)
    local = log.local_segments
    record = None if log.tier is None else log.tier.record
    manifest = None if record is None else record.manifest
    end = log.log_start_offset if manifest is None else manifest.end_offset
    waiting = [s for s in local if not s.is_active and s.base_offset >= end and s.size_bytes]
    return TierStatus(
        topic_partition=name,
        url="" if record is None else f"{record.url}/{record.folder}",
        log_start_offset=log.log_start_offset,
        local_start_offset=log.local_start_offset,
        tier_end_offset=end,
        log_end_offset=log.log_end_offset,
        tier_segments=0 if manifest is None else len(manifest.segments),
        tier_bytes=0 if manifest is None else manifest.size_bytes,
        local_segments=len(local),
        local_bytes=sum(segment.size_bytes for segment in local),
        waiting_segments=len(waiting),
        waiting_bytes=sum(segment.size_bytes for segment in waiting),
        garbage_segments=0 if manifest is None else len(manifest.garbage),
        refused=_refused(waiting) if checks_times else None,
    )


def _refused(waiting: Sequence[Segment]) -> str | None:
    """Return why a run would refuse one of these segments, in the words of the run's report."""
    for segment in filter(None, map(as_closed, waiting)):
        try:
            with typed_reads(segment.log_path):
                ensure_times(segment, "a move to the tier", accepting("tier", segment))
        except CorruptData as error:
            if not segment.was_replaced():  # otherwise the file may be a new segment's
                return f"{error}{_LATER}"
    return None


def tier_verdict(statuses: Sequence[TierStatus], taking_part: int) -> str:
    """Return a sentence on the sizes of the tiers, and on segments that wait to be copied.

    Args:
        statuses: Partitions that take part in tiering, or have segments in a tier.
        taking_part: Number of all partitions that were checked.
    """
    if not statuses:
        return f"no tier: none of {plural(taking_part, 'partition')} keeps segments in a store"
    local = sum(one.local_bytes for one in statuses)
    tiered = sum(one.tier_bytes for one in statuses)
    waiting = sum(one.waiting_segments for one in statuses)
    garbage = sum(one.garbage_segments for one in statuses)
    sizes = f"{bytes_text(tiered)} in the store, {bytes_text(local)} local"
    partitions = plural(len(statuses), "partition")
    parts = [f"{partitions} with a tier: {sizes}"]
    if waiting:
        size = bytes_text(sum(one.waiting_bytes for one in statuses))
        wait = verb(waiting, "waits", "wait")
        parts.append(f"{plural(waiting, 'segment')} of {size} {wait} to be copied")
    else:
        parts.append("nothing waits to be copied")
    if refused := sum(one.refused is not None for one in statuses):
        stops = f"copying stops in {plural(refused, 'partition')}"
        parts.append(f"{stops}, because append times are damaged or lost")
    if garbage:
        wait = verb(garbage, "waits", "wait")
        parts.append(f"{plural(garbage, 'old segment')} {wait} to be removed")
    return "; ".join(parts)
