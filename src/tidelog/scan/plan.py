"""Plans a scan: makes splits for parallel tasks from a directory, topics, offsets and times.

Reads names, indexes, zone maps and append times; reads records only to look up a time, or to build
zone maps for a zone cache. Writes nothing to the directory and takes no lock, so a scan can be
planned while a writer appends to the directory.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, TypeVar

from tidelog.amounts import bytes_text, plural
from tidelog.arguments import level_of, reads_arguments
from tidelog.display import LINES_SHOWN, rest_text
from tidelog.env import Env
from tidelog.errors import (
    InvalidRequest,
    LostOffsets,
    MissingFile,
    OffsetsGone,
    unknown_partition,
)
from tidelog.gc_pauses import collection_paused
from tidelog.html_cells import html_table
from tidelog.lazy_dataclass import dataclass
from tidelog.scan.bounds import Bounds, Question, TimeMode, append_time_notes, resolve
from tidelog.scan.pieces import PieceFinder, UncutPiece, cut, cut_offsets
from tidelog.scan.split import (
    AbortedSpan,
    Piece,
    RequestedRange,
    Split,
    ensure_two_clocks,
    pack,
)
from tidelog.split_size import SPLIT_BYTES, SPLIT_BYTES_MIN, target_bytes
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.directory.topic_registry import (
    MISSING_ADVICE,
    absent_error,
    absent_numbers,
    not_here_error,
)
from tidelog.storage.log.log_reader import LogView
from tidelog.storage.open_files import typed_reads
from tidelog.storage.segment.txn_index import aborted_between
from tidelog.storage.segment.zone_map_files import ZoneCache
from tidelog.types import (
    INT64_MAX,
    ClockName,
    Isolation,
    IsolationLevel,
    TopicPartition,
)

_TARGET_BYTES_MIN: Final = 1 << 10
APPEND_TIME_COLUMN: Final = "appendTimestamp"

# Maximum number of attempts. A segment may be deleted between listing and opening, but this is
# unlikely to happen in each attempt.
_TRIES: Final = 5

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ScanPlan:
    """Plan of a scan; iterates over its splits.

    Attributes:
        splits: In order of topic, partition and offset.
        lost: Requested offsets that are not in the log. If the range is given by times, lost
            offsets inside the range are included only if the search for the start position passed
            them; the read reports the others.
        bounds: For each partition, the requested offsets [start, end) that are in the log.
        log_bytes: Size of all log files of the planned partitions.
        sidecar_bytes: Bytes of zone maps read for the plan.
        has_skipped: Whether batches are skipped because their largest time is before the range.
            Records without a time in these batches are not counted.
        reports: Messages about damage in the directory, and about records without an append time.
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
        """Bytes of log that all splits together read."""
        return sum(split.size_bytes for split in self.splits)

    def __iter__(self) -> Iterator[Split]:
        return iter(self.splits)

    def __len__(self) -> int:
        return len(self.splits)

    def __repr__(self) -> str:
        parts = [plural(len(self), "split"), plural(len(self.bounds), "partition")]
        return f"{type(self).__name__}({', '.join((*parts, *self._size_notes()))})"

    def _repr_html_(self) -> str:
        """Return the plan as an HTML table for a notebook: what is read of each partition."""
        rows = islice(self._rows(), LINES_SHOWN)
        notes = [*self._size_notes(), rest_text(len(self.bounds))]
        headings = ("partition", "start", "end", "splits", "to be read")
        caption = f"Plan of {plural(len(self), 'split')}"
        return html_table(caption, headings, rows, "; ".join(filter(None, notes)))

    def _size_notes(self) -> list[str]:
        if not self.log_bytes:  # brokers don't report sizes
            return []
        return [f"{bytes_text(self.scan_bytes)} of {bytes_text(self.log_bytes)} to be read"]

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
    requested_range: RequestedRange | None = None,
    per_partition: Mapping[TopicPartition, RequestedRange] | None = None,
    clock: str = ClockName.RECORD,
    times: str = TimeMode.EXACT,
    needs_match: bool = False,
    isolation: Isolation = IsolationLevel.READ_UNCOMMITTED,
    columns: Sequence[str] | None = None,
    split_bytes: int = SPLIT_BYTES,
    min_splits: int = 1,
    min_split_bytes: int = SPLIT_BYTES_MIN,
    max_offsets: int = INT64_MAX,
    fail_on_data_loss: bool = True,
    zone_cache: str | None = None,
    strict: bool = False,
    env: Env | None = None,
) -> ScanPlan:
    """Plan a scan.

    Args:
        source: A directory of topics, by path or open.
        topics: Names of topics, or single partitions; all topics if None.
        requested_range: Offsets and times for every partition; all records if None.
        per_partition: Offsets and times by partition. `requested_range` fills fields that are None.
        clock: Clock of the times: `record` or `append`.
        times: `exact`: times select records; `positions`: times are replaced by offsets.
        needs_match: Raise InvalidRequest if no record is at or after the start time.
        isolation: READ_COMMITTED leaves out records of aborted and open transactions.
        columns: Columns that will be read; all columns if None. Append times are located only if
            the column `appendTimestamp` is included.
        split_bytes: Approximate maximum of log bytes in a split.
        min_splits: Minimum number of splits, if there is enough to read.
        min_split_bytes: Smallest size of the parts into which splits are divided to reach
            `min_splits`. With 0, splits of any size are divided, down to single offsets.
        max_offsets: Maximum number of offsets in a split.
        fail_on_data_loss: Raise if requested offsets, or the directory of a listed partition, are
            missing; otherwise report the offsets in `lost`, and the partition in `reports`.
        zone_cache: A folder outside the directory for zone maps of finished segments that have none
            beside their log, as in directories of Apache Kafka. Missing maps are built now, which
            reads these segments once. Without a cache, their indexes are used instead.
        strict: Read all batches that may have a record without a time, for `ReadOptions.strict`.
        env: Files and clock, if `source` is a path.

    Raises:
        UnknownTopic: A topic or partition doesn't exist.
        InvalidRequest: Offsets, times or sizes are invalid, or a required match does not exist.
        OffsetsGone: With `fail_on_data_loss`: requested offsets are not in the log.
        MissingFile: With `fail_on_data_loss`: a listed partition has no directory.
    """
    _check_sizes(1, split_bytes=split_bytes, max_offsets=max_offsets, min_splits=min_splits)
    _check_sizes(0, min_split_bytes=min_split_bytes)
    question = _question(clock, times, isolation, needs_match=needs_match)
    everywhere, single = requested_range or RequestedRange(), per_partition or {}
    with_times = columns is None or APPEND_TIME_COLUMN in columns
    how = _How(with_times, zone_cache=zone_cache, max_offsets=max_offsets, strict=strict)

    def draft_all(log_dir: LogDir) -> ScanPlan:
        choose = checked_partitions if fail_on_data_loss else list_partitions
        names, errors = choose(log_dir, topics), absent_errors(log_dir, topics)
        planner = _Planner(log_dir, question, how)
        drafts = planner.drafts(names, everywhere, single)
        if fail_on_data_loss and (lost := tuple(o for d in drafts for o in d.bounds.lost)):
            raise OffsetsGone(lost)
        planned = planner.plan_least(drafts, split_bytes, min_splits, min_split_bytes)
        return dataclasses.replace(planned, reports=(*planned.reports, *map(str, errors)))

    return with_directory(source, env, draft_all)


def _check_sizes(least: int, **sizes: int) -> None:
    for name, value in sizes.items():
        if value < least:
            raise InvalidRequest(f"{name} must be {least} or more, got {value}")


def _question(clock: str, times: str, isolation: Isolation, *, needs_match: bool) -> Question:
    return Question(
        clock=ClockName(clock),
        times=TimeMode(times),
        isolation=level_of(isolation),
        needs_match=needs_match,
    )


@reads_arguments()
def plan_count(  # noqa: PLR0913 - one argument for each way to choose
    source: str | LogDir,
    topics: str | TopicPartition | Iterable[str | TopicPartition] | None,
    requested_range: RequestedRange,
    *,
    clock: ClockName,
    isolation: IsolationLevel,
    zone_cache: str | None,
    env: Env | None,
) -> dict[TopicPartition, ScanPlan]:
    """Return each partition's plan for counting, with counts from zone maps; see `plan`."""
    ensure_two_clocks(requested_range, clock)
    question = Question(clock=clock, isolation=isolation)
    how = _How(zone_cache=zone_cache, counts=True)

    def draft_all(log_dir: LogDir) -> dict[TopicPartition, ScanPlan]:
        planner = _Planner(log_dir, question, how)
        return {
            name: planner.plan([planner.draft(name, requested_range)], SPLIT_BYTES)
            for name in checked_partitions(log_dir, topics)
        }

    return with_directory(source, env, draft_all)


def replan(
    split: Split, start: int, env: Env, *, strict: bool
) -> tuple[Split, tuple[LostOffsets, ...]]:
    """Plan a split again from `start` on, with the current files; return a split and lost offsets.

    Raises:
        UnknownTopic, InvalidRequest: The topic or the directory no longer exists.
    """
    name = split.topic_partition
    question = Question(clock=split.clock, isolation=split.isolation)
    how, end = _How(with_append_times=True, strict=strict), max(start, split.end_offset)

    def draft_again(log_dir: LogDir) -> tuple[Split, tuple[LostOffsets, ...]]:
        planner = _Planner(log_dir, question, how)
        if planner.topic_id(name.topic) != split.topic_id:
            reason = "the topic was deleted and recreated"
            lost_offsets = LostOffsets(split.topic, split.partition, start, end, reason)
            return dataclasses.replace(split, start_offset=start, pieces=()), (lost_offsets,)
        requested = RequestedRange(start_offset=start, end_offset=end, timestamps=split.timestamps)
        draft = planner.draft(name, requested, split.time_range)
        return planner.whole(draft), draft.bounds.lost

    return with_directory(split.directory, env, draft_again)


def with_directory(
    source: str | LogDir, env: Env | None, action: Callable[[LogDir], _Result]
) -> _Result:
    """Call `action` with the directory in its current state; return the result of `action`.

    A directory that was opened for reading shows its state at the last refresh, so it is opened
    again for the call. If a file is deleted during the call, the call is repeated. A directory that
    is open for writing is used as it is, for a single call.
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
    log_dir: LogDir,
    topics: str | TopicPartition | Iterable[str | TopicPartition] | None,
    *,
    with_absent: bool = False,
) -> list[TopicPartition]:
    """Return the chosen partitions, sorted, without duplicates; raises UnknownTopic.

    With `with_absent`, the result includes partitions that the topics file lists but that have no
    directory.
    """
    names: list[TopicPartition] = []
    for topic, chosen in _chosen(log_dir, topics).items():
        info = log_dir.topic(topic)
        numbers = {*info.present, *(absent_numbers(info) if with_absent else ())}
        if chosen is not None:
            numbers &= chosen
        names.extend(TopicPartition(topic, number) for number in sorted(numbers))
    return names


def _chosen(
    log_dir: LogDir, topics: str | TopicPartition | Iterable[str | TopicPartition] | None
) -> dict[str, set[int] | None]:
    """Return the chosen partitions by topic, sorted by topic; None for all partitions of a topic.

    Raises UnknownTopic.
    """
    if topics is None:
        return dict.fromkeys(sorted(log_dir.topics()))
    whole: set[str] = set()
    named: dict[str, set[int]] = {}
    for item in [topics] if isinstance(topics, str | TopicPartition) else topics:
        if isinstance(item, str):
            log_dir.topic(item)
            whole.add(item)
        else:
            named.setdefault(item.topic, set()).add(item.partition)
    for topic, numbers in named.items():
        _check_exist(log_dir, topic, numbers)
    return {topic: None if topic in whole else named[topic] for topic in sorted({*whole, *named})}


def checked_partitions(
    log_dir: LogDir, topics: str | TopicPartition | Iterable[str | TopicPartition] | None
) -> list[TopicPartition]:
    """Return the chosen partitions, sorted, without duplicates.

    A directory of Apache Kafka may have only some of a topic's partitions: the result has the
    partitions that have a directory.

    Raises:
        UnknownTopic: A topic or partition doesn't exist.
        MissingFile: The topics file lists one of the partitions, but it has no directory.
    """
    for error in absent_errors(log_dir, topics):
        raise MissingFile(error.path, error.operation, f"{error.reason}; {MISSING_ADVICE}")
    return list_partitions(log_dir, topics)


def absent_errors(
    log_dir: LogDir, topics: str | TopicPartition | Iterable[str | TopicPartition] | None
) -> Iterator[MissingFile]:
    """Yield an error for each topic if chosen partitions are listed but have no directory."""
    for topic, chosen in _chosen(log_dir, topics).items():
        if error := absent_error(log_dir.path, log_dir.topic(topic), chosen):
            yield error


def _check_exist(log_dir: LogDir, topic: str, numbers: Iterable[int]) -> None:
    info = log_dir.topic(topic)
    count = info.partitions
    for number in sorted(numbers):
        if not 0 <= number < count:
            raise unknown_partition(topic, count, number)
        if info.foreign and number not in info.present:
            raise not_here_error(log_dir.path, info, number)


@dataclass(frozen=True, slots=True)
class _How:
    """Options of a plan: what its reader needs, and where zone maps may be cached."""

    with_append_times: bool = False
    counts: bool = False
    zone_cache: str | None = None
    max_offsets: int = INT64_MAX
    strict: bool = False


@dataclass(frozen=True, slots=True)
class _Draft:
    """A partition's pieces before they are cut into splits."""

    name: TopicPartition
    reader: LogView
    bounds: Bounds
    uncut: list[UncutPiece]
    log_bytes: int
    sidecar_bytes: int
    has_skipped: bool
    notes: tuple[str, ...] = ()


class _Planner:
    """Makes drafts of partitions, and plans from these drafts."""

    def __init__(self, log_dir: LogDir, question: Question, how: _How) -> None:
        self._log_dir = log_dir
        self._question = question
        self._how = how
        cache, files = how.zone_cache, log_dir.env.files
        self._zone_cache = None if cache is None else ZoneCache(files, cache)
        self._topic_ids: dict[str, str] = {}

    def topic_id(self, topic: str) -> str:
        """Return the topic's id as 32 hexadecimal digits, "" if it has none."""
        if topic not in self._topic_ids:
            topic_id = self._log_dir.topic(topic).topic_id
            self._topic_ids[topic] = "" if topic_id is None else topic_id.hex
        return self._topic_ids[topic]

    def draft(
        self,
        name: TopicPartition,
        requested_range: RequestedRange,
        time_range: tuple[int, int] | None = None,
    ) -> _Draft:
        """Find the pieces of a partition in its current files.

        Args:
            name: The partition.
            requested_range: Requested offsets and times of the partition.
            time_range: Replaces the times in `requested_range` if given.
        """
        reader = self._log_dir.reader(name.topic, name.partition)
        bounds = resolve(reader, requested_range, self._question, slack_ms=reader.append_slack_ms)
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
        notes = append_time_notes(reader, requested_range, self._question, bounds.start)
        return _Draft(name, reader, bounds, uncut, *sizes, finder.has_skipped, notes)

    def drafts(
        self,
        names: Iterable[TopicPartition],
        everywhere: RequestedRange,
        single: Mapping[TopicPartition, RequestedRange],
    ) -> list[_Draft]:
        """Draft partitions; unset fields of `single` are taken from `everywhere`.

        Raises InvalidRequest if a range limits timestamps without also limiting append times.
        """
        unset = RequestedRange()
        ranges = {name: single.get(name, unset).filled_from(everywhere) for name in names}
        for one in ranges.values():
            ensure_two_clocks(one, self._question.clock)
        return [self.draft(name, one) for name, one in ranges.items()]

    def plan(self, drafts: list[_Draft], target_bytes: int) -> ScanPlan:
        """Return the plan of these drafts, in splits of about `target_bytes`."""
        return ScanPlan(
            splits=tuple(split for draft in drafts for split in self._cut(draft, target_bytes)),
            lost=tuple(one for draft in drafts for one in draft.bounds.lost),
            bounds={draft.name: (draft.bounds.start, draft.bounds.end) for draft in drafts},
            log_bytes=sum(draft.log_bytes for draft in drafts),
            sidecar_bytes=sum(draft.sidecar_bytes for draft in drafts),
            has_skipped=any(draft.has_skipped for draft in drafts),
            reports=(*self._log_dir.reports, *(note for one in drafts for note in one.notes)),
        )

    def plan_least(
        self, drafts: list[_Draft], split_bytes: int, least: int, min_split_bytes: int
    ) -> ScanPlan:
        """Return a plan with at least `least` splits (`min_splits`), if there is enough to read."""
        total = sum(uncut.piece.size_bytes for draft in drafts for uncut in draft.uncut)
        size = target_bytes(total, split_bytes, least)
        plan = self.plan(drafts, size)
        if not plan.splits:
            return plan
        while len(plan) < least and size // 2 >= max(min_split_bytes, _TARGET_BYTES_MIN):
            size //= 2
            plan = self.plan(drafts, size)
        if min_split_bytes:
            return plan
        # The plan still has too few splits, because the log has a few large batches. Cut these
        # batches by offsets, so that several tasks read the same batch.
        spans = (u.piece.end_offset - u.piece.start_offset for d in drafts for u in d.uncut)
        limit = max(sum(spans) // least, 1)
        while len(plan) < least and limit < self._how.max_offsets:
            self._how = dataclasses.replace(self._how, max_offsets=limit)
            plan = self.plan(drafts, size)
            limit = max(limit // 2, 1)
        return plan

    def whole(self, draft: _Draft) -> Split:
        """Return the draft as one split."""
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
            timestamps=draft.bounds.timestamps,
            isolation=self._question.isolation,
            aborted=tuple(touching),
        )

    def _aborted(self, reader: LogView, start: int, end: int) -> tuple[AbortedSpan, ...]:
        """Return the aborted transactions that overlap [start, end).

        The abort markers of these transactions may be far after `end`.
        """
        if self._question.isolation is IsolationLevel.READ_UNCOMMITTED or start >= end:
            return ()
        indexes = (each.txn_index for each in reader.segments if each.end_offset > start)
        return tuple(
            AbortedSpan(each.producer_id, each.first_offset, each.last_offset)
            for each in aborted_between(indexes, start, end)
        )
