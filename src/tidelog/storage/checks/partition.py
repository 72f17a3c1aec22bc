"""The check of one partition: every segment, then what speaks of the whole log.

Segments are gone through from the first to the last, since what producers did and which epochs
wrote is known only in order.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from tidelog.errors import CorruptData, CorruptFile
from tidelog.storage import files, text_files
from tidelog.storage.checks.epochs import check_epochs
from tidelog.storage.checks.findings import Finding, Severity, derived, later, note
from tidelog.storage.checks.log_facts import LogFacts
from tidelog.storage.checks.log_file import Course, EpochSpan
from tidelog.storage.checks.names import check_names
from tidelog.storage.checks.place import PartitionPlace
from tidelog.storage.checks.segment_files import SegmentCheck
from tidelog.storage.checks.snapshots import check_snapshot_bytes, compare_snapshot
from tidelog.storage.compaction_history import HISTORY_FILE, CompactionHistory
from tidelog.storage.gaps import GAP_REASON, was_never_cleaned
from tidelog.storage.producers import ProducerStates
from tidelog.storage.segment_notes import SEGMENT_NOTES_FILE, decode_notes
from tidelog.storage.trust import AppendTimeCheckpoint
from tidelog.storage.txn_index import AbortedTxn
from tidelog.types import INT64_MAX


@dataclass(slots=True)
class Learned:
    """What a check leaves for a repair.

    Attributes:
        whole: Base offsets of segments whose log is sound, so that their indexes can be built.
        aborted: The entries of each segment's index of aborted transactions, where they are sure.
        snapshots: What the file of each producer snapshot would hold, where that is sure.
        log_end: Offset behind the last sound batch.
        is_whole: Whether every segment's log is sound.
        epochs: The leader epochs of the log's batches.
        is_sure: Whether no log has damage, so that what is derived from all of them is right.
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
        place: The partition.
        learned: What was learned for a repair; complete once all findings were taken.
        course: Producers and epochs at the end of what was read.
    """

    def __init__(self, place: PartitionPlace) -> None:
        self.place = place
        self.learned = Learned()
        self.course = Course(at_batch=self._compare_snapshots, epochs=self.learned.epochs)
        self._snapshots: list[int] = []
        self._snapshot_findings: list[Finding] = []
        self._first_offset = 0

    def findings(self) -> Iterator[Finding]:
        """All that is wrong in the partition's directory.

        Raises:
            OSError: A call failed: what can't be read can't be judged.
        """
        names = self.place.file_names()
        bases = _offsets_of(names, files.LOG_SUFFIX)
        self._snapshots = _offsets_of(names, files.SNAPSHOT_SUFFIX)
        self._begin(bases)
        for base, end in itertools.pairwise([*bases, INT64_MAX]):
            yield from self._check_segment(base, end)
        for finding in self._end(bases):
            yield finding if self.learned.is_sure else later(finding)
        yield from check_names(self.place, set(bases))

    # -- before and behind the segments ------------------------------------------------------

    def _begin(self, bases: list[int]) -> None:
        """Take the producers that the log begins with; look for the checkpoint's batch."""
        self._first_offset = bases[0] if bases else 0
        if self._first_offset:
            self.course.is_exact = False
            path = self._snapshot_path(self._first_offset)
            data = self.place.read(files.file_name(self._first_offset, files.SNAPSHOT_SUFFIX))
            if data is not None and check_snapshot_bytes(path, data) is None:
                self.course.states = ProducerStates.decode_snapshot(data)
                self.course.is_exact = True
        checkpoint = AppendTimeCheckpoint.read(self.place.fs, self.place.directory)
        if checkpoint is not None:
            self.course.watched_offset = checkpoint.last_base_offset

    def _check_segment(self, base: int, end: int) -> Iterator[Finding]:
        check = SegmentCheck(self.place, base, end, self.course)
        try:
            for finding in check.findings():
                if finding.path == check.facts.path and finding.severity is Severity.ERROR:
                    self.learned.is_sure = False
                yield finding
        except FileNotFoundError:
            path = self.place.path(files.log_file_name(base))
            yield note(path, "it went while it was looked at", "look again")
            self.course.is_exact = self.learned.is_whole = False
            return
        learned, facts = self.learned, check.facts
        learned.log_end = facts.next_offset
        learned.is_whole &= facts.is_whole
        if facts.is_whole:
            learned.whole.add(base)
            yield from self._check_gap(facts, end)
        if self.course.is_exact:
            learned.aborted[base] = facts.aborted
        yield from self._snapshot_findings
        self._snapshot_findings.clear()

    def _check_gap(self, facts: LogFacts, end: int) -> Iterator[Finding]:
        """What is missing between a segment and the next one, unless something explains it."""
        place = self.place
        if facts.is_last or facts.has_gaps or not facts.next_offset < end > place.log_start:
            return
        if not was_never_cleaned(place.fs, place.directory, place.config, place.name):
            return
        yield Finding(
            path=place.path(files.log_file_name(end)),
            severity=Severity.ERROR,
            damage=f"offsets {facts.next_offset} to {end - 1} before it: {GAP_REASON}",
            remedy="put the files back from a copy; readers report these offsets as lost",
            offset=facts.next_offset,
        )

    def _end(self, bases: list[int]) -> Iterator[Finding]:
        if not bases:
            self.learned.log_end = self.place.log_start
        self._compare_snapshots(self.learned.log_end)
        yield from self._snapshot_findings
        for offset in self._snapshots:
            path = self._snapshot_path(offset)
            damage = f"it is of an offset beyond the log end {self.learned.log_end}"
            yield derived(path, damage, severity=Severity.WARNING, remedy="--repair removes it")
        yield from self._check_epochs()
        yield from self._check_append_time_checkpoint()
        yield from self._check_metadata()
        yield from self._check_notes()
        yield from self._check_history()

    # -- snapshots ---------------------------------------------------------------------------

    def _snapshot_path(self, offset: int) -> str:
        return self.place.path(files.file_name(offset, files.SNAPSHOT_SUFFIX))

    def _compare_snapshots(self, next_offset: int) -> None:
        """Compare the snapshots of offsets up to the one that comes next in the log."""
        while self._snapshots and self._snapshots[0] <= next_offset:
            offset = self._snapshots.pop(0)
            self._snapshot_findings += self._check_snapshot(offset)

    def _check_snapshot(self, offset: int) -> list[Finding]:
        path, course = self._snapshot_path(offset), self.course
        try:
            data = self.place.read(files.file_name(offset, files.SNAPSHOT_SUFFIX))
        except CorruptFile as error:
            return [derived(path, error.reason)]
        if data is None:
            return []
        if course.is_exact:
            self.learned.snapshots[offset] = course.states.encode_snapshot()
        problem = check_snapshot_bytes(path, data)
        if problem is not None:
            return [problem if course.is_exact else _hopeless(problem)]
        return list(
            compare_snapshot(
                path,
                data,
                course.states,
                first_offset=self._first_offset,
                is_exact=course.is_exact,
            )
        )

    # -- text files --------------------------------------------------------------------------

    def _check_epochs(self) -> Iterator[Finding]:
        name = files.LEADER_EPOCH_CHECKPOINT_FILE
        path = self.place.path(name)
        try:
            data = self.place.read(name)
        except CorruptFile as error:
            yield derived(path, error.reason)
            return
        spans = self.course.epochs if self.learned.is_whole else []
        log_end = self.learned.log_end if self.learned.is_whole else INT64_MAX
        log_start = max(self.place.log_start, self._first_offset)
        yield from check_epochs(path, data, spans, log_start=log_start, log_end=log_end)

    def _check_append_time_checkpoint(self) -> Iterator[Finding]:
        name = files.APPEND_TIME_CHECKPOINT_FILE
        path = self.place.path(name)
        if not self.place.fs.exists(path) or not self.learned.is_whole:
            return
        remedy = (
            "times of appends are proven by their rows instead; --repair lets it vouch for none"
        )
        checkpoint = AppendTimeCheckpoint.read(self.place.fs, self.place.directory)
        if checkpoint is None:
            yield derived(path, "it can't be read", remedy=remedy)
            return
        if checkpoint.last_base_offset < 0:
            return
        expected = (checkpoint.last_fingerprint, checkpoint.end_offset)
        if self.course.watched != expected:
            damage = (
                f"it names the batch at offset {checkpoint.last_base_offset}, up to"
                f" {checkpoint.end_offset}; the log has another one there, or none"
            )
            yield derived(path, damage, severity=Severity.WARNING, remedy=remedy)

    def _check_metadata(self) -> Iterator[Finding]:
        path = self.place.path(files.PARTITION_METADATA_FILE)
        known = files.encode_topic_id(self.place.topic_id)
        try:
            found = text_files.read_partition_metadata(self.place.fs, self.place.directory)
        except CorruptData as error:
            remedy = f"write it anew: `version: 0`, then `topic_id: {known}`"
            yield _error(path, error.reason, remedy if self.place.topic_id.int else "restore it")
            return
        if found is not None and found != self.place.topic_id:
            damage = f"topic id {files.encode_topic_id(found)}, the topic's is {known}"
            yield _error(path, damage, "this partition belongs to another topic: restore the right")

    def _check_notes(self) -> Iterator[Finding]:
        """Why and when segments were rolled: primary, but no answer about records rests on it."""
        path = self.place.path(SEGMENT_NOTES_FILE)
        remedy = "why and when these segments were rolled is unknown; their file times count again"
        try:
            data = self.place.read(SEGMENT_NOTES_FILE)
            problems = [] if data is None else decode_notes(data)[1]
        except CorruptFile as error:
            problems = [error.reason]
        for problem in problems:
            yield Finding(path=path, severity=Severity.WARNING, damage=problem, remedy=remedy)

    def _check_history(self) -> Iterator[Finding]:
        """What compaction has taken: primary, only tables of the past rest on it."""
        path = self.place.path(HISTORY_FILE)
        try:
            data = self.place.read(HISTORY_FILE)
            if data is not None:
                CompactionHistory.decode(data)
        except CorruptFile as error:
            remedy = "tables of the past are unknown until the next compaction"
            yield Finding(path=path, severity=Severity.WARNING, damage=error.reason, remedy=remedy)


def _offsets_of(names: list[str], suffix: str) -> list[int]:
    parsed = (files.parse_file_name(name) for name in names)
    return sorted(found[0] for found in parsed if found and found[1] == suffix)


def _hopeless(finding: Finding) -> Finding:
    """A damaged snapshot of producers that the log no longer tells of."""
    return Finding(
        path=finding.path,
        severity=finding.severity,
        damage=finding.damage,
        remedy="opening uses an older one; what only this one knew of producers is lost",
        position=finding.position,
    )


def _error(path: str, damage: str, remedy: str) -> Finding:
    return Finding(path=path, severity=Severity.ERROR, damage=damage, remedy=remedy)
