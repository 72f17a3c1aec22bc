"""Tasks of a reindex: check or repair one partition, or build zone maps of some segments.

This module needs no Spark. Only two functions write to a directory: `check_partition` if `mends` is
true, and `build_zones` if no cache is given. A caller that lets one of these functions write holds
the directory's lock.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, field
from typing import TYPE_CHECKING

from tidelog.env import Env
from tidelog.errors import CorruptData, StorageFailure, UnsupportedCompression, UnsupportedVersion
from tidelog.lazy_dataclass import dataclass
from tidelog.storage import log_files
from tidelog.storage.checks import CheckOptions, DirectoryCheck, Finding, Selection, Severity
from tidelog.storage.checks.findings import note
from tidelog.storage.checks.partition_check import RepairFacts
from tidelog.storage.checks.repair import repair
from tidelog.storage.clocks.zone_map import ZoneMap
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.segment import zone_map_files
from tidelog.storage.segment.closed_segment import ClosedSegment
from tidelog.storage.segment.zone_map_files import ZoneCache
from tidelog.types import ClockName, TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.log.record_rules import BodyCheck


@dataclass(slots=True, kw_only=True)
class PartDone:
    """Result of one task, for one part of a partition.

    Attributes:
        topic: Topic of the partition.
        partition: Number of the partition.
        segments: Number of segments that the task has processed.
        log_bytes: Size of the log files of these segments in bytes.
        found: Findings of the first check.
        left: Findings that are still open after the repair.
        maps_built: Number of zone maps that were written.
        built: Paths of zone maps that were written next to their logs.
        maps_there: Number of zone maps that already existed and were correct.
        problems: One line for each file that could not be built or checked.
        is_blind: Whether a file could not be checked.
        log_end: Offset after the last undamaged batch; 0 if the task did not check the log.
        is_whole: Whether the whole log is undamaged.
    """

    topic: str
    partition: int
    segments: int = 0
    log_bytes: int = 0
    found: list[Finding] = field(default_factory=list)
    left: list[Finding] = field(default_factory=list)
    maps_built: int = 0
    built: list[str] = field(default_factory=list)
    maps_there: int = 0
    problems: list[str] = field(default_factory=list)
    is_blind: bool = False
    log_end: int = 0
    is_whole: bool = True

    def encode(self) -> str:
        """Return the result as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> "PartDone":
        """Return the result that `encode` has converted to JSON."""
        fields = json.loads(text)
        for name in ("found", "left"):
            fields[name] = [_finding(one) for one in fields[name]]
        return cls(**fields)

    def add(self, other: "PartDone") -> None:
        """Add another result for the same partition; `segments` and `log_bytes` stay unchanged."""
        self.found += other.found
        self.left += other.left
        self.left = [finding for finding in self.left if finding.path not in other.built]
        self.maps_built += other.maps_built
        self.maps_there += other.maps_there
        self.built += other.built
        self.problems += other.problems
        self.is_blind |= other.is_blind


def _finding(fields: Mapping[str, object]) -> Finding:
    make: Callable[..., Finding] = Finding
    return make(**{**fields, "severity": Severity(str(fields["severity"]))})


def check_partition(env: Env, directory: str, name: TopicPartition, *, mends: bool) -> PartDone:
    """Check a partition like `tidelog doctor`; if `mends` is true, rebuild damaged derived files.

    This function does not build missing zone maps; `build_zones` builds them, segment by segment.
    If `mends` is true, the caller holds the directory's lock.
    """
    done = PartDone(topic=name.topic, partition=name.partition)
    check, done.found = _check(env, directory, name, done, mends=mends)
    done.left = done.found
    repairable = [one for one in done.found if one.repairable and not _is_missing_map(env, one)]
    if mends and repairable:
        done.problems += repair(env, check, repairable)
        done.problems = list(dict.fromkeys(done.problems))
        check, done.left = _check(env, directory, name, done, mends=mends)
    repair_facts = check.repair_facts.get(name, RepairFacts(is_whole=False))
    done.log_end, done.is_whole = repair_facts.log_end, repair_facts.is_whole
    return done


def _is_missing_map(env: Env, finding: Finding) -> bool:
    return finding.path.endswith(log_files.ZONES_SUFFIX) and not env.files.exists(finding.path)


def _check(
    env: Env, directory: str, name: TopicPartition, done: PartDone, *, mends: bool
) -> tuple[DirectoryCheck, list[Finding]]:
    """Check a partition once; return the check and its findings.

    The counts and problems of the check are added to `done`.
    """
    selection = Selection(name.topic, name.partition)
    check = DirectoryCheck(env.files, directory, selection, clock=env.clock)
    check.load()  # findings on the list of topics are reported by the check of the whole directory
    check.options = CheckOptions(body_check=_body_check())
    findings = list(check.findings())
    done.log_bytes = check.log_bytes()
    names = (each for partition in check.partitions.values() for each in partition.file_names())
    all_names = list(names)
    done.segments = sum(each.endswith(log_files.LOG_SUFFIX) for each in all_names)
    if not mends:
        # In mode `build`, `build_zones` counts the maps.
        faulty = {
            finding.path for finding in findings if finding.path.endswith(log_files.ZONES_SUFFIX)
        }
        maps = sum(each.endswith(log_files.ZONES_SUFFIX) for each in all_names)
        done.maps_there = maps - sum(env.files.exists(path) for path in faulty)
    done.is_blind = bool(check.unseen)
    done.problems += [str(failure) for failure in check.unseen]
    return check, findings


def _body_check() -> "BodyCheck":
    from tidelog.record.kernels.records import check_body

    return check_body


def build_zones(
    env: Env,
    directory: str,
    name: TopicPartition,
    bases: Collection[int],
    cache_folder: str | None,
) -> PartDone:
    """Build the missing zone maps of some finished segments.

    Args:
        env: Files.
        directory: The directory of topics.
        name: The partition.
        bases: Base offsets of the segments.
        cache_folder: Folder for the maps. If no folder is given, the maps are written next to the
            logs, and the caller holds the directory's lock.
    """
    cache = None if cache_folder is None else ZoneCache(env.files, cache_folder)

    def build(segment: ClosedSegment, done: PartDone) -> None:
        reports = len(done.problems)
        if cache is None:
            built = segment.zones_on(ClockName.APPEND) is None and zone_map_files.write(segment)
            is_there = not built and segment.zones_on(ClockName.APPEND) is not None
            if built:
                done.built.append(_path_beside(segment))
        else:
            is_there = _fitting(segment, cache)
            built = not is_there and zone_map_files.load_or_build(segment, cache) is not None
            built = built and cache.load(segment) is not None
        done.maps_built += built
        done.maps_there += is_there
        if not (built or is_there) and len(done.problems) == reports:
            done.problems.append(f"{segment.log_path}: no zone map was built")

    return _each_segment(env, directory, name, bases, build)


def verify_zones(
    env: Env, directory: str, name: TopicPartition, bases: Collection[int], cache_folder: str
) -> PartDone:
    """Compare the zone maps in a cache with the logs.

    Nothing is written.

    If the cache has no zone map for a segment, the zone map next to the segment's log is compared
    instead. If a segment has a zone map in neither place, a finding is added to the result.
    """
    cache = ZoneCache(env.files, cache_folder)

    def verify(segment: ClosedSegment, done: PartDone) -> None:
        path = cache.path_of(segment)
        finding = note(path, "missing", "reindex builds it; until then reads are slower")
        zone_map = None
        try:
            zone_map = zone_map_files.open_map(segment, path)
        except FileNotFoundError:
            zone_map = _beside(segment)
            path = path if zone_map is None else _path_beside(segment)
        except (CorruptData, UnsupportedVersion) as error:
            finding = _wrong(path, str(error))
        if zone_map is not None:
            done.maps_there += 1
            if _equals_rebuilt_map(zone_map, segment, done):
                return
            finding = _wrong(path, "it does not match the log")
        done.found.append(finding)
        done.left.append(finding)

    return _each_segment(env, directory, name, bases, verify)


def _equals_rebuilt_map(zone_map: ZoneMap, segment: ClosedSegment, done: PartDone) -> bool:
    """Return whether a zone map equals a new zone map that is built from the log.

    If the log is damaged, the zone map can't be compared with it. For a damaged log, the result is
    True, and the damage is added to `done.problems`.
    """
    try:
        fresh = ZoneMap.decode(zone_map_files.build(segment))
    except (CorruptData, UnsupportedCompression) as error:
        done.problems.append(f"{segment.log_path}: {error}")
        done.is_blind = True
        return True
    try:
        zone_map.verify()
    except CorruptData:
        return False
    return (zone_map.total, zone_map.latency, list(zone_map.zones())) == (
        fresh.total,
        fresh.latency,
        list(fresh.zones()),
    )


def _fitting(segment: ClosedSegment, cache: ZoneCache) -> bool:
    return _beside(segment) is not None or cache.load(segment) is not None


def _beside(segment: ClosedSegment) -> ZoneMap | None:
    """Return the zone map next to a segment's log.

    Return None if there is no zone map, or if it was built from older append times.
    """
    zone_map = segment.zones
    return (
        zone_map
        if zone_map is not None and zone_map_files.knows_times_of(zone_map, segment)
        else None
    )


def _path_beside(segment: ClosedSegment) -> str:
    return segment.context.path(segment.base_offset, log_files.ZONES_SUFFIX)


def _wrong(path: str, damage: str) -> Finding:
    remedy = "remove it; it is rebuilt when it is needed"
    return Finding(path, damage, remedy)


def _each_segment(
    env: Env,
    directory: str,
    name: TopicPartition,
    bases: Collection[int],
    action: Callable[[ClosedSegment, PartDone], None],
) -> PartDone:
    done = PartDone(topic=name.topic, partition=name.partition)
    try:
        with LogDir.open(directory, env=env) as log_dir:
            reader = log_dir.reader(name.topic, name.partition)
            for segment in reader.finished_segments():
                if segment.base_offset in bases:
                    done.segments += 1
                    done.log_bytes += segment.size_bytes
                    action(segment, done)
                    # release the zone map, so that zone maps of earlier segments don't stay in
                    # memory
                    segment.use_zones(None, loaded=False)
            done.problems += [line for line in log_dir.reports if line not in done.problems]
    except (OSError, StorageFailure) as error:
        done.problems.append(f"{name}: {error}")
        done.is_blind = True
    return done


def grouped(sizes: Sequence[tuple[int, int]], group_bytes: int) -> Iterator[list[int]]:
    """Yield the base offsets of segments, in groups of about `group_bytes` bytes of log."""
    group: list[int] = []
    total = 0
    for base, size in sizes:
        if group and total + size > group_bytes:
            yield group
            group, total = [], 0
        group.append(base)
        total += size
    if group:
        yield group
