"""Rebuilds files that a check found damaged, from a log that the check found sound.

`repair` replaces derived files: indexes, snapshots, zone maps, checkpoints. A repair writes `.log`
and `.appendtime` files only to set aside damage that prevents opening the partition for writing
(`set_aside`). Each file is replaced by a new file and a rename, so after a crash the old or the new
file exists. The caller holds the directory's lock.
"""

from collections.abc import Iterable
from dataclasses import field
from functools import partial

from tidelog.env import Env, HeldHere, LockHandle
from tidelog.errors import CorruptData, CorruptFile, DirectoryLocked, UnsupportedCompression
from tidelog.lazy_dataclass import dataclass
from tidelog.storage import files, log_files, text_files
from tidelog.storage.checks.directory_check import (
    OFFSET_CHECKPOINTS,
    DirectoryCheck,
    rebuild_offset_checkpoint,
)
from tidelog.storage.checks.findings import CheckedPartition, Finding
from tidelog.storage.checks.partition_check import RepairFacts
from tidelog.storage.checks.set_aside import DAMAGES_MAX, mend
from tidelog.storage.checks.sidecar_checks import rebuild_epochs
from tidelog.storage.log.log_reader import LogReader
from tidelog.storage.segment import zone_map_files
from tidelog.storage.segment.append_time_trust import AppendTimeCheckpoint
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.index_loading import ordered_batches, rebuild_indexes
from tidelog.storage.segment.txn_index import TxnIndex
from tidelog.types import Buffer, TopicPartition


def lock(env: Env, path: str) -> LockHandle:
    """Acquire the lock of a directory to repair.

    Raises:
        DirectoryLocked: The directory is open for writing already.
    """
    name = f"{path}/{files.LOCK_FILE}"
    try:
        return env.files.lock(name)
    except BlockingIOError as error:
        if isinstance(error, HeldHere):
            who, remedy = "this process has it open for writing already", "close it there"
        else:
            who = f"another process has it open for writing (it holds {name})"
            remedy = "stop that process"
        raise DirectoryLocked(
            f"{path}: {who}, so nothing can be repaired; {remedy}, or check without --repair"
        ) from error


def repair(env: Env, check: DirectoryCheck, findings: Iterable[Finding]) -> list[str]:
    """Rebuild the files of all repairable findings; return the failures, one line each.

    Args:
        env: Files, clock and randomness.
        check: The check that made the findings, after it has finished.
        findings: Findings of this check.

    Raises:
        OSError: A system call failed; each file has its old or its new content.
    """
    paths = {finding.path for finding in findings if finding.repairable}
    problems: list[str] = []
    for name in check.refused:
        partition = check.partitions[name]
        damage = mend(env, partition, partial(_save_recovery_point, check, name))
        if damage is not None:
            problems.append(
                f"{damage}; {DAMAGES_MAX} damaged ranges were set aside before it: repair again, or"
                " restore the partition from a copy"
            )
    for name, partition in check.partitions.items():
        names = {path.rpartition("/")[2] for path in paths if _is_in(path, partition.directory)}
        if names and name in check.repair_facts and name not in check.refused:
            PartitionRepair(env, partition, check.repair_facts[name], names, problems).run()
    for checkpoint in OFFSET_CHECKPOINTS:
        path = f"{check.path}/{checkpoint}"
        if path in paths:
            text = rebuild_offset_checkpoint(check.fs, path, check.log_ends())
            files.write_atomically(check.fs, path, text)
    return problems


def _save_recovery_point(check: DirectoryCheck, name: TopicPartition, offset: int) -> None:
    path = f"{check.path}/{files.RECOVERY_POINT_CHECKPOINT_FILE}"
    try:
        points = text_files.read_offset_checkpoint(check.fs, path)
    except CorruptFile:
        points = {}  # partitions without a recovery point are recovered from their start
    points[name] = max(points.get(name, 0), offset)
    text_files.write_offset_checkpoint(check.fs, path, dict(sorted(points.items())))


def _is_in(path: str, directory: str) -> bool:
    return path.rpartition("/")[0] == directory


@dataclass(slots=True)
class PartitionRepair:
    """The repair of one partition.

    Attributes:
        env: Files, clock and randomness.
        partition: The partition.
        repair_facts: Facts from the check of the partition.
        names: Names of the files to rebuild.
        problems: Receives a line for each file that could not be rebuilt.
    """

    env: Env
    partition: CheckedPartition
    repair_facts: RepairFacts
    names: set[str]
    problems: list[str]
    _bases: set[int] = field(init=False)
    _rebuilt: dict[int, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parsed = map(log_files.parse_file_name, self.partition.file_names())
        self._bases = {name[0] for name in parsed if name and name[1] == log_files.LOG_SUFFIX}

    def run(self) -> None:
        """Rebuild the files, zone maps last, because they store checksums of the other files."""
        zones: set[int] = set()
        for name in sorted(self.names):
            parsed = log_files.parse_file_name(name)
            if parsed is None:
                if self.repair_facts.is_sure:
                    self._repair_text(name)
            elif parsed[1] == log_files.ZONES_SUFFIX and parsed[0] in self._bases:
                zones.add(parsed[0])
            else:
                self._repair_file(name, *parsed)
        with_map = {base for base in self._rebuilt if self._exists(base, log_files.ZONES_SUFFIX)}
        if zones | with_map:
            self._build_zones(zones | with_map)

    def _exists(self, base: int, suffix: str) -> bool:
        return self.partition.fs.exists(self.partition.path(log_files.file_name(base, suffix)))

    def _repair_file(self, name: str, base: int, suffix: str) -> None:
        if suffix == log_files.SNAPSHOT_SUFFIX:
            self._repair_snapshot(name, base)
        elif base not in self._bases:
            self._remove(name)
        elif suffix in log_files.INDEX_SUFFIXES:
            try:
                built = self._built_index(base, suffix)
            except CorruptData as error:  # readers build an index of the sound part in memory
                self._fail(name, str(error))
                return
            self._replace(name, built)
            self._rebuilt.setdefault(base, set()).add(suffix)
        elif suffix == log_files.TXN_INDEX_SUFFIX:
            self._repair_txn_index(name, base)

    def _repair_snapshot(self, name: str, offset: int) -> None:
        if offset in self.repair_facts.snapshots and self.repair_facts.is_sure:
            self._replace(name, self.repair_facts.snapshots[offset])
        elif offset > self.repair_facts.log_end:
            self._remove(name)

    def _repair_txn_index(self, name: str, base: int) -> None:
        entries = self.repair_facts.aborted.get(base)
        if entries is None:
            self._fail(
                name, "it depends on earlier records that were compacted away or are damaged"
            )
        elif entries:
            self._replace(name, TxnIndex(base, entries).encoded)
        elif self.partition.fs.exists(self.partition.path(name)):
            self._remove(name)
        self._rebuilt.setdefault(base, set()).add(log_files.TXN_INDEX_SUFFIX)

    def _built_index(self, base: int, suffix: str) -> memoryview:
        """Return the bytes of an index that is rebuilt from the log by Kafka's recovery rule."""
        path = self.partition.path(log_files.log_file_name(base))
        file = self.partition.fs.open(path)
        try:
            batches = ordered_batches(file, path, base, file.size())
            indexes, damage = rebuild_indexes(self.partition.config, base, batches)
        finally:
            file.close()
        if damage is not None:
            raise damage
        return indexes[log_files.INDEX_SUFFIXES.index(suffix)].encoded

    def _repair_text(self, name: str) -> None:
        partition, repair_facts = self.partition, self.repair_facts
        if name == files.LEADER_EPOCH_CHECKPOINT_FILE:
            text = rebuild_epochs(
                partition.read(name),
                repair_facts.epochs,
                log_start=max(partition.log_start, min(self._bases, default=0)),
                log_end=repair_facts.log_end,
            )
            self._replace(name, text)
        elif name == files.APPEND_TIME_CHECKPOINT_FILE:
            AppendTimeCheckpoint(0, -1, 0).write(partition.fs, partition.directory)

    # -- zone maps ---------------------------------------------------------------------------

    def _build_zones(self, bases: set[int]) -> None:
        with self.partition.open_context(self.env) as context:
            reader = LogReader.open(context, log_start_offset=self.partition.log_start)
            try:
                for segment in reader.finished_segments():
                    if segment.base_offset in bases:
                        self._build_map(segment)
            finally:
                reader.close()

    def _build_map(self, segment: ClosedSegment) -> None:
        name = log_files.file_name(segment.base_offset, log_files.ZONES_SUFFIX)
        try:
            old = zone_map_files.unchanged_map(segment)
            renewed = self._rebuilt.get(segment.base_offset, ())
            self._replace(name, zone_map_files.build(segment, old=old, renewed=renewed))
        except (CorruptData, UnsupportedCompression) as error:
            self._fail(name, str(error))

    # -- files -------------------------------------------------------------------------------

    def _replace(self, name: str, content: Buffer) -> None:
        files.write_atomically(self.partition.fs, self.partition.path(name), content)

    def _remove(self, name: str) -> None:
        self.partition.fs.remove(self.partition.path(name))
        self.partition.fs.sync_dir(self.partition.directory)

    def _fail(self, name: str, reason: str) -> None:
        self.problems.append(f"{self.partition.path(name)}: can't be rebuilt: {reason}")
