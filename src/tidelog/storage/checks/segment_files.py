"""The check of one segment: the log file first, then each file beside it against the log."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from tidelog.env import File
from tidelog.errors import CorruptFile
from tidelog.record.coding import crc32c
from tidelog.storage import files
from tidelog.storage.checks.append_times import check_append_times
from tidelog.storage.checks.findings import Finding, Severity, derived, later
from tidelog.storage.checks.indexes import (
    IndexRules,
    check_offset_index,
    check_time_index,
    last_indexed,
)
from tidelog.storage.checks.log_facts import LogFacts
from tidelog.storage.checks.log_file import Course, LogCheck
from tidelog.storage.checks.place import PartitionPlace
from tidelog.storage.checks.txn import check_txn_index
from tidelog.storage.checks.zone_maps import Beside, check_zone_map
from tidelog.storage.zones import FileSum
from tidelog.types import INT64_MAX

_BESIDE: Final = (
    files.OFFSET_INDEX_SUFFIX,
    files.TIME_INDEX_SUFFIX,
    files.TXN_INDEX_SUFFIX,
    files.APPEND_TIME_SUFFIX,
)


@dataclass(slots=True)
class SegmentCheck:
    """The check of one segment's files.

    Attributes:
        place: The partition.
        base_offset: The segment's base offset.
        end_offset: Base offset of the next segment; no bound for the last one.
        course: What earlier segments left; this one adds to it.
        facts: What the log file says, once it was read.
    """

    place: PartitionPlace
    base_offset: int
    end_offset: int
    course: Course
    facts: LogFacts = field(init=False)
    _doubted: set[str] = field(default_factory=set)
    _sums: dict[str, FileSum] = field(default_factory=dict)
    _damaged: list[tuple[int, int]] = field(default_factory=list)
    _indexed_to: int = -1

    def findings(self) -> Iterator[Finding]:
        """All that is wrong in the segment's files.

        Raises:
            FileNotFoundError: The log file has gone meanwhile.
            OSError: A call failed.
        """
        path = self.path(files.LOG_SUFFIX)
        file = self.place.fs.open(path)
        try:
            is_last = self.end_offset == INT64_MAX
            self.facts = LogFacts(path, self.base_offset, file.size(), is_last)
            yield from self._check_log(file)
            yield from self.judged(self.check_beside(file))
        finally:
            file.close()

    def path(self, suffix: str) -> str:
        """Path of one of the segment's files."""
        return self.place.path(files.file_name(self.base_offset, suffix))

    def _check_log(self, file: File) -> Iterator[Finding]:
        reached = 0

        def progress(position: int) -> None:
            nonlocal reached
            self.place.options.progress(position - reached)
            reached = position

        check = LogCheck(
            file,
            self.facts,
            self.course,
            end_offset=self.end_offset,
            was_clean=self.place.was_clean,
            is_refused=self.place.is_refused,
            body_check=self.place.options.body_check,
            progress=progress,
        )
        for finding in check.findings():
            position = finding.position or 0
            self._damaged.append((position, max(position + 1, check.resumes_at)))
            yield finding

    def check_beside(self, file: File) -> Iterator[Finding]:
        """What is wrong in the files beside the log, whose facts are known."""
        self._doubted.clear()
        self._sums.clear()
        self._indexed_to = -1
        for suffix in _BESIDE:
            try:
                data = self._read(suffix)
            except CorruptFile as error:
                yield self._noted(derived(self.path(suffix), error.reason))
                continue
            for finding in self._check_sidecar(suffix, data):
                yield self._noted(finding)
        yield from map(self._noted, self._check_zones(file))

    def _read(self, suffix: str) -> bytes | None:
        # No sidecar is larger than its log, but where there is hardly any log.
        limit = max(self.facts.size_bytes, files.SMALL_FILE_LIMIT_BYTES)
        data = self.place.read(files.file_name(self.base_offset, suffix), limit=limit)
        if data is not None:
            self._sums[suffix] = FileSum(len(data), crc32c(data))
        return data

    def _check_sidecar(self, suffix: str, data: bytes | None) -> Iterator[Finding]:
        place, facts, path = self.place, self.facts, self.path(suffix)
        if suffix == files.TXN_INDEX_SUFFIX:
            return check_txn_index(path, data or b"", facts, is_exact=self.course.is_exact)
        if suffix == files.APPEND_TIME_SUFFIX:
            if data is None:
                return iter(())
            return check_append_times(path, data, facts, place.topic_id, was_clean=place.was_clean)
        if data is None:
            return iter([derived(path, "missing", severity=Severity.WARNING)])
        if suffix == files.OFFSET_INDEX_SUFFIX:
            self._indexed_to = last_indexed(data, facts)
            return check_offset_index(path, data, facts, self._rules())
        return check_time_index(path, data, facts, self._rules(), self._indexed_to)

    def _rules(self) -> IndexRules:
        place = self.place
        interval = None if place.is_foreign else place.config.index_interval_bytes
        return IndexRules(interval_bytes=interval, was_clean=place.was_clean)

    def _check_zones(self, file: File) -> Iterator[Finding]:
        path = self.path(files.ZONES_SUFFIX)
        data = self._read(files.ZONES_SUFFIX)
        if data is None:
            if not (self.place.is_foreign or self.facts.is_last) and self.facts.size_bytes:
                damage = "missing: changes outside of the batches' own checksums can't be seen"
                # A writer that is at work, or was stopped hard, may not have come to it yet.
                severity = Severity.WARNING if self.place.was_clean else Severity.NOTE
                yield derived(path, damage, severity=severity)
            return
        beside = Beside(
            read=file.pread,
            facts=self.facts,
            end_offset=self.end_offset,
            topic_id=self.place.topic_id.bytes,
            sums=self._sums,
            doubted=frozenset(self._doubted),
            damaged=self._damaged,
        )
        yield from check_zone_map(path, data, beside)

    def _noted(self, finding: Finding) -> Finding:
        self._doubted.add(finding.path)
        return finding

    def judged(self, beside: Iterable[Finding]) -> Iterator[Finding]:
        """Findings beside the log, which promise no repair where the log must be put right first.

        A zone map that proves damage in the log is the only witness of what was there.
        """
        found = list(beside)
        path = self.facts.path
        is_witness = any(each.path == path and each.severity is Severity.ERROR for each in found)
        if self.facts.is_whole and not is_witness:
            yield from found
            return
        yield from map(later, found)
