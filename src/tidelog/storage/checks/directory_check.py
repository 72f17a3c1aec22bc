"""Checks the selected partitions of a directory, and if all are selected, the files at its top.

If a file can't be read (permissions, a failing disk), the check raises OSError, or adds the failure
to `DirectoryCheck.unseen`. So a directory is sound if the check raises no error, every finding is a
note, and `unseen` is empty.
"""

import posixpath
import shlex
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Final

from tidelog.amounts import bytes_text, plural
from tidelog.config import TopicConfig
from tidelog.env import Clock, FileSystem
from tidelog.errors import (
    CorruptFile,
    DamagedLog,
    InvalidRequest,
    StorageFailure,
    UnknownTopic,
    UnsupportedVersion,
    partitions_text,
    unknown_partition,
)
from tidelog.lazy_dataclass import dataclass
from tidelog.storage import commits, files, log_files, text_files
from tidelog.storage import text_files as meta_properties
from tidelog.storage.checks.findings import (
    REPAIR_COMMAND,
    CheckedPartition,
    CheckOptions,
    Finding,
    Severity,
    derived,
    error_text,
    note,
    warning,
)
from tidelog.storage.checks.metadata_check import check_metadata
from tidelog.storage.checks.partition_check import PartitionCheck, RepairFacts
from tidelog.storage.checks.set_aside import Parting, find_parting
from tidelog.storage.commits import WRITERS_FILE, read_marks
from tidelog.storage.directory.broker_files import (
    CLUSTER_FILE,
    GROUPS_FILE,
    METADATA_FILE,
    PRODUCER_IDS_FILE,
    read_group_offsets,
    read_next,
)
from tidelog.storage.directory.open_partitions import NO_TOPIC_ID
from tidelog.storage.directory.topic_admin import find_settled_topics
from tidelog.storage.directory.topic_registry import (
    STRAY_ADVICE,
    TopicInfo,
    absent_numbers,
    find_leftovers,
    find_strays,
    stray_problem,
    unknown_topic,
)
from tidelog.storage.files import TOPICS_FILE
from tidelog.storage.open_files import as_storage_failure
from tidelog.storage.segment.log_end import NOTHING_RECORDED, RecordedEnd
from tidelog.storage.tier.tier_files import TIER_FILE
from tidelog.storage.tier.tier_record import DELETED_FILE, restore_advice
from tidelog.types import TopicPartition

_REMOVED: Final = f"{REPAIR_COMMAND} removes unreadable lines and lines with impossible offsets"
_REMEDY: Final = {
    files.LOG_START_CHECKPOINT_FILE: (
        f"{_REMOVED}; in partitions without a line, deleted records reappear until they are deleted"
        " again"
    ),
}

_ANY: Final = f"{_REMOVED}; the offsets of partitions without a line are then determined again"

# The log end of each partition, None if unknown. A partition's offset in a checkpoint must not be
# larger than the partition's log end.
LogEnds = Mapping[TopicPartition, int | None]


def _can_be(offset: int, log_end: int | None) -> bool:
    return offset >= 0 and (log_end is None or offset <= log_end)


def check_offset_checkpoint(fs: FileSystem, path: str, log_ends: LogEnds) -> Iterator[Finding]:
    """Yield findings in a checkpoint file; yield none if the file is missing."""
    remedy = _REMEDY.get(path.rpartition("/")[2], _ANY)
    try:
        offsets = text_files.read_offset_checkpoint(fs, path)
    except CorruptFile as error:
        yield derived(path, error.reason, position=error.at, remedy=remedy)
        return
    for name, offset in offsets.items():
        if name in log_ends and not _can_be(offset, log_ends[name]):
            damage = f"{name}: offset {offset} is after the log end, offset {log_ends[name]}"
            yield derived(path, damage, severity=Severity.WARNING, offset=offset, remedy=remedy)


def rebuild_offset_checkpoint(fs: FileSystem, path: str, log_ends: LogEnds) -> bytes:
    """Return a checkpoint's text without unreadable lines, unknown partitions and wrong offsets."""
    data = files.read_decoded(fs, path, bytes, b"")
    offsets: dict[TopicPartition, int] = {}
    for line in data.decode("utf-8", "replace").split("\n")[2:]:
        entry = _read_line(line)
        if entry is not None and entry[0] in log_ends and _can_be(entry[1], log_ends[entry[0]]):
            offsets[entry[0]] = entry[1]
    return text_files.encode_offset_checkpoint(dict(sorted(offsets.items())))


def _read_line(line: str) -> tuple[TopicPartition, int] | None:
    try:
        topic, partition, offset = line.split()
        number = text_files.parse_number(partition, "partition")
        return TopicPartition(topic, number), text_files.parse_number(offset, "offset")
    except (ValueError, CorruptFile):
        return None


OFFSET_CHECKPOINTS: Final = (
    files.RECOVERY_POINT_CHECKPOINT_FILE,
    files.LOG_START_CHECKPOINT_FILE,
    files.HIGH_WATERMARK_CHECKPOINT_FILE,
    files.CLEANER_CHECKPOINT_FILE,
)

# Files at the top of the directory that the check decodes, without checking their content further.
# Each entry has the file's name, its decoder, and the remedy if the decoder raises an error.
_BROKER_FILES: Final[tuple[tuple[str, Callable[[FileSystem, str], object], str], ...]] = (
    (GROUPS_FILE, read_group_offsets, "remove it; `tidelog follow` writes a new one"),
    (
        WRITERS_FILE,
        read_marks,
        "restore it; without it, batches that a stream retries are appended again",
    ),
    (
        PRODUCER_IDS_FILE,
        read_next,
        "remove it; the broker then continues with far larger producer ids",
    ),
)

# Socket of `tidelog.control`. The process that holds the directory's lock creates and removes this
# socket; after a crash, the socket remains.
CONTROL_SOCKET_FILE: Final = "tidelog-control.sock"

_KNOWN: Final = frozenset(
    (
        *OFFSET_CHECKPOINTS,
        files.LOCK_FILE,
        files.CLEAN_SHUTDOWN_FILE,
        meta_properties.META_PROPERTIES_FILE,
        TOPICS_FILE,
        GROUPS_FILE,
        WRITERS_FILE,
        PRODUCER_IDS_FILE,
        CLUSTER_FILE,
        METADATA_FILE,
        DELETED_FILE,
        CONTROL_SOCKET_FILE,
        files.RESERVE_FILE,
        text_files.ACCEPTED_CLOCK_FILE,
    )
)

_NEEDED_PROPERTIES: Final = ("version", "cluster.id", "node.id")


@dataclass(frozen=True, slots=True)
class Selection:
    """Scope of a check: the whole directory, one topic, or one partition of a topic."""

    topic: str | None = None
    partition: int | None = None

    def __str__(self) -> str:
        """Return the topic or partition as commands name it, such as `flights:0`."""
        number = "" if self.partition is None else f":{self.partition}"
        return f"{self.topic or 'all topics'}{number}"

    def takes(self, name: TopicPartition) -> bool:
        """Return whether a partition is selected."""
        return self.topic in (None, name.topic) and self.partition in (None, name.partition)


@dataclass(slots=True)
class DirectoryCheck:
    """The check of a directory.

    Attributes:
        fs: The directory's file system.
        path: The directory's path.
        clock: Wall clock; it shows whether the topics changed so recently that a broker may still
        be adding partitions.
        selection: Scope of the check; files at the top are checked only if no topic is selected.
        options: Options of the check; they can be replaced before `findings` is called.
        repair_facts: For each checked partition, the facts that a repair needs.
        partitions: The selected partitions.
        refused: For each partition that can't be opened for writing, the plan by which a repair
            splits its damaged log file.
        unseen: Read failures: one for each partition that could not be checked completely.
    """

    fs: FileSystem
    path: str
    clock: Clock = field(kw_only=True)
    selection: Selection = field(default_factory=Selection)
    options: CheckOptions = field(default_factory=CheckOptions)
    repair_facts: dict[TopicPartition, RepairFacts] = field(default_factory=dict)
    partitions: dict[TopicPartition, CheckedPartition] = field(default_factory=dict)
    refused: dict[TopicPartition, Parting] = field(default_factory=dict)
    unseen: list[StorageFailure] = field(default_factory=list)
    _topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    _left: frozenset[TopicPartition] = frozenset()
    _strays: list[TopicPartition] = field(default_factory=list)

    def load(self) -> list[Finding]:
        """Find the partitions; return findings on `TOPICS_FILE`.

        Raises:
            InvalidRequest: The directory does not exist, is a file, is the directory of one
                partition, or has no partition, no `TOPICS_FILE` and no `METADATA_FILE`.
            UnknownTopic: The selected topic or partition does not exist.
            OSError: The directory can't be read.
        """
        if not self.fs.exists(self.path):
            raise InvalidRequest(f"{self.path}: no such directory")
        if not self.fs.stat(self.path).is_dir:
            raise InvalidRequest(f"{self.path} is not a directory")
        findings = self._load_topics()
        names = self._partition_names()
        tops = (f"{self.path}/{name}" for name in (TOPICS_FILE, METADATA_FILE))
        if not names and not any(map(self.fs.exists, tops)):
            raise InvalidRequest(f"{self.path}: not a data directory: it contains no partition")
        was_clean = self._was_clean()
        starts = self._read_offsets(files.LOG_START_CHECKPOINT_FILE)
        points = self._read_offsets(files.RECOVERY_POINT_CHECKPOINT_FILE)
        for name in names:
            if self.selection.takes(name):
                partition = self._partition(name, was_clean, starts.get(name, 0))
                is_end = was_clean and name in points
                recorded = RecordedEnd(points.get(name, 0), is_end, not partition.is_foreign)
                self.partitions[name] = replace(partition, recorded=recorded)
        if not self.partitions and self.selection.topic is not None:
            raise self._unknown(names)
        return findings

    def log_bytes(self) -> int:
        """Return the total size in bytes of the log files to check, for a progress display."""
        return sum(
            self.fs.stat(partition.path(name)).size
            for partition in self.partitions.values()
            for name in partition.file_names()
            if name.endswith(log_files.LOG_SUFFIX)
        )

    def tiered_topics(self) -> list[str]:
        """Return the names of the checked topics with a tier. The check reads no objects."""
        return sorted(
            {
                name.topic
                for name, partition in self.partitions.items()
                if self.fs.exists(partition.path(TIER_FILE))
            }
        )

    def findings(self) -> Iterator[Finding]:
        """Yield findings in partitions, then findings in the files at the top; call `load` first.

        A read failure in a partition is added to `unseen`; the other partitions are still checked.
        """
        for name, partition in self.partitions.items():
            try:
                refused = find_parting(partition)
                check = PartitionCheck(
                    replace(partition, is_refused=refused is not None), self.options
                )
                yield from check.findings()
                if refused is not None:
                    damage, self.refused[name] = refused
                    yield _refusal(damage, self.refused[name])
            except OSError as error:
                self.unseen.append(as_storage_failure(error, partition.directory, "read"))
                continue
            self.repair_facts[name] = check.repair_facts
        if self.selection == Selection():
            yield from self._check_top()
        else:
            yield from self._check_missing()

    # -- topics ------------------------------------------------------------------------------

    def _load_topics(self) -> list[Finding]:
        path = f"{self.path}/{TOPICS_FILE}"
        try:
            self._topics, notes = find_settled_topics(self.fs, self.path, clock=self.clock)
            self._left = frozenset(find_leftovers(self.fs, self.path))
        except CorruptFile as error:
            remedy = (
                "restore it from a backup; without it, topics are found by their directories,"
                " with default settings"
            )
            return [Finding(path, error.reason, remedy, position=error.at)]
        except UnsupportedVersion as error:
            return [Finding(path, error.reason, "use the release that wrote it")]
        remedy = "compare it with the partitions' partition.metadata; the newer one is wrong"
        return [warning(path, line, remedy) for line in notes if line.startswith("topic ")]

    def _partition_names(self) -> list[TopicPartition]:
        entries = self.fs.list_dir(self.path)
        parsed = (files.parse_partition_dir(e.name) for e in entries if e.is_dir)
        names = sorted(name for name in parsed if name is not None and name not in self._left)
        self._strays = [name for name in names if self._is_stray(name)]
        return [name for name in names if name not in self._strays]

    def _is_stray(self, name: TopicPartition) -> bool:
        info = self._topics.get(name.topic)
        return info is not None and not info.foreign and name.partition >= info.partitions

    def _partition(self, name: TopicPartition, was_clean: bool, log_start: int) -> CheckedPartition:
        info = self._topics.get(name.topic)
        directory = f"{self.path}/{files.partition_dir_name(name)}"
        topic_id = None if info is None else info.topic_id
        if info is None:
            topic_id = self._own_id(directory)
        return CheckedPartition(
            fs=self.fs,
            directory=directory,
            name=name,
            topic_id=topic_id or NO_TOPIC_ID,
            config=TopicConfig() if info is None else info.config,
            is_foreign=info is None or info.foreign,
            was_clean=was_clean,
            recorded=NOTHING_RECORDED,
            log_start=log_start,
        )

    def _own_id(self, directory: str) -> uuid.UUID | None:
        try:
            return text_files.read_partition_metadata(self.fs, directory)
        except CorruptFile:
            return None  # the partition's check reports the damage

    def _was_clean(self) -> bool:
        return self.fs.exists(f"{self.path}/{files.CLEAN_SHUTDOWN_FILE}")

    def _read_offsets(self, name: str) -> dict[TopicPartition, int]:
        path = f"{self.path}/{name}"
        try:
            return text_files.read_offset_checkpoint(self.fs, path)
        except CorruptFile:
            return {}  # the check of this file reports the damage

    def _unknown(self, names: list[TopicPartition]) -> UnknownTopic:
        topic, number = self.selection.topic, self.selection.partition
        assert topic is not None
        here = sorted(name.partition for name in names if name.topic == topic)
        if not here:
            return unknown_topic(topic, {name.topic for name in names})
        assert number is not None  # the topic has partitions here, but not the selected one
        if here == [*range(len(here))]:
            return unknown_partition(topic, len(here), number, self.path)
        # The missing partitions may be in other directories of the broker.
        listed = ", ".join(map(str, here))
        return UnknownTopic(
            f"{self.path}: topic {topic} has no partition {number} here, only {listed}"
        )

    # -- files at the top --------------------------------------------------------------------

    def _check_top(self) -> Iterator[Finding]:
        yield from self._check_meta_properties()
        for name in OFFSET_CHECKPOINTS:
            path = f"{self.path}/{name}"
            yield from check_offset_checkpoint(self.fs, path, self.log_ends())
        yield from self._check_broker_files()
        yield from check_metadata(
            self.fs, self.path, was_clean=self._was_clean(), replay=self.options.metadata()
        )
        yield from self._check_commits()
        yield from self._check_missing()
        for entry in self.fs.list_dir(self.path):
            yield from self._check_name(entry.name, is_dir=entry.is_dir)

    def _check_broker_files(self) -> Iterator[Finding]:
        for name, read, remedy in _BROKER_FILES:
            try:
                read(self.fs, self.path)
            except (CorruptFile, UnsupportedVersion) as error:
                yield Finding(f"{self.path}/{name}", error_text(error), remedy)

    def log_ends(self) -> LogEnds:
        """Return the log end of each checked partition; None if the partition's log is damaged."""
        return {
            name: repair_facts.log_end if repair_facts.is_whole else None
            for name, repair_facts in self.repair_facts.items()
        }

    def _check_meta_properties(self) -> Iterator[Finding]:
        path = f"{self.path}/{meta_properties.META_PROPERTIES_FILE}"
        remedy = "restore it from a backup; Kafka does not start without it"
        try:
            properties = meta_properties.read_meta_properties(self.fs, self.path)
        except CorruptFile as error:
            yield Finding(path, error.reason, remedy, position=error.at)
            return
        if properties is None:
            yield note(
                path,
                "missing",
                "it is not needed for reading; tidelog and Kafka create it when they open the"
                " directory for writing",
            )
            return
        missing = [key for key in _NEEDED_PROPERTIES if key not in properties]
        if missing and "broker.id" not in properties:  # version 0 has `broker.id`, not `node.id`
            yield Finding(path, f"it has no {', '.join(missing)}", remedy)

    def _check_commits(self) -> Iterator[Finding]:
        for path in commits.find_commits(self.fs, self.path):
            try:
                commit = commits.read_commit(self.fs, path)
            except (CorruptFile, UnsupportedVersion) as error:
                yield Finding(
                    path, error.reason, "restore it; until then, opening for writing fails"
                )
                continue
            count = len(commit.moves) + len(commit.removes)
            damage = f"an unfinished commit of {plural(count, 'file')}"
            yield warning(path, damage, "the next open for writing finishes it")

    def _check_missing(self) -> Iterator[Finding]:
        for info in self._topics.values():
            names = [TopicPartition(info.name, number) for number in absent_numbers(info)]
            for name in filter(self.selection.takes, names):
                path = f"{self.path}/{files.partition_dir_name(name)}"
                had_records = any(
                    self._read_offsets(checkpoint).get(name, 0)
                    for checkpoint in (
                        files.RECOVERY_POINT_CHECKPOINT_FILE,
                        files.LOG_START_CHECKPOINT_FILE,
                    )
                )
                effect = (
                    "until then, it can't be opened for writing, because it had records"
                    if had_records
                    else "the next open for writing creates an empty one"
                )
                yield warning(
                    path,
                    "the directory of this partition is missing",
                    f"restore it from a backup{restore_advice(info.config, path)}; {effect}",
                )
        yield from self._check_strays()

    def _check_strays(self) -> Iterator[Finding]:
        if not self._strays:
            return
        # A broker may have added partitions since `load` read the topics.
        strays = set(find_strays(self.fs, self.path))
        for name in filter(self.selection.takes, self._strays):
            if name not in strays:
                continue
            path, info = f"{self.path}/{files.partition_dir_name(name)}", self._topics[name.topic]
            problem = stray_problem(self.fs, self.path, name, info.topic_id)
            damage = f"and this directory {problem or 'has no records'}"
            remedy = STRAY_ADVICE if problem else "remove it"
            count = partitions_text(info.partitions)
            yield warning(path, f"topic {name.topic} has {count}, {damage}", remedy)

    def _check_name(self, name: str, *, is_dir: bool) -> Iterator[Finding]:
        path = posixpath.join(self.path, name)
        partition = files.parse_partition_dir(name) if is_dir else None
        if is_dir and partition is None:
            yield note(path, "its name is not TOPIC-PARTITION", "it is ignored")
        elif partition in self._left:
            remedy = "the next open for writing removes it"
            yield note(path, "left over from a deleted topic", remedy)
        elif name.endswith(files.TMP_SUFFIX):
            yield note(path, "a file was being replaced when its writer stopped", "remove it")
        elif (
            not is_dir
            and name not in _KNOWN
            and path not in commits.find_commits(self.fs, self.path)
        ):
            yield note(path, "unknown file name", "it is ignored")


def _refusal(damage: DamagedLog, parting: Parting) -> Finding:
    """Return the finding that the partition can't be opened for writing."""
    return Finding(
        damage.path,
        f"the next open for writing does not cut this off, so appends are refused: {damage.reason}",
        f"restore the file from a replica or a backup; without one, {parting}",
        position=damage.position,
        offset=damage.offset,
        repairable=True,
    )


def check_verdict(
    check: DirectoryCheck,
    findings: Sequence[Finding],
    open_findings: Sequence[Finding],
    *,
    is_repair: bool = False,
) -> str:
    """Return one line: whether a directory is sound, its size, and what a repair did or could do.

    Args:
        check: The check.
        findings: Findings of the first check.
        open_findings: Findings that remain, after a repair if there was one.
        is_repair: Whether a repair was requested.
    """
    topics = {name.topic for name in check.partitions}
    size = bytes_text(check.log_bytes())
    what = f"{check.selection} in {check.path}" if check.selection.topic else check.path
    whole = f"{plural(len(topics), 'topic')}, {plural(len(check.partitions), 'partition')}, {size}"
    repaired = len({f.path for f in findings if f.repairable} - {f.path for f in open_findings})
    mended = f"; {plural(repaired, 'file')} repaired" if repaired else ""
    counts = Counter(finding.severity for finding in open_findings)
    if check.unseen:
        unread = f"{plural(len(check.unseen), 'partition')} could not be read completely"
        return f"{what}: {unread}; in the other files: {_counted(counts)} ({whole})"
    if not counts[Severity.ERROR] and not counts[Severity.WARNING]:
        unneeded = "; nothing had to be repaired" if is_repair and not repaired else ""
        return f"{what} is sound: {whole}{mended}{unneeded}"
    repairable = len({finding.path for finding in open_findings if finding.repairable})
    hint = f"--repair can't fix {'the rest' if repaired else 'this damage'}"
    if repairable:
        hint = f"{repair_command(check)} rebuilds {plural(repairable, 'file')}"
    return f"{what} is damaged: {_counted(counts)} in {whole}{mended}; {hint}"


def repair_command(check: DirectoryCheck) -> str:
    """Return the complete command that repairs the damage that a check has found."""
    target = f"{check.selection} " if check.selection.topic else ""
    return f"`tidelog doctor {target}--data {shlex.quote(check.path)} --repair`"


def _counted(counts: Counter[Severity]) -> str:
    return ", ".join(plural(counts[each], each.value) for each in Severity if counts[each]) or (
        "nothing found"
    )
