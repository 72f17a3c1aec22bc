"""`reindex`: builds or verifies indexes and zone maps of whole directories, in parallel on Spark.

The mode `verify` checks each partition like `tidelog doctor`, and writes nothing. The mode `build`
repairs derived files of directories that tidelog wrote, and adds missing zone maps. In this mode,
the driver holds the directory's lock until the last task has ended. A directory that another
program wrote, or a directory in an object store, is never changed. The zone maps of such a
directory are written to a separate folder (`zone_cache`), where readers find them. If the option
`zone_cache` is given, both modes process only zone maps, and `build` writes only to this folder.
Neither mode then locks the directory, so a broker can use the directory at the same time.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final, Unpack

from tidelog.amounts import plural
from tidelog.env import Env
from tidelog.errors import InvalidRequest
from tidelog.jobs.options import takes_options
from tidelog.jobs.reindex.options import Mode, ReindexOptions
from tidelog.jobs.reindex.work import (
    PartDone,
    build_zones,
    check_partition,
    grouped,
    verify_zones,
)
from tidelog.lazy_dataclass import dataclass
from tidelog.objects.store import is_url
from tidelog.scan.plan import list_partitions
from tidelog.spark.parts import Listener, directory_env, run_parts
from tidelog.spark.places import Place, as_place
from tidelog.spark.session import described
from tidelog.storage import files
from tidelog.storage.checks import DirectoryCheck, Finding, Severity
from tidelog.storage.checks.directory_check import OFFSET_CHECKPOINTS
from tidelog.storage.checks.partition_check import RepairFacts
from tidelog.storage.checks.repair import lock, repair
from tidelog.storage.directory.log_dir import LogDir
from tidelog.types import TopicChoice, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


PARTITIONS_SCHEMA: Final = (
    "topic string, partition int, segments int, log_bytes bigint, errors int, warnings int,"
    " repaired int, maps_there int, maps_built int, problems array<string>"
)

FINDINGS_SCHEMA: Final = (
    "severity string, state string, file string, position bigint, offset bigint, damage string,"
    " remedy string"
)

_DONE: Final = "done string"


class Outcome(StrEnum):
    """State of a directory after the job, named as in `tidelog doctor`.

    `BLIND`: a part of the directory could not be checked, so the directory may be damaged.
    """

    SOUND = "sound"
    FINDINGS = "findings"
    BLIND = "blind"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reindex:
    """Result of a reindex, as DataFrames and as plain objects.

    Attributes:
        partitions: One row for each partition; see `PARTITIONS_SCHEMA`.
        findings: One row for each finding, whose state is `repaired` or `open`; see
            `FINDINGS_SCHEMA`.
        done: The same result by partition, as plain objects.
        top: Findings outside partitions that are still open: on missing partitions, and, if the job
            processes all topics, on the files at the top of the directory.
        outcome: State of the directory after the job.
        problems: One line for each file that could not be built or checked.
    """

    partitions: "DataFrame"
    findings: "DataFrame"
    done: Sequence[PartDone]
    top: Sequence[Finding]
    outcome: Outcome
    problems: Sequence[str]


@dataclass(frozen=True, slots=True)
class ReindexResult:
    """Result of `run` as plain objects; see `Reindex`."""

    done: Sequence[PartDone]
    top: Sequence[Finding]

    @property
    def problems(self) -> list[str]:
        """One line for each file that could not be built or checked."""
        return list(dict.fromkeys(line for one in self.done for line in one.problems))

    @property
    def outcome(self) -> Outcome:
        """State of the directory after the job."""
        if any(one.is_blind for one in self.done):
            return Outcome.BLIND
        left = [finding for one in self.done for finding in one.left] + list(self.top)
        return Outcome.FINDINGS if any(finding.counts for finding in left) else Outcome.SOUND


@takes_options(ReindexOptions)
def reindex(
    spark: "SparkSession",
    source: Place | str,
    topics: TopicChoice = None,
    **options: Unpack[ReindexOptions],
) -> Reindex:
    """Build or verify indexes and zone maps.

    Args:
        spark: The session. The session's workers must be able to open the directory and the cache
            under the given paths.
        source: A directory of topics.
        topics: Topics or single partitions. If None, the job processes all topics, and the files at
            the top of the directory.
        **options: Options, see `ReindexOptions`.

    Raises:
        DirectoryLocked: Another process has locked the directory; nothing was changed.
        InvalidRequest: The directory was written by another program or is in an object store, so
            `build` needs `zone_cache`, which is missing; or `zone_cache` is a URL or inside the
            directory. Nothing was changed.
        UnknownTopic: A topic or partition doesn't exist.
    """
    result = run(spark, as_place(source), topics, **options)
    return Reindex(
        partitions=spark.createDataFrame(list(partition_rows(result)), PARTITIONS_SCHEMA),
        findings=spark.createDataFrame(list(finding_rows(result)), FINDINGS_SCHEMA),
        done=result.done,
        top=result.top,
        outcome=result.outcome,
        problems=result.problems,
    )


@takes_options(ReindexOptions)
def run(
    spark: "SparkSession",
    place: Place,
    topics: TopicChoice = None,
    **options: Unpack[ReindexOptions],
) -> ReindexResult:
    """Build or verify like `reindex`, but return plain objects instead of DataFrames."""
    mode, zone_cache, group_bytes = options["mode"], options["zone_cache"], options["group_bytes"]
    env, path = check_arguments(place, topics, mode, zone_cache)
    job = _Job(spark, env, replace(place, address=path), options["listener"])
    if zone_cache is not None:
        kind = "cache" if mode == Mode.BUILD else "cache-check"
        done = job.zones(topics, kind, zone_cache, group_bytes)
        return ReindexResult(done, job.missing(topics))
    if mode == Mode.VERIFY:
        done = job.partitions(topics, mends=False)
        top = job.top(done, mends=False) if topics is None else job.missing(topics)
        return ReindexResult(done, top)
    with closing(lock(env, path)):
        done = job.partitions(topics, mends=True)
        top = job.top(done, mends=True) if topics is None else job.missing(topics)
        by_name = {(one.topic, one.partition): one for one in done}
        for one in job.zones(topics, "beside", None, group_bytes):
            by_name[one.topic, one.partition].add(one)
        return ReindexResult(done, top)


def check_arguments(
    place: Place, topics: TopicChoice, mode: str, zone_cache: str | None
) -> tuple[Env, str]:
    """Check the arguments of a job, without Spark.

    Returns:
        Environment of the directory, and the directory's path.

    Raises:
        InvalidRequest, UnknownTopic: See `reindex`.
    """
    env, path = directory_env(place), place.address.rstrip("/") or "/"
    if zone_cache is not None:
        _check_cache(path, zone_cache)
    elif mode != Mode.VERIFY:
        _check_ours(env, path, topics)
    return env, path


def _check_cache(path: str, zone_cache: str) -> None:
    """Raise InvalidRequest if the cache is a URL, or inside the directory.

    A cache is for directories that must not be changed, so it can't be inside the directory.
    """
    if is_url(zone_cache):
        raise InvalidRequest(
            f"zone_cache={zone_cache}: must be a folder that all workers share, not a URL"
        )
    if f"{zone_cache.rstrip('/')}/".startswith(f"{path}/"):
        raise InvalidRequest(f"zone_cache={zone_cache} is inside {path}; give another folder")


def _check_ours(env: Env, path: str, topics: TopicChoice) -> None:
    """Raise InvalidRequest if another program wrote a topic, or the directory is in a store.

    A directory of another program, or in a store, must not be changed.
    """
    if is_url(path):
        raise InvalidRequest(
            f"{path}: zone maps can't be built in an object store; give zone_cache, a folder for"
            " them"
        )
    with LogDir.open(path, env=env) as log_dir:
        names = {name.topic for name in list_partitions(log_dir, topics)}
        foreign = sorted(name for name in names if log_dir.topic(name).foreign)
    if foreign:
        raise InvalidRequest(
            f"{path}: topic {foreign[0]} was written by another program, so the directory is not"
            " changed; give zone_cache (a folder for zone maps), or only verify"
        )


@dataclass(frozen=True, slots=True)
class _Job:
    """Values that the steps of one job share."""

    spark: "SparkSession"
    env: Env
    place: Place
    listener: Listener

    def partitions(self, topics: TopicChoice, *, mends: bool) -> list[PartDone]:
        """Check all partitions, one task per partition; if `mends` is true, also repair them."""
        with LogDir.open(self.place.address, env=self.env) as log_dir:
            names = list_partitions(log_dir, topics)
        parts = [json.dumps([name.topic, name.partition, []]) for name in names]
        return self._do(parts, "mend" if mends else "check", None)

    def zones(
        self, topics: TopicChoice, kind: str, cache: str | None, group_bytes: int
    ) -> list[PartDone]:
        """Build or verify the zone maps of finished segments. Each task processes some segments."""
        parts, names = [], []
        with LogDir.open(self.place.address, env=self.env) as log_dir:
            for name in list_partitions(log_dir, topics):
                names.append(name)
                reader = log_dir.reader(name.topic, name.partition)
                sizes = [(s.base_offset, s.size_bytes) for s in reader.finished_segments()]
                parts += [
                    json.dumps([name.topic, name.partition, bases])
                    for bases in grouped(sizes, group_bytes)
                ]
        return _by_partition(names, self._do(parts, kind, cache))

    def _do(self, parts: Sequence[str], kind: str, cache: str | None) -> list[PartDone]:
        self.listener.note(f"{self.place}: {_TITLES[kind]}, {plural(len(parts), 'task')}")
        work = partial(do_part, self.place, kind, cache)
        topics = {json.loads(part)[0] for part in parts}
        with described(self.spark, f"reindex ({_TITLES[kind]})", topics):
            rows = run_parts(self.spark, parts, work, _DONE, listener=self.listener)
        return [PartDone.decode(str(row["done"])) for row in rows]

    def missing(self, topics: TopicChoice) -> list[Finding]:
        """Return the findings on partitions that the topics file lists without a directory."""
        with LogDir.open(self.place.address, env=self.env) as log_dir:
            present = list_partitions(log_dir, topics)
            names = {*list_partitions(log_dir, topics, with_absent=True)}.difference(present)
        if not names:
            return []
        check = DirectoryCheck(self.env.files, self.place.address, clock=self.env.clock)
        check.load()
        check.partitions.clear()
        paths = {f"{self.place.address}/{files.partition_dir_name(name)}" for name in names}
        return [finding for finding in check.findings() if finding.path in paths]

    def top(self, done: Iterable[PartDone], *, mends: bool) -> list[Finding]:
        """Check files at the top of the directory, in the driver; repair checkpoints if `mends`.

        Returns the findings that are open after the repair.
        """
        check = DirectoryCheck(self.env.files, self.place.address, clock=self.env.clock)
        findings = check.load()
        check.partitions.clear()  # tasks have already checked the partitions
        check.repair_facts = {
            TopicPartition(one.topic, one.partition): RepairFacts(
                log_end=one.log_end, is_whole=one.is_whole
            )
            for one in done
        }
        findings += check.findings()
        checkpoints = {f"{self.place}/{name}" for name in OFFSET_CHECKPOINTS}
        if not mends or not any(f.repairable and f.path in checkpoints for f in findings):
            return findings
        repair(self.env, check, [f for f in findings if f.path in checkpoints])
        return self.top(done, mends=False)


_TITLES: Final = {
    "check": "checking",
    "mend": "checking and repairing",
    "beside": "building zone maps",
    "cache": "building zone maps in the cache",
    "cache-check": "checking the zone maps in the cache",
}


def do_part(place: Place, kind: str, cache: str | None, part: str) -> tuple[object, ...]:
    """Process one part, in a Spark task; implements `Work`.

    Args:
        place: The directory of topics.
        kind: Operation on the part, a key of `_TITLES`.
        cache: Folder for zone maps; None to write them next to the logs.
        part: A JSON list of topic, partition and base offsets.
    """
    topic, number, bases = json.loads(part)
    name, env = TopicPartition(topic, number), directory_env(place)
    path = place.address
    if kind in {"check", "mend"}:
        done = check_partition(env, path, name, mends=kind == "mend")
    elif kind == "cache-check":
        assert cache is not None
        done = verify_zones(env, path, name, set(bases), cache)
    else:
        done = build_zones(env, path, name, set(bases), cache)
    return (done.encode(),)


def _by_partition(names: Iterable[TopicPartition], parts: Iterable[PartDone]) -> list[PartDone]:
    """Combine the results of tasks to one result for each partition.

    A partition of `names` without a task gets an empty result.
    """
    merged = {name: PartDone(topic=name.topic, partition=name.partition) for name in names}
    for part in parts:
        one = merged[TopicPartition(part.topic, part.partition)]
        one.segments += part.segments
        one.log_bytes += part.log_bytes
        one.add(part)
    return list(merged.values())


def partition_rows(result: ReindexResult) -> Iterator[tuple[object, ...]]:
    """Yield the rows of `PARTITIONS_SCHEMA`."""
    for one in result.done:
        open_paths = {finding.path for finding in one.left}
        yield (
            one.topic,
            one.partition,
            one.segments,
            one.log_bytes,
            sum(finding.severity is Severity.ERROR for finding in one.left),
            sum(finding.severity is Severity.WARNING for finding in one.left),
            len({finding.path for finding in one.found if finding.repairable} - open_paths),
            one.maps_there,
            one.maps_built,
            one.problems,
        )


def finding_rows(result: ReindexResult) -> Iterator[tuple[object, ...]]:
    """Yield the rows of `FINDINGS_SCHEMA`.

    For each partition, the findings of the first check come first. Findings that only the check
    after the repair has reported come next. The findings on files at the top of the directory come
    last.
    """
    for one in result.done:
        open_paths = {finding.path for finding in one.left}
        for finding in one.found:
            yield _row(finding, "open" if finding.path in open_paths else "repaired")
        for finding in one.left:
            if finding not in one.found:
                yield _row(finding, "open")
    for finding in result.top:
        yield _row(finding, "open")


def _row(finding: Finding, state: str) -> tuple[object, ...]:
    return (
        finding.severity.value,
        state,
        finding.path,
        finding.position,
        finding.offset,
        finding.damage,
        finding.remedy,
    )
