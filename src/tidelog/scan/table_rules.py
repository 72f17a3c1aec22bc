"""Rule for the latest record of a key, and whether a table as of an earlier time is exact.

The rule ranks a key's records by offset, by timestamp, or by a version in a header. The rule comes
from the topic's compaction settings. Compaction removes older records of a key, so tables as of
earlier times may be inexact. The file `compaction-history` stores the earliest time for which
tables are exact. Retention and DeleteRecords remove the start of the log. All records of some keys
may have been in this part of the log. So after such a removal, a table as of an earlier time may
lack keys. A table of the current state contains only the current log, so it is exact, unless a
partition's directory is missing.

Source: KIP-280.
"""

from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from tidelog.amounts import plural, ranges_text, verb
from tidelog.errors import ConfigError, CorruptFile, InexactTable, with_times
from tidelog.lazy_dataclass import dataclass
from tidelog.storage import files, text_files
from tidelog.storage.compaction.cleaning_plan import is_whole
from tidelog.storage.segment.compaction_history import HISTORY_FILE, load_history, read_history
from tidelog.storage.segment.log_end import has_copied_gaps
from tidelog.timespec import format_ms
from tidelog.types import INT64_MIN, ClockName, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tidelog.storage.directory.log_dir import LogDir
    from tidelog.storage.log.log_reader import LogView


# Choices for a table that is no longer exact as of the requested time: raise an error, or mark the
# table.
REFUSE: Final = "refuse"

MARK: Final = "mark"

# Reason why a table may be inexact: the directory of a partition was lost or was not copied.
_ABSENT: Final = f"listed in {files.TOPICS_FILE}, but without a directory"


@dataclass(frozen=True, slots=True)
class Doubt:
    """Reason why a partition's table as of a time may differ from its real state at that time.

    Attributes:
        partition: The partition.
        reason: What is missing or unknown.
        exact_since_ms: Earliest time, on the chosen clock, for which the table is exact; None if
            unknown.
        kind: The reason without the partition's offset and time; empty if the reason has neither.
    """

    partition: TopicPartition
    reason: str
    exact_since_ms: int | None = None
    kind: str = ""

    def __str__(self) -> str:
        return f"{self.partition}: {self.reason}"


def refuse(doubts: "Sequence[Doubt]", at_ms: int | None) -> InexactTable:
    """Return the error for an inexact table; `at_ms` is None for the table of the whole log."""
    as_of = "" if at_ms is None else f" as of {_time(at_ms)}"
    is_absent = any(doubt.reason == _ABSENT for doubt in doubts)
    remedy = "Only the table of the current log (without a time) is exact: use that"
    if is_absent:
        remedy = "Restore the directories"
    elif _since(doubts) is not None:
        remedy = "Choose a later time"
    error = InexactTable(
        f"can't determine the table{as_of} exactly: {'; '.join(by_reason(doubts))}."
        f" {remedy}, or allow an inexact table (inexact=mark)",
        exact_since_ms=_since(doubts),
    )
    times_ms = (at_ms, *(doubt.exact_since_ms for doubt in doubts))
    return with_times(error, *(ms for ms in times_ms if ms is not None))


def by_reason(doubts: "Iterable[Doubt]") -> list[str]:
    """Return one text for each kind of reason, with the partitions that have this reason.

    All partitions belong to the same topic.
    """
    kinds: dict[str, list[Doubt]] = {}
    for doubt in doubts:
        kinds.setdefault(doubt.kind or doubt.reason, []).append(doubt)
    return [_text_of(kind, group) for kind, group in kinds.items()]


def _text_of(kind: str, group: "Sequence[Doubt]") -> str:
    # From the latest `exact_since_ms` in the group on, the tables of all partitions in the group
    # are exact.
    latest = max(group, key=lambda doubt: doubt.exact_since_ms or 0)
    if len(group) == 1:
        return str(latest)
    is_common = _since(group) is not None or all(one.reason == latest.reason for one in group)
    numbers = ranges_text(doubt.partition.partition for doubt in group)
    reason = latest.reason if is_common else kind
    return f"{latest.partition.topic}, partitions {numbers}: {reason}"


def _since(doubts: "Sequence[Doubt]") -> int | None:
    since_times = [doubt.exact_since_ms for doubt in doubts]
    times = [ms for ms in since_times if ms is not None]
    return max(times) if times and len(times) == len(since_times) else None


def deleted_doubt(name: TopicPartition, log_start_offset: int) -> Doubt | None:
    """Return a doubt if the start of a log was deleted; None if no record was deleted there."""
    if not log_start_offset:
        return None
    effect = "were deleted (retention, DeleteRecords), possibly all records of some keys"
    reason = f"records below offset {log_start_offset} {effect}"
    return Doubt(name, reason, kind=f"records at the start {effect}")


def without_time_doubt(name: TopicPartition, count: int, clock: ClockName) -> Doubt | None:
    """Return a doubt if `count` records have no time on the clock; None if `count` is 0."""
    if not count:
        return None
    records = f"{plural(count, 'record')} {verb(count, 'has', 'have')}"
    return Doubt(name, f"{records} no {clock.known_time_name}, and may belong to the table")


def directory_doubts(
    log_dir: "LogDir", name: TopicPartition, at_ms: int | None, clock: ClockName
) -> list[Doubt]:
    """Return the reasons why a partition's table may be inexact; reads no records."""
    if name.partition not in log_dir.topic(name.topic).present:
        return [Doubt(name, _ABSENT)]
    if at_ms is None:
        return []
    reader = log_dir.reader(name.topic, name.partition)
    doubts = [
        deleted_doubt(name, reader.log_start_offset),
        _compaction_doubt(log_dir, reader, at_ms, clock),
    ]
    return [doubt for doubt in doubts if doubt is not None]


def _compaction_doubt(
    log_dir: "LogDir", reader: "LogView", at_ms: int, clock: ClockName
) -> Doubt | None:
    name, directory = reader.topic_partition, reader.context.directory
    history = read_history(log_dir.env.files, directory)
    is_copied = has_copied_gaps(log_dir.env.files, directory)
    if history is not None and not is_copied:
        return _before(name, history.exact_since_ms(clock), at_ms, clock)
    has_file = log_dir.env.files.exists(f"{directory}/{HISTORY_FILE}")
    # A cleaner other than tidelog's may have run. In this case, gaps in the offsets show whether
    # any record is missing.
    if has_file or is_copied or _may_be_cleaned(log_dir, name):
        if not has_file and is_whole(reader.segments, reader.log_start_offset):
            return None
        keeps = "a cleaner that keeps"
        if is_copied:
            keeps = "the leader from which it was copied; this copy has"
        return Doubt(name, f"was compacted by {keeps} no history of removed records")
    return None


def _before(
    name: TopicPartition, since_ms: int | None, at_ms: int, clock: ClockName
) -> Doubt | None:
    if since_ms is None:
        return Doubt(
            name,
            f"records were compacted or erased; the {clock.time_name} from which the table is exact"
            " is unknown",
        )
    if at_ms >= since_ms:
        return None
    kind = "records were compacted or erased"
    since = f"the table is exact from {_time(since_ms)} on ({clock} clock)"
    return Doubt(name, f"{kind}; {since}", since_ms, kind)


def compacted_to(log_dir: "LogDir", name: TopicPartition) -> int:
    """Return the offset below which compaction may have removed records; 0 for no compaction.

    tidelog's cleaner stores this offset before it removes records; Apache Kafka's cleaner stores
    the offset shortly after it has removed records.
    """
    fs, offset = log_dir.env.files, 0
    with suppress(CorruptFile):
        history = load_history(fs, f"{log_dir.path}/{files.partition_dir_name(name)}")
        offset = 0 if history is None else history.end_offset
    path = f"{log_dir.path}/{files.CLEANER_CHECKPOINT_FILE}"
    # A damaged file counts as empty. The next compaction rewrites it.
    with suppress(CorruptFile, FileNotFoundError):
        offset = max(offset, text_files.read_offset_checkpoint(fs, path).get(name, 0))
    return offset


def _may_be_cleaned(log_dir: "LogDir", name: TopicPartition) -> bool:
    """Return whether a cleaner without `compaction-history` may have compacted the partition.

    Cleaners write their progress to the directory's checkpoint. A partition that was copied from
    another directory may have no entry in the checkpoint.
    """
    path = f"{log_dir.path}/{files.CLEANER_CHECKPOINT_FILE}"
    if not log_dir.env.files.exists(path):
        return log_dir.topic(name.topic).foreign
    return text_files.read_offset_checkpoint(log_dir.env.files, path).get(name, 0) > 0


def _time(ms: int) -> str:
    try:
        return format_ms(ms)
    except (ValueError, OverflowError):
        return f"{ms} ms"


STRATEGY_KEY: Final = "tidelog.compaction.strategy"
HEADER_KEY: Final = "tidelog.compaction.strategy.header"

# A record with a version wins against all records without a version.
MISSING_VERSION: Final = INT64_MIN


class Strategy(StrEnum):
    """Rule for the latest record of a key; if timestamps or versions are equal, offsets decide."""

    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    HEADER = "header"


@dataclass(frozen=True, slots=True)
class Ranking:
    """Compaction rule of a topic.

    Attributes:
        strategy: The property that decides which record of a key is the latest.
        header: Name of the header with the version, for Strategy.HEADER.
    """

    strategy: Strategy = Strategy.OFFSET
    header: str = ""


def ranking_of(settings: Mapping[str, str]) -> Ranking:
    """Return the compaction rule from a topic's settings.

    Raises:
        ConfigError: The strategy is unknown; or it is `header`, and the header's name is missing.
    """
    text = settings.get(STRATEGY_KEY) or Strategy.OFFSET
    if text not in set(Strategy):
        raise ConfigError(STRATEGY_KEY, text, f"one of {', '.join(Strategy)}")
    strategy, header = Strategy(text), settings.get(HEADER_KEY) or ""
    if strategy is Strategy.HEADER and not header:
        raise ConfigError(HEADER_KEY, header, "the name of the header that holds the version")
    return Ranking(strategy, header if strategy is Strategy.HEADER else "")
