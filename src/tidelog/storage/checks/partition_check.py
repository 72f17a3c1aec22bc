"""Checks a partition: names of its files, segments with their sidecars, files of the whole log.

Segments are checked from first to last, because the producers and epochs at a segment's start come
from the segments before it. Files of an interrupted deletion, compaction or commit are not damage:
the next open for writing finishes these operations.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import field, replace
from typing import Final

from tidelog.amounts import offsets_text
from tidelog.env import File
from tidelog.errors import CorruptData, CorruptFile, UnsupportedVersion
from tidelog.lazy_dataclass import dataclass
from tidelog.record.coding import crc32c
from tidelog.storage import files, log_files, text_files
from tidelog.storage.checks.findings import (
    REPAIR_COMMAND,
    CheckedPartition,
    CheckOptions,
    Finding,
    Severity,
    derived,
    later,
    note,
    warning,
)
from tidelog.storage.checks.log_check import EpochSpan, LogCheck, LogFacts, LogReplay
from tidelog.storage.checks.sidecar_checks import (
    IndexRules,
    check_append_times,
    check_epochs,
    check_offset_index,
    check_snapshot_bytes,
    check_time_index,
    check_txn_index,
    compare_snapshot,
    last_indexed,
)
from tidelog.storage.checks.zone_map_check import ZoneMapContext, check_zone_map
from tidelog.storage.clocks.zone_map import FileSum
from tidelog.storage.commits import STAGED_SUFFIX
from tidelog.storage.compaction.generations.statistics import STATISTICS_FILE
from tidelog.storage.log.producers import ProducerStates
from tidelog.storage.log.recovery import UNSYNCED_FILE
from tidelog.storage.segment.append_time_trust import AppendTimeCheckpoint
from tidelog.storage.segment.compaction_history import HISTORY_FILE, CompactionHistory
from tidelog.storage.segment.deletion_history import DELETION_HISTORY_FILE, decode_events
from tidelog.storage.segment.gaps import GAP_REASON, was_never_cleaned
from tidelog.storage.segment.log_end import COPIED_GAPS_FILE
from tidelog.storage.segment.segment_notes import SEGMENT_NOTES_FILE, decode_notes
from tidelog.storage.segment.txn_index import AbortedTxn
from tidelog.storage.tier.tier_files import TIER_FILE, read_record_bytes
from tidelog.storage.tier.tier_record import TierRecord, decode_record, restore_command
from tidelog.types import INT64_MAX

_REMOVAL: Final = f"{REPAIR_COMMAND} removes it"


@dataclass(slots=True)
class SegmentCheck:
    """The check of one segment's files.

    Attributes:
        partition: The partition.
        base_offset: The segment's base offset.
        end_offset: Base offset of the next segment; INT64_MAX for the last segment.
        replay: State after the earlier segments; this check adds to it.
        options: Options of the check.
        facts: Facts from the log file; set when `findings` opens the file.
    """

    partition: CheckedPartition
    base_offset: int
    end_offset: int
    replay: LogReplay
    options: CheckOptions = field(default_factory=CheckOptions)
    facts: LogFacts = field(init=False)
    _doubted: set[str] = field(default_factory=set)
    _sums: dict[str, FileSum] = field(default_factory=dict)
    _damaged: list[tuple[int, int]] = field(default_factory=list)
    _indexed_to: int = -1

    def findings(self) -> Iterator[Finding]:
        """Yield all findings in the segment's files.

        Raises:
            FileNotFoundError: The log file was removed during the check.
            OSError: A system call failed.
        """
        path = self.path(log_files.LOG_SUFFIX)
        file = self.partition.fs.open(path)
        try:
            is_last = self.end_offset == INT64_MAX
            self.facts = LogFacts(path, self.base_offset, file.size(), is_last)
            yield from self._check_log(file)
            yield from self.judged(self.check_beside(file))
        finally:
            file.close()

    def path(self, suffix: str) -> str:
        """Return the path of one of the segment's files."""
        return self.partition.path(log_files.file_name(self.base_offset, suffix))

    def _check_log(self, file: File) -> Iterator[Finding]:
        check = LogCheck(
            file, self.facts, self.replay, self.end_offset, self.partition, self.options
        )
        for finding in check.findings():
            position = finding.position or 0
            self._damaged.append((position, max(position + 1, check.resumes_at)))
            yield finding

    def check_beside(self, file: File) -> Iterator[Finding]:
        """Yield findings in the files beside the log, after the log itself was checked."""
        self._doubted.clear()
        self._sums.clear()
        self._indexed_to = -1
        for suffix in log_files.SUMMED_SUFFIXES:
            try:
                data = self._read(suffix)
            except CorruptFile as error:
                yield self._noted(derived(self.path(suffix), error.reason))
                continue
            for finding in self._check_sidecar(suffix, data):
                yield self._noted(finding)
        yield from map(self._noted, self._check_zones(file))

    def _read(self, suffix: str) -> bytes | None:
        # A sidecar larger than its log is damaged, unless the log is tiny.
        limit = max(self.facts.size_bytes, files.SMALL_FILE_LIMIT_BYTES)
        data = self.partition.read(log_files.file_name(self.base_offset, suffix), limit=limit)
        if data is not None:
            self._sums[suffix] = FileSum(len(data), crc32c(data))
        return data

    def _check_sidecar(self, suffix: str, data: bytes | None) -> Iterator[Finding]:
        partition, facts, path = self.partition, self.facts, self.path(suffix)
        if suffix == log_files.TXN_INDEX_SUFFIX:
            return check_txn_index(path, data or b"", facts, is_exact=self.replay.is_exact)
        if suffix == log_files.APPEND_TIME_SUFFIX:
            if data is None:
                return iter(())
            return check_append_times(
                path, data, facts, partition.topic_id, was_clean=partition.was_clean
            )
        if data is None:
            return iter([derived(path, "missing", severity=Severity.WARNING)])
        if suffix == log_files.OFFSET_INDEX_SUFFIX:
            self._indexed_to = last_indexed(data, facts)
            return check_offset_index(path, data, facts, self._rules())
        assert suffix == log_files.TIME_INDEX_SUFFIX, f"no check for {suffix}"
        return check_time_index(path, data, facts, self._rules(), self._indexed_to)

    def _rules(self) -> IndexRules:
        partition = self.partition
        interval = None if partition.is_foreign else partition.config.index_interval_bytes
        return IndexRules(interval_bytes=interval, was_clean=partition.was_clean)

    def _check_zones(self, file: File) -> Iterator[Finding]:
        path = self.path(log_files.ZONES_SUFFIX)
        try:
            data = self._read(log_files.ZONES_SUFFIX)
        except CorruptFile as error:
            yield derived(path, error.reason, severity=Severity.WARNING)
            return
        if data is None:
            if not (self.partition.is_foreign or self.facts.is_last) and self.facts.size_bytes:
                damage = (
                    "missing, so damage of bytes that the batches' checksums don't cover can't be"
                    " detected"
                )
                # If the directory was not closed cleanly, a missing zone map is expected. Possibly
                # an active writer has not written the map yet, or a hard stop prevented the write.
                severity = Severity.WARNING if self.partition.was_clean else Severity.NOTE
                yield derived(path, damage, severity=severity)
            return
        beside = ZoneMapContext(
            read=file.pread,
            facts=self.facts,
            end_offset=self.end_offset,
            topic_id=self.partition.topic_id.bytes,
            sums=self._sums,
            doubted=frozenset(self._doubted),
            damaged=self._damaged,
        )
        yield from check_zone_map(path, data, beside)

    def _noted(self, finding: Finding) -> Finding:
        self._doubted.add(finding.path)
        return finding

    def judged(self, beside: Iterable[Finding]) -> Iterator[Finding]:
        """Yield findings, without advice to repair if the log itself must be repaired first.

        A zone map that proves damage in the log is not rebuilt, because only this map has the
        checksums of the original bytes.
        """
        findings = list(beside)
        path = self.facts.path
        is_witness = any(each.path == path and each.severity is Severity.ERROR for each in findings)
        if self.facts.is_whole and not is_witness:
            yield from findings
            return
        yield from map(later, findings)


_KNOWN: Final = frozenset(
    (
        files.LEADER_EPOCH_CHECKPOINT_FILE,
        files.PARTITION_METADATA_FILE,
        files.APPEND_TIME_CHECKPOINT_FILE,
        SEGMENT_NOTES_FILE,
        DELETION_HISTORY_FILE,
        HISTORY_FILE,
        STATISTICS_FILE,
        TIER_FILE,
        COPIED_GAPS_FILE,
    )
)

_LEFT_OVER: Final = {
    log_files.DELETED_SUFFIX: "a deletion is in progress or was interrupted",
    log_files.CLEANED_SUFFIX: "a compaction was interrupted",
    log_files.SWAP_SUFFIX: "a compaction was interrupted while its files were renamed",
    files.TMP_SUFFIX: "a file was being replaced when its writer stopped",
    STAGED_SUFFIX: "a commit is in progress or was interrupted",
}


def check_names(partition: CheckedPartition, bases: Set[int]) -> Iterator[Finding]:
    """Yield findings on the names of files in a partition's directory.

    `bases` are the base offsets of the checked segments. A broker may have begun more segments
    since the check listed the files.
    """
    entries = partition.fs.list_dir(partition.directory)
    parsed = (log_files.parse_file_name(entry.name) for entry in entries)
    bases = bases | {name[0] for name in parsed if name and name[1] == log_files.LOG_SUFFIX}
    for entry in entries:
        path = partition.path(entry.name)
        if entry.is_dir:
            yield note(path, "a directory that is not part of the log", "it is ignored")
        elif entry.name == UNSYNCED_FILE:
            damage = "the disk has failed: data that was not synced may be missing on it"
            yield note(path, damage, "the next open for writing writes that data again")
        elif entry.name not in _KNOWN:
            yield from _check_name(path, entry.name, bases)


def _check_name(path: str, name: str, bases: Set[int]) -> Iterator[Finding]:
    for suffix, meaning in _LEFT_OVER.items():
        if name.endswith(suffix):
            yield note(path, meaning, "the next open for writing completes or removes it")
            return
    if name.endswith(log_files.ASIDE_SUFFIX):
        yield note(
            path,
            "damaged bytes that a repair moved out of the log",
            "remove it once it is not needed",
        )
        return
    parsed = log_files.parse_file_name(name)
    if parsed is None or parsed[1] not in log_files.LOG_FIRST:
        yield note(path, "unknown file name", "it is ignored")
    elif parsed[1] != log_files.SNAPSHOT_SUFFIX and parsed[0] not in bases:
        yield _orphan(path, parsed[1])


def _orphan(path: str, suffix: str) -> Finding:
    damage = f"it has no {log_files.LOG_SUFFIX} file of the same name"
    if suffix == log_files.APPEND_TIME_SUFFIX:
        remedy = (
            "restore the log file; if it was deleted on purpose, the next open for writing removes"
            " this file"
        )
        return warning(path, damage, remedy)
    return derived(path, damage, severity=Severity.WARNING, remedy=_REMOVAL)


@dataclass(slots=True)
class RepairFacts:
    """Results of a check that a repair needs.

    Attributes:
        whole: Base offsets of the segments whose log is sound; a repair can rebuild their indexes.
        aborted: Proven entries of each segment's index of aborted transactions, by the segment's
            base offset.
        snapshots: Proven content of each producer snapshot, by the snapshot's offset.
        log_end: Offset after the last sound batch.
        is_whole: Whether every byte of every log file belongs to a sound batch.
        epochs: The leader epochs of the log's batches.
        is_sure: True if no log file has an error, so that a repair can rebuild files that are
            derived from all log files.
    """

    whole: set[int] = field(default_factory=set)
    aborted: dict[int, list[AbortedTxn]] = field(default_factory=dict)
    snapshots: dict[int, bytes] = field(default_factory=dict)
    log_end: int = 0
    is_whole: bool = True
    epochs: list[EpochSpan] = field(default_factory=list)
    is_sure: bool = True


class PartitionCheck:
    """The check of one partition.

    Attributes:
        partition: The partition.
        repair_facts: Facts for a repair; complete once `findings` is exhausted.
        replay: Producers and epochs at the end of the segments that were checked so far.
    """

    def __init__(self, partition: CheckedPartition, options: CheckOptions) -> None:
        self.partition = partition
        self._options = options
        self.repair_facts = RepairFacts()
        self.replay = LogReplay(at_batch=self._compare_snapshots, epochs=self.repair_facts.epochs)
        self._snapshots: list[int] = []
        self._snapshot_findings: list[Finding] = []
        self._first_offset = 0
        self._bases: list[int] = []

    def findings(self) -> Iterator[Finding]:
        """Yield all findings in the partition's directory.

        Raises:
            OSError: A system call failed; an unreadable file can't be checked.
        """
        names = self.partition.file_names()
        bases = _offsets_of(names, log_files.LOG_SUFFIX)
        self._snapshots = _offsets_of(names, log_files.SNAPSHOT_SUFFIX)
        self._begin(bases)
        for base, end in itertools.pairwise([*bases, INT64_MAX]):
            yield from self._check_segment(base, end)
        for finding in self._end(bases):
            yield finding if self.repair_facts.is_sure else later(finding)
        yield from check_names(self.partition, set(bases))

    # -- before and after the segments -------------------------------------------------------

    def _begin(self, bases: list[int]) -> None:
        """Load the producers' states at the log's start, and read the append-time checkpoint.

        The checkpoint contains the base offset of a batch. The check of the log files looks for a
        batch with this base offset.
        """
        self._bases = bases
        self._first_offset = bases[0] if bases else 0
        if self._first_offset:
            self.replay.is_exact = False
            path = self._snapshot_path(self._first_offset)
            data = self.partition.read(
                log_files.file_name(self._first_offset, log_files.SNAPSHOT_SUFFIX)
            )
            if data is not None and check_snapshot_bytes(path, data) is None:
                self.replay.states = ProducerStates.decode_snapshot(data)
                self.replay.is_exact = True
        checkpoint = AppendTimeCheckpoint.read(self.partition.fs, self.partition.directory)
        if checkpoint is not None:
            self.replay.watched_offset = checkpoint.last_base_offset

    def _check_segment(self, base: int, end: int) -> Iterator[Finding]:
        check = SegmentCheck(self.partition, base, end, self.replay, self._options)
        try:
            for finding in check.findings():
                if finding.path == check.facts.path and finding.severity is Severity.ERROR:
                    self.repair_facts.is_sure = False
                yield finding
        except FileNotFoundError:
            path = self.partition.path(log_files.log_file_name(base))
            yield note(path, "it was removed during the check", "run the check again")
            self.replay.is_exact = self.repair_facts.is_whole = False
            return
        repair_facts, facts = self.repair_facts, check.facts
        repair_facts.log_end = facts.next_offset
        repair_facts.is_whole &= facts.is_whole
        if facts.is_whole:
            repair_facts.whole.add(base)
            yield from self._check_gap(facts, end)
        if not facts.is_last and facts.next_offset < end:
            self.replay.is_exact = False  # a compaction may have removed batches at the end
        if self.replay.is_exact:
            repair_facts.aborted[base] = facts.aborted
        yield from self._snapshot_findings
        self._snapshot_findings.clear()

    def _check_gap(self, facts: LogFacts, end: int) -> Iterator[Finding]:
        """Yield a finding if offsets before the next segment are missing for no known reason."""
        partition = self.partition
        if facts.is_last or facts.has_gaps or not facts.next_offset < end > partition.log_start:
            return
        path = partition.path(log_files.log_file_name(end))
        yield from self._lost_before(facts.next_offset, end, path, "before it")

    def _lost_before(self, start: int, end: int, path: str, place: str) -> Iterator[Finding]:
        """Yield a finding on missing offsets [start, end), unless compaction may have removed them.

        Args:
            start: First missing offset.
            end: Offset after the last missing offset.
            path: File that shows the gap.
            place: Location of the missing offsets, for the finding's text.
        """
        partition = self.partition
        if not was_never_cleaned(
            partition.fs, partition.directory, partition.config, partition.name
        ):
            return
        yield Finding(
            path,
            f"{offsets_text(start, end - 1)} {place}: {GAP_REASON}",
            "restore the files from a replica or a backup; readers report these offsets as lost",
            offset=start,
        )

    def _end(self, bases: list[int]) -> Iterator[Finding]:
        if not bases:
            self.repair_facts.log_end = self.partition.log_start
        self._compare_snapshots(self.repair_facts.log_end)
        yield from self._snapshot_findings
        for offset in self._snapshots:
            path = self._snapshot_path(offset)
            damage = f"its offset is after the log end, offset {self.repair_facts.log_end}"
            yield derived(path, damage, severity=Severity.WARNING, remedy=_REMOVAL)
        yield from self._check_epochs()
        yield from self._check_append_time_checkpoint()
        yield from self._check_metadata()
        yield from self._check_facts()
        yield from self._check_tier_record()

    # -- snapshots ---------------------------------------------------------------------------

    def _snapshot_path(self, offset: int) -> str:
        return self.partition.path(log_files.file_name(offset, log_files.SNAPSHOT_SUFFIX))

    def _compare_snapshots(self, next_offset: int) -> None:
        """Compare snapshots up to `next_offset` with the producer states before this offset."""
        while self._snapshots and self._snapshots[0] <= next_offset:
            offset = self._snapshots.pop(0)
            self._snapshot_findings += self._check_snapshot(offset)

    def _check_snapshot(self, offset: int) -> list[Finding]:
        path, replay = self._snapshot_path(offset), self.replay
        try:
            data = self.partition.read(log_files.file_name(offset, log_files.SNAPSHOT_SUFFIX))
        except CorruptFile as error:
            return [derived(path, error.reason)]
        if data is None:
            return []
        if replay.is_exact:
            self.repair_facts.snapshots[offset] = replay.states.encode_snapshot()
        problem = check_snapshot_bytes(path, data)
        if problem is not None:
            if not replay.is_exact:
                # The log does not show the right content of the snapshot, because batches of its
                # producers may be damaged or deleted.
                remedy = (
                    "opening uses an older snapshot; producer states that only the damaged"
                    " snapshot has are lost"
                )
                problem = replace(problem, remedy=remedy, repairable=False)
            return [problem]
        return list(
            compare_snapshot(
                path,
                data,
                replay.states,
                first_offset=self._first_offset,
                is_exact=replay.is_exact,
            )
        )

    # -- text files --------------------------------------------------------------------------

    def _check_epochs(self) -> Iterator[Finding]:
        name = files.LEADER_EPOCH_CHECKPOINT_FILE
        path = self.partition.path(name)
        try:
            data = self.partition.read(name)
        except CorruptFile as error:
            yield derived(path, error.reason)
            return
        spans = self.replay.epochs if self.repair_facts.is_whole else []
        log_end = self.repair_facts.log_end if self.repair_facts.is_whole else INT64_MAX
        log_start = max(self.partition.log_start, self._first_offset)
        yield from check_epochs(path, data, spans, log_start=log_start, log_end=log_end)

    def _check_append_time_checkpoint(self) -> Iterator[Finding]:
        name = files.APPEND_TIME_CHECKPOINT_FILE
        path = self.partition.path(name)
        if not self.partition.fs.exists(path) or not self.repair_facts.is_whole:
            return
        rows = "append times are verified by their rows instead"
        remedy = f"{rows}; {REPAIR_COMMAND} resets the checkpoint"
        checkpoint = AppendTimeCheckpoint.read(self.partition.fs, self.partition.directory)
        if checkpoint is None:
            yield derived(path, "it can't be read", remedy=remedy)
            return
        if checkpoint.last_base_offset < 0:
            return
        expected = (checkpoint.last_fingerprint, checkpoint.end_offset)
        if self.replay.watched != expected:
            damage = (
                f"it names a batch that begins at offset {checkpoint.last_base_offset} and ends"
                f" before offset {checkpoint.end_offset}; the log has a different batch there, or"
                " none"
            )
            yield derived(path, damage, severity=Severity.WARNING, remedy=remedy)

    def _check_metadata(self) -> Iterator[Finding]:
        path = self.partition.path(files.PARTITION_METADATA_FILE)
        expected_id = files.encode_topic_id(self.partition.topic_id)
        try:
            topic_id = text_files.read_partition_metadata(
                self.partition.fs, self.partition.directory
            )
        except CorruptData as error:
            remedy = f"rewrite it: `version: 0`, then `topic_id: {expected_id}`"
            yield Finding(
                path,
                error.reason,
                remedy if self.partition.topic_id.int else "restore it from a backup",
            )
            return
        if topic_id is not None and topic_id != self.partition.topic_id:
            damage = (
                f"it has topic id {files.encode_topic_id(topic_id)}, the topic's is {expected_id}"
            )
            yield Finding(
                path,
                damage,
                "this partition belongs to another topic: restore this topic's partition",
            )

    def _check_facts(self) -> Iterator[Finding]:
        """Yield findings in primary files whose damage does not affect reads of records."""
        for name, decode, effect in _FACT_FILES:
            remedy = effect
            try:
                data = self.partition.read(name)
                problems = [] if data is None else decode(data)
            except CorruptFile as error:
                problems = [error.reason]
            except UnsupportedVersion as error:
                problems, remedy = [error.reason], "use the release that wrote it"
            for problem in problems:
                yield warning(self.partition.path(name), problem, remedy)

    def _check_tier_record(self) -> Iterator[Finding]:
        """Yield findings if `TIER_FILE` is damaged, may have been lost, or shows lost offsets.

        Without this file, offsets before the local log are not visible.
        """
        config, path = self.partition.config, self.partition.path(TIER_FILE)
        restore = restore_command(self.partition.directory)
        try:
            content = read_record_bytes(self.partition.fs, self.partition.directory)
            if content is not None:
                yield from self._check_holes(decode_record(content))
        except CorruptFile as error:
            yield Finding(path, error.reason, f"{restore} rebuilds it from the store")
            return
        except UnsupportedVersion as error:
            yield Finding(path, error.reason, "use the release that wrote it")
            return
        has_tier = config.remote_storage_enable and config.tidelog_tier_url
        if content is None and has_tier and self._first_offset:
            damage = (
                "there is no such file, although the topic has a tier: if the store has records"
                f" before offset {self._first_offset}, they are not visible"
            )
            remedy = (
                f"{restore} makes them visible; if the tier has no records yet,"
                f" {restore.replace(' --restore', '')} writes the file"
            )
            yield warning(path, damage, remedy)

    def _check_holes(self, record: TierRecord) -> Iterator[Finding]:
        """Yield a finding for each gap of lost offsets in the tier, or between tier and local log.

        Readers also report these gaps (`storage.tier.tier_record`).
        """
        partition, rows = self.partition, record.manifest.segments
        local = [base for base in self._bases if base >= record.local_start_offset][:1]
        if local:
            rows = tuple(row for row in rows if row.end_offset <= local[0])
        ends = [*(row.base_offset for row in rows[1:]), *local]
        for row, end in zip(rows, ends, strict=False):
            start = max(row.end_offset, record.log_start_offset, partition.log_start)
            if row.is_dense and start < end:
                is_local = row is rows[-1]
                name = log_files.log_file_name(end) if is_local else TIER_FILE
                place = "before it" if is_local else f"before segment {end} of the tier"
                yield from self._lost_before(start, end, partition.path(name), place)


def _history_problems(data: bytes) -> list[str]:
    CompactionHistory.decode(data)
    return []


# Primary files that hold facts about segments: the file's name, a function that returns the
# problems in it, and the effect of damage.
_FACT_FILES: Final[tuple[tuple[str, Callable[[bytes], list[str]], str], ...]] = (
    (
        SEGMENT_NOTES_FILE,
        lambda data: decode_notes(data)[1],
        "why and when these segments were rolled is unknown; retention uses their file times",
    ),
    (
        DELETION_HISTORY_FILE,
        lambda data: decode_events(data)[1],
        "which rules deleted earlier offsets is unknown",
    ),
    (
        HISTORY_FILE,
        _history_problems,
        "tables as of past times can't be determined until the next compaction",
    ),
)


def _offsets_of(names: list[str], suffix: str) -> list[int]:
    parsed = (log_files.parse_file_name(name) for name in names)
    return sorted(file_name[0] for file_name in parsed if file_name and file_name[1] == suffix)
