"""Segments of a partition, local and in the tier, with the start and the end of the log.

`SegmentList` owns the list, the log start, the end of the proven append times, and the search by
time with its cache. `show` sets new local segments and clears all data that is derived from the
list. The other methods that change the list clear only a part of the derived data. `LogView` reads
through the list; the parts of a writer's log change the list.
"""

import dataclasses
import itertools
import posixpath
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tidelog.config import TopicConfig
from tidelog.env import DirEntry, forget
from tidelog.errors import CorruptData, CorruptFile, MissingDependency
from tidelog.storage import commits, files, log_files
from tidelog.storage.clocks.append_clock import NEVER
from tidelog.storage.clocks.append_times import AppendTimes
from tidelog.storage.log.producer_loading import (
    abort_markers,
    bases_among,
    file_entries,
    file_names,
    limit_times,
    linked_file,
    load_producer_states,
    rebuild_txn_index,
    transaction_start,
)
from tidelog.storage.log.producers import ProducerStates
from tidelog.storage.segment.active_segment import ActiveSegment, TailSegment, load_tail
from tidelog.storage.segment.append_time_trust import (
    AppendTimeCheckpoint,
    fingerprint,
    last_batch,
    trusted_end,
)
from tidelog.storage.segment.closed_segment import ClosedSegment, as_closed
from tidelog.storage.segment.segment import Segment, SegmentContext
from tidelog.storage.segment.time_search import TimeSearch, stamped_ms
from tidelog.storage.segment.txn_index import AbortedTxn, TxnIndex
from tidelog.storage.text_files import read_partition_metadata
from tidelog.storage.tier.log_tier import LogTier
from tidelog.types import NO_TIMESTAMP

if TYPE_CHECKING:
    from tidelog.storage.segment.mapped_time_search import KernelSearch
    from tidelog.storage.tier.remote_segment import RemoteSegment

# Suffixes of files that a commit record names.
_STAGED: Final = (commits.STAGED_SUFFIX, log_files.SWAP_SUFFIX)

# Maximum number of reads of a directory. The directory is read again if it changed during a read.
_READS_MAX: Final = 5

# Maximum size in bytes of an active segment that is read to find aborted transactions that its
# index lacks. The read happens when the log is opened and takes several ms. The read is needed
# because only a zone map would show whether the index lacks entries, and an active segment has no
# zone map.
_LAST_WALKED_BYTES: Final = 16 << 20


class SegmentList:
    """Segments of one partition, oldest first.

    Attributes:
        context: Shared state of the segments.
        all: All segments; the last one is active. The list is empty only if the directory has no
            log file.
        start_offset: First offset that may be read, inclusive.
        checkpointed_start: Log start in the directory's checkpoint, or in `tidelog-tier.json`.
        checkpointed_ms: Last append time in the append-time checkpoint; -1 if the checkpoint is
            missing or was not read yet.
        tier: The part of the log that is in a tier.
        search: Search by time over these segments.
        kernels: The kernels that `search` uses inside a segment, None without kernels.
        visible_end: Returns the high watermark of a broker's partition; None without a broker.
    """

    def __init__(self, context: SegmentContext, tier: LogTier, *, log_start_offset: int) -> None:
        self.context = context
        self.tier = tier
        self.checkpointed_start = self.start_offset = log_start_offset
        self.all: list[Segment] = []
        self.search = TimeSearch()
        self.kernels: KernelSearch | None = None
        self.visible_end: Callable[[], int] | None = None
        self.checkpointed_ms = NO_TIMESTAMP
        self._trusted: int | None = None
        # For a reader: the base offsets of the segments and the directory's stamp, both as of the
        # last read of the directory. The stamp is None if the segments can change without a change
        # of the directory's stamp.
        self._named: list[int] = []
        self._stamp: files.FolderStamp | None = None
        self._transaction_start: int | None = None
        # Segments at the last call of `producer_states`, and the aborted transactions whose markers
        # this call has read.
        self._replayed: tuple[Sequence[Segment], list[AbortedTxn]] | None = None

    def finished(self) -> list[ClosedSegment]:
        """Return segments that take no more appends, oldest first."""
        return [closed for each in self.all if (closed := as_closed(each)) is not None]

    def tiered(self) -> "Sequence[RemoteSegment]":
        """Return segments that only the tier has, oldest first."""
        return self.tier.segments(next((s.base_offset for s in self.all if not s.is_tiered), None))

    @property
    def local(self) -> list[Segment]:
        """Segments whose files are in the directory, oldest first."""
        return [segment for segment in self.all if not segment.is_tiered]

    @property
    def local_start_offset(self) -> int:
        """First offset that can be read from local files; without a tier, the log start."""
        first = next((s.base_offset for s in self.all if not s.is_tiered), None)
        return self.start_offset if first is None else max(self.start_offset, first)

    @property
    def end_offset(self) -> int:
        """Offset that the next record gets, exclusive end of the log."""
        return self.all[-1].end_offset if self.all else self.start_offset

    @property
    def high_watermark(self) -> int:
        """End, exclusive, of the records that readers may see; without a broker, the log end."""
        return self.end_offset if self.visible_end is None else self.visible_end()

    @property
    def active(self) -> ActiveSegment:
        """The segment that takes a writer's appends."""
        active = self.all[-1]
        assert isinstance(active, ActiveSegment)
        return active

    # -- changes -----------------------------------------------------------------------------

    def configure(self, config: TopicConfig) -> None:
        """Use new settings of the topic for segments created from now on."""
        self.context = dataclasses.replace(self.context, config=config)

    def show(self, local: Sequence[Segment], *, checkpointed_start: int | None = None) -> None:
        """Show the segments that only the tier has, followed by these local segments.

        Args:
            local: All local segments, the active one last.
            checkpointed_start: New log start; if None, the log start is unchanged.
        """
        if checkpointed_start is not None:
            self.checkpointed_start = checkpointed_start
        self.all = [*self.tier.segments_below(local, self.context), *local]
        self.search.forget()
        self._trusted = self._transaction_start = None
        self.forget_maps()
        self._renew_start()

    def _renew_start(self) -> None:
        first = self.all[0].base_offset if self.all else 0
        self.start_offset = max(self.checkpointed_start, first, self.tier.start_offset)

    def replace_active(self, *segments: Segment) -> None:
        """Replace the active segment by finished segments and a new active segment."""
        self.all = [*self.all[:-1], *segments]

    def keep(self, segments: Sequence[Segment]) -> None:
        """Show readers only these segments; files of other segments may still exist."""
        self.all = list(segments)
        self.search.forget()

    def exchange(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """Replace the consecutive segments `old` by `new`."""
        at = next(n for n, each in enumerate(self.all) if each is old[0])
        self.show([*self.all[:at], *new, *self.all[at + len(old) :]])

    def put_behind_tier(self, local: Sequence[Segment]) -> None:
        """Show the segments that only the tier has now, followed by these local segments."""
        self.all = [*self.tier.segments(local[0].base_offset), *local]
        self.search.forget()

    def move_start(self, offset: int) -> None:
        """Set the log start to `offset`."""
        self.checkpointed_start = self.start_offset = offset

    # -- search by time ----------------------------------------------------------------------

    def use_kernels(self) -> "KernelSearch":
        """Use kernels for searches from now on; see `LogView.use_kernels`."""
        if self.kernels is None:
            try:
                from tidelog.storage.segment.mapped_time_search import KernelSearch
            except ImportError as error:
                raise MissingDependency(
                    f"kernels need numpy and numba: pip install 'tidelog[arrow]' ({error})"
                ) from error
            self.search.batch_search = self.kernels = KernelSearch()
        return self.kernels

    def forget_maps(self) -> None:
        """Drop maps of files, because a file may have been replaced or truncated since."""
        if self.kernels is not None:
            self.kernels.clear()

    # -- reading the directory ---------------------------------------------------------------

    def refresh(self) -> None:
        """Read the current state from disk; unchanged finished segments keep their loaded data.

        If no file was added, renamed or removed, only the last segment is read. If names change
        during the read, because the holder of the lock carries out a commit, the directory is read
        again.
        """
        forget(self.context.env.files, self.context.directory)
        stamp = self._settled_stamp()
        if stamp is not None and stamp == self._stamp and self.all:
            self._renew_tail()
            return
        self._stamp = None
        for reads_left in reversed(range(_READS_MAX)):
            names = file_names(self.context)
            self._renew_overlay(names)
            missing = None
            try:
                self._read_segments(names)
            except FileNotFoundError as error:  # the writer may have rolled and deleted the segment
                missing = error
            entries = file_entries(self.context)
            is_same = [entry.name for entry in entries] == names
            if missing is not None and (is_same or not reads_left):
                raise missing
            if is_same:
                self._stamp = stamp if self._is_plain(entries) else None
                return
            forget(self.context.env.files, self.context.directory)

    def _settled_stamp(self) -> files.FolderStamp | None:
        try:
            return files.settled_stamp(self.context.env, self.context.directory)
        except FileNotFoundError:
            return None

    def _is_plain(self, entries: Sequence[DirEntry]) -> bool:
        """Return whether every change of a finished segment also changes the directory's stamp."""
        if self.context.overlay or self.tier.rows:
            return False
        if any(entry.name.endswith(_STAGED) for entry in entries):
            return False
        return bool(entries) and linked_file(entries) is None

    def _renew_tail(self) -> None:
        """Read the last segment again, because another process may have changed it."""
        last = self.all[-1]
        last.forget_stale_files()
        self.all = [*self.all[:-1], self._tail(last.base_offset)]
        self._trusted = self._transaction_start = None
        self.forget_maps()
        self._renew_start()

    def follow_changes(self) -> bool:
        """If finished segments have changed, read the state from disk; return whether they have.

        The segments have changed if another process has replaced, removed, rolled or tiered
        segments. An append does not count as a change. If the topic was deleted and created again
        under the same name, return False and read nothing.
        """
        if self._is_other_topic():
            return False
        forget(self.context.env.files, self.context.directory)
        named, rows = self._named, self.tier.rows
        is_changed = bases_among(self.context, file_names(self.context)) != named or any(
            segment.was_replaced() for segment in self.finished() if not segment.is_tiered
        )
        if is_changed or rows:
            self._stamp = None
            self.refresh()
        return is_changed or self.tier.rows != rows

    def _is_other_topic(self) -> bool:
        context = self.context
        try:
            now = read_partition_metadata(context.env.files, context.directory)
        except CorruptFile:
            return False  # torn by a power loss: no proof of another topic
        return context.topic_id.int != 0 and now not in (None, context.topic_id)

    def _renew_overlay(self, names: Sequence[str]) -> None:
        """If a file's name shows that a commit may be pending, read the current commit records."""
        context = self.context
        if context.overlay or any(name.endswith(_STAGED) for name in names):
            root = posixpath.dirname(context.directory)
            overlay = commits.overlay(context.env.files, root, context.topic_partition)
            if overlay != context.overlay:
                context.forget_files()
            self.context = dataclasses.replace(context, overlay=overlay)

    def _read_segments(self, names: Sequence[str]) -> None:
        by_base = {segment.base_offset: segment for segment in self.all}
        for segment in self.all:
            segment.forget_stale_files()
        self._named = bases_among(self.context, names)
        bases = self.tier.load(self._named, self.context)
        segments: list[Segment] = []
        for base, next_base in itertools.pairwise(bases):
            segments.append(self.closed(by_base.get(base), base, next_base))
        if bases:
            segments.append(self._tail(bases[-1]))
        self.show(segments)

    def closed(self, current: Segment | None, base: int, next_base: int) -> Segment:
        """Return the finished segment with these offsets: `current`, unless it was replaced."""
        closed = None if current is None or current.is_tiered else as_closed(current)
        if closed is not None and closed.end_offset == next_base and not closed.was_replaced():
            return closed
        segment = ClosedSegment(self.context, base, next_base)
        segment.limit_times, segment.find_aborted = self._limit_times, self.find_aborted
        return segment

    def find_aborted(self, segment: Segment, known: TxnIndex) -> TxnIndex:
        """Complete the index of a segment's aborted transactions from its batches.

        All batches are read if an abort marker follows the last entry of the index, or if the last
        entry has no marker (a power loss can tear this entry). For an index without entries, all
        batches are read if the segment may have an abort marker according to the snapshots. An
        active segment that is larger than `_LAST_WALKED_BYTES` is not read as a whole: only entries
        of markers after the newest snapshot are added.

        Args:
            segment: A local segment.
            known: The index as read from its file; empty if there is no file.

        Returns:
            The complete index. If the batches were not read or add no entry, the result is `known`
            itself.

        Raises:
            CorruptData: A batch after the last entry is damaged, or `rebuild_txn_index` raised the
                error.
        """
        size = segment.size_bytes
        if not size:
            return known
        if segment.is_active and size > _LAST_WALKED_BYTES:
            return self._with_replayed(segment, known)
        # The writer may have added entries for later markers after this reader read the segment.
        # These entries are ignored.
        seen = [entry for entry in known.entries if entry.last_offset < segment.end_offset]
        last = seen[-1] if seen else None
        markers = self._abort_markers(segment, last)
        is_torn = last is not None and markers.pop(last.last_offset, None) != last.producer_id
        if not is_torn and not markers:
            return known
        earlier = [each for each in self.all if each.base_offset < segment.base_offset]
        rebuilt = rebuild_txn_index(self.context, segment, earlier)
        kept = [entry for entry in known.entries if not (is_torn and entry is last)]
        # Old brokers also wrote entries for empty transactions; the rebuilt index lacks these
        # entries. If the file and the rebuilt index both have an entry for the same marker, the
        # file's entry is used: the rebuilt entry depends on snapshots, which may lack the start of
        # the transaction.
        found = {entry.last_offset: entry for entry in (*rebuilt.entries, *kept)}
        if not is_torn and len(found) == len(kept):
            return known  # no entry is missing: the other markers ended no transaction
        if is_torn:
            problem = "the last entry has no abort marker"
        else:
            problem = "the last entries are missing" if kept else "missing"
        return self._rebuilt(segment, found, problem)

    def _with_replayed(self, segment: Segment, known: TxnIndex) -> TxnIndex:
        """Add entries that an active segment's index lacks, for markers after the newest snapshot.

        Readers of committed records read these markers anyway, to find the last stable offset.
        """
        segments, replayed, aborted = self.all, self._replayed, list[AbortedTxn]()
        if replayed is not None and replayed[0] is segments:
            aborted = replayed[1]
        else:
            load_producer_states(self.context, segments, aborted=aborted)
        found = {
            entry.last_offset: entry
            for entry in aborted
            if segment.base_offset <= entry.last_offset < segment.end_offset
        }
        found |= {entry.last_offset: entry for entry in known.entries}
        if len(found) == len(known.entries):
            return known
        problem = "the last entries are missing" if known.entries else "missing"
        return self._rebuilt(segment, found, problem)

    def _rebuilt(self, segment: Segment, found: Mapping[int, AbortedTxn], problem: str) -> TxnIndex:
        """Report what is wrong with an index, and return an index with the entries in `found`."""
        path = self.context.path(segment.base_offset, log_files.TXN_INDEX_SUFFIX)
        self.context.report(f"{path}: {problem}; rebuilt in memory")
        return TxnIndex(segment.base_offset, (found[offset] for offset in sorted(found)))

    def producer_states(self) -> ProducerStates:
        """Return producers and open transactions at the log end, from a snapshot and the log."""
        segments, aborted = self.all, list[AbortedTxn]()
        states = load_producer_states(self.context, segments, aborted=aborted)
        self._replayed = segments, aborted
        return states

    def _abort_markers(self, segment: Segment, last: AbortedTxn | None) -> dict[int, int]:
        """Return a segment's abort markers from the marker of `last`, the index's last entry, on.

        The function `abort_markers` describes the result.

        If the index has no entry, the search begins at the offset before which the snapshots show
        no transactions. If the marker of the last entry is unreadable, the entry is assumed to be
        right.
        """
        if last is not None:
            try:
                return abort_markers(segment, last.last_offset)
            except CorruptData:
                later = abort_markers(segment, last.last_offset + 1)
                return {last.last_offset: last.producer_id, **later}
        if self._transaction_start is None:
            self._transaction_start = transaction_start(self.context, self.end_offset)
        start = self._transaction_start
        return abort_markers(segment, start) if start < segment.end_offset else {}

    def _tail(self, base: int) -> TailSegment:
        tail = load_tail(self.context, base)
        tail.limit_times, tail.find_aborted = self._limit_times, self.find_aborted
        return tail

    # -- append times ------------------------------------------------------------------------

    def trusted_end(self) -> int:
        """Return the end of the proven append times: below this offset, all append times are right.

        See `tidelog.storage.segment.append_time_trust`.
        """
        if self._trusted is None:
            checkpoint = AppendTimeCheckpoint.read(self.context.env.files, self.context.directory)
            self._trusted = trusted_end(checkpoint, self.local)
            self.checkpointed_ms = NO_TIMESTAMP if checkpoint is None else checkpoint.last_ms
        return self._trusted

    def _limit_times(self, segment: Segment, times: AppendTimes) -> None:
        """In memory only, mark as unknown the append times that the segment's rows can't prove."""
        limit_times(segment, times, self.trusted_end())

    def append_times_of(self, segment: Segment) -> AppendTimes:
        """Return a segment's append times; times that are not proven are marked as unknown."""
        self.trusted_end()
        return segment.append_times

    def last_append_ms(self) -> int:
        """Return the last append time in ms, -1 if it is unknown.

        In some logs, only the header of a batch has the last append time.
        """
        stamped = None
        local = self.local
        for segment in reversed(local):
            last = last_batch(segment)
            if last is not None:
                stamped = stamped_ms(last)
                break
        rows = (segment.append_times.last_known_ms for segment in reversed(local))
        last_known_ms = next((ms for ms in rows if ms is not None), NEVER)
        in_tier = max((row.times.largest_append_ms for row in self.tier.rows), default=NEVER)
        return max(last_known_ms, NEVER if stamped is None else stamped, in_tier)

    def append_time_checkpoint(self, last_ms: int) -> AppendTimeCheckpoint:
        """Return a checkpoint that lets the next start prove that the log was not truncated.

        Args:
            last_ms: The last append time.
        """
        for segment in reversed(self.local):
            last = last_batch(segment)
            if last is not None:
                named = last.base_offset, fingerprint(last)
                return AppendTimeCheckpoint(self.end_offset, *named, last_ms)
            if segment.size_bytes:
                # The segment is damaged, so this checkpoint proves nothing but the last time.
                return AppendTimeCheckpoint(0, -1, 0, last_ms)
        return AppendTimeCheckpoint(self.end_offset, -1, 0, last_ms)
