"""Keys of which compaction may have taken records before the cut away, for ones behind it.

An audit compares what logs have before an offset, or in a range of time. Where a log is compacted
beyond that, a key's record may have gone for one that is not compared, and the key looks missing,
or older than it was. Whatever a cleaning took went for a record that is still there, or that went
for a later one. So the keys of the records that are not compared are those that may lack something;
what lies behind the place up to which they were read has to be read too where a cleaning went
beyond it meanwhile.

A directory tells how far it was cleaned. Of brokers, and of a cleaner that keeps no history, all
that lies behind the cut counts.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tidelog.scan.plan import with_directory
from tidelog.scan.table_doubts import compacted_to
from tidelog.spark.jobs.audit_plan import Question, ReadPart, Side, SidePlan, plan_side
from tidelog.spark.jobs.audit_state import Run
from tidelog.spark.jobs.latency import directory_env
from tidelog.storage.compaction.history import is_whole
from tidelog.storage.compaction_history import HISTORY_FILE, read_history
from tidelog.types import INT64_MAX, ClockName, TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.log_dir import LogDir

Times = tuple[int | None, int | None]
# Reads parts of a side, of records in a range of time [start, end) alone.
Read = Callable[[Sequence[ReadPart], Times], list[Run]]

# What comes while the last round is read is seconds old; a log that says how far it was cleaned
# needs a second one only where a cleaning ended in the first.
_ROUNDS: Final = 5
_NO_TIMES: Final[Times] = (None, None)
_NOTHING: Final = (0, 0)


def look_behind(
    side: Side, plan: SidePlan, topics: Collection[str], question: Question, read: Read
) -> list[Run]:
    """Runs of the records of one side that are not compared, where these may have cost others.

    Args:
        side: Which one.
        plan: How it was read.
        topics: Its topics that are asked about; others than compacted ones lack nothing.
        question: What was read.
        read: Reads.

    Raises:
        UnknownTopic, CorruptData, ClusterFailure, StorageFailure: As a read of these topics.
    """
    topics = plan.compacted.intersection(topics)
    asked = {name: cut for name, cut in plan.cuts.items() if name.topic in topics}
    ends = {name: end for name, (_, end) in asked.items()}
    found: list[Run] = []
    for number in range(_ROUNDS):
        has_times = question.has_times and number == 0
        doubtful = _doubtful(side, asked, ends, question if has_times else None)
        beyond = {name: ends[name] for name in doubtful}
        planned = _plan(side, asked, beyond, question, _NO_TIMES)
        found += read(planned.parts, _NO_TIMES)
        if has_times:
            starts = {name: asked[name][0] for name in doubtful}
            for times in _outside(question):
                found += read(_plan(side, asked, starts, question, times).parts, times)
        elif not planned.parts:
            break
        ends |= {name: planned.cuts[name][1] for name in doubtful if name in planned.cuts}
    return found


def _outside(question: Question) -> list[Times]:
    """The times that were not asked for."""
    found: list[Times] = []
    if question.start_ms is not None:
        found.append((None, question.start_ms))
    if question.end_ms is not None:
        found.append((question.end_ms, None))
    return found


def _plan(
    side: Side,
    asked: Iterable[TopicPartition],
    starts: Mapping[TopicPartition, int],
    question: Question,
    times: Times,
) -> SidePlan:
    """What some partitions of those asked about have from an offset on, at these times."""
    if not starts:
        return SidePlan()
    limits = {name: (starts[name], INT64_MAX) if name in starts else _NOTHING for name in asked}
    topics = sorted({name.topic for name in starts})
    wanted = replace(question, start_ms=times[0], end_ms=times[1])
    return plan_side(replace(side, limits=limits), topics, wanted, ())


def _doubtful(
    side: Side,
    cuts: Mapping[TopicPartition, tuple[int, int]],
    ends: Mapping[TopicPartition, int],
    times: Question | None,
) -> list[TopicPartition]:
    """The partitions that may lack something for what lies at the ends, or at other times."""
    if side.place.is_broker or not cuts:
        return sorted(cuts)

    def look(log_dir: "LogDir") -> list[TopicPartition]:
        return [n for n in sorted(cuts) if _may_lack(log_dir, n, cuts[n][0], ends[n], times)]

    return with_directory(side.place.address, directory_env(side.place), look)


def _may_lack(
    log_dir: "LogDir", name: TopicPartition, start: int, end: int, times: Question | None
) -> bool:
    reader, fs = log_dir.reader(name.topic, name.partition), log_dir.env.files
    directory = reader.context.directory
    if not fs.exists(f"{directory}/{HISTORY_FILE}"):
        # Apache Kafka's cleaner tells how far it went when it is through. The last segment is not
        # cleaned, nor is anything taken for what lies in it.
        if times is None and reader.segments[-1].base_offset <= end:
            return False
        before = [each for each in reader.segments if each.base_offset < end]
        return not is_whole(before, reader.log_start_offset)
    reached = compacted_to(log_dir, name)
    if reached > end or times is None:
        return reached > end
    if times.start_ms is None and times.end_ms is not None:
        history = read_history(fs, directory)
        since_ms = None if history is None else history.exact_since_ms(ClockName.RECORD)
        if since_ms is not None and since_ms < times.end_ms:
            return False
    return reached > start
