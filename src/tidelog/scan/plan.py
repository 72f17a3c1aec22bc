"""Plans a scan: from a directory, topics, offsets and times to splits for parallel tasks.

Reads names, indexes and append times, and records only where a time must be looked up. Writes
nothing and takes no lock, so a directory may be planned while it is written to.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

from tidelog.arguments import level_of, reads_arguments
from tidelog.env import Env
from tidelog.errors import InvalidRequest, LostOffsets, OffsetsGone, UnknownTopic
from tidelog.garbage import collection_paused
from tidelog.report import bytes_text, html_table
from tidelog.scan.bounds import Bounds, Question, TimeMode, append_time_notes, resolve
from tidelog.scan.pieces import PieceFinder, UncutPiece, cut, cut_offsets
from tidelog.scan.split import AbortedSpan, Piece, Split, Wanted, pack
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.log.log_reader import LogView
from tidelog.storage.open_files import typed_reads
from tidelog.storage.segment.zone_map_files import ZoneCache
from tidelog.types import (
    INT64_MAX,
    SPLIT_BYTES,
    ClockName,
    Isolation,
    IsolationLevel,
    TopicPartition,
)

# For the threads of one process: small enough that two threads end together, large enough that a
# split's own cost is nothing.
THREAD_SPLIT_BYTES: Final = 32 << 20


# Below this a task costs more than what it reads.
SPLIT_BYTES_MIN: Final = 64 << 10


_TARGET_BYTES_MIN: Final = 1 << 10


APPEND_TIME_COLUMN: Final = "appendTimestamp"


# A segment may be deleted between its listing and its opening, but hardly again and again.
_TRIES: Final = 5


# In a notebook.
_PARTITIONS_SHOWN: Final = 20


_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanPlan:
    """What is to be read. Iterates over its splits.

    Attributes:
        splits: In order of topic, partition and offset.
        lost: Offsets that were asked for by number and are not in the log.
        bounds: For each partition the offsets [start, end) that are in the log and were asked for.
        log_bytes: Bytes of all log files of the partitions planned.
        sidecar_bytes: Bytes of zone maps that planning read.
        has_skipped: Whether batches are skipped by their largest times alone: records without a
            time among them are not counted.
        reports: What was found damaged and made good, one line each.
    """

    splits: tuple[Split, ...]
    lost: tuple[LostOffsets, ...] = ()
    bounds: Mapping[TopicPartition, tuple[int, int]] = dataclasses.field(default_factory=dict)
    log_bytes: int = 0
    sidecar_bytes: int = 0
    has_skipped: bool = False
    reports: tuple[str, ...] = ()

    @property
    def scan_bytes(self) -> int:
        """Bytes of log that a reader of all splits reads."""
        return sum(split.size_bytes for split in self.splits)

    def __iter__(self) -> Iterator[Split]:
        return iter(self.splits)

    def __len__(self) -> int:
        return len(self.splits)

    def _repr_html_(self) -> str:
        """The plan for a notebook: what is read of each partition."""
        rows = islice(self._rows(), _PARTITIONS_SHOWN)
        hidden = len(self.bounds) - _PARTITIONS_SHOWN
        notes = []
        if self.log_bytes:  # brokers don't report them
            notes = [f"{bytes_text(self.scan_bytes)} to be read of {bytes_text(self.log_bytes)}"]
        if hidden > 0:
            notes.append(f"and {hidden:,} partitions more")
        headings = ("partition", "start", "end", "splits", "to be read")
        return html_table(f"Plan of {len(self)} splits", headings, rows, "; ".join(notes))

    def _rows(self) -> Iterator[tuple[str, int, int, int, str | None]]:
        for name, (start, end) in self.bounds.items():
            splits = [split for split in self.splits if split.topic_partition == name]
            size = bytes_text(sum(split.size_bytes for split in splits))
            yield str(name), start, end, len(splits), size if self.log_bytes else None


@reads_arguments(times=TimeMode)
def plan(  # noqa: PLR0913 - one keyword for each way to choose
    source: str | LogDir,
    topics: str | TopicPartition | Iterable[str | TopicPartition] | None = None,
    *,
    wanted: Wanted | None = None,
    per_partition: Mapping[TopicPartition, Wanted] | None = None,
    clock: str = ClockName.RECORD,
    times: str = TimeMode.EXACT,
    needs_match: bool = False,
    isolation: Isolation = IsolationLevel.READ_UNCOMMITTED,
    columns: Sequence[str] | None = None,
    split_bytes: int = SPLIT_BYTES,
    min_partitions: int = 1,
    least_splits: int = 1,
    max_offsets: int = INT64_MAX,
    fail_on_data_loss: bool = True,
    zone_cache: str | None = None,
    strict: bool = False,
    env: Env | None = None,
) -> ScanPlan:
    """Plan a scan.

    Args:
        source: A directory of topics, by path or open.
        topics: Names of topics, or single partitions; all topics where None.
        wanted: Offsets and times wanted of every partition; everything where None.
        per_partition: Offsets and times of single partitions; what one leaves open is taken from
            `wanted`.
        clock: Which of a record's two times the times are about.
        times: Whether times select records, exactly, or stand for positions in the log.
        needs_match: Raise where no record is as late as a start that stands for a position.
        isolation: READ_COMMITTED leaves aborted and open transactions out.
        columns: What will be read; all columns where None. Append times are looked for only where
            they are among them.
        split_bytes: About how many bytes of log a split reads, at most.
        min_partitions: Make at least about so many splits, if there is enough to read.
        least_splits: Make at least so many, however small, if there are as many offsets.
        max_offsets: How many offsets a split reaches over, at most.
        fail_on_data_loss: Raise where offsets that were asked for are gone; else see `lost`.
        zone_cache: A folder outside the directory for zone maps of finished segments that have
            none, as in directories of Apache Kafka: what is missing there is built now, which
            reads these segments once. Without it they are pruned by their indexes.
        strict: Skip nothing that may hold a record without a time, for `ReadOptions.strict`.
        env: Files and clock, where `source` is a path.

    Raises:
        UnknownTopic: No such topic or partition.
        InvalidRequest: Offsets, times or sizes that can't be.
        OffsetsGone: Offsets that were asked for are not in the log.
    """
    sizes = {"split_bytes": split_bytes, "min_partitions": min_partitions}
    _check_sizes(sizes | {"max_offsets": max_offsets, "least_splits": least_splits})
    question = _question(clock, times, isolation, needs_match=needs_match)
    everywhere, single = wanted or Wanted(), per_partition or {}
    with_times = columns is None or APPEND_TIME_COLUMN in columns
    how = _How(with_times, zone_cache=zone_cache, max_offsets=max_offsets, strict=strict)

    def draft_all(log_dir: LogDir) -> ScanPlan:
        names = list_partitions(log_dir, topics)
        planner = _Planner(log_dir, question, how)
        drafts = [
            planner.draft(name, single.get(name, Wanted()).filled_from(everywhere))
            for name in names
        ]
        if fail_on_data_loss and (lost := tuple(o for d in drafts for o in d.bounds.lost)):
            raise OffsetsGone(lost)
        target = _target_bytes(drafts, split_bytes, max(min_partitions, least_splits))
        return planner.plan_least(drafts, target, least_splits)

    return with_directory(source, env, draft_all)


def _check_sizes(sizes: Mapping[str, int]) -> None:
    for name, value in sizes.items():
        if value < 1:
            raise InvalidRequest(f"{name}={value}: 1 up")


def _question(clock: str, times: str, isolation: Isolation, *, needs_match: bool) -> Question:
    return Question(
        clock=ClockName(clock),
        times=TimeMode(times),
        isolation=level_of(isolation),
        needs_match=needs_match,
    )


@reads_arguments()
def plan_count(  # noqa: PLR0913 - as `plan`
    source: str | LogDir,
    topics: str | TopicPartition | Iterable[str | TopicPartition] | None,
    wanted: Wanted,
    *,
    clock: ClockName,
    isolation: IsolationLevel,
    zone_cache: str | None,
    env: Env | None,
) -> dict[TopicPartition, ScanPlan]:
    """For each partition a plan whose splits tell by number what zone maps know; see `plan`."""
    question = Question(clock=clock, isolation=isolation)
    how = _How(zone_cache=zone_cache, counts=True)

    def draft_all(log_dir: LogDir) -> dict[TopicPartition, ScanPlan]:
        planner = _Planner(log_dir, question, how)
        return {
            name: planner.plan([planner.draft(name, wanted)], SPLIT_BYTES)
            for name in list_partitions(log_dir, topics)
        }

    return with_directory(source, env, draft_all)


def plan_again(
    split: Split, start: int, env: Env, *, strict: bool = False
) -> tuple[Split, tuple[LostOffsets, ...]]:
    """The split from offset `start` on, by the files that are there now; and what is gone of it.

    Raises:
        UnknownTopic, InvalidRequest: Topic or directory are gone.
    """
    name = split.topic_partition
    question = Question(clock=split.clock, isolation=split.isolation)
    how, end = _How(with_append_times=True, strict=strict), max(start, split.end_offset)

    def draft_again(log_dir: LogDir) -> tuple[Split, tuple[LostOffsets, ...]]:
        planner = _Planner(log_dir, question, how)
        if planner.topic_id(name.topic) != split.topic_id:
            reason = "the topic was deleted and created anew"
            gone = LostOffsets(split.topic, split.partition, start, end, reason)
            return dataclasses.replace(split, start_offset=start, pieces=()), (gone,)
        draft = planner.draft(name, Wanted(start_offset=start, end_offset=end), split.time_range)
        return planner.whole(draft), draft.bounds.lost

    return with_directory(split.directory, env, draft_again)


def with_directory(
    source: str | LogDir, env: Env | None, action: Callable[[LogDir], _Result]
) -> _Result:
    """What `action` makes of the directory as it is now.

    A directory that is open for reading shows what it saw when it was opened, so it is opened
    anew; and once more where a file goes away while it is being looked at.
    """
    path, files = (source, env) if isinstance(source, str) else (source.path, source.env)
    with typed_reads(path):
        if isinstance(source, LogDir) and source.is_writable:
            return action(source)
        for _ in range(_TRIES - 1):
            with suppress(FileNotFoundError), LogDir.open(path, env=files) as log_dir:
                return action(log_dir)
        with LogDir.open(path, env=files) as log_dir:
            return action(log_dir)


def list_partitions(
    log_dir: LogDir, topics: str | TopicPartition | Iterable[str | TopicPartition] | None
) -> list[TopicPartition]:
    """The partitions meant, sorted, each once; raises UnknownTopic."""
    if topics is None:
        topics = log_dir.topics().keys()
    elif isinstance(topics, str | TopicPartition):
        topics = [topics]
    names: set[TopicPartition] = set()
    for item in topics:
        name = item.topic if isinstance(item, TopicPartition) else item
        # What has no directory yet holds nothing.
        numbers = set(log_dir.topic(name).present)
        if isinstance(item, TopicPartition):
            _check_exists(log_dir, item)
            numbers &= {item.partition}
        names.update(TopicPartition(name, number) for number in numbers)
    return sorted(names)


def _check_exists(log_dir: LogDir, name: TopicPartition) -> None:
    count = log_dir.topic(name.topic).partitions
    if not 0 <= name.partition < count:
        raise UnknownTopic(f"topic {name.topic} has partitions 0 to {count - 1}, not {name}")


@dataclass(frozen=True, slots=True)
class _How:
    """What the reader of a plan will do with it, and where zone maps may be kept."""

    with_append_times: bool = False
    counts: bool = False
    zone_cache: str | None = None
    max_offsets: int = INT64_MAX
    strict: bool = False


@dataclass(frozen=True, slots=True)
class _Draft:
    """A partition's pieces before they are cut."""

    name: TopicPartition
    reader: LogView
    bounds: Bounds
    uncut: list[UncutPiece]
    log_bytes: int
    sidecar_bytes: int
    has_skipped: bool
    notes: tuple[str, ...] = ()


def _target_bytes(drafts: list[_Draft], split_bytes: int, min_partitions: int) -> int:
    total = sum(uncut.piece.size_bytes for draft in drafts for uncut in draft.uncut)
    target = min(split_bytes, -(-total // min_partitions))
    return max(target, min(SPLIT_BYTES_MIN, split_bytes))


class _Planner:
    """What the partitions of one plan share."""

    def __init__(self, log_dir: LogDir, question: Question, how: _How) -> None:
        self._log_dir = log_dir
        self._question = question
        self._how = how
        cache, files = how.zone_cache, log_dir.env.files
        self._zone_cache = None if cache is None else ZoneCache(files, cache)
        self._topic_ids: dict[str, str] = {}

    def topic_id(self, topic: str) -> str:
        """The topic's id as splits carry it."""
        if topic not in self._topic_ids:
            topic_id = self._log_dir.topic(topic).topic_id
            self._topic_ids[topic] = "" if topic_id is None else topic_id.hex
        return self._topic_ids[topic]

    def draft(
        self, name: TopicPartition, wanted: Wanted, time_range: tuple[int, int] | None = None
    ) -> _Draft:
        """What has to be read of a partition as it is now.

        Args:
            name: The partition.
            wanted: What is wanted of it.
            time_range: Stands in for the times in `wanted` where given.
        """
        reader = self._log_dir.reader(name.topic, name.partition)
        bounds = resolve(reader, wanted, self._question, slack_ms=reader.append_slack_ms)
        if time_range is not None:
            bounds = dataclasses.replace(bounds, time_range=time_range)
        finder = PieceFinder(
            reader=reader,
            bounds=bounds,
            clock=self._question.clock,
            isolation=self._question.isolation,
            with_append_times=self._how.with_append_times,
            counts=self._how.counts,
            zone_cache=self._zone_cache,
            strict=self._how.strict,
        )
        with collection_paused():
            uncut = list(finder.pieces())
        sizes = reader.size_bytes(), finder.sidecar_bytes
        notes = append_time_notes(reader, wanted, self._question, bounds.start)
        return _Draft(name, reader, bounds, uncut, *sizes, finder.has_skipped, notes)

    def plan(self, drafts: list[_Draft], target_bytes: int) -> ScanPlan:
        """The plan of these drafts, in splits of about `target_bytes`."""
        return ScanPlan(
            splits=tuple(split for draft in drafts for split in self._cut(draft, target_bytes)),
            lost=tuple(one for draft in drafts for one in draft.bounds.lost),
            bounds={draft.name: (draft.bounds.start, draft.bounds.end) for draft in drafts},
            log_bytes=sum(draft.log_bytes for draft in drafts),
            sidecar_bytes=sum(draft.sidecar_bytes for draft in drafts),
            has_skipped=any(draft.has_skipped for draft in drafts),
            reports=(*self._log_dir.reports, *(note for one in drafts for note in one.notes)),
        )

    def plan_least(self, drafts: list[_Draft], target_bytes: int, least: int) -> ScanPlan:
        """As `plan`, with smaller splits until there are enough; in the end they cut batches."""
        plan = self.plan(drafts, target_bytes)
        if not plan.splits:
            return plan
        while len(plan) < least and target_bytes > _TARGET_BYTES_MIN:
            target_bytes //= 2
            plan = self.plan(drafts, target_bytes)
        spans = (u.piece.end_offset - u.piece.start_offset for d in drafts for u in d.uncut)
        limit = max(sum(spans) // least, 1)
        while len(plan) < least and limit < self._how.max_offsets:
            self._how = dataclasses.replace(self._how, max_offsets=limit)
            plan = self.plan(drafts, target_bytes)
            limit = max(limit // 2, 1)
        return plan

    def whole(self, draft: _Draft) -> Split:
        """The draft as one split."""
        aborted = self._aborted(draft.reader, draft.bounds.start, draft.bounds.end)
        return self._split(draft, tuple(uncut.piece for uncut in draft.uncut), aborted)

    def _cut(self, draft: _Draft, target_bytes: int) -> list[Split]:
        limit = self._how.max_offsets
        pieces = [
            piece
            for uncut in draft.uncut
            for part in cut(uncut, target_bytes)
            for piece in cut_offsets(uncut, part, limit)
        ]
        aborted = self._aborted(draft.reader, draft.bounds.start, draft.bounds.end)
        return [self._split(draft, group, aborted) for group in pack(pieces, target_bytes, limit)]

    def _split(
        self, draft: _Draft, pieces: tuple[Piece, ...], aborted: Sequence[AbortedSpan]
    ) -> Split:
        start = pieces[0].start_offset if pieces else draft.bounds.start
        end = pieces[-1].end_offset if pieces else draft.bounds.end
        touching = (a for a in aborted if a.first_offset < end and a.last_offset >= start)
        return Split(
            topic=draft.name.topic,
            partition=draft.name.partition,
            start_offset=start,
            end_offset=end,
            directory=self._log_dir.path,
            topic_id=self.topic_id(draft.name.topic),
            pieces=pieces,
            clock=self._question.clock,
            time_range=draft.bounds.time_range,
            isolation=self._question.isolation,
            aborted=tuple(touching),
        )

    def _aborted(self, reader: LogView, start: int, end: int) -> tuple[AbortedSpan, ...]:
        """Aborted transactions that touch [start, end); their markers may lie far behind it."""
        if self._question.isolation is IsolationLevel.READ_UNCOMMITTED or start >= end:
            return ()
        spans = []
        for segment in reader.segments:
            if segment.end_offset <= start:
                continue
            entries, is_complete = segment.txn_index.collect(start, end)
            spans += [AbortedSpan(e.producer_id, e.first_offset, e.last_offset) for e in entries]
            if is_complete:
                break
        return tuple(spans)
